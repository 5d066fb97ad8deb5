"""Processes in /proc: identifying a process, and signalling exactly that process.

`ProcessLookupError` means that a process does not exist. Any other `OSError` means that /proc is
unreadable. Only `identify` reads `cmdline`, which waits for the process's memory lock, so a process
stuck in a driver can block the caller.
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
"""Maximum number of threads tried. Ended threads disappear, except the main thread and traced
ones."""

_CONTAINER: Final = re.compile(r"(?:[a-z][a-z0-9-]*-)?([0-9a-f]{64})(?:\.scope)?(?: \(deleted\))?")


class Delivery(enum.Enum):
    """Result of sending a signal."""

    DELIVERED = "delivered"
    GONE = "gone"
    """The process does not exist, or its PID was reused; no signal was sent."""
    REJECTED = "rejected"
    """A permission is missing, or /proc is unreadable; no signal was sent."""


def identify(pid: int, *, proc: str = "/proc") -> Process | None:
    """Return the process with this PID, or None for a free PID, a thread, or an unreadable /proc.

    All files are read between two reads of the start time, so they belong to one process even if
    the PID is reused.
    """
    folder = f"{proc}/{pid}"
    try:
        started = start_time(pid, proc)
        command = one_line(read_file(f"{folder}/cmdline")) or one_line(read_file(f"{folder}/comm"))
        process = Process(pid, started, command, find_container_id(read_cgroups(pid, proc)))
        require_same(process, proc)
    except OSError:
        return None
    return process


def list_processes(*, proc: str = "/proc") -> Iterator[Process]:
    """Yield every visible process, with its container and without its command.

    Processes that start meanwhile may be missed. Repeat the call until it yields no new process.
    """
    for pid in pids(proc=proc):
        try:
            started = start_time(pid, proc)
            process = Process(pid, started, container=find_container_id(read_cgroups(pid, proc)))
            require_same(process, proc)
        except OSError:
            continue
        yield process


def is_gone(process: Process, *, proc: str = "/proc") -> bool:
    """Return True if this process has ended, even if its PID was reused.

    A zombie counts as ended, since the kernel has already released its memory and closed its files,
    including those of the GPU. A process hidden by /proc does not count as ended.
    """
    try:
        return start_time(process.pid, proc) != process.started
    except ProcessLookupError:
        return True
    except OSError:
        return False


def stop(process: Process, number: signal.Signals, *, proc: str = "/proc") -> Delivery:
    """Signal this process, and never another one with the same PID.

    If a pidfd cannot be used, kill(2) is used. Older seccomp profiles return EPERM for pidfds, as
    if the signal were not permitted. With kill(2), the PID could be reused between check and
    signal. Raises ValueError for PID 1, which would end the pod, for the caller and for its
    ancestors.
    """
    me = os.getpid()
    if process.pid <= 1 or process.pid in {me, os.getppid(), *ancestors(me, proc=proc)}:
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
    """Return the PIDs of all visible processes in ascending order."""
    try:
        names = os.listdir(proc)  # noqa: PTH208  # pathlib would cost the sidecar a megabyte or two
    except OSError:
        return ()
    return tuple(sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]{0,9}", name)))


def ancestors(pid: int, *, proc: str = "/proc") -> tuple[int, ...]:
    """Return the visible ancestors of a process, nearest first.

    In a shared process namespace a container's first process has no visible ancestor, since the
    runtime is outside the namespace.
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


def start_time_s(process: Process) -> float:
    """Return the start time of a process in seconds of CLOCK_BOOTTIME, to a hundredth."""
    return process.started / os.sysconf("SC_CLK_TCK")


def _send_by_pidfd(process: Process, number: signal.Signals, proc: str) -> None:
    """Open a pidfd, check that it refers to the same process, and send the signal."""
    pidfd = os.pidfd_open(process.pid)
    try:
        require_same(process, proc)
        signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)


def require_same(process: Process, proc: str) -> None:
    """Raise ProcessLookupError if the process has ended or its PID was reused."""
    if start_time(process.pid, proc) != process.started:
        raise ProcessLookupError


def start_time(pid: int, proc: str) -> int:
    """Return a process's start time in clock ticks.

    Raises ProcessLookupError for zombies and threads. State Z does not suffice to detect a zombie:
    a main thread that ended before the others also has it, and the process keeps its memory
    (proc(5)). Otherwise a workload could hide. A task without an exit signal (field 38) is a
    thread, as in the kernel's `thread_group_leader`. `status` is not read, since it can list 65,536
    groups, which takes 5 ms.
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
    """Return the PID of a process's parent, and the process's own start time; raises OSError."""
    try:
        fields = _stat(pid, proc)
        return int(fields[1]), int(fields[19])
    except (ValueError, IndexError) as error:
        raise OSError(errno.EIO, "stat is malformed") from error


def _stat(pid: int, proc: str) -> list[str]:
    """Return the fields after the name, which may contain brackets; field n is at index n - 3."""
    return read_file(f"{proc}/{pid}/stat").rpartition(")")[2].split()


def read_status(pid: int | str, proc: str) -> dict[str, str]:
    """Return the values of a `status` file by name.

    A process's name cannot inject a line, since /proc escapes line breaks. The list of groups can
    have half a megabyte, and is not at the end.
    """
    text = read_file(f"{proc}/{pid}/status", _LARGEST_STATUS)
    lines = (line.partition(":") for line in text.split("\n"))
    return {name: value.strip() for name, _, value in lines}


def find_container_id(cgroups: str) -> str:
    """Return the ID of the outermost container below `kubepods`; empty if there is none.

    A workload can create cgroups only below its own. If the node is itself a container, that
    container is above `kubepods`.
    """
    for path in cgroups.split("\n"):
        for name in re.split("[/:]", path.partition("kubepods")[2] or path):
            if found := _CONTAINER.fullmatch(name):
                return found[1]
    return ""


def read_cgroups(pid: int, proc: str) -> str:
    """Return the cgroups, one per line; empty if they are unreadable."""
    try:
        return require_cgroups(pid, proc)
    except OSError:
        return ""  # a kernel without cgroups has no such file


def require_cgroups(pid: int, proc: str) -> str:
    """Return the cgroups, one per line; raises OSError.

    With cgroup v1 an ended main thread is shown at the root of each hierarchy, even while other
    threads run (`proc_cgroup_show` of the kernel). Then the first thread that shows another cgroup
    counts.
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
    """Return True if there are cgroup v1 hierarchies, and the process is at the root of each."""
    first = [path.split(":", 2) for path in cgroups.split("\n") if path and path[:2] != "0:"]
    return bool(first) and all(parts[-1] == "/" for parts in first)


def own_cgroup(*, proc: str = "/proc", root: str = "/sys/fs/cgroup") -> str:
    """Return the directory of the caller's own cgroup; empty if no cgroup v2 is mounted there.

    The mount may begin at this cgroup, while /proc has the path from the node's root.
    """
    lines = read_cgroups(os.getpid(), proc).split("\n")
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    folders = f"{root}{path}".rstrip("/"), root
    # Every cgroup v2 directory has this file (cgroups(7)); cgroup v1 has none.
    return next((at for at in folders if os.path.exists(f"{at}/cgroup.controllers")), "")  # noqa: PTH110


def read_file(path: str, most: int = _LARGEST_FILE) -> str:
    """Return the first `most` bytes of a /proc file as a string; raises OSError."""
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read(most).decode("utf-8", "replace")


def one_line(text: str) -> str:
    """Return a string as one line of printable characters with bounded length, for logs."""
    return replace_unprintable(text.replace("\0", " ").strip(), _LONGEST_COMMAND)
