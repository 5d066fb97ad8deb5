"""Who holds memory of which GPU by its last list, and what of it nobody was promised.

That is reported, and never a reason to stop anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from webhook.core.formatting import format_amount
from webhook.core.nvidia.drivers import ScannedGpu
from webhook.sentry.assignments import NodeAssignments, covers_gpu
from webhook.sentry.scanner import GpuProcess, ProcessScan, Samples

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


READINGS: Final = 2
"""By the first alone nobody knows who ran just now, and who only ran last."""

STORED_S: Final = 300.0
"""What an earlier sentry knew counts for who is seen first within so long: nobody saw more."""


class IdleTracker:
    """Remembers the last reading of each GPU, and when each pod on it was seen to run."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[int, tuple[int, bool]]] = {}
        """By GPU and PID; of whom the driver told, or who is listed still."""
        self._pods: dict[str, dict[int, str]] = {}
        """Whose the processes are that were listed, by GPU and PID."""
        self._readings: dict[str, int] = {}
        """How many in a row there were of a GPU."""
        self._running: dict[str, frozenset[str]] = {}
        """Who ran by the last reading of a GPU."""
        self._since_s: dict[str, dict[str, float]] = {}
        """When a pod that holds memory of a GPU ran last, or was seen first; by GPU and UID."""
        self._stored: tuple[Mapping[str, float], float] = {}, float("-inf")
        """What an earlier sentry knew, by UID, and when it knew that."""
        self.since_s: Mapping[str, float] = {}
        """Since when (Unix time) nothing of a pod ran, by UID; who runs, and of whom that is not
        known, is not in it."""

    def seed(self, stored: Mapping[str, float], at_s: float) -> None:
        """Take what was known at this Unix time, before we started."""
        self._stored = stored, at_s
        for gpu, since_s in self._since_s.items():
            if self._readings[gpu] < READINGS:
                first = since_s.keys() - self._running[gpu]
                since_s |= {uid: self._first_s(uid, since_s[uid]) for uid in first}

    def _first_s(self, uid: str, now_s: float) -> float:
        stored, at_s = self._stored
        return stored.get(uid, now_s) if now_s - at_s < STORED_S else now_s

    def on_scan(
        self,
        scan: ProcessScan,
        lists: Mapping[str, Iterable[GpuProcess]],
        now_s: float,
    ) -> None:
        """Take what GPUs were asked in a scan, and their last lists, at this Unix time.

        A pod idles where on each GPU of which it holds memory

        | readings in a row | its processes by the last | the pod |
        | --- | --- | --- |
        | fewer than `READINGS`, or the driver does not tell | any | is not known |
        | enough | one did something | runs |
        | enough | one has a newer sample, and was not the one that ran last before | runs |
        | enough | none of these | idles |

        The driver goes on sampling who ran last while nobody runs, so that one says nothing.
        """
        gone = self._readings.keys() - {gpu.uuid for gpu in scan.gpus}
        for gpu in gone:
            self._readings[gpu] = 0
        left = False
        for gpu, listed in scan.lists.items():
            if since_s := self._since_s.get(gpu):
                for uid in since_s.keys() - _pods(listed).values():
                    del since_s[uid]
                    left = True
        for gpu, samples in scan.ran.items():
            self._on_reading(gpu, samples, lists.get(gpu, ()), now_s)
        if gone or left or scan.ran:
            self.since_s = self._found()

    def _on_reading(
        self,
        gpu: str,
        samples: Samples | None,
        listed: Iterable[GpuProcess],
        now_s: float,
    ) -> None:
        pods = _pods(listed)
        before = self._samples.get(gpu) if self._readings.get(gpu) else None
        known = self._pods.get(gpu, {}) | pods
        ran = frozenset(known.get(pid, "") for pid in _ran(before, samples or {}))
        self._pods[gpu], self._running[gpu] = pods, ran
        self._readings[gpu] = 0 if samples is None else self._readings.get(gpu, 0) + 1
        kept = {pid: one for pid, one in (before or {}).items() if pid in pods}
        self._samples[gpu] = kept | dict(samples or {})
        since_s = self._since_s.get(gpu, {})
        self._since_s[gpu] = {
            uid: now_s if uid in ran else since_s.get(uid) or self._first_s(uid, now_s)
            for uid in set(pods.values())
        }

    def _found(self) -> dict[str, float]:
        found: dict[str, float] = {}
        unknown: set[str] = set()
        for gpu, since_s in self._since_s.items():
            unknown |= self._running[gpu]
            if self._readings[gpu] < READINGS:
                unknown |= since_s.keys()
            for uid, at_s in since_s.items():
                found[uid] = max(at_s, found.get(uid, at_s))
        return {uid: at_s for uid, at_s in found.items() if uid not in unknown}


def _pods(listed: Iterable[GpuProcess]) -> dict[int, str]:
    return {one.pid: one.owner.place.pod for one in listed if one.owner is not None}


def _ran(before: Samples | None, samples: Samples) -> set[int]:
    """Return who ran between two readings, as far as the second one says it."""
    last_us = max((at_us for at_us, _ in (before or {}).values()), default=0)

    def took_over(pid: int, at_us: int) -> bool:
        if before is None:
            return False
        was_us, _ = before.get(pid, (0, False))
        return was_us < at_us and not 0 < was_us == last_us

    return {pid for pid, (at_us, did) in samples.items() if did or took_over(pid, at_us)}
