"""Stops what has to be stopped, and nobody else."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from webhook.adapters.processes import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from webhook.adapters.node_processes import NodeProcesses, Owner

ROUNDS: Final = 20
"""Each finds who was started since the one before; the next look goes on where that is not over."""

ROUND_S: Final = 0.05
"""Between rounds: what was killed has ended then, and starts nobody any more."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of the end of a pod."""

    stopped: int
    """Processes that got SIGKILL."""
    rejected: int
    """Processes that we may not signal."""
    sure: bool
    """Whether it is known which container is the enforcer's. Otherwise only containers that hold
    GPU memory were stopped."""


class Actor:
    """Ends processes of pods, each checked again just before."""

    def __init__(self, node: NodeProcesses, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._node = node
        self._sleep = sleep

    def stop(self, owner: Owner) -> Delivery:
        """End one process; never the sandbox's, nor the enforcer's."""
        try:
            if self._is_spared(owner, self._mounts(owner.place.pod)):
                return Delivery.REJECTED
        except OSError:
            return Delivery.GONE if self._node.is_gone(owner.process) else Delivery.REJECTED
        return self._node.kill(owner)

    def end(self, pod: str, holding: Collection[str]) -> Ended:
        """End all processes of a pod, in rounds, until one finds nobody new.

        `holding` are the containers that hold GPU memory. Nothing a tenant says decides who is
        spared:

        | a process | is |
        | --- | --- |
        | has no number of its own in the pod, or is number 1 there | spared: the sandbox's |
        | is in a container whose process has the enforcer's volume mounted | spared |
        | any other, and the node shows that volume | stopped |
        | any other, the node does not show it, and its container is `holding` | stopped |
        | any other | spared: it may be the enforcer's, which never holds GPU memory |
        """
        mounts = self._mounts(pod)
        done: set[Owner] = set()
        stopped = rejected = 0
        enforcers: set[str] = set()
        for _ in range(ROUNDS):
            fresh = [owner for owner in self._node.of_pod(pod) if owner not in done]
            enforcers |= {one.place.container for one in fresh if self._is_enforcer(one, mounts)}
            fresh = [one for one in fresh if self._may_stop(one, mounts, enforcers, holding)]
            if not fresh:
                break
            for owner in fresh:
                done.add(owner)
                delivery = self._node.kill(owner)
                stopped += delivery is Delivery.DELIVERED
                rejected += delivery is Delivery.REJECTED
            self._sleep(ROUND_S)
        return Ended(stopped, rejected, sure=bool(mounts))

    def _mounts(self, pod: str) -> frozenset[str]:
        try:
            return self._node.enforcer_mounts(pod)
        except OSError:
            return frozenset()

    def _may_stop(
        self,
        owner: Owner,
        mounts: frozenset[str],
        enforcers: Collection[str],
        holding: Collection[str],
    ) -> bool:
        container = owner.place.container
        try:
            if self._node.inner_pid(owner.process.pid) <= 1:
                return False
        except OSError:
            return False
        if mounts:
            return container not in enforcers
        return bool(container) and container in holding

    def _is_enforcer(self, owner: Owner, mounts: frozenset[str]) -> bool:
        try:
            return bool(mounts) and self._node.has_mounted(owner.process.pid, mounts)
        except OSError:
            return False

    def _is_spared(self, owner: Owner, mounts: frozenset[str]) -> bool:
        """Say whether a process is the sandbox's or the enforcer's; raises OSError."""
        pid = owner.process.pid
        return self._node.inner_pid(pid) <= 1 or (
            bool(mounts) and self._node.has_mounted(pid, mounts)
        )
