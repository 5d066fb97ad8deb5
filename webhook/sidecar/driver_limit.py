"""Check within the pod that the driver enforces the pod's cap.

If `VRAM_DRIVER_LIMIT` is set, the pod's memory fraction assumes a GPU with the limit. On a GPU
without the limit, a program that uses this fraction would exceed the cap.

| the driver enforces the cap on all of the pod's GPUs | the pod |
| --- | --- |
| yes | may start |
| no | waits, without end, and the startup probe reports why |

A pod that has started continues if the limit is lost. Each change is reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.adapters.nvml import NvmlError
from webhook.adapters.processes import own_cgroup
from webhook.core.enforcement.driver_limit import NO_LIMIT
from webhook.core.enforcement.messages import LogMessage
from webhook.core.enforcement.pacing import LIST_EVERY_S
from webhook.core.formatting import format_exact
from webhook.sidecar.heartbeat import write_waiting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from webhook.adapters.nvml import Nvml
    from webhook.sidecar.journal import EnforcerJournal
    from webhook.sidecar.settings import EnforcerSettings

QUERY_INTERVAL_S: Final = LIST_EVERY_S
"""Interval between queries of a GPU without a limit, in seconds: the limit may be set later."""

INSTEAD: Final = (
    "what exceeds the cap is stopped; VRAMWARDEN_GPU_MEMORY_FRACTION is of the cap here, and too"
    " much of the whole GPU: if a program uses it, create the pod again"
)


class DriverLimitCheck:
    """State of the pod's limit on each GPU."""

    def __init__(
        self,
        settings: EnforcerSettings,
        nvml: Nvml,
        journal: EnforcerJournal,
        run_folder: str,
        *,
        proc: str = "/proc",
    ) -> None:
        self._settings = settings
        self._nvml = nvml
        self._journal = journal
        self._run_folder = run_folder
        self._cgroup = own_cgroup(proc=proc)
        self._queried_s: dict[str, float] = {}
        self._why: dict[str, str] = {}
        self._is_held: bool | None = None
        """Last reported result; None while the pod waits."""

    def counted_bytes(self, gpu: str, now_s: float) -> int | None:
        """Return the bytes that the driver counts; None if the driver does not enforce the cap."""
        waits = self._is_held is None
        if not waits and self._why.get(gpu) and now_s - self._queried_s[gpu] < QUERY_INTERVAL_S:
            return None
        self._queried_s[gpu] = now_s
        counted, self._why[gpu] = self._query(gpu)
        return counted

    def allows_start(self, gpus: Iterable[str], now_s: float) -> bool:
        """Return True if the pod may start, by the last result for each GPU; report a change."""
        for gpu in gpus:
            if gpu not in self._why:
                self.counted_bytes(gpu, now_s)
        found = dict.fromkeys(self._why[gpu] for gpu in sorted(gpus))
        why = "; ".join(filter(None, found)) if found else "no GPU has been found yet"
        if self._is_held is None and why:
            write_waiting(self._run_folder, f"{LogMessage.WAITING_FOR_LIMIT}: {why}")
            self._journal.once("limit", "warning", LogMessage.WAITING_FOR_LIMIT, why)
            return False
        self._report(why)
        return True

    def _report(self, why: str) -> None:
        before, self._is_held = self._is_held, not why
        if why and before:
            self._journal.verdict("warning", LogMessage.NOT_HELD, f"{why}; {INSTEAD}")
        elif not why and before is None:
            self._journal.event("info", LogMessage.HELD, why="an allocation over the cap fails")
        elif not why and not before:
            note = "what was allocated before the limit came does not count to it"
            self._journal.verdict("info", LogMessage.HELD_LATE, note)

    def _query(self, gpu: str) -> tuple[int | None, str]:
        if not self._cgroup:
            return None, "/sys/fs/cgroup is not of cgroup v2"
        try:
            limit = self._nvml.limit(gpu, self._cgroup)
        except NvmlError as error:  # the next call also reports a fault of the GPU itself
            return None, str(error)
        if limit is None or limit.hard_bytes == NO_LIMIT:
            return None, f"the driver has no limit for this pod on GPU {gpu}"
        cap_bytes = self._settings.cap_bytes
        if limit.hard_bytes > cap_bytes:
            more = (
                f"{format_exact(limit.hard_bytes)}, more than the cap of {format_exact(cap_bytes)}"
            )
            return None, f"the driver's limit for this pod on GPU {gpu} is {more}"
        return limit.used_bytes, ""
