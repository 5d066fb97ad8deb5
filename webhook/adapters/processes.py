"""The pod's processes: who they are, how to stop exactly one, and what may be believed here.

`/proc/<pid>/cmdline` is read only by `identify`: it waits for the target's memory lock, so a process
stuck in a driver could hold up whoever reads it. `stop` and `is_gone` read `stat` and `status` only.
"""

from __future__ import annotations

import enum
import errno
import os
import re
import signal
from dataclasses import dataclass
from typing import Final

from webhook.core.enforcement import Process

PROC: Final = "/proc"
_LONGEST_COMMAND: Final = 200
_LARGEST_FILE: Final = 65536
_CAP_KILL: Final = 5
_INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO, the same since Linux 3.8
_ENDED: Final = (errno.ENOENT, errno.ESRCH, errno.ENOTDIR)
_NO_SUCH_PROCESS: Final = (
    *_ENDED,
    errno.EINVAL,
)  # pidfd_open(2): EINVAL, or since 6.9 ENOENT, for a thread
_CONTAINER: Final = re.compile(r"(?:[a-z][a-z0-9-]*-)?([0-9a-f]{64})(?:\.scope)?(?: \(deleted\))?")


class Delivery(enum.Enum):
    """What became of a signal."""

    DELIVERED = "delivered"
    GONE = "gone"
    """No such process, or its number belongs to another one by now; nothing was signalled."""
    REFUSED = "refused"
    """We lack the permission; the process lives on."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What the self-test found: yes, no, or None where it cannot be told, with a sentence why."""

    holds: bool | None
    reason: str


class _UnreadableError(Exception):
    """Proc does not answer: no proof that a process lives, and none that it is gone."""


@dataclass(frozen=True, slots=True)
class _Stat:
    command: bytes
    parent: int
    started: int
    over: bool


def identify(pid: int, *, proc: str = PROC) -> Process | None:
    """Return who has this number now; None for nobody, a thread, or where proc does not answer.

    All files are opened below one descriptor of /proc/<pid>, which stays with its process, so what is
    read never mixes two processes that had the number one after the other.
    """
    try:
        folder = _open_folder(pid, proc)
        try:
            stat = _stat_of_a_process(folder, pid)
            if stat.over:
                return None
            command = _printable(_read(folder, "cmdline", 4 * _LONGEST_COMMAND))
            cgroups = _read(folder, "cgroup").decode("utf-8", "replace")
        finally:
            os.close(folder)
    except (OSError, _UnreadableError):
        return None
    return Process(pid, stat.started, command or _printable(stat.command), _container(cgroups))


def is_gone(process: Process, *, proc: str = PROC) -> bool:
    """Return whether this very process is over, whoever has its number now.

    A zombie counts as gone: the kernel drops memory and closes files, the GPU's among them, before
    a process becomes one. A main thread that ended while others run on shows the same Z, proc(5),
    and still holds everything: it is not gone. Nor is what proc refuses to show.
    """
    try:
        return _start_time(process.pid, proc) != process.started
    except _UnreadableError:
        return False


def stop(process: Process, number: signal.Signals, *, proc: str = PROC) -> Delivery:
    """Signal this very process, or nobody.

    The pidfd is opened first and the identity checked after, so the descriptor can mean no other
    process than the one checked; pidfd_open(2), pidfd_send_signal(2). Older seccomp profiles answer
    EPERM to both calls, which looks like a refusal of the signal, so kill(2) has the last word there.
    Raises ValueError for PID 1 (the pod's sandbox ends with it), ourselves and our parents.
    """
    _forbid_what_must_live(process.pid, proc)
    try:
        pidfd = _open_pidfd(process.pid)
        if pidfd is None:
            return _stop_by_number(process, number, proc)
        try:
            if _start_time(process.pid, proc) != process.started:
                return Delivery.GONE
            return _stop_by_pidfd(pidfd, process, number, proc)
        finally:
            os.close(pidfd)
    except ProcessLookupError:
        return Delivery.GONE
    except (PermissionError, _UnreadableError):
        return Delivery.REFUSED


def pids(*, proc: str = PROC) -> tuple[int, ...]:
    """Return the numbers of all visible processes, ascending."""
    try:
        names = os.listdir(proc)  # noqa: PTH208  # pathlib costs the sidecar a megabyte
    except OSError:
        return ()
    return tuple(sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]{0,9}", name)))


def parents(pid: int, *, proc: str = PROC) -> tuple[int, ...]:
    """Return the process's parents, nearest first, as far as they are visible.

    The chain ends at PID 1, or earlier: a container's first process in a shared process namespace has
    parent 0, because the runtime that started it lives outside.
    """
    chain: list[int] = []
    while True:
        try:
            folder = _open_folder(pid, proc)
            try:
                pid = _stat(_read(folder, "stat")).parent
            finally:
                os.close(folder)
        except (OSError, _UnreadableError):
            break
        if pid <= 0 or pid in chain:
            break
        chain.append(pid)
    return tuple(chain)


def may_signal(process: Process, *, proc: str = PROC) -> bool | None:
    """Return whether we may signal the process; None where it cannot be told."""
    return permission(process, proc=proc).holds


def permission(process: Process, *, proc: str = PROC) -> Fact:
    """Compute from users, capabilities and LSM labels whether we may signal the process, and why.

    By kill(2): CAP_KILL, or our real or effective user is its real or saved one. Signal 0 is no test:
    AppArmor allows the check for existence where it denies TERM and KILL.
    """
    try:
        if _start_time(process.pid, proc) != process.started:
            return Fact(None, f"Process {process.pid} is gone.")
        ours, theirs = _status("self", proc), _status(process.pid, proc)
        senders, targets = _users(ours)[:2], _users(theirs)[::2]
        kill = bool(int(ours.get("CapEff", ""), 16) >> _CAP_KILL & 1)
    except (ValueError, _UnreadableError):
        return Fact(None, f"The users of process {process.pid} or ours cannot be read from {proc}.")
    if not kill and not set(senders) & set(targets):
        return Fact(
            False,
            f"We are user {senders[1]} without CAP_KILL and process {process.pid} is user {targets[0]}; "
            "run the sidecar as the same user, or as root with KILL.",
        )
    label, other = _label("self", proc), _label(process.pid, proc)
    if label is None or label != other:
        return Fact(
            None,
            f"Process {process.pid} has the security label {other or 'that we cannot read'} and we have "
            f"{label or 'one that we cannot read'}; whether its profile lets our signals in cannot be seen.",
        )
    how = "We have CAP_KILL" if kill else f"Process {process.pid} and we are the same user"
    return Fact(True, f"{how}, and no security label differs.")


def own_pid_namespace(*, proc: str = PROC) -> Fact:
    """Tell whether we have a PID namespace of our own or the pod's, and not the node's."""
    try:
        seen = os.readlink(f"{proc}/self")  # noqa: PTH115  # as above
        name = os.readlink(f"{proc}/self/ns/pid")  # noqa: PTH115
    except OSError:
        return Fact(None, f"{proc}/self cannot be read.")
    if seen != str(os.getpid()):
        return Fact(
            None, f"{proc} belongs to another PID namespace: we are {os.getpid()}, it says {seen}."
        )
    if name == _INITIAL_PID_NAMESPACE:
        return Fact(
            False, "This is the node's PID namespace (hostPID): all its processes are visible."
        )
    return Fact(True, f"We are in {name}, which is not the node's.")


def shares_process_namespace(*, proc: str = PROC) -> Fact:
    """Tell whether other containers' processes are visible, as `shareProcessNamespace` makes them.

    Seen from their cgroups, not from the name of PID 1: the pause process is named as its image likes.
    """
    me = os.getpid()
    if me == 1:
        return Fact(False, "We are PID 1, so this PID namespace is our container's alone.")
    if own_pid_namespace(proc=proc).holds is False:
        return Fact(
            False, "This is the node's PID namespace (hostPID), not one that the pod shares."
        )
    ours = _cgroups(me, proc)
    for pid in pids(proc=proc):
        if _is_foreign(_cgroups(pid, proc), ours):
            return Fact(True, f"Process {pid} belongs to another container.")
    first = _container(_cgroups(1, proc))
    if (first and first == _container(ours)) or 1 in parents(me, proc=proc):
        return Fact(False, "PID 1 belongs to our own container; set shareProcessNamespace: true.")
    return Fact(
        None, "No process of another container is visible, and whose PID 1 is cannot be told."
    )


def trustworthy_kernel(*, proc: str = PROC) -> Fact:
    """Tell whether PIDs and memory that NVML reports can be meant for this kernel's processes."""
    try:
        text = _read_path(f"{proc}/version").decode("utf-8", "replace")
    except _UnreadableError:
        return Fact(None, f"{proc}/version cannot be read, so the kernel is unknown.")
    release = "".join(text.split()[2:3]).lower()
    # Linux always names its builder and compiler in brackets; gVisor's reply has none.
    if "gvisor" in text.lower() or "(" not in text:
        return Fact(
            False, "This is gVisor: NVML's PIDs are those of the sandbox, not of its processes."
        )
    if "microsoft" in release or "wsl" in release:
        return Fact(False, "This is WSL: its driver gives no memory per process.")
    return Fact(True, "This is an ordinary Linux kernel.")
