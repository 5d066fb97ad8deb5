"""The heartbeat: how the kubelet's probes know that the enforcer works, and what they report.

No port: the pod's network is the workload's. A line in a file of our own volume says which process
guards and when it observed last. Probes get a hundredth of a core, in which an interpreter is a
long time, so they are a shell's script, `probe.sh`.

A workload that runs as our user can write that line as well, so it is not enough: the probe asks
the kernel whether that process is of our container, and whether it runs when it is woken.

The kubelet makes an Event of what a failing probe prints, and we have no token to make one by. So
the enforcer leaves a sentence beside its heartbeat, and a probe takes it to the kubelet:

| file | left by | what it says | holds until |
| --- | --- | --- | --- |
| `heartbeat` | the guard | its process, when it observed last | the next |
| `verdict` | the guard | a number of its own, a sentence | it is reported, or the next |
| `failure` | a self-test that failed | its process, a sentence | the next one passes |
| `waiting` | a guard that waits for a driver's limit | its process, a sentence | it is over |
| `passed` | a liveness probe that passed | when; only after a pass may one report | the next one |
| `reported` | a liveness probe that failed to report a verdict | its number | the next |
| `bell` | a startup probe that waits | nothing: a named pipe, rung by what we leave | |

Processes are a PID and a start time; times are hundredths of a second since the node started, as
/proc/uptime has them: what a shell can read. What the enforcer leaves is replaced in one step, and
there is one file of each: nothing grows.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time

RUN_FOLDER = "/run/vram-enforcer"
WAKING = signal.SIGURG
"""What a probe sends the guard: ignored by whoever has no handler for it."""

_FILE = "heartbeat"
_VERDICT, _FAILURE, _WAITING, _BELL = "verdict", "failure", "waiting", "bell"
_LONGEST = 1000
"""In bytes: an Event's message may be as long in each of its APIs, the kubelet's words included."""

_LONGEST_WAITING = 480
"""A probe may report two of them: what it found first, and at its end."""


class Heartbeat:
    """Beats after each observation, and wakes for a probe; made in the main thread."""

    def __init__(self, folder: str, *, proc: str = "/proc") -> None:
        self._folder = folder
        self._proc = proc
        self._who = _me()
        # A probe wakes us by it, and sees that the kernel lets us run; what sleeps sleeps on.
        signal.signal(WAKING, _go_on)
        signal.siginterrupt(WAKING, False)  # a call of the driver is not to fail for it

    def beat(self) -> None:
        """Record that the pod was observed just now; raises OSError."""
        # Read where the probe reads: /proc/uptime goes on while a node sleeps, and may be mounted.
        with open(f"{self._proc}/uptime", encoding="ascii") as file:  # noqa: PTH123
            now = int(file.read().split()[0].replace(".", ""))
        _leave(self._folder, _FILE, f"{self._who} {now}")


def leave_verdict(folder: str, text: str) -> None:
    """Leave a verdict for the next probe to report; it replaces one that no probe took."""
    _try_to_leave(folder, _VERDICT, f"{time.monotonic_ns()} {one_line(text)}")


def leave_failure(folder: str, text: str) -> None:
    """Leave why the self-test failed, for the startup probes."""
    _try_to_leave(folder, _FAILURE, f"{_me()} {one_line(text)}")


def leave_waiting(folder: str, text: str) -> None:
    """Leave what this process waits for, for the startup probes."""
    _try_to_leave(folder, _WAITING, f"{_me()} {one_line(text, _LONGEST_WAITING)}")


def forget_failure(folder: str) -> None:
    """Remove what an earlier self-test left, since one has passed."""
    try:
        os.unlink(f"{folder}/{_FAILURE}")  # noqa: PTH108
    except OSError:
        return


def one_line(text: str, longest: int = _LONGEST) -> str:
    """Return a text as one line that any Event can hold, cut to so many bytes."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(shown.split()).encode()[:longest].decode(errors="ignore")


def _leave(folder: str, name: str, text: str) -> None:
    """Write a file in one step, and wake the probe that waits for it; raises OSError."""
    path, new = f"{folder}/{name}", f"{folder}/{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)  # noqa: PTH108
    # Made here, never opened: a tenant's pipe would hold up the guard, a link lead it elsewhere.
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)
    os.replace(new, path)  # noqa: PTH105
    _ring(f"{folder}/{_BELL}")


def _ring(bell: str) -> None:
    try:
        # Not waiting for a reader: it fails where no probe has it open.
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        pipe = os.open(bell, flags)
    except OSError:
        return
    try:
        if stat.S_ISFIFO(os.fstat(pipe).st_mode):
            os.write(pipe, b"\n")
    except OSError:
        return
    finally:
        os.close(pipe)


def _go_on(_number: int, _frame: object) -> None:
    """Do nothing: without a handler the kernel would not wake us."""


def _try_to_leave(folder: str, name: str, text: str) -> None:
    try:
        _leave(folder, name, text)
    except OSError:
        return


def _me() -> str:
    return f"{os.getpid()} {_started(os.getpid())}"


def _started(pid: int) -> str:
    """Return the start time as webhook.adapters.processes does, which is large."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
