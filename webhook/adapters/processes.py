"""The pod's processes: who they are, how to stop exactly one, and what may be believed here.

`ProcessLookupError` says that a process is gone; any other `OSError`, that proc does not answer.
Only `identify` reads `cmdline`, which waits for the target's memory lock: a process stuck in a
driver could hold its reader up.
"""

from __future__ import annotations

import enum
import errno
import os
import re
import signal
from dataclasses import dataclass
from typing import Final

from webhook.core.enforcement.step import Process

_LONGEST_COMMAND: Final = 200
_LARGEST_FILE: Final = 65536
_CAP_KILL: Final = 5
_NODE_PID_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel's proc_ns.h
_CONTAINER: Final = re.compile(r"(?:[a-z][a-z0-9-]*-)?([0-9a-f]{64})(?:\.scope)?(?: \(deleted\))?")


class Delivery(enum.Enum):
    """What became of a signal."""

    DELIVERED = "delivered"
    GONE = "gone"
    """No such process, or its number is another's by now; nobody was signalled."""
    REFUSED = "refused"
    """We lack a permission, or proc does not answer; nobody was signalled."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What the self-test found: yes, no, or None where it cannot be told, and a sentence why."""

    holds: bool | None
    reason: str


def identify(pid: int, *, proc: str = "/proc") -> Process | None:
    """Return who has this number now; None for nobody, a thread, or where proc does not answer.

    Read between two looks at the start time, nothing can be of the number's next owner.
    """
    folder = f"{proc}/{pid}"
    try:
        started = _start_time(pid, proc)
        command = _printable(_read(f"{folder}/cmdline")) or _printable(_read(f"{folder}/comm"))
        process = Process(pid, started, command, _container(_cgroups(pid, proc)))
        _require_same(process, proc)
    except OSError:
        return None
    return process


def is_gone(process: Process, *, proc: str = "/proc") -> bool:
    """Return whether this very process is over, whoever has its number now.

    A zombie counts as gone: the kernel drops its memory and closes its files, the GPU's among
    them, before it becomes one. What proc does not show us is not known to be gone.
    """
    try:
        return _start_time(process.pid, proc) != process.started
    except ProcessLookupError:
        return True
    except OSError:
        return False


def stop(process: Process, number: signal.Signals, *, proc: str = "/proc") -> Delivery:
    """Signal this very process, or nobody.

    Older seccomp profiles answer EPERM to pidfds, which looks like a refusal of the signal itself,
    so kill(2) has the last word; there the number could still change hands after the check.
    Raises ValueError for PID 1 (the pod ends with it), ourselves and our parents.
    """
    me = os.getpid()
    if process.pid <= 1 or process.pid in {me, os.getppid(), *parents(me, proc=proc)}:
        raise ValueError(f"{process.pid} must never be signalled: PID 1, ourselves or a parent")
    try:
        try:
            _send_by_pidfd(process, number, proc)
        except (AttributeError, OSError):
            _require_same(process, proc)
            os.kill(process.pid, number)
    except ProcessLookupError:
        return Delivery.GONE
    except OSError:
        return Delivery.REFUSED
    return Delivery.DELIVERED


def pids(*, proc: str = "/proc") -> tuple[int, ...]:
    """Return the numbers of all visible processes, ascending."""
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


def may_signal(process: Process, *, proc: str = "/proc") -> bool | None:
    """Return whether we may signal the process; None where it cannot be told."""
    return permission(process, proc=proc).holds


def permission(process: Process, *, proc: str = "/proc") -> Fact:
    """Tell from capabilities, users and security labels whether we may signal the process.

    kill(2): CAP_KILL, or our real or effective user is the target's real or saved one. Signal 0 is
    no test: AppArmor lets it pass where it denies TERM. A pod has one user namespace, in which
    our CAP_KILL counts.
    """
    pid = process.pid
    try:
        sender, target = _status("self", proc), _status(pid, proc)
        us, them = _label("self", proc), _label(pid, proc)
        _require_same(process, proc)
        kill = bool(int(sender["CapEff"], 16) >> _CAP_KILL & 1)
        real, effective = sender["Uid"].split()[:2]
        owner, _, saved = target["Uid"].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return Fact(None, f"Process {pid} is gone.")
    except (OSError, LookupError, ValueError):
        return Fact(None, f"The users of process {pid}, or ours, cannot be read from {proc}.")
    if not kill and {real, effective}.isdisjoint((owner, saved)):
        who = f"We are user {effective} without CAP_KILL and process {pid} is user {owner}"
        return Fact(False, f"{who}; run the sidecar as that user, or as root with KILL.")
    if us is None or us != them:
        labels = f"Our security label is {us!r} and that of process {pid} is {them!r}"
        return Fact(None, f"{labels}: whether its profile lets our signals in cannot be seen.")
    how = "We have CAP_KILL" if kill else f"Process {pid} and we are the same user"
    return Fact(True, f"{how}, and our security labels do not differ.")


def own_rights(*, proc: str = "/proc") -> Fact:
    """Tell whom our signals can reach, while there is nobody to ask about."""
    try:
        own = _status("self", proc)
        kill = bool(int(own["CapEff"], 16) >> _CAP_KILL & 1)
        user = own["Uid"].split()[1]
    except (OSError, LookupError, ValueError):
        return Fact(None, f"Our own user and capabilities cannot be read from {proc}.")
    if kill:
        return Fact(True, "We have CAP_KILL.")
    return Fact(None, f"We are user {user} without CAP_KILL: other users' are out of reach.")


def own_pid_namespace(*, proc: str = "/proc") -> Fact:
    """Tell whether our PID namespace is another than the node's, and whether proc shows it."""
    me = os.getpid()
    try:
        seen = os.readlink(f"{proc}/self")  # noqa: PTH115
        name = os.readlink(f"{proc}/self/ns/pid")  # noqa: PTH115
    except OSError:
        return Fact(None, f"{proc}/self cannot be read.")
    if seen != str(me):
        return Fact(None, f"{proc} is another PID namespace's: we are {me}, and it says {seen!r}.")
    if name == _NODE_PID_NAMESPACE:
        return Fact(False, "This is the node's PID namespace (hostPID): every process is visible.")
    return Fact(True, f"Our PID namespace is {name}, which is not the node's.")


def shares_process_namespace(*, proc: str = "/proc") -> Fact:
    """Tell whether other containers' processes are visible, as `shareProcessNamespace` makes them.

    By their cgroups and not by the name of PID 1: the pause process is named as its image likes.
    """
    me = os.getpid()
    if me == 1:
        return Fact(False, "We are PID 1: this PID namespace is our container's alone.")
    if not (own := own_pid_namespace(proc=proc)).holds:
        return own
    ours = _cgroups(me, proc)
    for pid in pids(proc=proc):
        if _is_foreign(_cgroups(pid, proc), ours):
            return Fact(True, f"Process {pid} belongs to another container.")
    first = _container(_cgroups(1, proc))
    if 1 in parents(me, proc=proc) or (first and first == _container(ours)):
        return Fact(False, "PID 1 is our own container's; set shareProcessNamespace: true.")
    return Fact(
        None, "No other container's process is visible, and PID 1 does not say whose it is."
    )


def trustworthy_kernel(*, proc: str = "/proc") -> Fact:
    """Tell whether NVML's PIDs and figures can be those of this kernel's processes."""
    try:
        banner = _printable(_read(f"{proc}/version")).lower()
    except OSError:
        return Fact(None, f"{proc}/version cannot be read, so the kernel is unknown.")
    release = "".join(banner.split()[2:3])
    # Linux names its builder and compiler in brackets, proc_version(5); gVisor names neither.
    if "gvisor" in banner or "(" not in banner:
        return Fact(False, "This is gVisor or its like: NVML's PIDs are the sandbox's own.")
    if "microsoft" in release or "wsl" in release:
        return Fact(False, "This is WSL: its driver gives no memory per process.")
    return Fact(True, f"This is Linux {release}.")


def _send_by_pidfd(process: Process, number: signal.Signals, proc: str) -> None:
    """Open first and check after: the descriptor then means the one that was checked.

    pidfd_open(2), pidfd_send_signal(2).
    """
    pidfd = os.pidfd_open(process.pid)
    try:
        _require_same(process, proc)
        signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)


def _require_same(process: Process, proc: str) -> None:
    if _start_time(process.pid, proc) != process.started:
        raise ProcessLookupError


def _start_time(pid: int, proc: str) -> int:
    """Return when the living process began; a zombie is gone, and a thread, which has files, none.

    A main thread that ended while others run on shows Z as well, proc(5), and its process holds
    all it held: by the state alone, a workload could hide.
    """
    try:
        fields = _stat(pid, proc)
        over = fields[0] in ("Z", "X", "x") and int(fields[17]) <= 1
        started, leader = int(fields[19]), int(_status(pid, proc)["Tgid"])
    except FileNotFoundError as error:
        raise ProcessLookupError from error
    except (ValueError, LookupError) as error:
        raise OSError(errno.EIO, "stat or status is malformed") from error
    if over or leader != pid:
        raise ProcessLookupError
    return started


def _stat(pid: int, proc: str) -> list[str]:
    """Return the fields after the name, which may hold brackets: proc(5)'s field n is at n - 3."""
    return _read(f"{proc}/{pid}/stat").rpartition(")")[2].split()


def _status(pid: int | str, proc: str) -> dict[str, str]:
    """Return the lines by name; a process's own name adds none, for proc escapes its line ends."""
    lines = (line.partition(":") for line in _read(f"{proc}/{pid}/status").split("\n"))
    return {name: value.strip() for name, _, value in lines}


def _label(pid: int | str, proc: str) -> str | None:
    """Return the security label, empty where no module gives one, None where it stays hidden."""
    try:
        return _printable(_read(f"{proc}/{pid}/attr/current"))
    except OSError as error:
        return "" if error.errno in (errno.EINVAL, errno.ENOENT) else None


def _container(cgroups: str) -> str:
    """Return the outermost container's id, since a workload can nest cgroups only below its own.

    Before `kubepods` stands a node that is itself a container.
    """
    for path in cgroups.split("\n"):
        for name in re.split("[/:]", path.partition("kubepods")[2] or path):
            if found := _CONTAINER.fullmatch(name):
                return found[1]
    return ""


def _cgroups(pid: int, proc: str) -> str:
    try:
        return _read(f"{proc}/{pid}/cgroup")
    except OSError:
        return ""  # a kernel without cgroups has no such file


def _is_foreign(theirs: str, ours: str) -> bool:
    """Tell by cgroup_namespaces(7): `/..` leads out of our own container's namespace."""
    ids = _container(theirs), _container(ours)
    return (":/../" in theirs and ":/../" not in ours) or (all(ids) and ids[0] != ids[1])


def _read(path: str) -> str:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read(_LARGEST_FILE).decode("utf-8", "replace")


def _printable(text: str) -> str:
    shown = text.replace("\0", " ").strip()[:_LONGEST_COMMAND]
    return "".join(char if char.isprintable() else "?" for char in shown)
