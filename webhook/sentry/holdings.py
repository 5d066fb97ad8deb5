"""Who holds memory of which GPU by its last list, and what of it nobody was promised.

That is reported, and never a reason to stop anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from webhook.core.formatting import format_amount
from webhook.core.nvidia.drivers import ScannedGpu
from webhook.core.placement.assignments import Assignment, Assignments
from webhook.core.pod.gpus import EVERY_GPU
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


def gives(assignment: Assignment, gpu: str) -> bool:
    """Say whether an assignment gives this GPU to its pod."""
    return gpu in assignment.uuids or EVERY_GPU in assignment.uuids


class Holdings:
    """Remembers the last list of each GPU, and since when pods were seen on them."""

    def __init__(self) -> None:
        self._gpus: Mapping[str, ScannedGpu] = {}
        """As the last scan saw them."""
        self.lists: dict[str, tuple[GpuProcess, ...]] = {}
        """By UUID; GPUs that cannot be seen have none, for nobody knows what became of theirs."""
        self._read_s: dict[str, float] = {}
        self.held: dict[str, Mapping[str, tuple[int | None, int]]] = {}
        """What pods held as a GPU's list was read, None where it is not known, and by how many
        processes. Who was known to have a promise then and was not listed held nothing; of a pod
        that came since then nothing is known."""
        self.unattributed_bytes: dict[str, int | None] = {}
        """In use as a GPU's list was read, and listed for no process."""
        self._seen_s: dict[str, float] = {}

    def __bool__(self) -> bool:
        return any(self.lists.values())

    def on_scan(self, scan: ProcessScan, now_s: float, promised: Iterable[str]) -> None:
        """Remember the lists of a scan; what could not be read again for `OLD_LIST_S` goes."""
        self._gpus = {gpu.uuid: gpu for gpu in scan.gpus}
        for uuid, processes in scan.lists.items():
            if gpu := self._gpus.get(uuid):
                self._remember(gpu, processes, promised)
                self._read_s[uuid] = now_s
        for uuid, read_s in tuple(self._read_s.items()):
            if uuid not in self._gpus or now_s - read_s >= OLD_LIST_S:
                del self.lists[uuid], self._read_s[uuid]
                del self.held[uuid], self.unattributed_bytes[uuid]
        owners = (one.owner for listed in self.lists.values() for one in listed)
        pods = {owner.place.pod for owner in owners if owner}
        self._seen_s = {pod: self._seen_s.get(pod, now_s) for pod in pods}

    def _remember(
        self, gpu: ScannedGpu, processes: tuple[GpuProcess, ...], promised: Iterable[str]
    ) -> None:
        left = gpu.used_bytes
        held: dict[str, tuple[int | None, int]] = dict.fromkeys(promised, (0, 0))
        for one in processes:
            left = _plus(left, one.used_bytes, -1)
            if one.owner is not None and (pod := one.owner.place.pod):
                before, count = held.get(pod, (0, 0))
                held[pod] = _plus(before, one.used_bytes), count + 1
        self.lists.pop(gpu.uuid, None)  # what was not read now is reported first
        self.lists[gpu.uuid], self.held[gpu.uuid] = processes, held
        self.unattributed_bytes[gpu.uuid] = None if left is None else max(0, left)

    def unmanaged(self, promises: Assignments, now_s: float, fresh_s: float | None) -> Unmanaged:
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
            return {}

        def is_unmanaged(pod: str, gpu: str) -> bool:
            if pod in promises:
                return not gives(promises[pod], gpu)
            return not pod or now_s - max(self._seen_s.get(pod, now_s), fresh_s) >= NEW_S

        found: dict[ScannedGpu, Mapping[str, int]] = {}
        for uuid, processes in self.lists.items():
            sums: dict[str, int] = {}
            for one in processes:
                pod = one.owner.place.pod if one.owner else ""
                if one.used_bytes and is_unmanaged(pod, uuid):
                    sums[pod] = sums.get(pod, 0) + one.used_bytes
            if sums:
                found[self._gpus[uuid]] = dict(sorted(sums.items()))
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
