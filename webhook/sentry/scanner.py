"""Scans of all GPUs with the processes on them, and the pause until the next scan."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import Final

from webhook.adapters.node_nvml import NodeNvml
from webhook.adapters.node_processes import NodeProcesses, Owner
from webhook.adapters.nvml import NvmlError
from webhook.adapters.processes import start_time_s
from webhook.core.node.access import KERNEL_DRIVER
from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import DriverClass, ScannedGpu, classify_driver, explain_driver
from webhook.core.pod.gpus import EVERY_GPU
from webhook.node_programs.program import list_answering_gpus, scan_with

Samples = Mapping[int, tuple[int, bool]]
"""Result of `NodeNvml.process_samples`, by PID."""

LIST_EVERY_S: Final = 10.0
"""Maximum time between reads of a GPU's process list, in seconds, whatever memory is in use."""

CHECK_EVERY_S: Final = 10.0
"""Interval between checks that a listed process of an idle pod is alive, in seconds. If its PID
now belongs to another pod, the first pod is searched for processes at the same interval."""

RAN_EVERY_S: Final = 10.0
"""Interval between reads of process samples, in seconds; a driver keeps samples for 14 s."""

FORGET_AFTER_S: Final = 60.0
"""Time after which the processes of a GPU that does not respond are forgotten, in seconds."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """Memory that a listed process holds on a GPU."""

    pid: int
    owner: Owner | None
    """None if the process ended before it could be identified."""
    used_bytes: int | None
    """None if the driver reports no figure, which does not mean zero."""
    dead: bool = False
    """True if the process ended and its memory stays, as other processes have its device files
    open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessScan(Scan):
    """Result of reading all GPUs once, with their processes."""

    lists: Mapping[str, tuple[GpuProcess, ...]] = field(default_factory=dict)
    """Processes keyed by UUID, for GPUs whose lists were read in this scan."""
    ran: Mapping[str, Samples | None] = field(default_factory=dict)
    """Samples keyed by UUID, for GPUs whose samples were read in this scan; None if the driver
    has none."""
    unread: frozenset[str] = frozenset()
    """UUIDs of the GPUs whose memory or processes could not be read in this scan."""
    took_s: float = 0.0

    def held_by_containers(self, pod: str) -> Mapping[str, int]:
        """Return the bytes held over all GPUs, keyed by listed container of a pod."""
        sums: Counter[str] = Counter()
        for process in chain(*self.lists.values()):
            if process.owner is not None and process.owner.place.pod == pod:
                sums[process.owner.place.container] += process.used_bytes or 0
        return sums


@dataclass(slots=True)
class _TrackedProcess:
    """Owner of a listed PID, and time of the last check."""

    owner: Owner
    checked_s: float
    dead: bool = False
    pod_checked_s: float = float("-inf")
    """Time of the last search for living processes of the owner's pod."""


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ProcessScanner:
    """Scans the GPUs, and remembers the owners of the listed processes."""

    def __init__(
        self,
        nvml: NodeNvml,
        node: NodeProcesses,
        *,
        kernel_driver: str = KERNEL_DRIVER,
        outermost: bool = True,
        boot_s: Callable[[], float] = _boot_s,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`outermost` is True in the host's initial PID namespace."""
        self._boot_s = boot_s
        self._wall_s = wall_s
        self._nvml = nvml
        self._node = node
        self._kernel_driver = kernel_driver
        self._outermost = outermost
        self._known: dict[int, _TrackedProcess] = {}
        self._listed: dict[str, frozenset[int]] = {}
        self._listed_s: dict[str, float] = {}
        self._ran_s: dict[str, float] = {}
        """Time at which each GPU's samples were last read."""
        self._nobodys_s: dict[int, float] = {}
        """Time at which each PID without an owner was first listed, in seconds since boot."""

    def scan(
        self,
        now_s: float,
        thresholds: Mapping[str, int],
        pods: Collection[str] = (),
    ) -> ProcessScan:
        """Return a scan of all GPUs; never raises.

        `thresholds` has the bytes in use, keyed by GPU or `EVERY_GPU`, above which a list must be
        read. The smaller threshold counts.

        | in use | time since the last list | list |
        | --- | --- | --- |
        | more than the threshold, or unknown | any | is read |
        | not more, or there is no threshold | LIST_EVERY_S or more | is read |
        | not more, or there is no threshold | less | is not read |

        Listed processes of `pods` are always checked to be alive, those of other pods every
        `CHECK_EVERY_S`. Samples of a GPU with listed processes are read every `RAN_EVERY_S`.
        """
        began_s = time.monotonic()
        scan = scan_with(
            self._nvml,
            self._kernel_driver,
            ProcessScan,
            lambda version: self._scan(version, now_s, thresholds, pods),
        )
        return replace(scan, took_s=time.monotonic() - began_s)

    def _scan(
        self,
        version: str,
        now_s: float,
        thresholds: Mapping[str, int],
        pods: Collection[str],
    ) -> ProcessScan:
        if not self._is_trusted(version):
            return ProcessScan(failed=explain_driver(version), driver_version=version)
        gpus: list[ScannedGpu] = []
        lists: dict[str, tuple[GpuProcess, ...]] = {}
        ran: dict[str, Samples | None] = {}
        failed: dict[str, str] = {}
        for gpu in list_answering_gpus(self._nvml):
            if gpu.mig:
                continue
            uuid = gpu.uuid
            try:
                used_bytes = self._nvml.device_used_bytes(uuid)
                gpus.append(replace(gpu, used_bytes=used_bytes))
                over = _is_above(used_bytes, uuid, thresholds)
                due = now_s - self._listed_s.get(uuid, float("-inf")) >= LIST_EVERY_S
                if over or due:
                    lists[uuid] = self._list(uuid, now_s, pods)
                since_s = now_s - self._ran_s.get(uuid, now_s - RAN_EVERY_S)
                if since_s >= RAN_EVERY_S and self._listed.get(uuid):
                    self._ran_s[uuid] = now_s
                    ran[uuid] = self._read_samples(uuid, since_s)
            except NvmlError as error:
                failed[uuid] = str(error)
        self._forget(now_s)
        return ProcessScan(
            gpus=tuple(gpus),
            driver_version=version,
            lists=lists,
            ran=ran,
            unread=frozenset(failed),
            failed="; ".join([*failed.values(), *map(str, self._nvml.unreachable)]),
        )

    def _read_samples(self, uuid: str, within_s: float) -> Samples | None:
        try:
            return self._nvml.process_samples(uuid, int((self._wall_s() - within_s) * 1e6))
        except NvmlError:
            return None

    def _is_trusted(self, version: str) -> bool:
        """Return True if the PIDs and figures of a driver's lists are those of this node.

        | the driver | on a host | on a node that is a container |
        | --- | --- | --- |
        | works in containers | yes | yes |
        | lists host PIDs, or no figures in containers | yes | no |
        """
        return self._outermost or classify_driver(version) is DriverClass.WORKS

    def _list(self, uuid: str, now_s: float, pods: Collection[str]) -> tuple[GpuProcess, ...]:
        listed = self._nvml.processes(uuid)
        held = tuple(self._charge_memory(pid, used, now_s, pods) for pid, used in listed.items())
        self._listed[uuid] = frozenset(listed)
        self._listed_s[uuid] = now_s
        return held

    def _charge_memory(
        self, pid: int, used_bytes: int | None, now_s: float, pods: Collection[str]
    ) -> GpuProcess:
        """Return the process to which the memory listed for a PID is charged, and the memory.

        | the PID was listed before | the PID now belongs to | the memory is charged to |
        | --- | --- | --- |
        | no | a process | that process |
        | no | no process | no process |
        | without an owner | a process that started before that | that process |
        | without an owner | a process that started later | no process |
        | for a living process | the same process | that process |
        | for an ended process | no process | the ended process, and so its pod |
        | for an ended process | another process of the same pod | the new process |
        | for an ended one whose pod has processes | another pod | the ended one, amount unknown |
        | for an ended one whose pod has no processes | another pod | the new process |

        Memory of an ended process stays charged to its pod while another process keeps its device
        files open. Such a process can also allocate through these files, so an increase cannot be
        charged to the PID's new owner either.
        """
        tracked = self._known.get(pid)
        if tracked is None:
            owner = self._node.owner(pid)
            since_s = self._nobodys_s.get(pid)
            if owner is None or (since_s is not None and start_time_s(owner.process) > since_s):
                self._nobodys_s.setdefault(pid, self._boot_s())
                return GpuProcess(pid, None, used_bytes)
            self._known[pid] = _TrackedProcess(owner, now_s)
            return GpuProcess(pid, owner, used_bytes)
        is_due = tracked.owner.place.pod in pods or now_s - tracked.checked_s >= CHECK_EVERY_S
        if is_due or tracked.dead:
            tracked.checked_s = now_s
            tracked.dead = self._node.is_gone(tracked.owner.process)
        if not tracked.dead:
            return GpuProcess(pid, tracked.owner, used_bytes)
        owner = self._node.owner(pid)
        if owner is None:
            return GpuProcess(pid, tracked.owner, used_bytes, dead=True)
        if owner.place.pod != tracked.owner.place.pod and not self._has_pod_ended(tracked, now_s):
            return GpuProcess(pid, tracked.owner, None, dead=True)
        self._known[pid] = _TrackedProcess(owner, now_s)
        return GpuProcess(pid, owner, used_bytes)

    def _has_pod_ended(self, tracked: _TrackedProcess, now_s: float) -> bool:
        """Return True if a pod has no process left; searches once per `CHECK_EVERY_S`."""
        if now_s - tracked.pod_checked_s < CHECK_EVERY_S:
            return False
        tracked.pod_checked_s = now_s
        return next(iter(self._node.in_pod(tracked.owner.place.pod)), None) is None

    def _forget(self, now_s: float) -> None:
        """Forget GPUs that were not listed for long, and PIDs that no GPU lists."""
        for uuid, at_s in tuple(self._listed_s.items()):
            if now_s - at_s > FORGET_AFTER_S:
                del self._listed_s[uuid], self._listed[uuid]
        listed = frozenset[int]().union(*self._listed.values())
        self._known = {pid: tracked for pid, tracked in self._known.items() if pid in listed}
        self._nobodys_s = {pid: at_s for pid, at_s in self._nobodys_s.items() if pid in listed}


def _is_above(used_bytes: int | None, gpu: str, thresholds: Mapping[str, int]) -> bool:
    bounds = [thresholds[key] for key in (gpu, EVERY_GPU) if key in thresholds]
    return bool(bounds) and (used_bytes is None or used_bytes > min(bounds))


ENDING_S: Final = 0.25
JUDGING_S: Final = 0.5
HOLDING_S: Final = 1.0
LISTED_S: Final = 10.0
IDLE_S: Final = 45.0
"""Pause without assignments and processes, in seconds. Figures are written once a minute and
count as stale after two minutes, so 60 s would be too long."""

DUTY: Final = 20
HURRY: Final = 2
SOON_S: Final = 2.5
"""Maximum pause after a slow scan, in seconds, while pods may be stopped. An excess has to last
11.5 s, so it is still ended within 15 s."""


def pause_s(
    took_s: float,
    *,
    ending: bool,
    judging: bool,
    may_act: bool,
    listed: bool,
    held: bool,
    poll_s: float = inf,
) -> float:
    """Return the pause after a scan that took `took_s`, in seconds.

    `poll_s` is the shortest poll interval of pods by Sentry, `inf` without such pods.

    | a pod was stopped | is over its cap | may be stopped | is listed, or holds memory | pause |
    | --- | --- | --- | --- | --- |
    | yes | any | any | any | 0.25 |
    | no | yes | any | any | the smaller of 0.5 and `poll_s`, at least 0.25 |
    | no | no | yes | any | the smaller of 1 and `poll_s`, at least 0.25 |
    | no | no | no | yes | 10 |
    | no | no | no | no | 45 |

    After a slow scan the pause is longer, since a scan wakes GPUs and holds the driver's locks:

    | a pod was stopped, or is over its cap | may be stopped | minimum pause |
    | --- | --- | --- |
    | yes | any | `HURRY` times `took_s` |
    | no | yes, and there is a `poll_s` | `HURRY` times |
    | no | yes | `DUTY` times, or `SOON_S` if that is less; at least `HURRY` times |
    | no | no | `DUTY` times, at most `IDLE_S`; at least `HURRY` times |

    The pause has a maximum because a tenant can slow down scans by using CPU, and because figures
    older than two minutes do not prove a running sentry.
    """
    poll_s = max(poll_s, ENDING_S)
    if ending or judging:
        return max(ENDING_S if ending else min(JUDGING_S, poll_s), HURRY * took_s)
    if may_act:
        rest_s = min(DUTY * took_s, SOON_S) if poll_s == inf else 0.0
        return max(min(HOLDING_S, poll_s), HURRY * took_s, rest_s)
    least_s = LISTED_S if listed or held else IDLE_S
    return max(least_s, HURRY * took_s, min(DUTY * took_s, IDLE_S))
