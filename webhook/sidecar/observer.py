"""Observation of the pod's memory by NVML and /proc; all NVML errors are handled here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from webhook.adapters import processes
from webhook.adapters.nvml import NvmlError
from webhook.core.enforcement.driver_limit import judged_bytes
from webhook.core.enforcement.model import UNIDENTIFIED, Observation, Process, Usage
from webhook.core.enforcement.pacing import Pace, wants_lists
from webhook.core.formatting import format_amount
from webhook.core.frozen import dataclass
from webhook.core.nvidia.drivers import Fault

if TYPE_CHECKING:
    from collections.abc import Collection

    from webhook.adapters.nvml import Nvml
    from webhook.sidecar.driver_limit import DriverLimitCheck

SEARCH_INTERVAL_S: Final = 30.0
"""Interval between searches for a lost GPU, which may return after a reset, in seconds."""

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
"""Pauses between attempts to reach a driver that is down, in seconds. They double from
`FIRST_PAUSE_S` to `LONGEST_PAUSE_S`."""

UNIDENTIFIED_AFTER_S: Final = 5.0
"""Time after which a listed process is reported as unidentified, in seconds. A process may end
between reading the list and reading /proc, but does not stay listed that long."""

UNIDENTIFIED_COUNTS_AFTER_S: Final = 10.0
"""Time after which the memory of an unidentified process counts, in seconds, if the process
certainly belongs to the pod."""

ALWAYS_IDENTIFIED: Final = 32
"""Number of processes that are always identified. Identifying one costs reading eight files. The
memory of further processes is summed up first, and they are identified only if the sum shows
an excess."""


class DriverChangedError(Exception):
    """The node's driver was replaced: only a new container gets the matching library."""


@dataclass(frozen=True, slots=True)
class Unidentified:
    """A listed process that could never be identified."""

    since_s: float
    """Time since which every list contained the process."""
    used_bytes: int | None


class Observer:
    """Observes all GPUs at each call, and reads process lists when needed."""

    def __init__(
        self,
        nvml: Nvml,
        cap_bytes: int,
        *,
        ceiling_bytes: int | None = None,
        counts_unidentified: bool = False,
        limit: DriverLimitCheck | None = None,
        proc: str = "/proc",
    ) -> None:
        """Use above `ceiling_bytes` (default: the cap) is observed in detail."""
        self._nvml = nvml
        self._cap_bytes = cap_bytes
        self._ceiling_bytes = cap_bytes if ceiling_bytes is None else ceiling_bytes
        self._counts_strangers = counts_unidentified
        self._limit = limit
        self._proc = proc
        self.gpus: tuple[str, ...] = ()
        """UUIDs of all GPUs found so far."""
        self._searched_s = float("-inf")
        self._pause_s = 0.0
        self._next_attempt_s = float("-inf")
        self._down = ""
        self._missing = "no GPU has been found yet"
        self._paces: dict[str, Pace] = {}
        self._usages: dict[str, tuple[Usage, ...]] = {}
        """Usages from the last list of each GPU. They are reported while the GPU has a pace, and
        kept longer for the names of processes."""
        self._counted: dict[str, int | None] = {}
        """Bytes that the driver counted when the list was read, by GPU; None without a limit."""
        self._processes: dict[int, Process] = {}
        self._unidentified: dict[tuple[str, int], Unidentified] = {}

    def observe(self, now_s: float, judged: Collection[str] = ()) -> Observation:
        """Return the memory of each process; lists of GPUs that are not in `judged` may be older.

        Raises only DriverChangedError. Other NVML errors are faults of the observation.
        """
        if self._down and not self._retry(now_s):
            return Observation((), self._down)
        faults = [fault for fault in [self._find_gpus(now_s)] if fault]
        for gpu in self.gpus:
            if self._down:
                break
            try:
                faults += self._observe_gpu(gpu, now_s, judging=gpu in judged)
            except NvmlError as error:
                self._paces.pop(gpu, None)
                faults.append(self._handle_error(error, now_s))
        if self._down:
            return Observation((), self._down)
        self._pause_s = 0.0
        return Observation(
            tuple(usage for gpu in self._paces for usage in self._usages[gpu]),
            "; ".join(faults),
            listed_at_s={gpu: pace.listed_at_s for gpu, pace in self._paces.items()},
            counted={gpu: used for gpu in self._paces if (used := self._counted[gpu]) is not None},
        )

    def _find_gpus(self, now_s: float) -> str:
        """Search for GPUs, first and while one is missing; return the reason why one is missing."""
        complete = not self._missing and all(gpu in self._paces for gpu in self.gpus)
        if not complete and now_s - self._searched_s >= SEARCH_INTERVAL_S:
            self._searched_s = now_s
            try:
                found = [device.uuid for device in self._nvml.devices()]
            except NvmlError as error:
                self._missing = self._handle_error(error, now_s)
                return self._missing
            self.gpus = tuple(dict.fromkeys([*self.gpus, *found]))
            # The pod may use a GPU that never answered, so its memory is unknown, not zero.
            self._missing = "; ".join(
                str(error) for error in self._nvml.unreachable if error.gpu not in self.gpus
            )
            if not self.gpus:
                self._missing = "the driver shows no GPU to this container"
        return self._missing

    def _observe_gpu(self, gpu: str, now_s: float, *, judging: bool) -> list[str]:
        counted = self._limit.counted_bytes(gpu, now_s) if self._limit else None
        limited = counted is not None
        total_bytes = counted if limited else self._nvml.device_used_bytes(gpu)
        pace = self._paces.get(gpu, Pace())
        cap_bytes = self._cap_bytes
        if wants_lists(pace, total_bytes, cap_bytes, now_s, judging=judging, limited=limited):
            started_s = time.monotonic()
            listed = self._nvml.processes(gpu)
            self._paces[gpu] = pace.after(now_s, total_bytes, time.monotonic() - started_s)
            self._counted[gpu] = counted
            crowd = len(listed) > ALWAYS_IDENTIFIED and not judging
            figures = [used for used in listed.values() if used]
            if crowd and judged_bytes(figures, counted, cap_bytes) <= self._ceiling_bytes:
                named = ((self._last_known(pid), used) for pid, used in listed.items())
                self._usages[gpu] = tuple(Usage(gpu, who, used) for who, used in named)
            else:
                usages = (
                    (self._identify(gpu, pid, used, now_s), used) for pid, used in listed.items()
                )
                self._usages[gpu] = tuple(Usage(gpu, who, used) for who, used in usages if who)
            self._forget(gpu, set(listed))
        return [
            f"the driver lists process {pid} on GPU {gpu} {_describe_usage(stranger.used_bytes)}, "
            "and there is no such process in this pod"
            for (where, pid), stranger in self._unidentified.items()
            if where == gpu
            and self._paces[gpu].listed_at_s - stranger.since_s >= UNIDENTIFIED_AFTER_S
            and not self._counts_for_pod(stranger, self._paces[gpu].listed_at_s)
        ]

    def _last_known(self, pid: int) -> Process:
        """Return the process that last had this PID, if it need not be identified now."""
        return self._processes.get(pid, Process(pid, UNIDENTIFIED))

    def _counts_for_pod(self, stranger: Unidentified, now_s: float) -> bool:
        return (
            self._counts_strangers
            and len(self.gpus) == 1
            and now_s - stranger.since_s >= UNIDENTIFIED_COUNTS_AFTER_S
        )

    def _identify(self, gpu: str, pid: int, used_bytes: int | None, now_s: float) -> Process | None:
        """Return the process with this PID, cached while it is the same process.

        A process that has ended but is still listed keeps its identity, since its memory has not
        been freed.
        """
        process = self._processes.get(pid)
        if process is None or processes.is_gone(process, proc=self._proc):
            process = processes.identify(pid, proc=self._proc) or process
        if process is None:
            before = self._unidentified.get((gpu, pid))
            stranger = Unidentified(before.since_s if before else now_s, used_bytes)
            self._unidentified[gpu, pid] = stranger
            return Process(pid, UNIDENTIFIED) if self._counts_for_pod(stranger, now_s) else None
        self._unidentified.pop((gpu, pid), None)
        self._processes[pid] = process
        return process

    def _forget(self, gpu: str, listed: set[int]) -> None:
        self._unidentified = {
            key: stranger
            for key, stranger in self._unidentified.items()
            if key[0] != gpu or key[1] in listed
        }
        alive = {usage.process.pid for usages in self._usages.values() for usage in usages}
        self._processes = {pid: who for pid, who in self._processes.items() if pid in alive}

    def _handle_error(self, error: NvmlError, now_s: float) -> str:
        """Handle an NVML error and return its sentence.

        | fault | action |
        | --- | --- |
        | driver changed | raise DriverChangedError, so that a new container starts |
        | driver down | close, and open again after a pause that doubles |
        | any other | treat this GPU as unknown; search for a lost GPU again later |
        """
        if error.fault is Fault.DRIVER_CHANGED:
            raise DriverChangedError(str(error)) from error
        if error.fault is Fault.DRIVER_DOWN:
            self._down = str(error)
            self._paces.clear()
            self._nvml.close()
            self._schedule_retry(now_s)
        return str(error)

    def _retry(self, now_s: float) -> bool:
        if now_s < self._next_attempt_s:
            return False
        try:
            self._nvml.reopen()
        except NvmlError as error:
            if error.fault is Fault.DRIVER_CHANGED:
                raise DriverChangedError(str(error)) from error
            self._down = str(error)
            self._schedule_retry(now_s)
            return False
        self._down, self._searched_s = "", float("-inf")
        return True

    def _schedule_retry(self, now_s: float) -> None:
        self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)
        self._next_attempt_s = now_s + self._pause_s


def _describe_usage(used_bytes: int | None) -> str:
    return "without a figure" if used_bytes is None else f"with {format_amount(used_bytes)}"
