"""Values of enforcement: observations, caps, the state of a step, and actions."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from webhook.core.frozen import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping

ESCALATE_AFTER: Final = 3
"""Number of insufficient stops on one GPU after which a container is stopped: apparently
something in it restarts processes."""


class VictimOrder(enum.Enum):
    """Order in which processes are stopped."""

    GREW_LAST = "grew-last"
    """The process that grew last is the most likely cause. Ties: the largest, then the youngest."""
    LARGEST = "largest"
    """The largest process frees the most memory. Ties: the youngest."""


UNIDENTIFIED: Final = -1
"""Start time of a listed process that cannot be identified. It counts, and is never stopped."""


@dataclass(frozen=True, slots=True)
class Process:
    """Identity of a process in the pod. The PID alone may be reused a moment later."""

    pid: int
    """PID in the pod's process namespace."""
    started: int
    """Start time in clock ticks since boot (field 22 of /proc/<pid>/stat, proc(5)), or
    `UNIDENTIFIED`."""
    command: str = field(default="", compare=False)
    container: str = field(default="", compare=False)
    """Container ID from the cgroup; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory that one process holds on one GPU."""

    gpu: str
    process: Process
    used_bytes: int | None
    """None if NVML lists the process without a figure or with 0."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Memory in use by one pod on all GPUs at one moment."""

    usages: tuple[Usage, ...]
    fault: str = ""
    """Reason why the observation is incomplete; empty if it is complete."""
    rejected: frozenset[Process] = frozenset()
    """Processes that could not be signalled since the last observation."""
    listed_at_s: Mapping[str, float] = field(default_factory=dict)
    """Time at which a GPU's process list was read, if earlier than this observation. A GPU in
    this mapping was observed, even if there is a fault."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Bytes that the driver counts for the pod, keyed by GPU, if it limits the pod to its cap
    there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """Cap of a pod on each of its GPUs, and how it is enforced."""

    cap_bytes: int
    tolerance_bytes: int
    grace_s: float
    blind_after_s: float
    terminate_when_blind: bool
    protected: frozenset[int]
    """PIDs that are never stopped: PID 1 and the enforcer."""
    delay_s: float = 0.0
    """Minimum duration of an excess before a stop, in seconds, in addition to `CONFIRMATIONS`
    samples. Time within the cap is subtracted, so a restarted process does not begin at zero."""
    order: VictimOrder = VictimOrder.GREW_LAST
    container_after: int | None = ESCALATE_AFTER
    """Number of insufficient stops after which a container is stopped; None for never."""
    pod_after: int = ESCALATE_AFTER + 1
    """Number of insufficient stops after which the pod is ended."""
    reports_only: bool = False
    """True if an excess is only reported. Blindness is handled as usual."""

    @property
    def ceiling_bytes(self) -> int:
        """Sum in bytes above which there is an excess."""
        return self.cap_bytes + self.tolerance_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """History of a process on a GPU."""

    process: Process
    used_bytes: int
    seen_s: float
    grew_at_s: float
    grew_bytes: int
    """Growth at `grew_at_s`, in bytes."""
    grew_within_s: float
    """Time between the two lists that show the growth, in seconds; 0 for the first list."""


@dataclass(frozen=True, slots=True)
class Victim:
    """Process that is being stopped."""

    gpu: str
    process: Process
    used_bytes: int
    terminated_at_s: float
    killed_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class OverCapTimer:
    """Time for which a GPU's sum was over the cap, in seconds, minus the time within the cap."""

    over_s: float
    at_s: float
    over: bool
    """True if the last sample was over the cap."""


@dataclass(frozen=True, slots=True)
class Escalation:
    """Escalations on one GPU."""

    count: int
    until_s: float
    """Time until which all stops before the last escalation count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """State between steps. Mappings are keyed by GPU, `tracks` by GPU and process."""

    tracks: Mapping[tuple[str, Process], Track] = field(default_factory=dict)
    over: Mapping[str, int] = field(default_factory=dict)
    """Number of consecutive samples over the cap."""
    timers: Mapping[str, OverCapTimer] = field(default_factory=dict)
    peaks: Mapping[str, int] = field(default_factory=dict)
    """Highest sum, in bytes."""
    victims: tuple[Victim, ...] = ()
    stops: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Times of recent stops."""
    escalations: Mapping[str, Escalation] = field(default_factory=dict)
    given_up: frozenset[Process] = frozenset()
    """Processes that are still listed long after SIGKILL, or cannot be signalled."""
    reported: frozenset[str] = frozenset()
    """GPUs with a reported excess that has not ended."""
    blind_since_s: float | None = None
    blind_reported: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Figures that explain why a process is stopped."""

    gpu: str
    used_bytes: int
    """Memory in use by the victim, in bytes."""
    sum_bytes: int
    cap_bytes: int
    peak_bytes: int
    grew_bytes: int
    grew_within_s: float
    stops_before: int = 0
    """Number of earlier stops on this GPU that count."""
    stops_within_s: float = 0.0
    """Time since the first stop that counts, in seconds."""
    order: VictimOrder = VictimOrder.GREW_LAST


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM to a process."""

    process: Process
    excess: Excess


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL to a process."""

    process: Process
    gpu: str


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Send SIGKILL to all processes of a container, found by their cgroup.

    The process that restarts the others may hold no GPU memory itself.
    """

    container: str
    """Container ID; empty if unknown. Then all processes of the pod are stopped."""
    excess: Excess
    process: Process
    """Victim in this container."""


@dataclass(frozen=True, slots=True)
class Freed:
    """Report whether a victim's memory was freed."""

    process: Process
    gpu: str
    freed_bytes: int
    after_s: float
    returned: bool


@dataclass(frozen=True, slots=True)
class ReportBlind:
    """Report that the pod cannot be measured, or can be measured again."""

    blind: bool
    since_s: float
    why: str


@dataclass(frozen=True, slots=True)
class NothingToStop:
    """Excess in a pod of which no process can be stopped; figures in bytes."""

    gpu: str
    sum_bytes: int
    cap_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class EndPod:
    """End the whole pod: the policy ends pods that cannot be measured, or stops were not enough."""

    why: str
    nothing_to_stop: NothingToStop | None = None
    """Set if no process can be stopped."""
    process: Process | None = None
    """Victim if stops were not enough, otherwise None."""
    excess: Excess | None = None


@dataclass(frozen=True, slots=True)
class ReportExcess:
    """Report what would be stopped; nothing is stopped."""

    excess: Excess | NothingToStop
    process: Process | None = None
    """First victim; None if no process could be stopped."""


Action = Terminate | Kill | StopContainer | Freed | ReportBlind | EndPod | ReportExcess
