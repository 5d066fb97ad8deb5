"""What a node's GPUs show, as figures for people: who was promised and who uses how much.

They decide nothing. What cannot be known now is absent; peaks and stops are kept, never lowered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from webhook.core.kinds.nodes import (
    MOST_GPUS,
    MOST_PODS,
    GpuFigures,
    NodeFigures,
    PodFigures,
    UnmanagedFigures,
)
from webhook.core.node.cgroups import comparable_uid
from webhook.core.node.inventory import GRACE_S, SeenGpu, as_advertised
from webhook.core.pod.gpus import EVERY_GPU, free_bytes
from webhook.sentry.judge import has

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from webhook.adapters.kube.gpu_nodes import OwnNode
    from webhook.core.placement.assignments import Assignment, Assignments
    from webhook.core.pod.gpus import Gpu
    from webhook.sentry.audit import Unmanaged
    from webhook.sentry.observer import Held, Look

REMEMBER_S: Final = GRACE_S
"""How long a GPU is shown as not healthy that cannot be seen: as long as the node agent shows it.
What is promised on it still counts, and who looks for their pod should find it."""

OLD_LIST_S: Final = 180.0
"""A list that could not be read again for so long says nothing of now; they are read each 10 s, and
each 60 s where nobody has a promise."""

MOST_STOPS: Final = 2**31 - 1

Said = tuple[int, int | None]
"""Stops and peak in bytes, as a sidecar's process name says them."""


@dataclass(frozen=True, slots=True)
class Share:
    """One pod on one GPU, for metrics, which have names."""

    gpu: str
    pod: str
    """`namespace/name`."""
    processes: int | None
    """None where its GPU's list is not known."""
    figures: PodFigures


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown after a look."""

    node: NodeFigures
    shares: tuple[Share, ...] = ()
    """Of all pods that are on the list, in its order."""


@dataclass(slots=True)
class _Listed:
    """A GPU's last list, and what was in use as it was read."""

    at_s: float
    used_bytes: int | None
    sum_bytes: int | None
    """Of all processes; None where one of them has no figure."""
    pods: dict[str, tuple[int | None, int]]
    """What each pod holds, None where it is not known, and by how many processes."""
    promised: frozenset[str]
    """Who was known to have a promise then: of these, who is not listed holds nothing."""


@dataclass(slots=True)
class _Stops:
    """How often something of a pod was stopped."""

    before: int | None = None
    """As was stored when we started; of those the sidecar's own are taken out once it says them."""
    ours: int = 0
    said: int | None = None
    """The most that its sidecar said."""

    def total(self) -> int | None:
        if self.before is None and self.said is None and not self.ours:
            return None
        return min((self.before or 0) + self.ours + (self.said or 0), MOST_STOPS)


class Figures:
    """Remembers each GPU and its last list, and of each pod on the list its peaks and stops."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._driver_version = ""
        self._gpus: dict[str, tuple[Gpu, float]] = {}
        """With when each was seen last."""
        self._used: dict[str, int | None] = {}
        """By this look; who is not in it cannot be seen."""
        self._lists: dict[str, _Listed] = {}
        self._lines: dict[str, tuple[str, Assignment]] = {}
        """By UID as it is compared, with the UID as it is written."""
        self._is_known = False
        self._peaks: dict[tuple[str, str], int] = {}
        self._alone: dict[tuple[str, str], int] = {}
        """The most that was in use on a GPU while a pod was the only one with a promise there."""
        self._stops: dict[str, _Stops] = {}
        self._would_stop: dict[str, tuple[int, float]] = {}
        """Of each pod how many excesses were only reported, and since when (Unix time)."""
        self._said: Mapping[str, Said] = {}

    def know(self, assignments: Assignments) -> None:
        """Take a list; what is remembered of pods that left it goes."""
        self._lines = {comparable_uid(uid): (uid, line) for uid, line in assignments.items()}
        self._is_known = True
        self._forget_pods()

    def seed(self, stored: NodeFigures, now_s: float) -> None:
        """Take what was stored before we started: peaks, stops, and GPUs that may be lost."""
        self._driver_version = self._driver_version or stored.driver_version
        for gpu in stored.gpus:
            found = SeenGpu(
                gpu.uuid, gpu.product, gpu.index, gpu.usable_bytes, total_bytes=gpu.total_bytes
            )
            if advertised := as_advertised(found):
                self._gpus.setdefault(gpu.uuid, (advertised, now_s))
            for pod in gpu.pods:
                uid = comparable_uid(pod.uid)
                self._raise_peak(uid, gpu.uuid, pod.peak_bytes)
                if pod.would_stop and pod.would_stop_since_s is not None:
                    count, since_s = self._would_stop.get(uid, (0, pod.would_stop_since_s))
                    earliest_s = min(since_s, pod.would_stop_since_s)
                    self._would_stop[uid] = max(count, pod.would_stop), earliest_s
                if pod.stops is not None:
                    stops = self._stops.setdefault(uid, _Stops())
                    stops.before = max(stops.before or 0, pod.stops - (stops.said or 0))
        self._forget_pods()

    def hear(self, said: Mapping[str, Said]) -> None:
        """Take what sidecars say by their names, by UID as it is compared.

        A tenant can forge it for its own pod, so it only raises, and no peak above what was seen.
        """
        self._said = said
        for uid, (stops, _) in said.items():
            if uid in self._lines:
                known = self._stops.setdefault(uid, _Stops())
                if known.said is None and known.before is not None:
                    known.before = max(0, known.before - stops)
                known.said = max(known.said or 0, stops)

    def stopped(self, uid: str) -> None:
        """Count that we stopped something of a pod."""
        if uid in self._lines:
            self._stops.setdefault(uid, _Stops()).ours += 1

    def would_stop(self, uid: str, at_s: float) -> None:
        """Count that an excess of a pod was reported and nothing was stopped, at this Unix time."""
        if uid in self._lines:
            count, since_s = self._would_stop.get(uid, (0, at_s))
            self._would_stop[uid] = min(count + 1, MOST_STOPS), since_s

    def see(self, look: Look, now_s: float) -> None:
        """Take note of a look.

        A GPU that cannot be seen is kept for `REMEMBER_S`; its list is not, for nobody knows what
        became of it.
        """
        self._driver_version = look.driver_version or self._driver_version
        self._used = {}
        for gpu in look.gpus:
            seen = SeenGpu(
                gpu.uuid, gpu.product, gpu.index, gpu.usable_bytes, total_bytes=gpu.total_bytes
            )
            if advertised := as_advertised(seen):
                self._used[gpu.uuid] = gpu.used_bytes
                self._gpus[gpu.uuid] = advertised, now_s
        kept = {uuid for uuid, (_, at_s) in self._gpus.items() if now_s - at_s < REMEMBER_S}
        self._gpus = {uuid: one for uuid, one in self._gpus.items() if uuid in kept}
        for uuid, held in look.lists.items():
            if uuid in self._used:
                self._lists[uuid] = _listed(held, self._used[uuid], now_s, self._lines)
        self._lists = {
            uuid: one
            for uuid, one in self._lists.items()
            if uuid in self._used and now_s - one.at_s < OLD_LIST_S
        }
        self._note_peaks(look.lists)

    def show(
        self,
        observed_s: float,
        unmanaged: Iterable[Unmanaged],
        own: OwnNode,
        *,
        followed: bool,
    ) -> Shown:
        """Return what is shown now, at this Unix time; a GPU is as healthy as its agent says.

        | the list of promises | promised, free | pods | unmanaged |
        | --- | --- | --- | --- |
        | is followed | by it | by it | as the audit has them |
        | was read, and cannot be followed now | unknown | by what it said last | none |
        | was never read | unknown | none | none |
        """
        gpus = [gpu for gpu, _ in self._gpus.values()]
        gpus = sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid))[:MOST_GPUS]
        lines = [line for _, line in self._lines.values()]
        free = free_bytes(gpus, ((line.uuids, line.memory_bytes) for line in lines))
        holders: dict[str, list[UnmanagedFigures]] = {}
        for one in unmanaged:
            found = holders.setdefault(one.gpu.uuid, [])
            if len(found) < MOST_PODS:
                found.append(UnmanagedFigures(one.pod, one.held_bytes))
        shares = tuple(self._shares(gpus))
        pods: dict[str, list[PodFigures]] = {}
        for share in shares:
            theirs = pods.setdefault(share.gpu, [])
            if len(theirs) < MOST_PODS:
                theirs.append(share.figures)
        made = tuple(
            replace(
                self._describe(gpu, free[gpu.uuid] if followed else None),
                pods=tuple(pods.get(gpu.uuid, ())),
                unmanaged=tuple(holders.get(gpu.uuid, ())),
                healthy=gpu.uuid in self._used and gpu.uuid not in own.faults,
                fault=own.faults.get(gpu.uuid, ""),
            )
            for gpu in gpus
        )
        version, whys = self._driver_version, (own.not_shared, own.held)
        node = NodeFigures(self._node, observed_s, version, own.enforcement, made, *whys)
        return Shown(node, shares)

    def _describe(self, gpu: Gpu, free: int | None) -> GpuFigures:
        uuid, usable = gpu.uuid, gpu.memory_bytes
        listed = self._lists.get(uuid)
        unattributed = None
        if listed and listed.used_bytes is not None and listed.sum_bytes is not None:
            unattributed = max(0, listed.used_bytes - listed.sum_bytes)
        return GpuFigures(
            uuid,
            gpu.index,
            gpu.product,
            usable if gpu.total_bytes is None else gpu.total_bytes,
            usable,
            promised_bytes=None if free is None else usable - free,
            used_bytes=self._used.get(uuid),
            free_bytes=free,
            unattributed_bytes=unattributed,
        )

    def _shares(self, gpus: Iterable[Gpu]) -> Iterable[Share]:
        known = list(gpus)
        for uid, (written, line) in self._lines.items():
            for gpu in known:
                if not has(line, gpu.uuid):
                    continue
                listed = self._lists.get(gpu.uuid)
                used, processes = _holds(listed, uid)
                stops = self._stops.get(uid)
                would_stop, since_s = self._would_stop.get(uid, (None, None))
                figures = PodFigures(
                    written,
                    line.hold.cap_bytes if line.hold else line.memory_bytes,
                    used,
                    self._peaks.get((uid, gpu.uuid)),
                    stops.total() if stops else None,
                    would_stop,
                    since_s,
                )
                yield Share(gpu.uuid, line.pod, processes, figures)

    def _note_peaks(self, lists: Mapping[str, tuple[Held, ...]]) -> None:
        """Raise the peaks of who was listed now, and of who is alone and says so itself.

        | the pod | its sidecar says | its peak on the GPU is at least |
        | --- | --- | --- |
        | was listed | anything | what it held |
        | is the only one with a promise there, and has no other GPU | a peak | that, but no more
        than was in use at most since it is alone |
        | has other GPUs, or company | anything | as it was: whose, and where, nobody knows |
        """
        for uuid in lists.keys() & self._lists.keys():
            for uid, (used_bytes, _) in self._lists[uuid].pods.items():
                if uid in self._lines and has(self._lines[uid][1], uuid):
                    self._raise_peak(uid, uuid, used_bytes)
        alone: dict[tuple[str, str], int] = {}
        for uuid, used_bytes in self._used.items():
            on_it = [uid for uid, (_, line) in self._lines.items() if has(line, uuid)]
            if len(on_it) == 1 and used_bytes is not None:
                (uid,) = on_it
                alone[uid, uuid] = max(self._alone.get((uid, uuid), 0), used_bytes)
        self._alone = alone
        for (uid, uuid), most_bytes in alone.items():
            _, said_bytes = self._said.get(uid, (0, None))
            uuids = self._lines[uid][1].uuids
            if said_bytes and len(uuids) == 1 and EVERY_GPU not in uuids:
                self._raise_peak(uid, uuid, min(said_bytes, most_bytes))

    def _raise_peak(self, uid: str, uuid: str, seen_bytes: int | None) -> None:
        if seen_bytes is not None:
            self._peaks[uid, uuid] = max(self._peaks.get((uid, uuid), 0), seen_bytes)

    def _forget_pods(self) -> None:
        """Forget who is not on the list, once there is one."""
        if self._is_known:
            self._peaks = {key: one for key, one in self._peaks.items() if key[0] in self._lines}
            self._stops = {uid: one for uid, one in self._stops.items() if uid in self._lines}
            kept = self._would_stop.items()
            self._would_stop = {uid: one for uid, one in kept if uid in self._lines}


def _holds(listed: _Listed | None, uid: str) -> tuple[int | None, int | None]:
    """Return what a pod holds, and by how many processes.

    | the list | the pod was known as it was read | the pod holds |
    | --- | --- | --- |
    | has its processes | any | their sum |
    | has none of it | yes | nothing |
    | has none of it | no: it is new | unknown, until the next list |
    | is missing, or old | any | unknown |
    """
    if listed is None or not (uid in listed.pods or uid in listed.promised):
        return None, None
    return listed.pods.get(uid, (0, 0))


def _listed(
    held: Iterable[Held], used_bytes: int | None, now_s: float, promised: Iterable[str]
) -> _Listed:
    total: int | None = 0
    pods: dict[str, tuple[int | None, int]] = {}
    for one in held:
        total = _plus(total, one.used_bytes)
        if one.owner is not None and one.owner.place.pod:
            pod = one.owner.place.pod
            before, count = pods.get(pod, (0, 0))
            pods[pod] = _plus(before, one.used_bytes), count + 1
    return _Listed(now_s, used_bytes, total, pods, frozenset(promised))


def _plus(one: int | None, other: int | None) -> int | None:
    """Add; unknown is not zero."""
    return None if one is None or other is None else one + other
