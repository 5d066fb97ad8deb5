"""Arithmetic of the bench, and its reason to continue without a baseline."""

from __future__ import annotations

import pytest

from tests.bench import baseline, settings
from tests.bench.figures import TICK_S, cpu_s, percentile, ratio, resident_bytes, times

STAT = "{pid} (a (strange) name) S 1 1 1 0 -1 4194560 7 0 0 0 {user} {system} 99 99 20 0 1 0 5 0 0"

NO_COMMIT = (
    "git has no commit no-such-commit here; fetch it (`git fetch --unshallow` in a shallow clone) "
    "or name another by BENCH_BASELINE"
)


@pytest.fixture
def proc(tmp_path):
    """Return a /proc with a process of two threads, each with a child, and one grandchild."""
    children = {10: {10: "11", 12: "13"}, 11: {11: ""}, 13: {13: "14"}, 14: {14: ""}}
    for pid, threads in children.items():
        for thread, listed in threads.items():
            task = tmp_path / str(pid) / "task" / str(thread)
            task.mkdir(parents=True)
            (task / "children").write_text(listed)
        folder = tmp_path / str(pid)
        (folder / "stat").write_text(STAT.format(pid=pid, user=pid, system=1))
        (folder / "smaps_rollup").write_text(f"0-1 rollup\nPss: 9 kB\nPss_Anon: {pid} kB\n")
        (folder / "status").write_text(f"VmRSS:\t99 kB\nRssAnon:\t9 kB\nRssFile:\t{pid * 10} kB\n")
    return tmp_path


def test_a_ratio_compares_round_by_round():
    assert ratio([10, 20, 300], [5, 5, 200]) == 2  # the machine was slow in the last round
    assert [ratio([3, 4], [0, 2]), ratio([3], [0])] == [2, None]
    with pytest.raises(ValueError, match="shorter"):
        ratio([1, 2], [1])


def test_a_percentile_is_one_of_the_values():
    values = list(range(100, 0, -1))
    assert [percentile(values, share) for share in (0, 0.5, 0.99, 1)] == [1, 51, 100, 100]
    assert percentile([7], 0.99) == 7


def test_a_ratio_is_written_with_its_sign():
    assert [times(2.0), times(0.456)] == ["x2.00", "x0.46"]
    assert [times(None), times(-1.0)] == ["-", "-"]  # an added latency may be negative


def test_cpu_is_that_of_a_process_and_of_all_that_descend_from_it(proc):
    assert cpu_s(10, proc) == pytest.approx((10 + 11 + 13 + 14 + 4) * TICK_S)
    assert cpu_s(13, proc) == pytest.approx((13 + 14 + 2) * TICK_S)


def test_memory_counts_file_pages_once(proc):
    assert resident_bytes(10, proc) == (10 + 11 + 13 + 14 + 140) * 2**10


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "BENCH_BASELINE is empty"),
        ("no-such-commit", NO_COMMIT),
    ],
)
def test_without_a_baseline_the_bench_goes_on_and_says_why(name, reason, monkeypatch, capsys):
    monkeypatch.setattr(settings, "BASELINE", name)
    assert baseline.sides() == [baseline.OURS]
    assert capsys.readouterr().out == f"baseline: skipped: {reason}\n"


def test_without_git_the_bench_goes_on_and_says_why(monkeypatch, capsys):
    monkeypatch.setattr(settings, "BASELINE", "HEAD")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert baseline.sides() == [baseline.OURS]
    assert capsys.readouterr().out == "baseline: skipped: there is no git\n"
