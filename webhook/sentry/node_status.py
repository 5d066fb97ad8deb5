"""Status of the node's GPUs for people: assigned and used memory, peaks and stops of each pod.

No decision depends on it. Unknown values are absent. Peaks and stops are never lowered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from webhook.adapters.kube.node_objects import OwnNode
from webhook.core.bounds import MAX_INT32
from webhook.core.kinds.nodes import MAX_PODS, GpuFigures, NodeFigures, PodFigures
from webhook.core.node.cgroups import comparable_uid
from webhook.core.node.inventory import GRACE_S, advertised_bytes
from webhook.core.placement.assignments import Assignments
from webhook.core.pod.gpus import EVERY_GPU, MAX_GPUS, allocate
from webhook.sentry.assignments import NodeAssignments, covers_gpu
from webhook.sentry.program_reports import LimiterReport, SidecarReport
from webhook.sentry.scanner import ProcessScan
from webhook.sentry.usage import IdleTracker, NodeUsage

REMEMBER_S: Final = GRACE_S
"""Time for which a missing GPU stays in the status as unhealthy, in seconds, while the node
agent advertises it. Its assignments still count, and users must find their pods."""


@dataclass(slots=True)
class _Stops:
    before: int | None = None
    """Number stored by the previous sentry, minus the sidecar's own number once the sidecar
    reports it."""
    ours: int = 0
    reported: int | None = None

    def total(self) -> int | None:
        if self.before is None and self.reported is None and not self.ours:
            return None
        return min((self.before or 0) + self.ours + (self.reported or 0), MAX_INT32)


class NodeStatus:
    """Remembers each GPU, and the peaks and stops of each pod on the list."""

    def __init__(self, node: str, limits: LimiterReport, *, acts: bool = True) -> None:
        """`acts` is True if the sentry may stop processes and has the permissions."""
        self._node = node
        self._limits = limits
        self._acts = acts
        self._idleness = IdleTracker()
        self._driver_version = ""
        self._gpus: dict[str, tuple[GpuFigures, float]] = {}
        """Static fields of each GPU, and the time at which it was last seen, keyed by UUID."""
        self._used: dict[str, int | None] = {}
        """Bytes in use from the last scan, keyed by UUID; a missing GPU is absent."""
        self._measured: frozenset[str] = frozenset()
        """UUIDs of GPUs in the last scan whose processes could be read last time."""
        self._peaks: dict[tuple[str, str], int] = {}
        self._alone: dict[tuple[str, str], int] = {}
        """Most bytes in use on a GPU while a pod had its only assignment, keyed by UID and UUID."""
        self._stops: dict[str, _Stops] = {}
        self._would_stop: dict[str, tuple[int, float]] = {}
        """Number of excesses that were only reported, and Unix time of the first, keyed by UID."""

    def seed(self, stored: NodeFigures, now_s: float) -> None:
        """Add what the previous sentry stored: peaks, stops, and GPUs that may be missing now."""
        idle = ((pod.uid, pod.idle_since_s) for gpu in stored.gpus for pod in gpu.pods)
        idle_s = {comparable_uid(uid): since_s for uid, since_s in idle if since_s is not None}
        self._idleness.seed(idle_s, stored.observed_s)
        self._driver_version = self._driver_version or stored.driver_version
        for gpu in stored.gpus:
            if gpu.usable_bytes:
                self._gpus.setdefault(gpu.uuid, (gpu, now_s))
            for pod in gpu.pods:
                uid = comparable_uid(pod.uid)
                self._raise_peak(uid, gpu.uuid, pod.peak_bytes)
                if pod.would_stop and pod.would_stop_since_s is not None:
                    count, since_s = self._would_stop.get(uid, (0, pod.would_stop_since_s))
                    earliest_s = min(since_s, pod.would_stop_since_s)
                    self._would_stop[uid] = max(count, pod.would_stop), earliest_s
                if pod.stops is not None:
                    stops = self._stops.setdefault(uid, _Stops())
                    stops.before = max(stops.before or 0, pod.stops - (stops.reported or 0))

    def stopped(self, uid: str) -> None:
        """Count a stop of a process or of the whole pod by this sentry."""
        self._stops.setdefault(uid, _Stops()).ours += 1

    def would_stop(self, uid: str, at_s: float) -> None:
        """Count an excess that was only reported, at this Unix time."""
        count, since_s = self._would_stop.get(uid, (0, at_s))
        self._would_stop[uid] = min(count + 1, MAX_INT32), since_s

    def update(
        self,
        scan: ProcessScan,
        usage: NodeUsage,
        assignments: NodeAssignments,
        stats: Mapping[str, SidecarReport],
        own: OwnNode,
        now_s: float,
        observed_s: float,
    ) -> NodeFigures:
        """Record a scan, its usage and the reports of sidecars; return the status to publish.

        `observed_s` is the scan's Unix time. The agent's report decides whether a GPU is healthy.

        | the list | promised, free | pods | unmanaged |
        | --- | --- | --- | --- |
        | is watched | from the list | from the list | from `usage` |
        | was read, and cannot be watched now | unknown | from the last list | none |
        | was never read | unknown | none | none |

        A missing GPU is kept for `REMEMBER_S`. A tenant can forge the report of its own sidecar. So
        a report only raises values, and raises no peak above the measured use.
        """
        if assignments.is_read:
            self._forget_pods(assignments.listed)
        self._note_gpus(scan, now_s)
        for uid in assignments.listed.keys() & stats.keys():
            reported = stats[uid][0]
            stops = self._stops.setdefault(uid, _Stops())
            if stops.reported is None and stops.before is not None:
                stops.before = max(0, stops.before - reported)
            stops.reported = max(stops.reported or 0, reported)
        listed_gpus = scan.lists.keys() & self._used.keys()
        self._note_peaks(listed_gpus, usage, assignments.listed, stats)
        self._idleness.on_scan(scan, usage.lists, observed_s)
        return self._figures(usage, assignments, own, observed_s)

    def _note_gpus(self, scan: ProcessScan, now_s: float) -> None:
        self._driver_version = scan.driver_version or self._driver_version
        self._used = {}
        for gpu in scan.gpus:
            if usable_bytes := advertised_bytes(gpu):
                figures = GpuFigures(
                    uuid=gpu.uuid,
                    index=gpu.index,
                    product=gpu.product,
                    total_bytes=usable_bytes if gpu.total_bytes is None else gpu.total_bytes,
                    usable_bytes=usable_bytes,
                )
                self._used[gpu.uuid] = gpu.used_bytes
                self._gpus[gpu.uuid] = figures, now_s
        listed = self._measured | scan.lists.keys()
        self._measured = (listed & self._used.keys()) - scan.unread
        kept = self._gpus.items()
        self._gpus = {uuid: entry for uuid, entry in kept if now_s - entry[1] < REMEMBER_S}

    def _figures(
        self, usage: NodeUsage, assignments: NodeAssignments, own: OwnNode, observed_s: float
    ) -> NodeFigures:
        followed = assignments.followed_since_s is not None
        gpus = [gpu for gpu, _ in self._gpus.values()]
        gpus = sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid))[:MAX_GPUS]
        free = {gpu.uuid: gpu.usable_bytes for gpu in gpus}
        for assignment in assignments.listed.values():
            allocate(free, assignment.uuids, assignment.memory_bytes)
        unmanaged = {gpu.uuid: held for gpu, held in usage.unmanaged.items()}
        return NodeFigures(
            name=self._node,
            observed_s=observed_s,
            driver_version=self._driver_version,
            enforcement=own.enforcement,
            acts=self._acts and followed,
            gpus=tuple(
                replace(
                    gpu,
                    promised_bytes=gpu.usable_bytes - free[gpu.uuid] if followed else None,
                    used_bytes=self._used.get(gpu.uuid),
                    free_bytes=free[gpu.uuid] if followed else None,
                    unattributed_bytes=usage.unattributed_bytes.get(gpu.uuid),
                    healthy=gpu.uuid in self._used and gpu.uuid not in own.faults,
                    pods=tuple(self._pods_on(gpu.uuid, usage, assignments, own.enforcement)),
                    unmanaged=dict(islice(unmanaged.get(gpu.uuid, {}).items(), MAX_PODS)),
                    fault=own.faults.get(gpu.uuid, ""),
                    measured=gpu.uuid in self._measured,
                )
                for gpu in gpus
            ),
            not_shared=own.not_shared,
            limit=self._limits.proof,
            held=own.held,
        )

    def _pods_on(
        self, gpu: str, usage: NodeUsage, assignments: NodeAssignments, enforcement: str
    ) -> Iterator[PodFigures]:
        held = usage.pods.get(gpu, {})
        for uid, assignment in assignments.listed.items():
            if not covers_gpu(assignment, gpu):
                continue
            used_bytes, processes = held.get(uid, (None, None))
            stops = self._stops.get(uid)
            would_stop, since_s = self._would_stop.get(uid, (None, None))
            yield PodFigures(
                uid=uid,
                cap_bytes=assignment.terms.cap_bytes
                if assignment.terms
                else assignment.memory_bytes,
                used_bytes=used_bytes,
                peak_bytes=self._peaks.get((uid, gpu)),
                stops=stops.total() if stops else None,
                would_stop=would_stop,
                would_stop_since_s=since_s,
                held_by=self._limits.find_holder(
                    uid, assignment, gpu, enforcement=enforcement, acts=self._acts
                ),
                idle_since_s=self._idleness.since_s.get(uid),
                processes=processes,
            )

    def _note_peaks(
        self,
        listed_gpus: Iterable[str],
        usage: NodeUsage,
        assignments: Assignments,
        stats: Mapping[str, SidecarReport],
    ) -> None:
        """Raise peaks by this scan's lists and by the reports of sidecars.

        | the pod | its sidecar reports | its peak on the GPU is at least |
        | --- | --- | --- |
        | was listed | anything | the listed memory |
        | has the GPU's only assignment, and no other GPU | a peak | that peak, at most `_alone` |
        | has other GPUs, or shares the GPU | anything | unchanged: GPU or pod is ambiguous |
        """
        for uuid in listed_gpus:
            for uid, (used_bytes, processes) in usage.pods[uuid].items():
                if processes and uid in assignments and covers_gpu(assignments[uid], uuid):
                    self._raise_peak(uid, uuid, used_bytes)
        alone: dict[tuple[str, str], int] = {}
        for uuid, in_use_bytes in self._used.items():
            uids = [uid for uid, assignment in assignments.items() if covers_gpu(assignment, uuid)]
            if len(uids) == 1 and in_use_bytes is not None:
                (uid,) = uids
                alone[uid, uuid] = max(self._alone.get((uid, uuid), 0), in_use_bytes)
        self._alone = alone
        for (uid, uuid), most_bytes in alone.items():
            _, said_bytes = stats.get(uid, (0, None))
            uuids = assignments[uid].uuids
            if said_bytes and len(uuids) == 1 and EVERY_GPU not in uuids:
                self._raise_peak(uid, uuid, min(said_bytes, most_bytes))

    def _raise_peak(self, uid: str, uuid: str, seen_bytes: int | None) -> None:
        if seen_bytes is not None:
            self._peaks[uid, uuid] = max(self._peaks.get((uid, uuid), 0), seen_bytes)

    def _forget_pods(self, listed: Assignments) -> None:
        self._peaks = {
            key: peak_bytes for key, peak_bytes in self._peaks.items() if key[0] in listed
        }
        self._stops = {uid: stops for uid, stops in self._stops.items() if uid in listed}
        kept = self._would_stop.items()
        self._would_stop = {uid: count for uid, count in kept if uid in listed}
