"""Who holds memory of which GPU by its last list, and what of it nobody was promised.

That is reported, and never a reason to stop anybody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from webhook.core.pod.gpus import EVERY_GPU
from webhook.core.words import amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from webhook.core.nvidia.drivers import SeenGpu
    from webhook.core.placement.assignments import Assignment, Assignments
    from webhook.sentry.scanner import GpuProcess, ProcessScan

NEW_S: Final = 60.0
"""For so long a pod that is not on the list is not called unmanaged: its binding, and the list's
way to us, take a moment."""

OLD_LIST_S: Final = 180.0
"""A list that could not be read again for so long says nothing of now; they are read each 10 s, and
each 60 s where nobody has a promise."""

REPORTED_BYTES: Final = 256 * 2**20
"""From here on it is an Event: less is a context, which pushes nobody out of memory."""


def gives(assignment: Assignment, gpu: str) -> bool:
    """Say whether an assignment gives this GPU to its pod."""
    return gpu in assignment.uuids or EVERY_GPU in assignment.uuids


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuList:
    """A GPU's last list of processes, and what was in use as it was read."""

    gpu: SeenGpu
    """As the last scan saw it."""
    processes: tuple[GpuProcess, ...]
    at_s: float
    used_bytes: int | None
    sum_bytes: int | None
    """Of all processes; None where one of them has no figure."""
    pods: Mapping[str, tuple[int | None, int]]
    """What each pod holds, None where it is not known, and by how many processes."""
    promised: frozenset[str]
    """Who was known to have a promise then: of these, who is not listed holds nothing."""

    def held_by(self, pod: str) -> tuple[int | None, int | None]:
        """Return what a pod holds, and by how many processes.

        | the list | the pod was known as it was read | the pod holds |
        | --- | --- | --- |
        | has its processes | any | their sum |
        | has none of it | yes | nothing |
        | has none of it | no: it is new | unknown, until the next list |
        """
        known = pod in self.pods or pod in self.promised
        return self.pods.get(pod, (0, 0)) if known else (None, None)


@dataclass(frozen=True, slots=True)
class Unmanaged:
    """Memory without a promise."""

    gpu: SeenGpu
    pod: str
    """The pod's UID; empty for processes of no pod."""
    held_bytes: int
    listed: bool = False
    """The pod has other GPUs of this node."""

    def sentence(self) -> str:
        """Say it, as an Event has it."""
        what = f"{amount(self.held_bytes)} on GPU {self.gpu.index} ({self.gpu.uuid}) are held by"
        if not self.pod:
            return f"{what} processes of no pod; they can push pods out of memory"
        if self.listed:
            return f"{what} pod uid {self.pod}, which was given other GPUs; it can push others out"
        return f"{what} pod uid {self.pod}, which was promised none; it can push others out"


class Holdings:
    """Remembers the last list of each GPU, and since when pods were seen on them."""

    def __init__(self) -> None:
        self.lists: Mapping[str, GpuList] = {}
        """By UUID; GPUs that cannot be seen have none, for nobody knows what became of theirs."""
        self._seen_s: dict[str, float] = {}

    def __bool__(self) -> bool:
        return any(one.processes for one in self.lists.values())

    def on_scan(self, scan: ProcessScan, now_s: float, promised: Iterable[str]) -> None:
        """Remember the lists of a scan; what could not be read again for `OLD_LIST_S` goes."""
        seen = {gpu.uuid: gpu for gpu in scan.gpus}
        kept = {
            uuid: replace(one, gpu=seen[uuid])
            for uuid, one in self.lists.items()
            if uuid in seen and uuid not in scan.lists and now_s - one.at_s < OLD_LIST_S
        }
        self.lists = kept | {
            uuid: _listed(seen[uuid], processes, now_s, promised)
            for uuid, processes in scan.lists.items()
            if uuid in seen
        }
        pods = {
            one.owner.place.pod
            for listed in self.lists.values()
            for one in listed.processes
            if one.owner
        }
        self._seen_s = {pod: self._seen_s.get(pod, now_s) for pod in pods}

    def unmanaged(
        self, promises: Assignments, now_s: float, fresh_s: float | None
    ) -> tuple[Unmanaged, ...]:
        """Return who holds what without a promise; nothing where the list cannot be followed.

        `fresh_s` is since when it can; None where it cannot.

        | processes of | on a GPU | are unmanaged |
        | --- | --- | --- |
        | no pod, or ended before they were seen | any | at once |
        | a pod on the list | its assignment names | never |
        | a pod on the list | its assignment does not name | at once |
        | any other pod | any | `NEW_S` after it was first seen, under a list followed so long |

        What has no figure adds nothing.
        """
        if fresh_s is None:
            return ()

        def is_unmanaged(pod: str, gpu: str) -> bool:
            if pod in promises:
                return not gives(promises[pod], gpu)
            return not pod or now_s - max(self._seen_s.get(pod, now_s), fresh_s) >= NEW_S

        found: list[Unmanaged] = []
        for uuid, listed in self.lists.items():
            sums: dict[str, int] = {}
            for one in listed.processes:
                pod = one.owner.place.pod if one.owner else ""
                if one.used_bytes and is_unmanaged(pod, uuid):
                    sums[pod] = sums.get(pod, 0) + one.used_bytes
            gpu = listed.gpu
            found += (Unmanaged(gpu, pod, sums[pod], pod in promises) for pod in sorted(sums))
        return tuple(found)


def _listed(
    gpu: SeenGpu, processes: tuple[GpuProcess, ...], now_s: float, promised: Iterable[str]
) -> GpuList:
    total: int | None = 0
    pods: dict[str, tuple[int | None, int]] = {}
    for one in processes:
        total = _plus(total, one.used_bytes)
        if one.owner is not None and one.owner.place.pod:
            pod = one.owner.place.pod
            before, count = pods.get(pod, (0, 0))
            pods[pod] = _plus(before, one.used_bytes), count + 1
    return GpuList(
        gpu=gpu,
        processes=processes,
        at_s=now_s,
        used_bytes=gpu.used_bytes,
        sum_bytes=total,
        pods=pods,
        promised=frozenset(promised),
    )


def _plus(one: int | None, other: int | None) -> int | None:
    """Add; unknown is not zero."""
    return None if one is None or other is None else one + other
