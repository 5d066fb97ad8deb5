"""What is left for the probes, when they report it, and that it never restarts the sidecar."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sidecar.parts import PROGRAM, wait_until
from webhook.adapters import processes
from webhook.core.admission.sidecar.container import _LIVENESS as LIVENESS
from webhook.sidecar import heartbeat
from webhook.sidecar.heartbeat import PASSED_WITHIN_S, Heartbeat, answer, leave_verdict, one_line
from webhook.sidecar.journal import EnforcerJournal

GUARDING = (0, "guarding\n")
PERIOD_S, TIMEOUT_S = LIVENESS["periodSeconds"], LIVENESS["timeoutSeconds"]


class Clock:
    """A time that passes when it is set to."""

    def __init__(self, monkeypatch):
        self.now_s = 1000.0
        time = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep)
        monkeypatch.setattr(heartbeat, "time", time)

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def asked(folder, kind="liveness"):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = answer(str(folder), kind, 0)
    return code, said.getvalue()


def beat(folder):
    Heartbeat(str(folder), 1.0).beat()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_verdict_is_reported_once_after_a_probe_that_passed(tmp_path):
    beat(tmp_path)
    leave_verdict(str(tmp_path), "stopping a process: why")
    assert [asked(tmp_path) for _ in range(4)] == [
        GUARDING, (1, "stopping a process: why\n"), GUARDING, GUARDING,
    ]  # fmt: skip
    assert names(tmp_path) == ["heartbeat", "passed"]


def test_verdict_upon_verdict_makes_every_second_probe_report(tmp_path):
    beat(tmp_path)
    codes = []
    for number in range(8):
        leave_verdict(str(tmp_path), f"verdict {number}")
        codes.append(asked(tmp_path)[0])
    assert codes == [0, 1] * 4


@pytest.mark.parametrize(("ago_s", "code"), [(0, 1), (39.9, 1), (40.1, 0), (1e6, 0)])
def test_a_pass_of_long_ago_does_not_let_a_probe_report(ago_s, code, tmp_path, clock):
    beat(tmp_path)
    asked(tmp_path)
    leave_verdict(str(tmp_path), "why")
    clock.now_s += ago_s
    beat(tmp_path)
    assert asked(tmp_path)[0] == code


@pytest.mark.parametrize("text", ["", "nan", "soon", "9" * 5000])
def test_a_pass_that_tells_no_time_does_not_let_a_probe_report(text, tmp_path):
    beat(tmp_path)
    leave_verdict(str(tmp_path), "why")
    (tmp_path / "passed").write_text(text, encoding="ascii")
    assert asked(tmp_path)[0] == (1 if text.startswith("9") else 0)


def test_a_stale_heartbeat_is_what_a_probe_says_and_the_verdict_stays(tmp_path, clock):
    beat(tmp_path)
    asked(tmp_path)
    leave_verdict(str(tmp_path), "why")
    clock.now_s += 20
    want = (1, "the last observation was 20 s ago, more than 15: stuck or stopped\n")
    assert asked(tmp_path) == want
    beat(tmp_path)
    assert [asked(tmp_path), asked(tmp_path)] == [GUARDING, (1, "why\n")]


def test_a_startup_probe_reports_no_verdict_and_does_not_count_as_a_pass(tmp_path):
    beat(tmp_path)
    leave_verdict(str(tmp_path), "why")
    assert [asked(tmp_path, kind) for kind in ("startup", "startup", "liveness")] == [GUARDING] * 3
    assert asked(tmp_path, "startup") == GUARDING
    assert asked(tmp_path) == (1, "why\n")


@pytest.mark.parametrize("name", ["verdict.taken", "passed.taken", "verdict"])
def test_what_cannot_be_taken_away_is_not_reported(name, tmp_path):
    beat(tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / name / "file").touch()
    asked(tmp_path)
    leave_verdict(str(tmp_path), "why")
    assert [asked(tmp_path) for _ in range(3)] == [GUARDING] * 3


@pytest.mark.parametrize("call", ["replace", "unlink"])
def test_a_folder_that_cannot_be_written_never_fails_a_probe(call, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError

    beat(tmp_path)
    asked(tmp_path)
    leave_verdict(str(tmp_path), "why")
    monkeypatch.setattr(heartbeat, "os", SimpleNamespace(**vars(os) | {call: fail}))
    assert [asked(tmp_path) for _ in range(3)] == [GUARDING] * 3


@pytest.mark.parametrize("letter", ["x", "é", "語", "😀"])
@pytest.mark.parametrize("shift", range(4))
def test_a_report_and_the_kubelets_words_fit_an_event_of_each_api(letter, shift, tmp_path):
    beat(tmp_path)
    asked(tmp_path)
    leave_verdict(str(tmp_path), "." * shift + letter * 5000)
    _, said = asked(tmp_path)
    assert 996 < len(said.strip().encode()) <= 1000
    assert len(f"Liveness probe failed: {said}".encode()) <= 1024
    assert said.endswith(f"{letter}\n")


def test_the_program_prints_any_letters_in_a_container_without_a_locale(tmp_path):
    beat(tmp_path)
    asked(tmp_path)
    leave_verdict(str(tmp_path), "process 7\n (語 é\t\x1b[31m \udc80)")
    command = [sys.executable, *PROGRAM, "--probe", "liveness", "--run-folder", str(tmp_path)]
    ended = subprocess.run(command, env={}, capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, b"")
    assert ended.stdout.decode() == "process 7 (語 é [31m )\n"


@given(st.text() | st.text(st.characters(), max_size=3000))
def test_any_text_becomes_one_printable_line_that_is_utf_8(text):
    line = one_line(text)
    assert line.isprintable()
    assert line == " ".join(line.split(" "))
    assert len(line.encode()) <= 1000
    assert line == one_line(line) or len(line.encode()) > 990


def test_a_verdict_is_left_before_its_event_is_written_and_only_where_it_is_to_be(tmp_path):
    beat(tmp_path)
    seen = []

    class Watched(EnforcerJournal):
        def event(self, *_, **__):
            seen.append((tmp_path / "verdict").exists())

    journal = Watched(-1, "", str(tmp_path))
    journal.verdict("info", "self-test", "all is well", report=False)
    journal.verdict("error", "cannot measure", "why")
    assert seen == [False, True]
    Watched(-1, "").verdict("error", "cannot measure", "another")
    assert (tmp_path / "verdict").read_text(encoding="utf-8") == "cannot measure: why"


def test_a_waiting_startup_probe_that_is_killed_has_said_what_it_waits_for(tmp_path):
    out = tmp_path / "out"
    command = [*PROGRAM, "--probe", "startup", "--wait", "60", "--run-folder", str(tmp_path)]
    with out.open("wb") as stdout:
        waiting = subprocess.Popen([sys.executable, *command], stdout=stdout)
    wait_until(out.read_bytes)
    waiting.send_signal(signal.SIGKILL)
    waiting.wait()
    assert out.read_bytes() == b"not guarding yet: the self-test has not finished"


def test_a_failure_without_its_words_is_as_none(tmp_path):
    me = processes.identify(os.getpid())
    for text in ("", "1", f"{me.pid} {me.started}"):
        (tmp_path / "failure").write_text(text, encoding="ascii")
        assert asked(tmp_path)[1] == "not guarding yet: the self-test has not finished\n"


def test_a_failed_self_test_is_told_in_place_of_a_guard_that_is_over(tmp_path):
    beat(tmp_path)
    line = (tmp_path / "heartbeat").read_text(encoding="ascii").split()
    line[1] = "1"
    (tmp_path / "heartbeat").write_text(" ".join(line), encoding="ascii")
    assert "which guarded, is over" in asked(tmp_path, "startup")[1]
    heartbeat.leave_failure(str(tmp_path), "no driver")
    assert asked(tmp_path, "startup") == (1, "the self-test failed: no driver\n")


def test_the_numbers_leave_room_for_a_report():
    assert LIVENESS["failureThreshold"] >= 3
    assert PERIOD_S + TIMEOUT_S <= PASSED_WITHIN_S < 3 * PERIOD_S - TIMEOUT_S


MOMENTS = st.fixed_dictionaries(
    {
        "answers": st.booleans() | st.just(value=True),  # or times out, and runs nothing of ours
        "beats": st.booleans() | st.just(value=True),
        "verdict": st.booleans(),
        "after_s": st.sampled_from([0.0, 1.0, 3.0, TIMEOUT_S - 0.1]),
    }
)


@given(st.lists(MOMENTS, max_size=14))
def test_no_report_is_ever_the_failure_that_restarts_the_sidecar(tmp_path_factory, moments):
    """Play the kubelet: failures in a row, where it counts each that it sees."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        beat(folder)
        row = []
        for number, moment in enumerate(moments):
            clock.now_s = 1000 + number * PERIOD_S + moment["after_s"]
            if moment["verdict"]:
                leave_verdict(str(folder), "a verdict")
            if moment["beats"]:
                beat(folder)
            stale = clock.now_s - float((folder / "heartbeat").read_text().split()[2]) > 15
            code, said = asked(folder) if moment["answers"] else (1, "timed out")
            row = [*row, said] if code else []
            if not moment["answers"]:
                continue
            assert code == 1 or not stale
            if said == "a verdict\n":
                assert not stale
                assert len(row) < LIVENESS["failureThreshold"]
                assert row.count(said) == 1
            elif code:
                assert said.startswith("the last observation was ")
