"""Stops what has to be stopped, and nobody else."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from webhook.adapters.processes import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from webhook.adapters.node_processes import NodeProcesses, Owner

ROUNDS: Final = 10
"""Each finds who was started since the one before. The next scan goes on where that is not over:
the other pods of the node must not wait for long."""

ENDING_S: Final = 2.0
"""For how long a pod is ended before the others are scanned again, however many it starts."""

ROUND_S: Final = 0.05
"""Between rounds: what was killed has ended then, and starts nobody any more."""

CONTEXT_BYTES: Final = 256 * 2**20
"""A CUDA context. So much may be held, over all GPUs, by who is spared as the enforcer: the true
one holds none, and who changes its image, or mounts its volume, gains nothing by more."""


@dataclass(frozen=True, slots=True)
class PodEnd:
    """What became of the end of a pod."""

    stopped: int
    """Processes that got SIGKILL."""
    rejected: int
    """Processes that we may not signal."""
    sure: bool
    """Whether it is known which container is the enforcer's. Otherwise only containers that hold
    GPU memory were stopped."""


class Killer:
    """Ends processes of pods, each checked again just before."""

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

    def stop(self, owner: Owner, held: Mapping[str, int]) -> Delivery:
        """End one process; never the sandbox's, nor the enforcer's, as `end` has it.

        Of one whose main thread ended nobody sees the mounts: the enforcer has its own.
        """
        try:
            number = self._node.inner_pid(owner.process.pid)
        except OSError:
            return Delivery.GONE if self._node.is_gone(owner.process) else Delivery.REJECTED
        place, mounts = owner.place, self._mounts(owner.place.pod)
        if number <= 1 or (
            self._is_enforcer(owner, mounts)
            and place.container in self._enforcers(self._node.of_pod(place.pod), mounts, held)
        ):
            return Delivery.REJECTED
        return self._node.kill(owner)

    def end(self, pod: str, held: Mapping[str, int], *, again: bool = False) -> PodEnd:
        """End all processes of a pod, in rounds, until one finds nobody new or time is up.

        `held` is what containers hold over all GPUs, in bytes; those that are listed come first.
        `again` is whether nobody was left to stop before. Nothing a tenant says decides who is
        spared:

        | a process | is |
        | --- | --- |
        | has no number of its own in the pod, or is number 1 there | spared: the sandbox's |
        | is in a container whose first process has the enforcer's volume mounted | see below |
        | any other, and the node shows that volume | stopped |
        | any other, the node does not show it, and its container is among `held` | stopped |
        | any other | spared: it may be the enforcer's, which never holds GPU memory |

        Containers with that volume are spared, from who holds least on, while they hold no more
        than `CONTEXT_BYTES` together. What else they hold is the pod's. `again`, what is held by
        containers in which nobody lives is theirs: they have its files open.

        Another process of its user can make the sandbox's hold memory (ptrace(2)): all others of
        the pod end then, and who calls this says that the memory is held still.
        """
        until_s = self._clock() + ENDING_S
        mounts = self._mounts(pod)
        done: set[Owner] = set()
        stopped = rejected = 0
        for _ in range(ROUNDS):
            found = list(self._node.of_pod(pod))
            spared = self._enforcers(found, mounts, held, again=again)
            fresh = [one for one in found if one not in done and one.place.container not in spared]
            fresh.sort(key=lambda one: one.place.container not in held)
            before = stopped + rejected
            for owner in fresh:
                if self._clock() >= until_s:
                    return PodEnd(stopped, rejected, sure=bool(mounts))
                done.add(owner)
                if self._may_stop(owner, held, sure=bool(mounts)):
                    delivery = self._node.kill(owner)
                    stopped += delivery is Delivery.DELIVERED
                    rejected += delivery is Delivery.REJECTED
            if stopped + rejected == before:
                break
            self._sleep(ROUND_S)
        return PodEnd(stopped, rejected, sure=bool(mounts))

    def _mounts(self, pod: str) -> frozenset[str]:
        try:
            return self._node.enforcer_mounts(pod)
        except OSError:
            return frozenset()

    def _may_stop(self, owner: Owner, held: Mapping[str, int], *, sure: bool) -> bool:
        container = owner.place.container
        try:
            if self._node.inner_pid(owner.process.pid) <= 1:
                return False
        except OSError:
            return False
        return sure or (bool(container) and container in held)

    def _enforcers(
        self,
        found: Iterable[Owner],
        mounts: frozenset[str],
        held: Mapping[str, int],
        *,
        again: bool = False,
    ) -> set[str]:
        """Return the containers that are spared as the enforcer's.

        One process of each is asked, its first, which the runtime started: the others see a
        megabyte of mounts where a tenant likes that.
        """
        first: dict[str, Owner] = {}
        for one in sorted(found, key=lambda one: (one.process.started, one.process.pid)):
            first.setdefault(one.place.container, one)
        theirs = [container for container, one in first.items() if self._is_enforcer(one, mounts)]
        sum_bytes = sum(held[one] for one in held.keys() - first.keys()) if again else 0
        spared: set[str] = set()
        for container in sorted(theirs, key=lambda one: held.get(one, 0)):
            sum_bytes += held.get(container, 0)
            if sum_bytes <= CONTEXT_BYTES:
                spared.add(container)
        return spared

    def _is_enforcer(self, owner: Owner, mounts: frozenset[str]) -> bool:
        try:
            return bool(mounts) and self._node.has_mounted(owner.process.pid, mounts)
        except OSError:
            return False
