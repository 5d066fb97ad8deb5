"""SIGTERM ends the real program at once in any state, and leaves nothing half-written."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.sidecar.parts import CAP, PROGRAM, Ground, events_of

INIT, VERSION = "nvmlInitWithFlags", "nvmlSystemGetDriverVersion"
MEMORY, LISTS = "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("function", "guards"),
    [(INIT, False), (VERSION, False), (LISTS, False), (MEMORY, True)],
    ids=["starting", "asked for its version", "listing", "guarding"],
)
def test_a_driver_that_hangs_does_not_hold_up_the_end(function, guards, number, pod):
    def incident(p, function, guards, number):
        if guards:
            p.guard(by=PROGRAM)
            p.hold(function)
        else:
            p.script(f"hold {function}")
            p.enforcer = p.start(by=PROGRAM)
            p.wait_until(lambda: p.calls("held"))
        for _ in range(3):  # repeated signals have no effect
            p.enforcer.send_signal(number)
        return p.end(), p.messages, p.probe()[1].removeprefix(f"process {p.enforcer.pid}")

    guarded = ["self-test", "stopped"], ", which guarded, is over; no other has taken its place yet"
    never = ["stopped"], "not guarding yet: the self-test has not finished"
    assert pod.run(incident, function, guards, number) == [0, *(guarded if guards else never)]


def test_whenever_the_signal_comes_the_program_ends_and_nothing_is_half_written(tmp_path):
    """The signal comes after this number of imports, or more on a busy machine.

    Before the program can handle the signal the kernel ends it, with nothing done.
    """
    codes = set()
    for number in range(0, 150, 5):
        folder = tmp_path / str(number)
        folder.mkdir()
        ground = Ground(folder, library=folder)
        with subprocess.Popen(
            [sys.executable, "-X", "importtime", *PROGRAM, *ground.options],
            env=ground.environment | CAP,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as program:  # fmt: skip
            lines = [""]
            while len(lines) <= number and not lines[-1].endswith("| webhook.sidecar.program\n"):
                lines.append(program.stderr.readline())
            program.send_signal(signal.SIGTERM)
            said, errors = program.communicate(timeout=60)
        lines = [*lines[1:], *errors.splitlines()]
        assert {line.partition(":")[0] for line in lines} <= {"import time"}
        message = ground.termination_log.read_text(encoding="utf-8")
        assert message == "" or message.endswith("\n")
        events = [event["msg"] for event in events_of(said)]
        if program.returncode == -signal.SIGTERM:
            assert (events, message) == ([], "")
        else:
            assert program.returncode == 0
            assert events in (["stopped"], ["self-test", "stopped"])
            assert bool(message) == (len(events) > 1)
        codes.add(program.returncode)
    assert 0 in codes


@pytest.mark.parametrize("call", ["open", "write", "ftruncate", "close"])
def test_a_verdict_that_is_being_written_is_finished_first(call, tmp_path):
    code = f"""
import os, signal, sys, time
from types import SimpleNamespace
from webhook.sidecar import journal
from webhook.sidecar.shutdown import exit_on_signals

ours = journal.EnforcerJournal(1, sys.argv[1], sys.argv[2])
exit_on_signals(ours)
ours.verdict("error", "cannot measure", "x" * 50)

def slow(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    return os.{call}(*arguments)

journal.os = SimpleNamespace(**vars(os) | {{"{call}": slow}})
ours.verdict("info", "measuring again", "all is well")
while True:
    signal.pause()
"""
    log = tmp_path / "termination-log"
    log.touch()
    ended = run(code, log, tmp_path)
    assert [event["msg"] for event in events_of(ended.stdout)] == [
        "cannot measure", "measuring again", "stopped",
    ]  # fmt: skip
    assert log.read_text(encoding="utf-8") == "measuring again: all is well\n"
    assert (tmp_path / "verdict").read_text(encoding="utf-8").endswith(" all is well\n")


def test_a_verdict_that_cannot_be_written_holds_up_the_end_for_a_moment_only(tmp_path):
    code = """
import os, signal, sys, time
from types import SimpleNamespace
from webhook.sidecar import journal
from webhook.sidecar.shutdown import exit_on_signals

def hang(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)

ours = journal.EnforcerJournal(1, sys.argv[1])
exit_on_signals(ours)
journal.os = SimpleNamespace(**vars(os) | {"write": hang})
ours.verdict("error", "cannot measure", "a disk that hangs")
"""
    log = tmp_path / "termination-log"
    log.touch()
    ended = run(code, log)
    assert [json.loads(line)["msg"] for line in ended.stdout.splitlines()] == ["stopped"]


@pytest.mark.parametrize("threads", [True, False], ids=["", "no more threads"])
def test_final_figures_are_written_and_a_disk_that_hangs_holds_them_up_for_a_moment_only(
    threads, tmp_path
):
    code = """
import os, signal, sys, time
from types import SimpleNamespace
from webhook.sidecar import journal, shutdown

ours = journal.EnforcerJournal(1, sys.argv[1])
ours.final_figures = lambda: ("ended\\n", {"why": "all is well"})
shutdown.exit_on_signals(ours)
if sys.argv[2] == "False":
    def start_new_thread(*_):
        raise RuntimeError("no more")
    replaced = {"start_new_thread": start_new_thread}
    shutdown._thread = SimpleNamespace(**vars(shutdown._thread) | replaced)
if sys.argv[3] == "hangs":
    journal.os = SimpleNamespace(**vars(os) | {"ftruncate": lambda *_: time.sleep(600)})
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(600)
"""
    for how in ("works", "hangs") if threads else ("works",):
        log = tmp_path / how
        log.touch()
        ended = run(code, log, threads, how)
        said = [event["msg"] for event in events_of(ended.stdout)]
        assert said == (["last words", "stopped"] if how == "works" else ["stopped"])
        assert log.read_text(encoding="utf-8") == "ended\n"


def run(code, *arguments):
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended
