"""One scan of all GPUs, with their processes; who holds what is remembered while they hold it."""

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
from webhook.adapters.processes import started_s
from webhook.core.node.access import KERNEL_DRIVER
from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import DriverClass, ScannedGpu, classify_driver, explain_driver
from webhook.core.pod.gpus import EVERY_GPU
from webhook.node_programs.program import answering, scan_with

Samples = Mapping[int, tuple[int, bool]]
"""As `NodeNvml.process_samples` has them."""

LIST_EVERY_S: Final = 10.0
"""However little of a GPU is in use, its processes come and go."""

CHECK_EVERY_S: Final = 10.0
"""How often a process that stays listed is asked whether it still lives, while its pod is calm.
If another pod's process has the number of one that ended, the old pod is searched as often."""

RAN_EVERY_S: Final = 10.0
"""How often a GPU of which a process holds memory is asked who ran: its driver keeps 14 s."""

FORGET_AFTER_S: Final = 60.0
"""How long a GPU may fail to answer before it is forgotten who held its memory."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """What one listed process holds on one GPU."""

    pid: int
    owner: Owner | None
    """None where it ended before anybody could see whose it was."""
    used_bytes: int | None
    """None where the driver gives no figure: unknown is not zero."""
    dead: bool = False
    """It ended, and its memory stays: others have its files open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessScan(Scan):
    """What all GPUs showed at one moment, and who held memory of them."""

    lists: Mapping[str, tuple[GpuProcess, ...]] = field(default_factory=dict)
    """By UUID; of the GPUs whose lists were read this time."""
    ran: Mapping[str, Samples | None] = field(default_factory=dict)
    """By UUID; of the GPUs that were asked this time who ran. None where it was not told."""
    unread: frozenset[str] = frozenset()
    """UUIDs of the GPUs whose memory or processes could not be read this time."""
    took_s: float = 0.0

    def held_by_containers(self, pod: str) -> Mapping[str, int]:
        """Return what each container of a pod that was listed holds over all GPUs, in bytes."""
        sums: Counter[str] = Counter()
        for one in chain(*self.lists.values()):
            if one.owner is not None and one.owner.place.pod == pod:
                sums[one.owner.place.container] += one.used_bytes or 0
        return sums


@dataclass(slots=True)
class _TrackedProcess:
    """Whose a listed pid is, and when that was last checked."""

    owner: Owner
    checked_s: float
    dead: bool = False
    pod_checked_s: float = float("-inf")
    """Time of the last search for living processes of its pod."""


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ProcessScanner:
    """Scans the GPUs, and remembers whose the listed processes are."""

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
        """Prepare; `outermost` is whether our processes' numbers are the kernel's own."""
        self._boot_s = boot_s
        self._wall_s = wall_s
        self._nvml = nvml
        self._node = node
        self._kernel_driver = kernel_driver
        self._outermost = outermost
        self._known: dict[int, _TrackedProcess] = {}
        self._listed: dict[str, frozenset[int]] = {}
        """The pids of each GPU's last list."""
        self._listed_s: dict[str, float] = {}
        self._ran_s: dict[str, float] = {}
        """When each GPU was asked last who ran."""
        self._nobodys_s: dict[int, float] = {}
        """When pids were first listed that were nobody's, in seconds since the node started."""

    def scan(
        self,
        now_s: float,
        thresholds: Mapping[str, int],
        pods: Collection[str] = (),
    ) -> ProcessScan:
        """Return what the GPUs show; never raises.

        `thresholds` has the use in bytes, by GPU or `EVERY_GPU`, above which a list must be read.
        The smaller one counts.

        | in use | since the last list | list |
        | --- | --- | --- |
        | more than the threshold, or unknown | any | is read |
        | not more, or there is no threshold | LIST_EVERY_S or more | is read |
        | not more, or there is no threshold | less | is not read |

        Each listed process of `pods` is checked to be alive, those of other pods each
        `CHECK_EVERY_S`. Samples of a GPU with listed processes are read each `RAN_EVERY_S`.
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
        for gpu in answering(self._nvml):
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
                    ran[uuid] = self._ran(uuid, since_s)
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

    def _ran(self, uuid: str, within_s: float) -> Samples | None:
        try:
            return self._nvml.process_samples(uuid, int((self._wall_s() - within_s) * 1e6))
        except NvmlError:
            return None

    def _is_trusted(self, version: str) -> bool:
        """Return True if a driver's lists have our processes and their figures.

        | the driver | on a node of its own | on a node that is a container |
        | --- | --- | --- |
        | works in containers | yes | yes |
        | lists host PIDs, or is blind in containers | yes | no: others' numbers, or figures |
        """
        return self._outermost or classify_driver(version) is DriverClass.WORKS

    def _list(self, uuid: str, now_s: float, pods: Collection[str]) -> tuple[GpuProcess, ...]:
        listed = self._nvml.processes(uuid)
        held = tuple(self._held(pid, used, now_s, pods) for pid, used in listed.items())
        self._listed[uuid] = frozenset(listed)
        self._listed_s[uuid] = now_s
        return held

    def _held(
        self, pid: int, used_bytes: int | None, now_s: float, pods: Collection[str]
    ) -> GpuProcess:
        """Say whose a listed process is.

        | the pid was listed before | it is now | the memory is |
        | --- | --- | --- |
        | no | somebody's | theirs |
        | no | nobody's | nobody's |
        | as nobody's | of somebody who started before that | theirs |
        | as nobody's | of somebody who started since then | nobody's |
        | by a process that lives | the same | theirs |
        | by a process that ended | nobody's | still of that process's pod |
        | by a process that ended | another's, of the same pod | theirs |
        | by a process that ended, of a pod of which one lives | another pod's | of unknown parts |
        | by a process that ended, of a pod of which none lives | another pod's | theirs |

        So who ends while others keep its files open does not get rid of what it holds, and nobody
        pays for a number that was another pod's. Those others may allocate through its files, so
        not even what is held in addition is surely theirs who have the number now.
        """
        known = self._known.get(pid)
        if known is None:
            owner = self._node.owner(pid)
            since_s = self._nobodys_s.get(pid)
            if owner is None or (since_s is not None and started_s(owner.process) > since_s):
                self._nobodys_s.setdefault(pid, self._boot_s())
                return GpuProcess(pid, None, used_bytes)
            self._known[pid] = _TrackedProcess(owner, now_s)
            return GpuProcess(pid, owner, used_bytes)
        asked = known.owner.place.pod in pods or now_s - known.checked_s >= CHECK_EVERY_S
        if asked or known.dead:
            known.checked_s = now_s
            known.dead = self._node.is_gone(known.owner.process)
        if not known.dead:
            return GpuProcess(pid, known.owner, used_bytes)
        owner = self._node.owner(pid)
        if owner is None:
            return GpuProcess(pid, known.owner, used_bytes, dead=True)
        if owner.place.pod != known.owner.place.pod and not self._has_pod_ended(known, now_s):
            return GpuProcess(pid, known.owner, None, dead=True)
        self._known[pid] = _TrackedProcess(owner, now_s)
        return GpuProcess(pid, owner, used_bytes)

    def _has_pod_ended(self, known: _TrackedProcess, now_s: float) -> bool:
        """Return True if no process is left of a pod, by a search each `CHECK_EVERY_S`."""
        if now_s - known.pod_checked_s < CHECK_EVERY_S:
            return False
        known.pod_checked_s = now_s
        return next(iter(self._node.of_pod(known.owner.place.pod)), None) is None

    def _forget(self, now_s: float) -> None:
        """Forget GPUs that are gone for long, and who is no longer listed anywhere."""
        for uuid, at_s in tuple(self._listed_s.items()):
            if now_s - at_s > FORGET_AFTER_S:
                del self._listed_s[uuid], self._listed[uuid]
        listed = frozenset[int]().union(*self._listed.values())
        self._known = {pid: known for pid, known in self._known.items() if pid in listed}
        self._nobodys_s = {pid: at_s for pid, at_s in self._nobodys_s.items() if pid in listed}


def _is_above(used_bytes: int | None, gpu: str, thresholds: Mapping[str, int]) -> bool:
    bounds = [thresholds[key] for key in (gpu, EVERY_GPU) if key in thresholds]
    return bool(bounds) and (used_bytes is None or used_bytes > min(bounds))


ENDING_S: Final = 0.25
JUDGING_S: Final = 0.5
HOLDING_S: Final = 1.0
LISTED_S: Final = 10.0
IDLE_S: Final = 45.0
"""Figures are written once a minute: at 60 s they would be older than two minutes now and then."""

DUTY: Final = 20
HURRY: Final = 2
SOON_S: Final = 2.5
"""An excess that is seen so late is still ended in fifteen seconds: it is judged for 11.5."""


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
    """Return how long to wait after a scan that took so long, in seconds.

    `poll_s` is the shortest poll interval of pods that only the sentry holds, `inf` without such.

    | a pod was stopped | is over its cap | may be stopped | is listed, or holds memory | pause |
    | --- | --- | --- | --- | --- |
    | yes | any | any | any | 0.25 |
    | no | yes | any | any | the smaller of 0.5 and `poll_s`, at least 0.25 |
    | no | no | yes | any | the smaller of 1 and `poll_s`, at least 0.25 |
    | no | no | no | yes | 10 |
    | no | no | no | no | 45 |

    And so long after a scan that took long, since it wakes GPUs and holds the driver's locks:

    | a pod was stopped, or is over | may be stopped | pause at least |
    | --- | --- | --- |
    | yes | any | `HURRY` times what it took |
    | no | yes, and there is a `poll_s` | `HURRY` times |
    | no | yes | `DUTY` times, or `SOON_S` where that is less; but `HURRY` times in any case |
    | no | no | `DUTY` times, at most `IDLE_S`; but `HURRY` times in any case |

    A tenant can make scans slow, by CPU alone, and must not gain the time by it. Figures that are
    older than two minutes prove no sentry, so a slow driver is scanned that often as well.
    """
    poll_s = max(poll_s, ENDING_S)
    if ending or judging:
        return max(ENDING_S if ending else min(JUDGING_S, poll_s), HURRY * took_s)
    if may_act:
        rest_s = min(DUTY * took_s, SOON_S) if poll_s == inf else 0.0
        return max(min(HOLDING_S, poll_s), HURRY * took_s, rest_s)
    least_s = LISTED_S if listed or held else IDLE_S
    return max(least_s, HURRY * took_s, min(DUTY * took_s, IDLE_S))
