"""Use of the node's GPUs by pods: memory, memory without an assignment, and idle times.

It is only reported. No process is stopped because of it.
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
"""Bytes held without an assignment, keyed by GPU and pod UID; the UID is empty for processes
outside pods."""

NEW_S: Final = 60.0
"""Time before memory of a pod that is not on the list counts as unmanaged, in seconds: a binding
takes a moment to reach the list, and the list takes a moment to reach the sentry."""

OLD_LIST_S: Final = 180.0
"""Age after which a process list is dropped, in seconds. Lists are read every 10 s, or every 45
s if no pod has an assignment."""

REPORTED_BYTES: Final = 256 * 2**20
"""Minimum unmanaged memory that is reported as an Event; a CUDA context takes less."""


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """Use of the node's GPUs, from the last process list of each GPU.

    A GPU is absent if it cannot be seen or its list is too old.
    """

    lists: Mapping[str, tuple[GpuProcess, ...]]
    """Processes keyed by UUID of the GPU, in the order in which the lists were read."""
    pods: Mapping[str, Mapping[str, tuple[int | None, int]]]
    """Bytes held by a pod and number of its processes, keyed by GPU and pod UID.

    A pod on the assignment list without listed processes holds 0 bytes. A pod is absent if its
    assignment is newer than the process list. Bytes are None if the driver has no figure for a
    process.
    """
    unattributed_bytes: Mapping[str, int | None]
    """Bytes in use that were listed for no process, keyed by GPU; None if unknown."""
    unmanaged: Unmanaged


class UsageTracker:
    """Remembers the last process list of each GPU, and when each pod was first listed."""

    def __init__(self) -> None:
        self._lists: dict[str, tuple[GpuProcess, ...]] = {}
        self._read_s: dict[str, float] = {}
        self._pods: dict[str, Mapping[str, tuple[int | None, int]]] = {}
        self._unattributed_bytes: dict[str, int | None] = {}
        self._seen_s: dict[str, float] = {}
        """Time at which each listed pod was first listed."""

    def has_processes(self) -> bool:
        """Return True if any process was listed on any GPU."""
        return any(self._lists.values())

    def update(
        self, scan: ProcessScan, assignments: NodeAssignments, now_s: float, *, shared: bool = True
    ) -> NodeUsage:
        """Record a scan, and return the known use of all GPUs.

        `shared` is False if the node's GPUs are not shared. Then other programs assign them, and no
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
        owners = (process.owner for listed in self._lists.values() for process in listed)
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
        for process in processes:
            left = _plus(left, process.used_bytes, -1)
            if process.owner is not None and (pod := process.owner.place.pod):
                before, count = held.get(pod, (0, 0))
                held[pod] = _plus(before, process.used_bytes), count + 1
        self._lists.pop(gpu.uuid, None)  # reinserted last: GPUs with older lists are reported first
        self._lists[gpu.uuid], self._pods[gpu.uuid] = processes, held
        self._unattributed_bytes[gpu.uuid] = None if left is None else max(0, left)

    def _unmanaged(
        self, gpus: Mapping[str, ScannedGpu], assignments: NodeAssignments, now_s: float
    ) -> Unmanaged:
        """Return memory held without an assignment; nothing while the list is not watched.

        | process belongs to | on a GPU | is unmanaged |
        | --- | --- | --- |
        | no pod, or ended before it was identified | any | at once |
        | a pod on the list | that its assignment names | never |
        | a pod on the list | that its assignment does not name | at once |
        | any other pod | any | after `NEW_S` in which it was seen and the list was watched |

        A process without a figure adds nothing.
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
            for process in processes:
                pod = process.owner.place.pod if process.owner else ""
                if process.used_bytes and is_unmanaged(pod, uuid):
                    sums[pod] = sums.get(pod, 0) + process.used_bytes
            if sums:
                found[gpus[uuid]] = dict(sorted(sums.items()))
        return found


def describe_unmanaged(gpu: ScannedGpu, pod: str, held_bytes: int, *, listed: bool) -> str:
    """Return the sentence of an Event about unmanaged memory.

    `listed` is True if the pod has an assignment to other GPUs of this node.
    """
    what = f"{format_amount(held_bytes)} on GPU {gpu.index} ({gpu.uuid}) are held by"
    if not pod:
        return f"{what} processes of no pod; they can push pods out of memory"
    given = "given other GPUs" if listed else "promised none"
    return f"{what} pod uid {pod}, which was {given}; it can push others out"


def _plus(first: int | None, second: int | None, sign: int = 1) -> int | None:
    """Return the sum, or the difference for sign -1; None if a term is unknown."""
    return None if first is None or second is None else first + sign * second


READINGS: Final = 2
"""Minimum number of successive readings: a single reading cannot tell a running process from the
process that ran last."""

STORED_S: Final = 300.0
"""Maximum age of idle times stored by the previous sentry, in seconds."""


class IdleTracker:
    """Remembers the samples of each GPU, and when each pod was last seen running.

    Drivers record samples of running processes (`NodeNvml.process_samples`). A process that starts
    and ends between two readings is not attributed to a pod.
    """

    def __init__(self) -> None:
        self._samples: dict[str, dict[int, tuple[int, bool]]] = {}
        """Last sample of each sampled or still listed process, keyed by GPU and PID."""
        self._pods: dict[str, dict[int, str]] = {}
        """Pod UID of each listed process, keyed by GPU and PID."""
        self._readings: dict[str, int] = {}
        """Number of successive readings, keyed by GPU."""
        self._running: dict[str, frozenset[str]] = {}
        """UIDs of the pods that ran according to the last reading, keyed by GPU."""
        self._since_s: dict[str, dict[str, float]] = {}
        """Unix time at which a pod last ran or was first seen, keyed by GPU and UID."""
        self._stored: tuple[Mapping[str, float], float] = {}, float("-inf")
        """Idle times stored by the previous sentry, keyed by UID, and the time at which it
        stored them."""
        self.since_s: Mapping[str, float] = {}
        """Unix time since which a pod is idle, keyed by UID. Running and unknown pods are
        absent."""

    def seed(self, stored: Mapping[str, float], at_s: float) -> None:
        """Use idle times that the previous sentry stored at this Unix time."""
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
        """Record the samples of a scan, given the last lists and the scan's Unix time.

        A pod is idle if it is idle on each GPU on which it holds memory:

        | successive readings | processes of the pod in the last reading | the pod |
        | --- | --- | --- |
        | fewer than `READINGS`, or the driver has no samples | any | is unknown |
        | enough | one was active | runs |
        | enough | one has a newer sample, and was not the last to run before | runs |
        | enough | neither | is idle |

        While no process runs, the driver keeps sampling the process that ran last. So a newer
        sample of that process does not show that it runs.
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
        ran = frozenset(known.get(pid, "") for pid in _pids_that_ran(before, samples or {}))
        self._pods[gpu], self._running[gpu] = pods, ran
        self._readings[gpu] = 0 if samples is None else self._readings.get(gpu, 0) + 1
        kept = {pid: sample for pid, sample in (before or {}).items() if pid in pods}
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
    return {process.pid: process.owner.place.pod for process in listed if process.owner is not None}


def _pids_that_ran(before: Samples | None, samples: Samples) -> set[int]:
    """Return the PIDs that ran between two readings, according to the second reading's samples."""
    last_us = max((at_us for at_us, _ in (before or {}).values()), default=0)

    def took_over(pid: int, at_us: int) -> bool:
        if before is None:
            return False
        was_us, _ = before.get(pid, (0, False))
        return was_us < at_us and not 0 < was_us == last_us

    return {pid for pid, (at_us, did) in samples.items() if did or took_over(pid, at_us)}
