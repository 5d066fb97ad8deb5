"""What the last pods of a workload held at most, as the object `VRAMHistory` keeps it.

Twenty runs are kept as they are: "the last 20 pods" is a sentence that people believe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_RUNS: Final = 20
OLDEST_S: Final = 30 * 86_400.0
"""Runs that ended longer ago are dropped."""


@dataclass(frozen=True, slots=True)
class Run:
    """One pod that ended."""

    pod: str
    """Its name."""
    ended_s: float
    """Unix time."""
    asked_bytes: int
    """Per GPU: its cap."""
    gpus: int
    peak_bytes: int | None
    """On the GPU on which it held most; None where nobody measured it."""
    stops: int
    seconds: float
    """For how long it was guarded."""
    product: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The last runs of a workload."""

    namespace: str
    kind: str
    """As `Deployment`, `Job`, `CronJob`, `Pod`."""
    workload: str
    runs: tuple[Run, ...] = ()
    """The newest last."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What a workload should ask for, and why."""

    amount_bytes: int | None
    """Per GPU; None where there is nothing to change, or too little is known."""
    why: str
    """A sentence, as the column WHY of `vramwarden advise` has it."""


# Here come: the name of the object, reading and writing it, `append`, and `advise`.
