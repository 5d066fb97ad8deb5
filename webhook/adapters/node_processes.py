"""The node's processes from outside their pods: whose they are, and how to stop exactly one.

Reads no `cmdline`: it may hold secrets, and reading it waits for the target's memory lock. All else
is readable by everybody (proc(5)), so nothing here needs a capability except the signal.
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


KIN_S: Final = 0.5
"""How old the parents of all processes may be that places are found by."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process by its identity, and where it runs."""

    process: Process
    """With the node's own pid, and the container's id."""
    place: ProcessOwner


class NodeProcesses:
    """The processes that proc shows, placed by our own cgroup."""

    def __init__(self, own_uid: str, *, proc: str = "/proc") -> None:
        """Prepare; `own_uid` is our own pod's.

        Without it nobody's pod is known, so nobody is ever stopped.
        """
        self._proc = proc
        self._own_uid = own_uid
        self._own_cgroups = processes.read_cgroups(os.getpid(), proc)
        self._parents: dict[int, tuple[int, int]] = {}
        self._places: dict[int, ProcessOwner] = {}
        self._kin_s = float("-inf")
        me = os.getpid()
        self._spared = frozenset({_INIT, me, *processes.parents(me, proc=proc)})

    def knows_itself(self) -> bool:
        """Say whether processes can be placed: our own is."""
        try:
            return self._place(os.getpid()) != NO_POD
        except OSError:
            return False

    def owner(self, pid: int) -> Owner | None:
        """Return who has this pid; None for a free one, a zombie, or where proc does not answer.

        All is read between two reads of the start time, so none of it can be the next owner's.
        """
        try:
            started = processes.start_time(pid, self._proc)
            command = processes.as_line(processes.read_file(f"{self._proc}/{pid}/comm"))
            place = self._place(pid)
            process = Process(pid, started, command, place.container)
            processes.require_same(process, self._proc)
        except OSError:
            return None
        return Owner(process, place)

    def is_gone(self, process: Process) -> bool:
        """Return whether this very process has ended, whoever has its pid now."""
        return processes.is_gone(process, proc=self._proc)

    def of_pod(self, pod: str) -> Iterator[Owner]:
        """Yield the pod's processes as they are found; what starts meanwhile may be missed."""
        for pid in processes.pids(proc=self._proc):
            with contextlib.suppress(OSError):
                if self._place(pid).pod != pod:
                    continue
            owner = self.owner(pid)
            if owner is not None and owner.place.pod == pod:
                yield owner

    def named(self, wanted: Callable[[str], bool]) -> Iterator[Owner]:
        """Yield the processes whose names (`comm`) are wanted, with one read for each other one."""
        for pid in processes.pids(proc=self._proc):
            with contextlib.suppress(OSError):
                if not wanted(processes.read_file(f"{self._proc}/{pid}/comm")):
                    continue
                owner = self.owner(pid)
                if owner is not None and wanted(owner.process.command):
                    yield owner

    def send(self, owner: Owner, number: signal.Signals) -> Delivery:
        """Signal this very process, or none.

        The pidfd means one process for good; start time and cgroup are read after it was opened, so
        they are that process's. Without pidfds (a kernel before 5.3, an old seccomp profile) no
        process is signalled: a pid alone may be another's a moment later.
        """
        process = owner.process
        if process.pid in self._spared or not owner.place.pod:
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
                processes.require_same(process, self._proc)  # who ended is in no cgroup
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
        """Return the number that a process has in its pod; 0 where it has none of its own.

        The second number of `NSpid`: the first is the node's, and a namespace that a tenant makes
        within its own adds a third. Raises OSError.
        """
        numbers = processes.read_status(pid, self._proc).get("NSpid", "").split()
        return int(numbers[1]) if len(numbers) > 1 and numbers[1].isdecimal() else 0

    def handles(self, pid: int, number: signal.Signals) -> bool:
        """Return True if the process has a handler for a signal (`SigCgt`); raises OSError."""
        try:
            caught = int(processes.read_status(pid, self._proc).get("SigCgt", ""), 16)
        except ValueError:
            return False
        return bool(caught >> (number - 1) & 1)

    def has_container_mounts(self, pid: int, pod: str) -> bool:
        """Return True if the process is, or may be, in a container: it is not the sandbox's.

        The kubelet makes a file for each container of a pod, for its termination message, and none
        for the sandbox. A process hides that mount by a user namespace of its own, or by another
        root (chroot(2)). The latter takes the mount of `/proc` out of its sight as well.
        Raises OSError, also if the main thread ended.
        """
        maps = [processes.read_file(f"{self._proc}/{one}/uid_map") for one in (pid, "self")]
        if maps[0] != maps[1]:
            return True
        folder, sees_proc = f"/pods/{pod}/containers/", False
        for _, root, at, kind in self._mounts(pid, "/", MOST_MOUNTS_BYTES):
            if folder in root:
                return True
            sees_proc |= (root, at, kind) == ("/", "/proc", "proc")
        return not sees_proc

    def enforcer_mounts(self, pod: str) -> frozenset[str]:
        """Return the devices (`major:minor`) of the volume that only the pod's enforcer mounts.

        The kubelet mounts it as a tmpfs of its own, and the node's first process shows that. Empty
        where it does not, or is hidden from us: then nothing proves who is the enforcer.
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
        """Say whether the process sees one of these at the enforcer's path; raises OSError.

        A tenant may mount what it likes in a namespace of its own, but not another's tmpfs: a mount
        is made from one's own namespace, mount(2), and admission keeps others off that volume.
        """
        return any(
            device in devices and root == "/" and at == ENFORCER_RUN_PATH
            for device, root, at, _ in self._mounts(pid, ENFORCER_RUN_PATH, MOST_MOUNTS_BYTES)
        )

    def _place(self, pid: int) -> ProcessOwner:
        """Return where a process runs; raises OSError where that cannot be read now."""
        try:
            cgroups = processes.cgroups_of(pid, self._proc)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return self._place_by_kin(pid)
            raise
        return find_owner(cgroups, self._own_cgroups, self._own_uid)

    def _place_by_kin(self, pid: int) -> ProcessOwner:
        """Return where a process runs whose cgroup has too long a name to be shown.

        Kernels before 6.8 show no path of 4096 letters (`proc_cgroup_show`), and who may make
        cgroups below its own can have one. Who started a process, or took it in as its own parent
        ended, cannot be chosen outside of one's pod:

        | the nearest ancestor that shows its cgroup | the process is |
        | --- | --- |
        | is of a pod | of that pod |
        | is of none; of its children those that are of pods are of one | of that pod |
        | anything else | of no pod |

        The second is the runtime's shim, which started the sandbox as well. Raises OSError for a
        process that ended meanwhile.
        """
        parents = self._kin(pid)
        below: list[int] = []
        place: ProcessOwner | None = None
        while place is None and pid not in self._places:
            self._places[pid] = NO_POD
            below.append(pid)
            pid, place = self._above(pid, parents)
        place = place or self._places[pid]
        self._places |= dict.fromkeys(below, place)
        return place

    def _above(
        self, pid: int, parents: Mapping[int, tuple[int, int]]
    ) -> tuple[int, ProcessOwner | None]:
        """Return the parent, and where its child runs by it; None where it is hidden as well.

        A parent is older than its child; where it is not, its number was reused meanwhile.
        """
        parent, started = parents[pid]
        if parent <= _INIT or parents.get(parent, (0, started + 1))[1] > started:
            return parent, NO_POD
        try:
            cgroups = processes.cgroups_of(parent, self._proc)
        except OSError as error:
            return parent, None if error.errno == errno.ENAMETOOLONG else NO_POD
        place = find_owner(cgroups, self._own_cgroups, self._own_uid)
        # Its container may be another: whoever loses its parent is the sandbox's.
        return parent, ProcessOwner(place.pod or self._pod_of_children(parent, parents))

    def _pod_of_children(self, parent: int, parents: Mapping[int, tuple[int, int]]) -> str:
        children = (pid for pid, (of, _) in parents.items() if of == parent)
        texts = (processes.read_cgroups(pid, self._proc) for pid in children)
        places = (find_owner(text, self._own_cgroups, self._own_uid) for text in texts)
        pods = {place.pod for place in places} - {""}
        return pods.pop() if len(pods) == 1 else ""

    def _kin(self, pid: int) -> Mapping[int, tuple[int, int]]:
        """Return everybody's parent and start, read at most every `KIN_S`; raises OSError.

        It takes a read for each process of the node, however many are asked for.
        """
        now_s = time.monotonic()
        if now_s - self._kin_s >= KIN_S:
            self._parents, self._places = {}, {}
            for one in processes.pids(proc=self._proc):
                with contextlib.suppress(OSError):
                    self._parents[one] = processes.parent_and_start(one, self._proc)
            self._kin_s = now_s
        if pid not in self._parents:
            raise ProcessLookupError  # it is new, or over: the next scan knows
        return self._parents

    def _mounts(self, pid: int, name: str, most: int) -> Iterator[tuple[str, str, str, str]]:
        """Yield device, root, mount point and type of mounts with this name, proc_pid_mountinfo(5).

        Only one line is in memory, and most are only searched for the name. The end of one that is
        too long counts as another, whose fields are at other places, so it is never taken for ours.
        Raises OSError, also if there are more than `most` bytes.
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
