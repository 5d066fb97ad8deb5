"""Since when no kernel of a pod ran, by the samples that the driver takes of processes on each GPU.

Nothing is stopped for it. Who came and went between two readings is nobody's, and what a driver
shows as nothing (see `NodeNvml.process_samples`) is nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from webhook.sentry.scanner import GpuProcess, ProcessScan, Samples

READINGS: Final = 2
"""By the first alone nobody knows who ran just now, and who only ran last."""

STORED_S: Final = 300.0
"""What an earlier sentry knew counts for who is seen first within so long: nobody saw more."""


class Idleness:
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
