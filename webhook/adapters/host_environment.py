"""What the self-test can rely on here: whose processes these are, whom we may signal, the kernel.

Each fact is read from /proc; the processes themselves are in `webhook.adapters.processes`.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from webhook.adapters.processes import (
    as_line,
    container_in,
    parents,
    pids,
    read_cgroups,
    read_file,
    read_status,
    require_same,
)
from webhook.core.frozen import dataclass

if TYPE_CHECKING:
    from webhook.core.enforcement.model import Process

_CAP_KILL: Final = 5
_NODE_PID_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel's proc_ns.h


@dataclass(frozen=True, slots=True)
class Fact:
    """What the self-test found: yes, no, or None where it cannot be known, and a sentence why."""

    holds: bool | None
    reason: str


def permission(process: Process, *, proc: str = "/proc") -> Fact:
    """Say, by capabilities, users and security labels, whether we may signal the process.

    kill(2): CAP_KILL, or our real or effective user is the target's real or saved one. Signal 0 is
    no test: AppArmor lets it pass where it denies TERM. A pod has one user namespace, in which
    our CAP_KILL counts.
    """
    pid = process.pid
    try:
        sender, target = read_status("self", proc), read_status(pid, proc)
        us, them = _label("self", proc), _label(pid, proc)
        require_same(process, proc)
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
        return Fact(None, f"{labels}: whether its profile allows our signals is unknown.")
    how = "We have CAP_KILL" if kill else f"Process {pid} and we are the same user"
    return Fact(True, f"{how}, and our security labels do not differ.")


def own_rights(*, proc: str = "/proc") -> Fact:
    """Say whom our signals can reach, while there is no process to check."""
    try:
        own = read_status("self", proc)
        kill = bool(int(own["CapEff"], 16) >> _CAP_KILL & 1)
        user = own["Uid"].split()[1]
    except (OSError, LookupError, ValueError):
        return Fact(None, f"Our own user and capabilities cannot be read from {proc}.")
    if kill:
        return Fact(True, "We have CAP_KILL.")
    return Fact(None, f"We are user {user} without CAP_KILL: other users' are out of reach.")


def own_pid_namespace(*, proc: str = "/proc") -> Fact:
    """Say whether our PID namespace is another than the node's, and whether proc shows it."""
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
    """Say whether other containers' processes are visible, as `shareProcessNamespace` makes them.

    By their cgroups and not by the name of PID 1: the pause process is named as its image likes.
    """
    me = os.getpid()
    if me == 1:
        return Fact(False, "We are PID 1: this PID namespace is our container's alone.")
    if not (own := own_pid_namespace(proc=proc)).holds:
        return own
    ours = read_cgroups(me, proc)
    for pid in pids(proc=proc):
        if _is_foreign(read_cgroups(pid, proc), ours):
            return Fact(True, f"Process {pid} belongs to another container.")
    first = container_in(read_cgroups(1, proc))
    if 1 in parents(me, proc=proc) or (first and first == container_in(ours)):
        return Fact(False, "PID 1 is our own container's; set shareProcessNamespace: true.")
    return Fact(
        None, "No other container's process is visible, and PID 1 does not say whose it is."
    )


def trustworthy_kernel(*, proc: str = "/proc") -> Fact:
    """Say whether NVML's PIDs and figures can be those of this kernel's processes."""
    try:
        banner = as_line(read_file(f"{proc}/version")).lower()
    except OSError:
        return Fact(None, f"{proc}/version cannot be read, so the kernel is unknown.")
    release = "".join(banner.split()[2:3])
    # Linux names its builder and compiler in brackets, proc_version(5); gVisor names neither.
    if "gvisor" in banner or "(" not in banner:
        return Fact(False, "This is gVisor or its like: NVML's PIDs are the sandbox's own.")
    if "microsoft" in release or "wsl" in release:
        return Fact(False, "This is WSL: its driver gives no memory per process.")
    return Fact(True, f"This is Linux {release}.")


def _label(pid: int | str, proc: str) -> str | None:
    """Return the security label, empty where no module gives one, None where it stays hidden."""
    try:
        return as_line(read_file(f"{proc}/{pid}/attr/current"))
    except OSError as error:
        return "" if error.errno in (errno.EINVAL, errno.ENOENT) else None


def _is_foreign(theirs: str, ours: str) -> bool:
    """Say whether a process is another container's: `/..` leads out of our cgroup namespace.

    cgroup_namespaces(7).
    """
    ids = container_in(theirs), container_in(ours)
    return (":/../" in theirs and ":/../" not in ours) or (all(ids) and ids[0] != ids[1])
