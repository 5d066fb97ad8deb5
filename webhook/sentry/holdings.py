"""Who holds memory of which GPU by its last list, and what of it nobody was promised.

That is reported, and never a reason to stop anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from webhook.core.formatting import format_amount
from webhook.core.nvidia.drivers import ScannedGpu
from webhook.sentry.assignments import NodeAssignments, covers_gpu
from webhook.sentry.scanner import GpuProcess, ProcessScan

Unmanaged = Mapping[ScannedGpu, Mapping[str, int]]
"""What is held without a promise, by the pod's UID; empty for processes of no pod."""

NEW_S: Final = 60.0
"""For so long a pod that is not on the list is not called unmanaged: its binding, and the list's
way to us, take a moment."""

OLD_LIST_S: Final = 180.0
"""A list that could not be read again for so long says nothing of now; they are read each 10 s, and
each 45 s if no pod has a promise."""

REPORTED_BYTES: Final = 256 * 2**20
"""From here on it is an Event: less is a context, which pushes nobody out of memory."""


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """Use of the node's GPUs, from the last process list of each.

    A GPU that cannot be seen, or whose list is too old, is absent.
    """

    lists: Mapping[str, tuple[GpuProcess, ...]]
    """By UUID; the GPUs that were listed last come last."""
    pods: Mapping[str, Mapping[str, tuple[int | None, int]]]
    """Bytes held by a pod and number of its processes, by GPU and the pod's UID.

    A pod on the assignment list that was not listed held nothing. A pod is absent if its assignment
    is newer than the list. Bytes are None if the driver gave no figure for one of its processes."""
    unattributed_bytes: Mapping[str, int | None]
    """Memory in use that was listed for no process, by GPU; None if unknown."""
    unmanaged: Unmanaged


class UsageTracker:
    """Remembers the last process list of each GPU, and since when pods were seen on them."""

    def __init__(self) -> None:
        self._lists: dict[str, tuple[GpuProcess, ...]] = {}
        self._read_s: dict[str, float] = {}
        self._pods: dict[str, Mapping[str, tuple[int | None, int]]] = {}
        self._unattributed_bytes: dict[str, int | None] = {}
        self._seen_s: dict[str, float] = {}
        """When each pod was first seen in a list."""

    def has_processes(self) -> bool:
        """Return True if a process was listed on any GPU."""
        return any(self._lists.values())

    def update(
        self, scan: ProcessScan, assignments: NodeAssignments, now_s: float, *, shared: bool = True
    ) -> NodeUsage:
        """Take a scan and return the use that is known now.

        `shared` is False if the node's GPUs are not shared: other programs assign them, and no
        memory is unmanaged.
        """
        gpus = {gpu.uuid: gpu for gpu in scan.gpus}
        for uuid, processes in scan.lists.items():
            if gpu := gpus.get(uuid):
                self._remember(gpu, processes, assignments)
                self._read_s[uuid] = now_s
        for uuid, read_s in tuple(self._read_s.items()):
            if uuid not in gpus or now_s - read_s >= OLD_LIST_S:
                del self._lists[uuid], self._read_s[uuid]
                del self._pods[uuid], self._unattributed_bytes[uuid]
        owners = (one.owner for listed in self._lists.values() for one in listed)
        pods = {owner.place.pod for owner in owners if owner}
        self._seen_s = {pod: self._seen_s.get(pod, now_s) for pod in pods}
        return NodeUsage(
            dict(self._lists),
            dict(self._pods),
            dict(self._unattributed_bytes),
            self._unmanaged(gpus, assignments, now_s) if shared else {},
        )

    def _remember(
        self, gpu: ScannedGpu, processes: tuple[GpuProcess, ...], assignments: NodeAssignments
    ) -> None:
        left = gpu.used_bytes
        held: dict[str, tuple[int | None, int]] = dict.fromkeys(assignments.listed, (0, 0))
        for one in processes:
            left = _plus(left, one.used_bytes, -1)
            if one.owner is not None and (pod := one.owner.place.pod):
                before, count = held.get(pod, (0, 0))
                held[pod] = _plus(before, one.used_bytes), count + 1
        self._lists.pop(gpu.uuid, None)  # what was not read now is reported first
        self._lists[gpu.uuid], self._pods[gpu.uuid] = processes, held
        self._unattributed_bytes[gpu.uuid] = None if left is None else max(0, left)

    def _unmanaged(
        self, gpus: Mapping[str, ScannedGpu], assignments: NodeAssignments, now_s: float
    ) -> Unmanaged:
        """Return the memory that is held without an assignment; none if the list is not followed.

        | processes of | on a GPU | are unmanaged |
        | --- | --- | --- |
        | no pod, or ended before they were seen | any | at once |
        | a pod on the list | its assignment names | never |
        | a pod on the list | its assignment does not name | at once |
        | any other pod | any | `NEW_S` after it was first seen, under a list followed so long |

        What has no figure adds nothing.
        """
        followed_since_s = assignments.followed_since_s
        if followed_since_s is None:
            return {}

        def is_unmanaged(pod: str, gpu: str) -> bool:
            if pod in assignments.listed:
                return not covers_gpu(assignments.listed[pod], gpu)
            return not pod or now_s - max(self._seen_s.get(pod, now_s), followed_since_s) >= NEW_S

        found: dict[ScannedGpu, Mapping[str, int]] = {}
        for uuid, processes in self._lists.items():
            sums: dict[str, int] = {}
            for one in processes:
                pod = one.owner.place.pod if one.owner else ""
                if one.used_bytes and is_unmanaged(pod, uuid):
                    sums[pod] = sums.get(pod, 0) + one.used_bytes
            if sums:
                found[gpus[uuid]] = dict(sorted(sums.items()))
        return found


def describe_unmanaged(gpu: ScannedGpu, pod: str, held_bytes: int, *, listed: bool) -> str:
    """Say what is held without a promise, as an Event has it.

    `listed` is whether the pod was given other GPUs of this node.
    """
    what = f"{format_amount(held_bytes)} on GPU {gpu.index} ({gpu.uuid}) are held by"
    if not pod:
        return f"{what} processes of no pod; they can push pods out of memory"
    given = "given other GPUs" if listed else "promised none"
    return f"{what} pod uid {pod}, which was {given}; it can push others out"


def _plus(one: int | None, other: int | None, sign: int = 1) -> int | None:
    """Add; unknown is not zero."""
    return None if one is None or other is None else one + sign * other
