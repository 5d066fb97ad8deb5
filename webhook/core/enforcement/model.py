"""Values of enforcement: what is observed, what is remembered, and what is to be done."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from webhook.core.frozen import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping

ESCALATE_AFTER: Final = 3
"""Stops on one GPU that were not enough: what restarts processes must end, not the next one."""


class VictimOrder(enum.Enum):
    """Which process is stopped first."""

    GREW_LAST = "grew-last"
    """It is the likeliest cause; ties: the largest, then the youngest."""
    LARGEST = "largest"
    """It gives the most back at once; ties: the youngest."""


UNIDENTIFIED: Final = -1
"""The start time of a process that is listed and not known: it is counted, and never stopped."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the pod by its identity: a pid alone may be somebody else a moment later."""

    pid: int
    """In the pod's process namespace."""
    started: int
    """Start time in clock ticks since boot: field 22 of /proc/<pid>/stat, proc(5); or
    `UNIDENTIFIED`."""
    command: str = field(default="", compare=False)
    container: str = field(default="", compare=False)
    """The container's id, as its cgroup shows it; empty where that is unknown."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The memory that one process holds on one GPU."""

    gpu: str
    """The GPU's UUID."""
    process: Process
    used_bytes: int | None
    """None where NVML lists the process but gives no figure, or 0: unknown is not zero."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What all GPUs showed at one moment."""

    usages: tuple[Usage, ...]
    fault: str = ""
    """Why not everything could be observed; empty where it could."""
    rejected: frozenset[Process] = frozenset()
    """Processes that we were not permitted to signal, since the last observation."""
    listed_at_s: Mapping[str, float] = field(default_factory=dict)
    """When a GPU's list was read, where that was before this observation; a GPU that is named here
    was seen, whatever the fault says of others."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """What the driver counts of the pod, by each GPU on which it holds the pod to its cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """What the pod is held to, on each GPU."""

    cap_bytes: int
    tolerance_bytes: int
    grace_s: float
    blind_after_s: float
    terminate_when_blind: bool
    protected: frozenset[int]
    """Pids that are never stopped: PID 1, the enforcer itself."""
    delay_s: float = 0.0
    """For how long a sum must have been over before anything is stopped, in seconds, besides
    `CONFIRMATIONS` samples. Time within the cap takes as much off, so a process that is started
    again does not begin at zero."""
    order: VictimOrder = VictimOrder.GREW_LAST
    container_after: int | None = ESCALATE_AFTER
    """After so many stops that were not enough a whole container is stopped; None: never."""
    pod_after: int = ESCALATE_AFTER + 1
    """After so many stops that were not enough the pod is ended."""
    reports_only: bool = False
    """Whether an excess is reported and nothing is stopped for it; blindness counts as ever."""

    @property
    def ceiling_bytes(self) -> int:
        """Above this, a sum is an excess."""
        return self.cap_bytes + self.tolerance_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What is known of one process on one GPU over time."""

    process: Process
    used_bytes: int
    seen_s: float
    grew_at_s: float
    grew_bytes: int
    """How much the use grew at that moment."""
    grew_within_s: float
    """Between which two lists, in seconds; 0 where the first one had it already."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that is being stopped."""

    gpu: str
    process: Process
    used_bytes: int
    terminated_at_s: float
    killed_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class OverCapTimer:
    """For how long one GPU's sum was over, in seconds, less the time for which it was not."""

    over_s: float
    at_s: float
    """When the last sample was taken."""
    over: bool
    """Whether that sample was over."""


@dataclass(frozen=True, slots=True)
class Escalation:
    """What escalations on one GPU left behind."""

    count: int
    until_s: float
    """Until then, all stops that led to the last escalation count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """All that a step remembers."""

    tracks: Mapping[tuple[str, Process], Track] = field(default_factory=dict)
    over: Mapping[str, int] = field(default_factory=dict)
    """Samples over the ceiling in a row, by GPU."""
    timers: Mapping[str, OverCapTimer] = field(default_factory=dict)
    """By GPU."""
    peaks: Mapping[str, int] = field(default_factory=dict)
    """The highest sum seen, in bytes, by GPU."""
    victims: tuple[Victim, ...] = ()
    stops: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """When processes were stopped recently, by GPU."""
    escalations: Mapping[str, Escalation] = field(default_factory=dict)
    """By GPU."""
    given_up: frozenset[Process] = frozenset()
    """Processes that outlived their SIGKILL, or may not be signalled."""
    reported: frozenset[str] = frozenset()
    """The GPUs on which an excess was reported that is not over yet."""
    blind_since_s: float | None = None
    blind_reported: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Why a process is stopped: the figures behind the explanation."""

    gpu: str
    used_bytes: int
    """By the victim."""
    sum_bytes: int
    cap_bytes: int
    peak_bytes: int
    grew_bytes: int
    grew_within_s: float
    stops_before: int = 0
    """On this GPU, that count still."""
    stops_within_s: float = 0.0
    """How long ago the first of them was, in seconds."""
    order: VictimOrder = VictimOrder.GREW_LAST
    """By which order the process was chosen."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask a process to end: SIGTERM."""

    process: Process
    excess: Excess


@dataclass(frozen=True, slots=True)
class Kill:
    """Make a process end: SIGKILL."""

    process: Process
    gpu: str


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Kill all processes of a container: SIGKILL without a grace, whether they hold memory or not.

    What starts processes again need not hold any, so the caller finds them by their cgroup.
    """

    container: str
    """Its id; empty where it is unknown: then all of the pod that may be stopped."""
    excess: Excess
    process: Process
    """The victim whose container it is."""


@dataclass(frozen=True, slots=True)
class Freed:
    """Report that a victim's memory came back, or has not."""

    process: Process
    gpu: str
    freed_bytes: int
    after_s: float
    returned: bool


@dataclass(frozen=True, slots=True)
class ReportBlind:
    """Report that the pod cannot be measured, or can again."""

    blind: bool
    since_s: float
    why: str


@dataclass(frozen=True, slots=True)
class NothingToStop:
    """An excess of which no process can be stopped; all in bytes."""

    gpu: str
    sum_bytes: int
    cap_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class EndPod:
    """End the whole pod: it is blind and the policy says so, or nothing less was enough."""

    why: str
    nothing_to_stop: NothingToStop | None = None
    """Where nothing can be stopped."""
    process: Process | None = None
    """The victim, where stops were not enough."""
    excess: Excess | None = None
    """With `process`: why."""


@dataclass(frozen=True, slots=True)
class ReportExcess:
    """Report what would be stopped now; nothing is."""

    excess: Excess | NothingToStop
    process: Process | None = None
    """The first victim; None where no process could be stopped."""


Action = Terminate | Kill | StopContainer | Freed | ReportBlind | EndPod | ReportExcess
