"""The heartbeat: files by which the kubelet's probes check that the enforcer works.

There is no port, since the pod's network belongs to the workload. A line in a file of the sidecar's
own volume names the guard's process and the time of its last observation. Probes get a hundredth of
a core, on which an interpreter starts slowly, so they are a shell script, `probe.sh`.

A workload that runs as the sidecar's user can write that line as well. So the probe asks the kernel
whether the process belongs to the sidecar's container, and whether it runs when it is woken.

The kubelet makes an Event of a failing probe's output; the sidecar has no token to write one. So
the enforcer writes sentences to files next to its heartbeat, and a probe prints them:

| file | written by | content | valid until |
| --- | --- | --- | --- |
| `heartbeat` | the guard | its process, time of the last observation | the next |
| `verdict` | the guard | a number, a sentence | it is reported, or the next |
| `failure` | a self-test that failed | its process, a sentence | the next one passes |
| `waiting` | a guard that waits for a driver's limit | its process, a sentence | the wait ends |
| `passed` | a liveness probe that passed | time; only after a pass may one report | the next one |
| `reported` | a liveness probe that failed to report a verdict | its number | the next |
| `bell` | a startup probe that waits | named pipe, written when a file changes | |

A process is identified by PID and start time. Times are hundredths of a second since the node
started, which a shell can read from /proc/uptime. Files are replaced atomically, and there is one
of each, so the folder does not grow.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time

RUN_FOLDER = "/run/vram-enforcer"
WAKE_SIGNAL = signal.SIGURG
"""Signal that a probe sends to the guard; processes without a handler ignore it."""

_FILE = "heartbeat"
_VERDICT, _FAILURE, _WAITING, _BELL = "verdict", "failure", "waiting", "bell"
_LONGEST = 1000
"""Maximum length of a sentence, in bytes: the API limits an Event's message, including the
kubelet's own words."""

_LONGEST_WAITING = 480
"""Maximum length of a sentence in `waiting`, in bytes: a probe may report two sentences, one at
its start and one at its end."""


class Heartbeat:
    """Writes the heartbeat, and handles the probe's signal; created in the main thread."""

    def __init__(self, folder: str, *, proc: str = "/proc") -> None:
        self._folder = folder
        self._proc = proc
        self._process = _own_process()
        # The probe sends this signal and observes that the kernel runs the guard. A sleep continues
        # afterwards.
        signal.signal(WAKE_SIGNAL, _ignore)
        signal.siginterrupt(WAKE_SIGNAL, False)  # must not interrupt a call of the driver

    def beat(self) -> None:
        """Record that the pod was observed just now; raises OSError on failure."""
        # The probe reads the same file. /proc/uptime includes suspend, and may be a mount.
        with open(f"{self._proc}/uptime", encoding="ascii") as file:  # noqa: PTH123
            now = int(file.read().split()[0].replace(".", ""))
        _write_file(self._folder, _FILE, f"{self._process} {now}")


def write_verdict(folder: str, text: str) -> None:
    """Write a verdict for the next probe; it replaces one that was not reported."""
    _try_to_write_file(folder, _VERDICT, f"{time.monotonic_ns()} {to_event_text(text)}")


def write_failure(folder: str, text: str) -> None:
    """Write the reason why the self-test failed, for the startup probes."""
    _try_to_write_file(folder, _FAILURE, f"{_own_process()} {to_event_text(text)}")


def write_waiting(folder: str, text: str) -> None:
    """Write the reason why the pod waits, for the startup probes."""
    _try_to_write_file(
        folder, _WAITING, f"{_own_process()} {to_event_text(text, _LONGEST_WAITING)}"
    )


def remove_failure(folder: str) -> None:
    """Remove the failure of an earlier self-test, since a self-test has passed."""
    try:
        os.unlink(f"{folder}/{_FAILURE}")  # noqa: PTH108
    except OSError:
        return


def to_event_text(text: str, longest: int = _LONGEST) -> str:
    """Return `text` as one printable line, truncated to `longest` bytes."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printable.split()).encode()[:longest].decode(errors="ignore")


def _write_file(folder: str, name: str, text: str) -> None:
    """Replace a file atomically and wake the startup probe; raises OSError on failure."""
    path, new = f"{folder}/{name}", f"{folder}/{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)  # noqa: PTH108
    # Created, never opened: a tenant's pipe would block the guard, and a link would redirect it.
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)
    os.replace(new, path)  # noqa: PTH105
    _wake_startup_probe(f"{folder}/{_BELL}")


def _wake_startup_probe(bell: str) -> None:
    try:
        # Without a reader, opening fails instead of blocking.
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


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: without a handler the signal would not wake the process."""


def _try_to_write_file(folder: str, name: str, text: str) -> None:
    try:
        _write_file(folder, name, text)
    except OSError:
        return


def _own_process() -> str:
    return f"{os.getpid()} {_read_start_time(os.getpid())}"


def _read_start_time(pid: int) -> str:
    """Return a process's start time; webhook.adapters.processes is too large to import."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
