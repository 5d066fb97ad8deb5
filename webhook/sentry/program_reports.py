"""Reports of the node's other programs: the limiter's file, and the process names of sidecars."""

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
    """The limiter's file, as last read."""

    def __init__(self, folder: str, *, clock: Callable[[], float] = time.time) -> None:
        self._path = f"{folder}/{STATE_FILE}"
        self._clock = clock
        self._read: tuple[int, int, int] | None = None
        """Inode, modification time in nanoseconds, and size of the file that was read."""
        self._state: LimiterState | None = None
        self._limited: Mapping[tuple[str, str], PodLimitState] = {}
        self._reported: set[tuple[float, int]] = set()
        self.proof: Proof | None = None
        """Proof that the driver enforces caps; None if the node has no limiter."""

    def read(self) -> None:
        """Read the file if it has changed; never fails.

        | the file | the proof | limited pods |
        | --- | --- | --- |
        | does not exist | None: there is no limiter | none |
        | is malformed, too large, or cannot be read | does not hold | as last read |
        | is older than `STALE_AFTER_S`, or from the future | does not hold | as last read |
        | is fresh, without a proof | does not hold | as last read |
        | is fresh, with a proof | holds | as in the file |

        The driver keeps enforcing its limits if the limiter stops.
        """
        try:
            found = os.lstat(self._path)
            which = found.st_ino, found.st_mtime_ns, found.st_size
            if which != self._read:
                self._read, self._state = which, None
                self._state = read_limiter_state(_read_file(self._path))
                if self._state is not None and self._state.proof.holds:
                    limited = self._state.limited
                    self._limited = {
                        (comparable_uid(limit.uid), limit.gpu): limit for limit in limited
                    }
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
        """Return the bytes the driver counts for a pod; None if it does not enforce the cap."""
        limited = self._limited.get((uid, gpu))
        return limited.used_bytes if limited and limited.hard_bytes <= cap_bytes else None

    def find_holder(
        self, uid: str, assignment: Assignment, gpu: str, *, enforcement: str, acts: bool
    ) -> str:
        """Return which program enforces a pod's cap on an assigned GPU; empty for none.

        `enforcement` is the node's label. `acts` is True if the sentry may stop processes.

        | the driver's hard limit, if proven | the assignment | the node's label | acts | result |
        | --- | --- | --- | --- | --- |
        | at most the cap, set before the pod held memory | any | any | any | `driver` |
        | at most the cap, perhaps set later | any | any | any | `driver, late` |
        | more, none, or unknown | by Sidecar, may be stopped | `sidecar` | any | `sidecar` |
        | more, none, or unknown | by Sidecar, may be stopped | any other | yes | `sentry` |
        | more, none, or unknown | by Sentry, may be stopped | any | yes | `sentry` |
        | more, none, or unknown | may be stopped | any other | no | none |
        | more, none, or unknown | anything else | any | any | none |
        """
        limited = self._limited.get((uid, gpu)) if self.proof and self.proof.holds else None
        if limited and limited.hard_bytes <= _cap_bytes(assignment):
            return _LATE if limited.late else _DRIVER
        if assignment.terms is None or not assignment.terms.enforce:
            return ""
        if enforcement == ENFORCED_BY_SIDECAR and assignment.terms.by is EnforceBy.SIDECAR:
            return _SIDECAR
        return _SENTRY if acts else ""

    def new_events(self, assignments: Assignments) -> list[tuple[str, LimitEvent]]:
        """Return the new events of pods on the list, each once, with the pod's UID.

        An event of a pod that is not on the list is returned once the pod is listed, if the file
        still contains the event.
        """
        if self._state is None:
            return []
        events = {(self._state.started_s, event.number): event for event in self._state.events}
        self._reported &= events.keys()
        new_events = [
            (key, comparable_uid(event.uid), event)
            for key, event in events.items()
            if key not in self._reported and comparable_uid(event.uid) in assignments
        ]
        self._reported.update(key for key, _, _ in new_events)
        return [(uid, event) for _, uid, event in new_events]


def _cap_bytes(assignment: Assignment) -> int:
    return assignment.terms.cap_bytes if assignment.terms else assignment.memory_bytes


def _read_file(path: str) -> str:
    """Return the first bytes of a regular file as a string; raises OSError for anything else."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError
        return os.read(file, LARGEST_FILE_BYTES + 1).decode()
    finally:
        os.close(file)


SidecarReport = tuple[int, int | None]
"""Number of stops, and peak in bytes if known, from the name of a sidecar's process."""

EVERY_S: Final = 10.0
SEARCH_EVERY_S: Final = 60.0
"""Minimum interval between searches for unknown sidecars, in seconds: a search reads each
process of the node."""

DUTY: Final = 20
"""Minimum pause between searches, as a multiple of a search's duration: tenants can have many
processes."""


class SidecarReports:
    """Reads the reports of sidecars: the names of their processes, see `read_process_name`.

    A pod's sidecar is its oldest process with such a name, since a native sidecar starts before the
    tenant's containers. The pod is known from the cgroup, so a tenant can only forge the report of
    its own pod.
    """

    def __init__(
        self,
        node: NodeProcesses,
        pods: Callable[[], Iterable[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Only this thread uses `node`. `pods` returns the UIDs on the list."""
        self._node = node
        self._pods = pods
        self._clock = clock
        self._sidecars: dict[str, Owner] = {}
        self._search_s = float("-inf")
        self.stats: Mapping[str, SidecarReport] = {}
        """Last reports keyed by pod UID; the main thread reads them."""

    def read_all(self) -> None:
        """Read reports until the program ends."""
        while True:
            self.read()
            time.sleep(EVERY_S)

    def read(self) -> None:
        """Read the names of known sidecars, and search for others if a search is due."""
        wanted = frozenset(self._pods())
        stats: dict[str, SidecarReport] = {}
        for uid, sidecar in tuple(self._sidecars.items()):
            name = self._reread_report(sidecar) if uid in wanted else None
            if name is None:
                del self._sidecars[uid]
            else:
                stats[uid] = name
        if wanted - stats.keys() and self._clock() >= self._search_s:
            self._search(wanted - stats.keys(), stats)
        self.stats = stats

    def _reread_report(self, sidecar: Owner) -> SidecarReport | None:
        now = self._node.owner(sidecar.process.pid)
        if now is None or now.place != sidecar.place:
            return None
        if now.process.started != sidecar.process.started:
            return None
        return read_process_name(now.process.command)

    def _search(self, missing: frozenset[str], stats: dict[str, SidecarReport]) -> None:
        began_s = self._clock()
        for owner in self._node.by_name(lambda name: read_process_name(name) is not None):
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
