"""SIGTERM ends the real program at once, whatever it is doing, and leaves nothing half-written."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sidecar.parts import CAP, PROGRAM, Ground, a_ground, events_of, in_pod, wait_until

SOON_S = 20  # half a millisecond where nobody else wants the cores; a driver's call takes a minute
INIT = "delay nvmlInitWithFlags 60000\n"
VERSION = "delay nvmlSystemGetDriverVersion 60000\n"
MEMORY = "delay nvmlDeviceGetMemoryInfo_v2 60000\n"
LISTS = "delay nvmlDeviceGetComputeRunningProcesses_v3 60000\n"


@pytest.fixture
def ground(tmp_path, tmp_path_factory):
    return a_ground(tmp_path, tmp_path_factory)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("script", "beats"),
    [(INIT, False), (VERSION, False), (LISTS, False), (MEMORY, True)],
    ids=["starting", "asked for its version", "listing", "guarding"],
)
def test_a_driver_that_hangs_does_not_hold_up_the_end(script, beats, number, ground, monkeypatch):
    def scenario():
        import json  # noqa: PLC0415  # it runs elsewhere

        folder = Path(os.environ["GROUND_RUN_FOLDER"])
        stub = Path(os.environ["GROUND_STUB_FILE"])
        calls, said = folder / "calls", folder / "said"
        hangs = f"{stub.read_text(encoding='ascii')}{os.environ['HANGS']}"
        if not (beats := os.environ["BEATS"]):
            stub.write_text(hangs, encoding="ascii")
        environment = json.loads(os.environ["GROUND_ENVIRONMENT"])
        program = subprocess.Popen(
            json.loads(os.environ["GROUND_COMMAND"]),
            env={**environment, "NVML_STUB_LOG": str(calls), "VRAM_POLL_INTERVAL": "0.1"},
            stdout=said.open("wb"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        if beats:
            wait_until((folder / "heartbeat").exists)
            beside = stub.with_name("beside")
            beside.write_text(hangs, encoding="ascii")
            beside.replace(stub)
            time.sleep(0.5)  # several polls
        function = os.environ["HANGS"].split()[1]
        wait_until(lambda: calls.exists() and function in calls.read_text(encoding="ascii"))
        began_s = time.monotonic()
        for _ in range(3):  # the others disturb nothing
            program.send_signal(int(os.environ["SIGNAL"]))
        code = program.wait(timeout=50)
        lines = said.read_text(encoding="utf-8").splitlines()
        return code, time.monotonic() - began_s, [json.loads(line)["msg"] for line in lines]

    more = {"HANGS": script, "BEATS": "yes" * beats, "SIGNAL": str(int(number))}
    ground.offer(monkeypatch, **more)
    code, took_s, said = in_pod(scenario)
    guarded = ["self-test", "last words", "stopped"]
    assert (code, said) == (0, guarded if beats else ["stopped"])
    assert took_s < SOON_S


def test_whenever_the_signal_comes_the_program_ends_and_nothing_is_half_written(tmp_path):
    """Before the interpreter is ready the kernel ends it, with nothing done yet."""
    codes = set()
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        ground = Ground(folder, library=folder)
        program = subprocess.Popen(
            [sys.executable, *PROGRAM, *ground.options],
            env=ground.environment | CAP,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(number * 0.004)
        program.send_signal(signal.SIGTERM)
        began_s = time.monotonic()
        said, errors = program.communicate(timeout=60)
        assert time.monotonic() - began_s < SOON_S
        assert errors == ""
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
from webhook.sidecar.ending import end_on_signals

ours = journal.EnforcerJournal(1, sys.argv[1], sys.argv[2])
end_on_signals(ours)
ours.verdict("error", "cannot measure", "x" * 50)

def slow(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    return os.{call}(*arguments)

journal.os = SimpleNamespace(**vars(os) | {{"{call}": slow}})
ours.verdict("info", "measuring again", "all is well")
time.sleep(60)
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
import os, signal, sys, threading, time
from types import SimpleNamespace
from webhook.sidecar import journal
from webhook.sidecar.ending import end_on_signals

ours = journal.EnforcerJournal(1, sys.argv[1])
end_on_signals(ours)
journal.os = SimpleNamespace(**vars(os) | {"write": lambda *_: time.sleep(60)})
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
ours.verdict("error", "cannot measure", "a disk that hangs")
"""
    log = tmp_path / "termination-log"
    log.touch()
    began_s = time.monotonic()
    ended = run(code, log)
    assert time.monotonic() - began_s < SOON_S
    assert [json.loads(line)["msg"] for line in ended.stdout.splitlines()] == ["stopped"]


@pytest.mark.parametrize("threads", [True, False], ids=["", "no more threads"])
def test_final_figures_are_written_and_a_disk_that_hangs_holds_them_up_for_a_moment_only(
    threads, tmp_path
):
    code = """
import os, signal, sys, time
from types import SimpleNamespace
from webhook.sidecar import ending, journal

ours = journal.EnforcerJournal(1, sys.argv[1])
ours.final_figures = lambda: ("ended\\n", {"why": "all is well"})
ending.end_on_signals(ours)
if sys.argv[2] == "False":
    def start_new_thread(*_):
        raise RuntimeError("no more")
    replaced = {"start_new_thread": start_new_thread}
    ending._thread = SimpleNamespace(**vars(ending._thread) | replaced)
if sys.argv[3] == "hangs":
    journal.os = SimpleNamespace(**vars(os) | {"ftruncate": lambda *_: time.sleep(60)})
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
    for how in ("works", "hangs") if threads else ("works",):
        log = tmp_path / how
        log.touch()
        began_s = time.monotonic()
        ended = run(code, log, threads, how)
        assert time.monotonic() - began_s < SOON_S
        said = [event["msg"] for event in events_of(ended.stdout)]
        assert said == (["last words", "stopped"] if how == "works" else ["stopped"])
        assert log.read_text(encoding="utf-8") == "ended\n"


def run(code, *arguments):
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ, capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended
