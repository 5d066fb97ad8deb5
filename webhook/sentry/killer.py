"""Stops processes of pods, except for sandboxes and enforcers."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from webhook.adapters.node_processes import NodeProcesses, Owner
from webhook.adapters.processes import Delivery

_T = TypeVar("_T")

ROUNDS: Final = 10
"""Maximum number of rounds; each round finds processes that were started since the previous one.

The next scan continues to end the pod: the other pods of the node must not wait for long.
"""

ENDING_S: Final = 2.0
"""Maximum time for which one call signals a pod's processes, in seconds, however many the pod
starts.

It begins after the first search, which reads all processes of the node. Otherwise a pod could make
the search last for all of this time, and no process would be signalled.
"""

ROUND_S: Final = 0.05
"""Pause between rounds, in seconds. After it, a killed process has ended and starts no others."""

CONTEXT_BYTES: Final = 256 * 2**20
"""Maximum memory of containers that are spared as the enforcer's, over all GPUs: a CUDA context.

The true enforcer holds none. A tenant who puts another image into the enforcer's container, or its
volume into another container, gains no more than this.
"""


@dataclass(frozen=True, slots=True)
class PodEnd:
    """Result of ending a pod."""

    stopped: int
    """Number of processes that got SIGKILL."""
    rejected: int
    """Number of processes that could not be signalled."""
    sure: bool
    """True if the enforcer's container is known, or the pod has none. Otherwise only containers
    that hold GPU memory were stopped."""


class Killer:
    """Ends processes of pods; each process is identified again just before its signal."""

    def __init__(
        self,
        node: NodeProcesses,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._clock = clock
        self._sleep = sleep
        self._sandboxes: dict[str, Owner] = {}
        """Sandbox processes whose PID namespace several containers shared, keyed by pod."""

    def stop(
        self,
        owner: Owner,
        held: Mapping[str, int],
        *,
        sidecar: bool,
        number: signal.Signals = signal.SIGKILL,
    ) -> Delivery:
        """Signal one process, unless it is the sandbox's or, with a sidecar, the enforcer's.

        A process that does not handle SIGTERM gets SIGKILL instead: the kernel would not deliver
        SIGTERM to PID 1 of a namespace (signal(7)), and other processes may ignore it. `held` is as
        for `end`. The enforcer is recognized by its mounts. The mounts of a process whose main
        thread ended are hidden.
        """
        place, pid = owner.place, owner.process.pid
        if self._pid_in_pod(owner) == 0:
            return Delivery.GONE if self._node.is_gone(owner.process) else Delivery.REJECTED
        mounts = self._mounts(place.pod, sidecar=sidecar)
        if self._may_be_spared(owner, mounts):
            _, sandbox, enforcers = self._sort_processes(place.pod, mounts, held)
            if owner == sandbox or (
                self._is_enforcer(owner, mounts) and place.container in enforcers
            ):
                return Delivery.REJECTED
        if not _read(self._node.handles, pid, number, unreadable=False):
            number = signal.SIGKILL
        return self._node.send(owner, number)

    def end(
        self,
        pod: str,
        listed: Collection[Owner],
        held: Mapping[str, int],
        *,
        sidecar: bool,
        again: bool = False,
    ) -> PodEnd:
        """Kill all processes of a pod in rounds, until no new process is found or time is up.

        `listed` are the processes that hold GPU memory. They are killed first, before any search,
        unless only the pod's other processes show whether to spare them. `held` maps their
        containers to the bytes held over all GPUs; other processes of these containers are next.
        `again` is True if the previous call found no process to stop. No data of a tenant decides
        which processes are spared:

        | a process | by sidecar | by sentry |
        | --- | --- | --- |
        | is in the node's own process namespace: the runtime's | spared | spared |
        | is the sandbox's (`_sandbox`) | spared | spared |
        | its container's first process has the enforcer's volume mounted | see below | stopped |
        | any other, and the node shows that volume | stopped | stopped |
        | any other, the node does not show it, and its container is in `held` | stopped | stopped |
        | any other: it may be the enforcer's, which never holds GPU memory | spared | stopped |

        Containers with the enforcer's volume are spared while they hold at most `CONTEXT_BYTES`
        together, beginning with the container that holds least. With `again`, memory of containers
        without processes counts as theirs, since they may keep its files open.

        Another process of its user can make the sandbox's process hold memory (ptrace(2)). Then all
        other processes of the pod end, and the caller reports that the memory is still held.
        """
        mounts = self._mounts(pod, sidecar=sidecar)
        sure = bool(mounts) or not sidecar
        done = {item for item in listed if not self._may_be_spared(item, mounts)}
        sent = Counter(self._node.send(item, signal.SIGKILL) for item in done)
        until_s = float("inf")
        for _ in range(ROUNDS):
            found, sandbox, enforcers = self._sort_processes(pod, mounts, held, again=again)
            until_s = min(until_s, self._clock() + ENDING_S)
            fresh = [
                item
                for item in found
                if item not in done and item != sandbox and item.place.container not in enforcers
            ]
            fresh.sort(key=lambda item: (item not in listed, item.place.container not in held))
            before = sent.copy()
            for owner in fresh:
                if self._clock() >= until_s:
                    break
                done.add(owner)
                if self._pid_in_pod(owner) > 0 and (sure or owner.place.container in held):
                    sent[self._node.send(owner, signal.SIGKILL)] += 1
            if sent == before or self._clock() >= until_s:
                break
            self._sleep(ROUND_S)
        return PodEnd(sent[Delivery.DELIVERED], sent[Delivery.REJECTED], sure=sure)

    def _may_be_spared(self, owner: Owner, mounts: frozenset[str]) -> bool:
        """Return True if a listed process may have to be spared, judging by its own files.

        A process that holds GPU memory can be the sandbox's only if its PID in the pod is 1.
        """
        if owner == self._sandboxes.get(owner.place.pod) or self._is_enforcer(owner, mounts):
            return True
        number = self._pid_in_pod(owner)
        return number == 0 or (number == 1 and not self._is_of_kubelet(owner))

    def _mounts(self, pod: str, *, sidecar: bool) -> frozenset[str]:
        nothing = frozenset[str]()
        return _read(self._node.enforcer_mounts, pod, unreadable=nothing) if sidecar else nothing

    def _pid_in_pod(self, owner: Owner) -> int:
        """Return a process's PID in its pod; 0 if it has none, has ended or cannot be read."""
        return _read(self._node.inner_pid, owner.process.pid, unreadable=0)

    def _sort_processes(
        self, pod: str, mounts: frozenset[str], held: Mapping[str, int], *, again: bool = False
    ) -> tuple[list[Owner], Owner | None, set[str]]:
        """Return a pod's processes, the sandbox's process, and the enforcer's containers.

        Mounts are read only of the first process of each container: a tenant can give the others a
        megabyte of mounts.
        """
        found = list(self._node.in_pod(pod))
        first = self._first_processes(found)
        theirs = [container for container, item in first.items() if self._is_enforcer(item, mounts)]
        sum_bytes = sum(held[item] for item in held.keys() - first.keys()) if again else 0
        enforcers: set[str] = set()
        for container in sorted(theirs, key=lambda their: held.get(their, 0)):
            sum_bytes += held.get(container, 0)
            if sum_bytes <= CONTEXT_BYTES:
                enforcers.add(container)
        return found, self._sandbox(pod, found, first, held), enforcers

    def _first_processes(self, found: Iterable[Owner]) -> dict[str, Owner]:
        """Return the oldest living process of each container, keyed by container.

        Processes of the runtime, such as CRI-O's conmon, are left out. PID 1 of a namespace is the
        oldest process in it, even among those that started within one clock tick. Other PIDs are
        not read: a tenant can make that slow.
        """
        first: dict[str, Owner] = {}
        for item in sorted(found, key=lambda item: (item.process.started, item.process.pid)):
            before = first.get(item.place.container)
            if before is None or before.process.started == item.process.started:
                number = self._pid_in_pod(item)
                if number > 0 and (
                    before is None or (number == 1 and self._pid_in_pod(before) > 1)
                ):
                    first[item.place.container] = item
        return first

    def _sandbox(
        self, pod: str, found: Iterable[Owner], first: Mapping[str, Owner], held: Mapping[str, int]
    ) -> Owner | None:
        """Return the process of the pod's sandbox, or None if the pod has none.

        Only the kernel's facts count: cgroups, start times, and PIDs in process namespaces
        (`NSpid`). Namespaces themselves are not compared: reading `ns/pid` takes all capabilities
        of that process (ptrace(2)), and the sentry has only KILL. But a namespace that the runtime
        made ends with its PID 1, so a container without a PID 1 is in the namespace of another
        container.

        | containers with a PID 1 | without | the sandbox's process is |
        | --- | --- | --- |
        | one | some | that PID 1 |
        | one, and it mounts files that the kubelet makes for containers | some | as below |
        | another number | any | the only process of the oldest container, unless it is in `held` |

        The second row is a program that a debugging container targets, on a node whose runtime
        makes no sandbox process (CRI-O). A namespace that a tenant makes is inside the runtime's,
        whose PID counts. A process whose container is unreadable may belong to the oldest
        container. Then the only other process there is spared only if it certainly has no mounts of
        the kubelet. A process found by the first row stays the sandbox's after the other containers
        have ended.
        """
        known = {container: item for container, item in first.items() if container}
        inits = [item for item in known.values() if self._pid_in_pod(item) == 1]
        before = self._sandboxes.get(pod)
        if before in inits:
            return before
        if len(inits) == 1 and len(known) > 1 and not self._is_of_kubelet(inits[0]):
            known_before = self._sandboxes.items()
            self._sandboxes = {
                of: item for of, item in known_before if not self._node.is_gone(item.process)
            } | {pod: inits[0]}
            return inits[0]
        if not known:
            return None
        oldest = min(known, key=lambda item: (known[item].process.started, item))
        living = (
            item for item in found if item.place.container == oldest and self._pid_in_pod(item) > 0
        )
        theirs = list(islice(living, 2))
        hidden = any(not item.place.container for item in found)
        if len(theirs) != 1 or oldest in held or (hidden and self._is_of_kubelet(theirs[0])):
            return None
        return theirs[0]

    def _is_of_kubelet(self, owner: Owner) -> bool:
        """Return True if the process has mounts of the kubelet, or may hide them."""
        call = self._node.has_container_mounts
        return _read(call, owner.process.pid, owner.place.pod, unreadable=True)

    def _is_enforcer(self, owner: Owner, mounts: frozenset[str]) -> bool:
        call = self._node.has_mounted
        return bool(mounts) and _read(call, owner.process.pid, mounts, unreadable=False)


def _read(call: Callable[..., _T], *of: object, unreadable: _T) -> _T:
    """Return the result of reading /proc, or `unreadable` if that raises OSError."""
    try:
        return call(*of)
    except OSError:
        return unreadable
