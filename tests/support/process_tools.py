"""Real processes to judge and stop, in PID namespaces of their own.

Scenarios run as functions in a fresh interpreter, never in pytest's: they fork and drop rights.
"""

import ctypes
import errno
import inspect
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.paths import ROOT
from webhook.adapters import processes, surroundings

if sys.platform != "linux":
    pytest.skip("processes are told from Linux's /proc", allow_module_level=True)

SLEEPS = "import time; print('ready', flush=True); time.sleep(120)"
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS
STARTED: list[subprocess.Popen] = []
PRELUDE = "from tests.support.process_tools import *\n"

__all__ = [
    "IGNORES_TERM", "SLEEPS", "Path", "as_user", "ctypes", "end", "errno", "os", "processes",
    "refusing_pidfds", "reuse", "signal", "start", "subprocess", "surroundings", "sys", "tell",
    "time", "wait_until",
]  # fmt: skip


def in_namespace(scenario, *, own_proc=True, timeout=60):
    """Return what the scenario returns in a new PID namespace, with its own proc or ours."""
    if reason := no_namespaces():
        pytest.skip(reason)
    options = ["--pid", "--fork", "--kill-child", *["--mount-proc"][: int(own_proc)]]
    return _run(["unshare", *options], scenario, timeout)


def in_fresh_process(scenario, *, timeout=60):
    return _run([], scenario, timeout)


def needs_root():
    if os.geteuid() != 0:
        pytest.skip("only root can start processes as other users")


@cache
def no_namespaces():
    """Return why no PID namespace can be made here, or nothing."""
    try:
        command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no new PID namespace can be made here: {error}"
    return ended.stderr.strip() and f"no new PID namespace can be made here: {ended.stderr.strip()}"


def _run(wrapper, scenario, timeout):
    """Run below a first process that only waits, as pause does, so the scenario is never PID 1."""
    source = f"{PRELUDE}{dedent(inspect.getsource(scenario))}\ntell({scenario.__name__})\n"
    ended = subprocess.run(
        [*wrapper, sys.executable, "-c", source],
        capture_output=True, text=True, timeout=timeout, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def tell(scenario):
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    try:
        print(json.dumps(scenario()), flush=True)
    except BaseException:  # noqa: BLE001  # this copy of the interpreter must end here
        traceback.print_exc()
        os._exit(1)
    finally:
        for started in STARTED:
            end(started)
    os._exit(0)


def start(code=SLEEPS, *arguments, **options):
    """Start a Python process and return it when it is ready."""
    command = [sys.executable, "-I", "-S", "-c", code, *arguments]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    STARTED.append(started)
    assert started.stdout.readline() == "ready\n"
    return started


def end(started):
    """Kill and reap what `start` started, and return how it ended, negative for a signal."""
    started.kill()
    started.stdout.close()
    return started.wait(timeout=60)


def reuse(old, code=SLEEPS):
    """End the process and start another that gets its number; only in a namespace of our own."""
    end(old)
    time.sleep(0.03)  # start times are counted in ticks of 10 ms
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(old.pid - 1), encoding="ascii")
    new = start(code)
    assert new.pid == old.pid
    return new


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


def as_user(uid, judge, *, capabilities=()):
    """Return what the function returns for another user, or for root with these capabilities."""
    return _in_fork(lambda: _become(uid, capabilities), judge)


def refusing_pidfds(number, judge):
    """Return what the function returns below a seccomp filter that answers pidfds with an errno."""
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
    assert libc.prctl(8, 1, 0, 0, 0) == 0  # PR_SET_KEEPCAPS: what follows decides what is kept
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    bits = sum(1 << capability for capability in capabilities)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(bits, bits, 0, 0, 0, 0)
    assert libc.capset(header, data) == 0


def _refuse_pidfds(number):
    """Load a filter as older runtimes ship it, seccomp(2); both numbers are the same everywhere."""
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
