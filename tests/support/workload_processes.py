"""Real processes to observe and stop, in separate PID namespaces.

`isolated_interpreter` runs the scenarios, which may use the names of this module.
"""

import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from tests.support import isolated_interpreter
from webhook.adapters import host_environment, processes

SLEEPS = "import time; print('ready', flush=True); time.sleep(120)"
ANSWERS_TERM = f"""
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"SIGTERM\\n"))
{SLEEPS}
"""
STARTED: list[subprocess.Popen] = []

__all__ = [
    "ANSWERS_TERM", "SLEEPS", "Path", "as_user", "ctypes", "end", "errno", "host_environment",
    "os", "processes", "refusing_pidfds", "reuse", "signal", "start", "subprocess", "sys",
    "wait_until",
]  # fmt: skip


def skip(why, **options):
    import pytest  # noqa: PLC0415 - scenarios import this module without it

    pytest.skip(why, **options)


if sys.platform != "linux":
    skip("processes are told from Linux's /proc", allow_module_level=True)


def in_namespace(scenario, *arguments, own_proc=True):
    """Return the result of a scenario in a new PID namespace, with its own /proc or the host's."""
    if reason := isolated_interpreter.missing():
        skip(reason)
    within = isolated_interpreter.NAMESPACE[: None if own_proc else -1]
    return isolated_interpreter.play(__name__, scenario, *arguments, within=within)


def in_fresh_process(scenario):
    return isolated_interpreter.play(__name__, scenario, within=())


def play(scenario, sent):
    try:
        return scenario(*sent["arguments"])
    finally:
        for started in STARTED:
            end(started)


def needs_root():
    if os.geteuid() != 0:
        skip("only root can start processes as other users")


def start(code=SLEEPS, *arguments, **options):
    """Start a Python process; return it when it is ready."""
    command = [sys.executable, "-I", "-S", "-c", code, *arguments]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    STARTED.append(started)
    assert started.stdout.readline() == "ready\n"
    return started


def end(started):
    """Kill and reap a process; return its exit code, which is negative for a signal."""
    started.kill()
    started.stdout.close()
    return started.wait(timeout=60)


def reuse(old, start=start):
    """End a process and start another with the same PID; only in a separate PID namespace."""
    end(old)
    tick = time.clock_gettime(time.CLOCK_BOOTTIME) + 2 / os.sysconf("SC_CLK_TCK")
    wait_until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) > tick)  # start times are in ticks
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(old.pid - 1), encoding="ascii")
    new = start()
    assert new.pid == old.pid
    return new


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


def as_user(uid, judge, *, capabilities=()):
    """Return the function's result for another user, or for root with these capabilities."""
    return _in_fork(lambda: _become(uid, capabilities), judge)


def refusing_pidfds(number, judge):
    """Return the function's result under a seccomp filter that fails pidfd calls with an errno."""
    return _in_fork(lambda: _refuse_pidfds(number), judge)


def _in_fork(prepare, judge):
    near, far = os.pipe()
    if child := os.fork():
        os.close(far)
        with os.fdopen(near) as answer:
            text = answer.read()
        assert os.waitpid(child, 0)[1] == 0
        return json.loads(text)
    try:
        prepare()
        os.write(far, json.dumps(judge()).encode())
    except BaseException:  # noqa: BLE001  # this copy of the interpreter must end here
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _become(uid, capabilities):
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(8, 1, 0, 0, 0) == 0  # PR_SET_KEEPCAPS: the next calls choose the capabilities
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    bits = sum(1 << capability for capability in capabilities)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(bits, bits, 0, 0, 0, 0)
    assert libc.capset(header, data) == 0


def _refuse_pidfds(number):
    """Load a filter like that of older runtimes. Both numbers are the same on all architectures."""
    refuse = 0x00050000 | number
    steps = [(0x20, 0, 0, 0), (0x15, 2, 0, 434), (0x15, 1, 0, 424), (0x06, 0, 0, 0x7FFF0000)]
    packed = b"".join(
        code.to_bytes(2, sys.byteorder) + bytes([yes, no]) + value.to_bytes(4, sys.byteorder)
        for code, yes, no, value in [*steps, (0x06, 0, 0, refuse)]
    )
    steps_at = ctypes.create_string_buffer(packed)
    program = (ctypes.c_uint64 * 2)(len(steps) + 1, ctypes.addressof(steps_at))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
