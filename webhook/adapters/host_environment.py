"""Checks of the enforcer's environment: PID namespace, permission to signal, and kernel."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from webhook.adapters.processes import (
    ancestors,
    find_container_id,
    one_line,
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
    """Result of a check: true, false, or None if unknown, with the reason in one sentence."""

    holds: bool | None
    reason: str


def check_permission(process: Process, *, proc: str = "/proc") -> Fact:
    """Check whether this program may signal a process.

    It needs CAP_KILL, or its real or effective user must be the process's real or saved user
    (kill(2)). A test with signal 0 would not suffice, since AppArmor can permit signal 0 and deny
    SIGTERM. CAP_KILL applies because the containers of a pod share a user namespace.
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


def check_own_permission(*, proc: str = "/proc") -> Fact:
    """Check whether this program may signal any process, when no process exists to check."""
    try:
        own = read_status("self", proc)
        kill = bool(int(own["CapEff"], 16) >> _CAP_KILL & 1)
        user = own["Uid"].split()[1]
    except (OSError, LookupError, ValueError):
        return Fact(None, f"Our own user and capabilities cannot be read from {proc}.")
    if kill:
        return Fact(True, "We have CAP_KILL.")
    return Fact(None, f"We are user {user} without CAP_KILL: other users' are out of reach.")


def check_pid_namespace(*, proc: str = "/proc") -> Fact:
    """Check that this program is not in the node's PID namespace and that `proc` shows its own."""
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


def check_shared_process_namespace(*, proc: str = "/proc") -> Fact:
    """Check whether processes of other containers are visible, as with `shareProcessNamespace`.

    They are recognized by their cgroups. The name of PID 1 proves nothing, since the sandbox's
    image chooses it.
    """
    me = os.getpid()
    if me == 1:
        return Fact(False, "We are PID 1: this PID namespace is our container's alone.")
    if not (own := check_pid_namespace(proc=proc)).holds:
        return own
    ours = read_cgroups(me, proc)
    for pid in pids(proc=proc):
        if _is_foreign(read_cgroups(pid, proc), ours):
            return Fact(True, f"Process {pid} belongs to another container.")
    first = find_container_id(read_cgroups(1, proc))
    if 1 in ancestors(me, proc=proc) or (first and first == find_container_id(ours)):
        return Fact(False, "PID 1 is our own container's; set shareProcessNamespace: true.")
    return Fact(
        None, "No other container's process is visible, and PID 1 does not say whose it is."
    )


def check_kernel(*, proc: str = "/proc") -> Fact:
    """Check that NVML reports PIDs and memory of processes of this kernel."""
    try:
        banner = one_line(read_file(f"{proc}/version")).lower()
    except OSError:
        return Fact(None, f"{proc}/version cannot be read, so the kernel is unknown.")
    release = "".join(banner.split()[2:3])
    # Linux has its builder and compiler in brackets, proc_version(5); gVisor has neither.
    if "gvisor" in banner or "(" not in banner:
        return Fact(False, "This is gVisor or its like: NVML's PIDs are the sandbox's own.")
    if "microsoft" in release or "wsl" in release:
        return Fact(False, "This is WSL: its driver gives no memory per process.")
    return Fact(True, f"This is Linux {release}.")


def _label(pid: int | str, proc: str) -> str | None:
    """Return a process's security label: empty without a security module, None if unreadable."""
    try:
        return one_line(read_file(f"{proc}/{pid}/attr/current"))
    except OSError as error:
        return "" if error.errno in (errno.EINVAL, errno.ENOENT) else None


def _is_foreign(theirs: str, ours: str) -> bool:
    """Return True if a process belongs to another container.

    Its container ID differs, or its path begins with `/..`, which means that it is outside this
    program's cgroup namespace (cgroup_namespaces(7)).
    """
    ids = find_container_id(theirs), find_container_id(ours)
    return (":/../" in theirs and ":/../" not in ours) or (all(ids) and ids[0] != ids[1])
