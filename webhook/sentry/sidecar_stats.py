"""What sidecars say by the names of their processes: read seldom, on a thread of its own.

See `read_process_name`. A tenant can forge it for its own pod alone: a process is of the pod that
its cgroup names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from webhook.adapters.node_processes import NodeProcesses, Owner
from webhook.core.enforcement.termination_message import read_process_name

Stats = tuple[int, int | None]
"""Stops and peak in bytes, as a sidecar's process name says them."""

EVERY_S: Final = 10.0
SEARCH_EVERY_S: Final = 60.0
"""How often sidecars are searched for that are not known yet: it takes a read for each process of
the node."""

DUTY: Final = 20
"""A search is followed by so many times its own length without one: tenants can have many
processes."""


class SidecarStats:
    """Knows which process is a pod's sidecar: the oldest of that pod that has such a name.

    A native sidecar starts before any container of its tenant's.
    """

    def __init__(
        self,
        node: NodeProcesses,
        pods: Callable[[], Iterable[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `node` is for this thread alone, `pods` returns the UIDs on the list."""
        self._node = node
        self._pods = pods
        self._clock = clock
        self._sidecars: dict[str, Owner] = {}
        self._search_s = float("-inf")
        self.stats: Mapping[str, Stats] = {}
        """What is said now; read by the main thread."""

    def read_all(self) -> None:
        """Read, forever."""
        while True:
            self.read()
            time.sleep(EVERY_S)

    def read(self) -> None:
        """Read the names of the sidecars that are known, and search for others when it is time."""
        wanted = frozenset(self._pods())
        stats: dict[str, Stats] = {}
        for uid, sidecar in tuple(self._sidecars.items()):
            name = self._name_of(sidecar) if uid in wanted else None
            if name is None:
                del self._sidecars[uid]
            else:
                stats[uid] = name
        if wanted - stats.keys() and self._clock() >= self._search_s:
            self._search(wanted - stats.keys(), stats)
        self.stats = stats

    def _name_of(self, sidecar: Owner) -> Stats | None:
        now = self._node.owner(sidecar.process.pid)
        if now is None or now.place != sidecar.place:
            return None
        if now.process.started != sidecar.process.started:
            return None
        return read_process_name(now.process.command)

    def _search(self, missing: frozenset[str], stats: dict[str, Stats]) -> None:
        began_s = self._clock()
        for owner in self._node.named(lambda name: read_process_name(name) is not None):
            uid = owner.place.pod
            name = read_process_name(owner.process.command)
            if uid not in missing or name is None:
                continue
            known = self._sidecars.get(uid)
            if known is None or owner.process.started < known.process.started:
                self._sidecars[uid] = owner
                stats[uid] = name
        now_s = self._clock()
        self._search_s = now_s + max(SEARCH_EVERY_S, DUTY * (now_s - began_s))
