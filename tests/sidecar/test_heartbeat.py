"""What the kubelet's probes report, and by which heartbeat."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sidecar.parts import PROGRAM
from webhook.adapters import processes
from webhook.sidecar.heartbeat import Heartbeat, probe


def a_beat(folder, *, pid=None, started=None, ago_s=0.0, limit_s="15"):
    """Write a heartbeat as one of our own, except for what is given."""
    me = os.getpid()
    started = processes.identify(me).started if started is None else started
    line = f"{pid or me} {started} {time.monotonic() - ago_s:.3f} {limit_s}\n"
    (folder / "heartbeat").write_text(line, encoding="ascii")


def asked(folder, kind="startup"):
    command = [sys.executable, *PROGRAM, "--probe", kind, "--run-folder", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stderr == ""
    return ended.returncode, ended.stdout


@pytest.mark.parametrize("kind", ["startup", "liveness"])
def test_both_probes_pass_after_a_beat(kind, tmp_path):
    Heartbeat(str(tmp_path), 1.0).beat()
    assert asked(tmp_path, kind) == (0, "guarding\n")


@pytest.mark.parametrize("kind", ["startup", "liveness"])
def test_both_probes_fail_before_the_first_beat(kind, tmp_path):
    Heartbeat(str(tmp_path), 1.0)
    want = "not guarding yet: the self-test has not finished\n"
    assert asked(tmp_path, kind) == (1, want)


def test_a_folder_that_is_not_there_has_no_beat_either(tmp_path):
    assert probe(str(tmp_path / "none")).startswith("not guarding yet")
    with pytest.raises(FileNotFoundError):
        Heartbeat(str(tmp_path / "none"), 1.0).beat()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"1 2 3",
        b"1 2 3 4 5",
        b"1 2 now 15",
        b"1 2 3 soon",
        b"\xff\xfe 2 3 4",
        b"\0" * 9,
    ],
)
def test_a_malformed_heartbeat_fails_the_probe_with_the_reason(content, tmp_path):
    (tmp_path / "heartbeat").write_bytes(content)
    assert probe(str(tmp_path)).startswith(f"the heartbeat in {tmp_path} cannot be read: ")


def test_a_heartbeat_that_cannot_be_opened_fails_the_probe_with_the_reason(tmp_path):
    (tmp_path / "heartbeat").mkdir()
    assert "cannot be read: [Errno 21]" in probe(str(tmp_path))


@pytest.mark.parametrize(("beat", "limit"), [("nan", "15"), ("1", "nan"), ("nan", "nan")])
def test_a_beat_whose_age_is_no_number_is_not_believed(beat, limit, tmp_path):
    me = processes.identify(os.getpid())
    line = f"{me.pid} {me.started} {beat} {limit}\n"
    (tmp_path / "heartbeat").write_text(line, encoding="ascii")
    assert probe(str(tmp_path)).startswith("the last observation was ")


def test_a_beat_that_is_older_than_it_may_get_is_stale(tmp_path):
    a_beat(tmp_path, ago_s=100)
    why = r"the last observation was 10[0-9] s ago, more than 15: stuck or stopped"
    assert re.fullmatch(why, probe(str(tmp_path)))
    a_beat(tmp_path, ago_s=100, limit_s="180.000")
    assert probe(str(tmp_path)) == ""


@pytest.mark.parametrize(
    ("interval_s", "limit"), [(0.1, "15.000"), (5.0, "15.000"), (60.0, "180.000")]
)
def test_a_beat_may_get_as_old_as_three_looks_and_fifteen_seconds_at_least(
    interval_s, limit, tmp_path
):
    Heartbeat(str(tmp_path), interval_s).beat()
    assert (tmp_path / "heartbeat").read_text(encoding="ascii").split()[3] == limit


def test_a_process_that_guarded_and_is_over_is_not_believed(tmp_path):
    over = subprocess.Popen(["true"])
    over.wait()
    a_beat(tmp_path, pid=over.pid)
    assert probe(str(tmp_path)) == (
        f"process {over.pid}, which guarded, is over; no other has taken its place yet"
    )


def test_another_process_with_the_number_of_one_that_guarded_is_not_believed(tmp_path):
    a_beat(tmp_path, started=processes.identify(os.getpid()).started - 1)
    assert f"process {os.getpid()}, which guarded, is over" in probe(str(tmp_path))


def test_the_beat_of_a_previous_container_counts_until_nobody(tmp_path):
    code = (
        "import sys; from webhook.sidecar.heartbeat import Heartbeat, probe; "
        "Heartbeat(sys.argv[1], 60.0).beat(); print(probe(sys.argv[1]) or 'guarding')"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "guarding\n"
    before = probe(str(tmp_path))
    assert before.endswith("is over; no other has taken its place yet")
    ours = Heartbeat(str(tmp_path), 60.0)
    assert probe(str(tmp_path)) == before
    ours.beat()
    assert probe(str(tmp_path)) == ""


def test_a_beat_replaces_the_one_before_in_one_step(tmp_path):
    heart = Heartbeat(str(tmp_path), 1.0)
    heart.beat()
    first = (tmp_path / "heartbeat").open(encoding="ascii")
    with first:
        heart.beat()
        assert first.read().endswith("15.000\n")
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat"]


def test_the_start_time_is_told_as_everywhere_else_even_with_brackets_in_a_name(tmp_path):
    code = (
        "import os, sys, pathlib; pathlib.Path('/proc/self/comm').write_text('a) (b 1 2'); "
        "from webhook.adapters import processes; "
        "from webhook.sidecar.heartbeat import Heartbeat, probe; "
        "Heartbeat(sys.argv[1], 1.0).beat(); print(probe(sys.argv[1]) == '', "
        "processes.identify(os.getpid()).started)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    passed, started = ended.stdout.split()
    assert passed == "True"
    assert (tmp_path / "heartbeat").read_text(encoding="ascii").split()[1] == started


@given(st.binary(max_size=60) | st.lists(st.floats().map(str), max_size=5).map(" ".join))
def test_whatever_is_in_the_file_a_probe_answers_and_believes_nobody_else(
    tmp_path_factory, content
):
    folder = tmp_path_factory.getbasetemp()
    content = content if isinstance(content, bytes) else content.encode()
    Path(folder, "heartbeat").write_bytes(content)
    assert probe(str(folder))
