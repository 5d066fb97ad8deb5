"""What the node's limiter says: whether the driver holds caps, whom it holds, and what happened."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from webhook.adapters.node_processes import NodeProcesses, Owner
from webhook.core.enforcement.termination_message import read_process_name
from webhook.core.kinds.nodes import HOLDERS
from webhook.core.node.cgroups import comparable_uid
from webhook.core.node.limiter_state import (
    LARGEST_FILE_BYTES,
    STALE_AFTER_S,
    STATE_FILE,
    LimiterState,
    LimitEvent,
    PodLimitState,
    read_limiter_state,
)
from webhook.core.nvidia.drivers import Proof
from webhook.core.placement.assignments import Assignment, Assignments
from webhook.core.pod.gpus import EnforceBy
from webhook.names import ENFORCED_BY_SIDECAR

UNREADABLE: Final = "what the node's limiter says cannot be read"
SILENT: Final = f"the node's limiter has said nothing for more than {STALE_AFTER_S:g} s"

_DRIVER, _LATE, _SIDECAR, _SENTRY = HOLDERS


class LimiterReport:
    """The limiter's file, as it was read last."""

    def __init__(self, folder: str, *, clock: Callable[[], float] = time.time) -> None:
        """Prepare; `clock` returns Unix time."""
        self._path = f"{folder}/{STATE_FILE}"
        self._clock = clock
        self._read: tuple[int, int, int] | None = None
        """Which file that was."""
        self._state: LimiterState | None = None
        self._limited: Mapping[tuple[str, str], PodLimitState] = {}
        self._told: set[tuple[float, int]] = set()
        self.proof: Proof | None = None
        """None where the node has no limiter."""

    def read(self) -> None:
        """Read the file where it is another one now; never fails.

        | the file | the proof | who is limited |
        | --- | --- | --- |
        | is not there | there is no limiter | nobody |
        | is no file of ours, too large, or cannot be read | does not hold | as read last |
        | was written longer than `STALE_AFTER_S` ago, or will be | does not hold | as read last |
        | was written since, and could prove nothing | does not hold | as read last |
        | was written since, with a proof | holds | as it says |

        The driver goes on holding whom it holds, whatever becomes of the limiter.
        """
        try:
            found = os.lstat(self._path)
            which = found.st_ino, found.st_mtime_ns, found.st_size
            if which != self._read:
                self._read, self._state = which, None
                self._state = read_limiter_state(_text_of(self._path))
                if self._state is not None and self._state.proof.holds:
                    limited = self._state.limited
                    self._limited = {(comparable_uid(one.uid), one.gpu): one for one in limited}
        except (FileNotFoundError, NotADirectoryError):
            self._read = self._state = self.proof = None
            self._limited = {}
            return
        except (OSError, ValueError):
            self._state = None
        state = self._state
        if state is None:
            self.proof = Proof(holds=False, why=UNREADABLE)
        else:
            fresh = abs(self._clock() - state.written_s) <= STALE_AFTER_S
            self.proof = state.proof if fresh else Proof(holds=False, why=SILENT)

    def counted_bytes(self, uid: str, gpu: str, cap_bytes: int) -> int | None:
        """Return what the driver counts of a pod; None where it does not hold it to its cap."""
        limited = self._limited.get((uid, gpu))
        return limited.used_bytes if limited and limited.hard_bytes <= cap_bytes else None

    def find_holder(
        self, uid: str, promise: Assignment, gpu: str, *, enforcement: str, acts: bool
    ) -> str:
        """Return who holds a pod of the list to its cap on a GPU that it was given.

        `enforcement` is the node's label, `acts` whether the sentry may stop anybody.

        | the driver's hard limit, while proven | the line | the node's label | acts | held by |
        | --- | --- | --- | --- | --- |
        | at most the cap, before it held memory | any | any | any | `driver` |
        | at most the cap, perhaps later | any | any | any | `driver, late` |
        | more, none, or nobody knows | by Sidecar, may be stopped | `sidecar` | any | `sidecar` |
        | more, none, or nobody knows | by Sidecar, may be stopped | any other | yes | `sentry` |
        | more, none, or nobody knows | by Sentry, may be stopped | any | yes | `sentry` |
        | more, none, or nobody knows | may be stopped | any other | no | nobody |
        | more, none, or nobody knows | anything else | any | any | nobody |
        """
        limited = self._limited.get((uid, gpu)) if self.proof and self.proof.holds else None
        if limited and limited.hard_bytes <= _cap_bytes(promise):
            return _LATE if limited.late else _DRIVER
        if promise.terms is None or not promise.terms.enforce:
            return ""
        if enforcement == ENFORCED_BY_SIDECAR and promise.terms.by is EnforceBy.SIDECAR:
            return _SIDECAR
        return _SENTRY if acts else ""

    def new_events(self, promises: Assignments) -> list[tuple[str, LimitEvent]]:
        """Return what has not been told yet of pods of the list, each once, by UID.

        Who is not on the list may come there still, while the limiter says it.
        """
        if self._state is None:
            return []
        said = {(self._state.started_s, one.number): one for one in self._state.events}
        self._told &= said.keys()
        new_events = [
            (key, comparable_uid(one.uid), one)
            for key, one in said.items()
            if key not in self._told and comparable_uid(one.uid) in promises
        ]
        self._told.update(key for key, _, _ in new_events)
        return [(uid, one) for _, uid, one in new_events]


def _cap_bytes(promise: Assignment) -> int:
    return promise.terms.cap_bytes if promise.terms else promise.memory_bytes


def _text_of(path: str) -> str:
    """Return what a file holds, no more than is read of it; raises OSError for what is no file."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError
        return os.read(file, LARGEST_FILE_BYTES + 1).decode()
    finally:
        os.close(file)


SidecarReport = tuple[int, int | None]
"""Stops and peak in bytes, as a sidecar's process name says them."""

EVERY_S: Final = 10.0
SEARCH_EVERY_S: Final = 60.0
"""How often sidecars are searched for that are not known yet: it takes a read for each process of
the node."""

DUTY: Final = 20
"""A search is followed by so many times its own length without one: tenants can have many
processes."""


class SidecarReports:
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
        self.stats: Mapping[str, SidecarReport] = {}
        """What is said now; read by the main thread."""

    def read_all(self) -> None:
        """Read, forever."""
        while True:
            self.read()
            time.sleep(EVERY_S)

    def read(self) -> None:
        """Read the names of the sidecars that are known, and search for others when it is time."""
        wanted = frozenset(self._pods())
        stats: dict[str, SidecarReport] = {}
        for uid, sidecar in tuple(self._sidecars.items()):
            name = self._name_of(sidecar) if uid in wanted else None
            if name is None:
                del self._sidecars[uid]
            else:
                stats[uid] = name
        if wanted - stats.keys() and self._clock() >= self._search_s:
            self._search(wanted - stats.keys(), stats)
        self.stats = stats

    def _name_of(self, sidecar: Owner) -> SidecarReport | None:
        now = self._node.owner(sidecar.process.pid)
        if now is None or now.place != sidecar.place:
            return None
        if now.process.started != sidecar.process.started:
            return None
        return read_process_name(now.process.command)

    def _search(self, missing: frozenset[str], stats: dict[str, SidecarReport]) -> None:
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
