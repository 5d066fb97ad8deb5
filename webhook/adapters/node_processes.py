"""Processes of a node, as seen from the host: finding a process's pod, and signalling it.

`cmdline` is not read, since it can contain secrets and waits for the process's memory lock. All
other files are world-readable (proc(5)), so only signals need a capability.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from webhook.adapters import processes
from webhook.adapters.bounds import LONGEST_MOUNT_BYTES, MOST_MOUNTS_BYTES, MOST_OF_NODE_BYTES
from webhook.adapters.processes import Delivery
from webhook.core.enforcement.model import Process
from webhook.core.node.cgroups import NO_POD, ProcessOwner, find_owner
from webhook.names import ENFORCER_RUN_PATH, ENFORCER_RUN_VOLUME

_INIT: Final = 1


PARENTS_MAX_AGE_S: Final = 0.5
"""Maximum age of the table of parent processes, in seconds."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process with its pod and container."""

    process: Process
    """Identity of the process: its PID in the node's PID namespace, and its container ID."""
    place: ProcessOwner


class NodeProcesses:
    """Processes in /proc with their pods. This program's cgroup shows the layout of paths."""

    def __init__(self, own_uid: str, *, proc: str = "/proc") -> None:
        """`own_uid` is the UID of this program's pod.

        If it is empty, the pod of a process cannot be found, so no process is ever stopped.
        """
        self._proc = proc
        self._own_uid = own_uid
        self._own_cgroups = processes.read_cgroups(os.getpid(), proc)
        self._parents: dict[int, tuple[int, int]] = {}
        self._places: dict[int, ProcessOwner] = {}
        self._parents_read_s = float("-inf")
        me = os.getpid()
        self._never_signalled = frozenset({_INIT, me, *processes.ancestors(me, proc=proc)})

    def can_find_pods(self) -> bool:
        """Return True if pods of processes can be found, which this program's own pod tests."""
        try:
            return self._place(os.getpid()) != NO_POD
        except OSError:
            return False

    def owner(self, pid: int) -> Owner | None:
        """Return the process with this PID; None if it is missing, a zombie or unreadable.

        All files are read between two reads of the start time, so they belong to one process even
        if the PID is reused.
        """
        try:
            started = processes.start_time(pid, self._proc)
            command = processes.one_line(processes.read_file(f"{self._proc}/{pid}/comm"))
            place = self._place(pid)
            process = Process(pid, started, command, place.container)
            processes.require_same(process, self._proc)
        except OSError:
            return None
        return Owner(process, place)

    def is_gone(self, process: Process) -> bool:
        """Return True if this process has ended, even if its PID was reused."""
        return processes.is_gone(process, proc=self._proc)

    def in_pod(self, pod: str) -> Iterator[Owner]:
        """Yield the pod's processes; processes that start meanwhile may be missed."""
        for pid in processes.pids(proc=self._proc):
            with contextlib.suppress(OSError):
                if self._place(pid).pod != pod:
                    continue
            owner = self.owner(pid)
            if owner is not None and owner.place.pod == pod:
                yield owner

    def by_name(self, is_wanted: Callable[[str], bool]) -> Iterator[Owner]:
        """Yield the processes with a wanted name (`comm`); of others only the name is read."""
        for pid in processes.pids(proc=self._proc):
            with contextlib.suppress(OSError):
                if not is_wanted(processes.read_file(f"{self._proc}/{pid}/comm")):
                    continue
                owner = self.owner(pid)
                if owner is not None and is_wanted(owner.process.command):
                    yield owner

    def send(self, owner: Owner, number: signal.Signals) -> Delivery:
        """Signal this process, and never another one with the same PID.

        A pidfd always refers to one process. Start time and cgroup are read after the pidfd was
        opened, so they belong to that process. Without pidfds (kernels before 5.3, old seccomp
        profiles) no process is signalled, since a PID can be reused at any time.
        """
        process = owner.process
        if process.pid in self._never_signalled or not owner.place.pod:
            return Delivery.REJECTED
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return Delivery.GONE
        except (AttributeError, OSError):
            return Delivery.REJECTED
        try:
            processes.require_same(process, self._proc)
            if self._place(process.pid).pod != owner.place.pod:
                processes.require_same(process, self._proc)  # an ended process has no cgroup
                return Delivery.REJECTED
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return Delivery.GONE
        except OSError:
            return Delivery.REJECTED
        finally:
            os.close(pidfd)
        return Delivery.DELIVERED

    def inner_pid(self, pid: int) -> int:
        """Return a process's PID in its pod, or 0 if the pod has no PID namespace; raises OSError.

        It is the second number of `NSpid`. The first is the node's PID. Nested namespaces of the
        pod add further numbers.
        """
        numbers = processes.read_status(pid, self._proc).get("NSpid", "").split()
        return int(numbers[1]) if len(numbers) > 1 and numbers[1].isdecimal() else 0

    def handles(self, pid: int, number: signal.Signals) -> bool:
        """Return True if the process handles the signal (`SigCgt`); raises OSError."""
        try:
            caught = int(processes.read_status(pid, self._proc).get("SigCgt", ""), 16)
        except ValueError:
            return False
        return bool(caught >> (number - 1) & 1)

    def has_container_mounts(self, pid: int, pod: str) -> bool:
        """Return True if the process is or may be in a container, False if it is in the sandbox.

        The kubelet mounts a file for the termination message into each container of a pod, but not
        into the sandbox. A process can hide that mount by a user namespace or by another root
        (chroot(2)), which also hides its mount of `/proc`. Both count as a container. Raises
        OSError, also if the main thread has ended.
        """
        uid_map, own_uid_map = (
            processes.read_file(f"{self._proc}/{found}/uid_map") for found in (pid, "self")
        )
        if uid_map != own_uid_map:
            return True
        folder, sees_proc = f"/pods/{pod}/containers/", False
        for _, root, at, kind in self._mounts(pid, "/", MOST_MOUNTS_BYTES):
            if folder in root:
                return True
            sees_proc |= (root, at, kind) == ("/", "/proc", "proc")
        return not sees_proc

    def enforcer_mounts(self, pod: str) -> frozenset[str]:
        """Return the devices (`major:minor`) of the volume that only the pod's enforcer mounts.

        The kubelet mounts the volume as a separate tmpfs, which the node's PID 1 shows. The result
        is empty if the mount does not exist or is hidden. Then the enforcer cannot be recognized.
        """
        volume = f"/pods/{pod}/volumes/kubernetes.io~empty-dir/{ENFORCER_RUN_VOLUME}"
        found = (
            device
            for device, root, at, kind in self._mounts(
                _INIT, ENFORCER_RUN_VOLUME, MOST_OF_NODE_BYTES
            )
            if kind == "tmpfs" and root == "/" and at.endswith(volume)
        )
        return frozenset(found)

    def has_mounted(self, pid: int, devices: frozenset[str]) -> bool:
        """Return True if one of the devices is mounted at the enforcer's path; raises OSError.

        Other containers cannot forge this mount: in its own namespace a process can mount only what
        that namespace contains (mount(2)), and admission denies the volume to other containers.
        """
        return any(
            device in devices and root == "/" and at == ENFORCER_RUN_PATH
            for device, root, at, _ in self._mounts(pid, ENFORCER_RUN_PATH, MOST_MOUNTS_BYTES)
        )

    def _place(self, pid: int) -> ProcessOwner:
        """Return the pod and container of a process; raises OSError if unreadable."""
        try:
            cgroups = processes.require_cgroups(pid, self._proc)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return self._place_by_ancestors(pid)
            raise
        return find_owner(cgroups, self._own_cgroups, self._own_uid)

    def _place_by_ancestors(self, pid: int) -> ProcessOwner:
        """Return the pod of a process whose cgroup path is too long to be shown.

        Kernels before 6.8 do not show paths of 4096 characters (`proc_cgroup_show`), and a workload
        that can create cgroups can create such a path. A process cannot choose an ancestor outside
        of its pod, neither by starting processes nor by orphaning them:

        | nearest ancestor whose cgroup is shown | the process belongs to |
        | --- | --- |
        | is in a pod | that pod |
        | is in no pod, and its children in pods are all in one pod | that pod |
        | anything else | no pod |

        The second case is the runtime's shim, which also started the sandbox. Raises OSError for a
        process that ended meanwhile.
        """
        parents = self._read_parents(pid)
        below: list[int] = []
        place: ProcessOwner | None = None
        while place is None and pid not in self._places:
            self._places[pid] = NO_POD
            below.append(pid)
            pid, place = self._place_by_parent(pid, parents)
        place = place or self._places[pid]
        self._places |= dict.fromkeys(below, place)
        return place

    def _place_by_parent(
        self, pid: int, parents: Mapping[int, tuple[int, int]]
    ) -> tuple[int, ProcessOwner | None]:
        """Return the parent's PID, and the child's pod; None if the parent's cgroup is hidden, too.

        A parent that is younger than its child has a reused PID.
        """
        parent, started = parents[pid]
        if parent <= _INIT or parents.get(parent, (0, started + 1))[1] > started:
            return parent, NO_POD
        try:
            cgroups = processes.require_cgroups(parent, self._proc)
        except OSError as error:
            return parent, None if error.errno == errno.ENAMETOOLONG else NO_POD
        place = find_owner(cgroups, self._own_cgroups, self._own_uid)
        # The container is unknown: orphans become children of the sandbox.
        return parent, ProcessOwner(place.pod or self._pod_of_children(parent, parents))

    def _pod_of_children(self, parent: int, parents: Mapping[int, tuple[int, int]]) -> str:
        children = (pid for pid, (found, _) in parents.items() if found == parent)
        texts = (processes.read_cgroups(pid, self._proc) for pid in children)
        places = (find_owner(text, self._own_cgroups, self._own_uid) for text in texts)
        pods = {place.pod for place in places} - {""}
        return pods.pop() if len(pods) == 1 else ""

    def _read_parents(self, pid: int) -> Mapping[int, tuple[int, int]]:
        """Return parent and start time by PID; raises ProcessLookupError if `pid` is too new.

        Building the table reads one file per process of the node, so it is kept for
        `PARENTS_MAX_AGE_S`.
        """
        now_s = time.monotonic()
        if now_s - self._parents_read_s >= PARENTS_MAX_AGE_S:
            self._parents, self._places = {}, {}
            for found in processes.pids(proc=self._proc):
                with contextlib.suppress(OSError):
                    self._parents[found] = processes.parent_and_start(found, self._proc)
            self._parents_read_s = now_s
        if pid not in self._parents:
            raise ProcessLookupError  # it has just started or ended; the next scan shows it
        return self._parents

    def _mounts(self, pid: int, name: str, most: int) -> Iterator[tuple[str, str, str, str]]:
        """Yield device, root, mount point and type of mounts named `name` (proc_pid_mountinfo(5)).

        Only one line is in memory at a time, and only lines with the name are parsed. The rest of a
        line that is too long counts as another line. Its fields have other positions, so it never
        matches. Raises OSError, also if the file has more than `most` bytes.
        """
        wanted = name.encode()
        with open(f"{self._proc}/{pid}/mountinfo", "rb") as file:  # noqa: PTH123 - as in `processes`
            while most > 0 and (line := file.readline(LONGEST_MOUNT_BYTES)):
                most -= len(line)
                if wanted not in line:
                    continue
                before, _, after = line.decode(errors="replace").partition(" - ")
                parts, kind = before.split(" "), after.partition(" ")[0]
                if len(parts) > 4:  # noqa: PLR2004 - the fields named below
                    yield parts[2], parts[3], parts[4], kind
        if most <= 0:
            raise OSError(errno.EFBIG, "too many mounts")
