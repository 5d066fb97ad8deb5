"""The pod's processes: who they are, and how to stop exactly one.

`ProcessLookupError` means that a process is gone; any other `OSError`, that proc does not answer.
Only `identify` reads `cmdline`, which waits for the target's memory lock: a process stuck in a
driver could block its reader.
"""

from __future__ import annotations

import enum
import errno
import os
import re
import signal
from typing import TYPE_CHECKING, Final

from webhook.core.enforcement.model import Process
from webhook.core.formatting import replace_unprintable

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_COMMAND: Final = 200
_LARGEST_FILE: Final = 65536
_LARGEST_STATUS: Final = 2**20
_MOST_THREADS: Final = 1024
"""Threads that have ended are gone, except the first one and those that somebody traces."""

_CONTAINER: Final = re.compile(r"(?:[a-z][a-z0-9-]*-)?([0-9a-f]{64})(?:\.scope)?(?: \(deleted\))?")


class Delivery(enum.Enum):
    """What became of a signal."""

    DELIVERED = "delivered"
    GONE = "gone"
    """No such process, or its PID was reused; nothing was signalled."""
    REJECTED = "rejected"
    """We lack a permission, or proc does not answer; nothing was signalled."""


def identify(pid: int, *, proc: str = "/proc") -> Process | None:
    """Return the process of this PID; None for a free PID, a thread, or where proc does not answer.

    All is read between two reads of the start time, so none of it can be the PID's next owner's.
    """
    folder = f"{proc}/{pid}"
    try:
        started = start_time(pid, proc)
        command = as_line(read_file(f"{folder}/cmdline")) or as_line(read_file(f"{folder}/comm"))
        process = Process(pid, started, command, container_in(read_cgroups(pid, proc)))
        require_same(process, proc)
    except OSError:
        return None
    return process


def running(*, proc: str = "/proc") -> Iterator[Process]:
    """Yield every visible process as it is found, with its container and without its command.

    What starts meanwhile may be missed, so call it again until nothing is new.
    """
    for pid in pids(proc=proc):
        try:
            started = start_time(pid, proc)
            process = Process(pid, started, container=container_in(read_cgroups(pid, proc)))
            require_same(process, proc)
        except OSError:
            continue
        yield process


def is_gone(process: Process, *, proc: str = "/proc") -> bool:
    """Return whether this very process has ended, whoever has its PID now.

    A zombie counts as gone: the kernel drops its memory and closes its files, the GPU's among
    them, before it becomes one. What proc hides from us is not known to be gone.
    """
    try:
        return start_time(process.pid, proc) != process.started
    except ProcessLookupError:
        return True
    except OSError:
        return False


def stop(process: Process, number: signal.Signals, *, proc: str = "/proc") -> Delivery:
    """Signal this very process, or none.

    Older seccomp profiles answer EPERM to pidfds, as if the signal itself were not permitted, so
    kill(2) has the last word; there the PID could still change hands after the check.
    Raises ValueError for PID 1 (the pod ends with it), ourselves and our parents.
    """
    me = os.getpid()
    if process.pid <= 1 or process.pid in {me, os.getppid(), *parents(me, proc=proc)}:
        raise ValueError(f"{process.pid} must never be signalled: PID 1, ourselves or a parent")
    try:
        try:
            _send_by_pidfd(process, number, proc)
        except (AttributeError, OSError):
            require_same(process, proc)
            os.kill(process.pid, number)
    except ProcessLookupError:
        return Delivery.GONE
    except OSError:
        return Delivery.REJECTED
    return Delivery.DELIVERED


def pids(*, proc: str = "/proc") -> tuple[int, ...]:
    """Return the PIDs of all visible processes, ascending."""
    try:
        names = os.listdir(proc)  # noqa: PTH208  # pathlib would cost the sidecar a megabyte or two
    except OSError:
        return ()
    return tuple(sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]{0,9}", name)))


def parents(pid: int, *, proc: str = "/proc") -> tuple[int, ...]:
    """Return the process's parents, nearest first, as far as they are visible.

    A container's first process has none in a shared process namespace: its runtime lives outside.
    """
    chain: list[int] = []
    while True:
        try:
            pid = int(_stat(pid, proc)[1])
        except (OSError, ValueError, IndexError):
            return tuple(chain)
        if pid <= 0 or pid in chain:
            return tuple(chain)
        chain.append(pid)


def started_s(process: Process) -> float:
    """Return when a process started, in seconds of CLOCK_BOOTTIME, to a hundredth."""
    return process.started / os.sysconf("SC_CLK_TCK")


def _send_by_pidfd(process: Process, number: signal.Signals, proc: str) -> None:
    """Open first and check after: the descriptor then means the one that was checked.

    pidfd_open(2), pidfd_send_signal(2).
    """
    pidfd = os.pidfd_open(process.pid)
    try:
        require_same(process, proc)
        signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)


def require_same(process: Process, proc: str) -> None:
    """Raise ProcessLookupError where the PID was reused, and OSError as proc does."""
    if start_time(process.pid, proc) != process.started:
        raise ProcessLookupError


def start_time(pid: int, proc: str) -> int:
    """Return when the process started; raise ProcessLookupError for a zombie or a thread.

    A main thread that ended while others run on shows Z as well, proc(5), and its process keeps
    all it held: by the state alone, a workload could hide. Who has no signal for its end (field 38)
    is a thread: so says the kernel's own `thread_group_leader`. `status` is not asked, for it names
    up to 65536 groups: five milliseconds, each time, of whoever reads it.
    """
    try:
        fields = _stat(pid, proc)
        over = fields[0] in ("Z", "X", "x") and int(fields[17]) <= 1
        started, is_thread = int(fields[19]), int(fields[35]) < 0
    except FileNotFoundError as error:
        raise ProcessLookupError from error
    except (ValueError, LookupError) as error:
        raise OSError(errno.EIO, "stat is malformed") from error
    if over or is_thread:
        raise ProcessLookupError
    return started


def parent_and_start(pid: int, proc: str) -> tuple[int, int]:
    """Return who started a process, or took it in, and its own start time; raises OSError."""
    try:
        fields = _stat(pid, proc)
        return int(fields[1]), int(fields[19])
    except (ValueError, IndexError) as error:
        raise OSError(errno.EIO, "stat is malformed") from error


def _stat(pid: int, proc: str) -> list[str]:
    """Return the fields after the name, which may hold brackets: proc(5)'s field n is at n - 3."""
    return read_file(f"{proc}/{pid}/stat").rpartition(")")[2].split()


def read_status(pid: int | str, proc: str) -> dict[str, str]:
    """Return the lines by name; a process's name cannot add one: proc escapes its line ends.

    A process may have as many groups as fill half a megabyte, and they do not come last.
    """
    text = read_file(f"{proc}/{pid}/status", _LARGEST_STATUS)
    lines = (line.partition(":") for line in text.split("\n"))
    return {name: value.strip() for name, _, value in lines}


def container_in(cgroups: str) -> str:
    """Return the outermost container's id, since a workload can nest cgroups only below its own.

    Before `kubepods` comes a node that is itself a container.
    """
    for path in cgroups.split("\n"):
        for name in re.split("[/:]", path.partition("kubepods")[2] or path):
            if found := _CONTAINER.fullmatch(name):
                return found[1]
    return ""


def read_cgroups(pid: int, proc: str) -> str:
    """Return the cgroups, one per line; nothing where they cannot be read."""
    try:
        return cgroups_of(pid, proc)
    except OSError:
        return ""  # a kernel without cgroups has no such file


def cgroups_of(pid: int, proc: str) -> str:
    """Do as `read_cgroups`, and raise OSError where they cannot be read.

    With version 1 a main thread that ended is shown at the root of each hierarchy, whatever the
    others go on doing (`proc_cgroup_show` of the kernel), so the first of those that is not counts.
    """
    cgroups = read_file(f"{proc}/{pid}/cgroup")
    if not _is_at_every_root(cgroups) or _stat(pid, proc)[:1] != ["Z"]:
        return cgroups
    for thread in sorted(os.listdir(f"{proc}/{pid}/task"))[:_MOST_THREADS]:  # noqa: PTH208 - as above
        try:
            of_thread = read_file(f"{proc}/{pid}/task/{thread}/cgroup")
        except OSError:
            continue  # it ended
        if not _is_at_every_root(of_thread):
            return of_thread
    return cgroups


def _is_at_every_root(cgroups: str) -> bool:
    """Say whether all hierarchies of version 1, of which there are some, show their root."""
    first = [path.split(":", 2) for path in cgroups.split("\n") if path and path[:2] != "0:"]
    return bool(first) and all(parts[-1] == "/" for parts in first)


def own_cgroup(*, proc: str = "/proc", root: str = "/sys/fs/cgroup") -> str:
    """Return the folder of our own cgroup; empty where no cgroup of version 2 is mounted there.

    Our own may be all that is mounted, while proc names it from the node's root.
    """
    lines = read_cgroups(os.getpid(), proc).split("\n")
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    folders = f"{root}{path}".rstrip("/"), root
    # Each cgroup of version 2 has this file, cgroups(7), and none of version 1.
    return next((one for one in folders if os.path.exists(f"{one}/cgroup.controllers")), "")  # noqa: PTH110


def read_file(path: str, most: int = _LARGEST_FILE) -> str:
    """Return a file of /proc as text, cut where it is too long; raises OSError."""
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read(most).decode("utf-8", "replace")


def as_line(text: str) -> str:
    """Return a text that a log can hold: one line, bounded, other letters as question marks."""
    return replace_unprintable(text.replace("\0", " ").strip(), _LONGEST_COMMAND)
