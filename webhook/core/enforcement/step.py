"""The judgement that holds a cap: observations in, actions out; no NVML, no signal, no clock.

The sidecar and the sentry share it, each with a `Cap` of its own. A complete incident is a list of
observations in a test. `webhook.adapters.nvml` says where figures come from,
`webhook.adapters.processes` how a process is stopped.

Per GPU, a step goes through these states; `blind` is kept beside them for the pod as a whole.

| state | holds while | then |
| --- | --- | --- |
| watching | the known sum is within cap and tolerance | one sample over: suspecting |
| suspecting | one sample was over, or too few seconds were | the next one is, too: stop |
| terminating | the victim got SIGTERM and is still listed | gone: watching; grace over: kill |
| killing | the victim got SIGKILL and is still listed | gone: watching; long after: next victim |

What a stop is of depends on how many stops of the last ten minutes were not enough:

| stops that count | by default | then |
| --- | --- | --- |
| fewer than `container_after` and `pod_after` | 0 to 2 | one process: SIGTERM, then `Kill` |
| at least `container_after`, fewer than `pod_after` | 3 | `StopContainer`, which has no grace |
| at least `pod_after` | 4 or more | `EndPod` |

The last two are escalations. After one, all the stops that led to it count for longer than ten
minutes: twice as long with each escalation, at most for a day.

Where a `Cap` only reports, nothing of this is done: `ReportExcess` says once for each excess what
would have been stopped.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from webhook.core.enforcement.limits import judged_bytes
from webhook.core.frozen import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONFIRMATIONS: Final = 2
"""Samples over the cap before any process is stopped: one sample may be a moment's overlap."""

TEARDOWN_S: Final = 30.0
"""After SIGKILL, how long the driver may take to give a process's memory back."""

ESCALATE_AFTER: Final = 3
"""Stops on one GPU that were not enough: what restarts processes must end, not the next one."""

ESCALATION_S: Final = 600.0
"""For how long a stop counts towards that, while there was no escalation."""

LONGEST_BAN_S: Final = 86_400.0
"""The longest for which stops count after an escalation."""

MOST_STOPS: Final = 100
"""Stops on one GPU that are remembered: a day of them must not cost memory."""

LONGEST_STEP_S: Final = 10.0
"""Between two samples over the cap, at most so much counts as time over: what nobody saw in a
longer gap proves nothing."""


class First(enum.Enum):
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
    first: First = First.GREW_LAST
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
class Lateness:
    """For how long one GPU's sum was over, in seconds, less the time for which it was not."""

    over_s: float
    at_s: float
    """When the last sample was taken."""
    over: bool
    """Whether that sample was over."""


@dataclass(frozen=True, slots=True)
class Ban:
    """What escalations on one GPU left behind."""

    escalations: int
    until_s: float
    """Until then, all stops that led to the last escalation count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """All that a step remembers."""

    tracks: Mapping[tuple[str, Process], Track] = field(default_factory=dict)
    over: Mapping[str, int] = field(default_factory=dict)
    """Samples over the ceiling in a row, by GPU."""
    lateness: Mapping[str, Lateness] = field(default_factory=dict)
    """By GPU."""
    peaks: Mapping[str, int] = field(default_factory=dict)
    """The highest sum seen, in bytes, by GPU."""
    victims: tuple[Victim, ...] = ()
    stops: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """When processes were stopped recently, by GPU."""
    bans: Mapping[str, Ban] = field(default_factory=dict)
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
    first: First = First.GREW_LAST
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
class Powerless:
    """An excess of which no process can be stopped; all in bytes."""

    gpu: str
    sum_bytes: int
    cap_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class EndPod:
    """End the whole pod: it is blind and the policy says so, or nothing less was enough."""

    why: str
    powerless: Powerless | None = None
    """Where nothing can be stopped."""
    process: Process | None = None
    """The victim, where stops were not enough."""
    excess: Excess | None = None
    """With `process`: why."""


@dataclass(frozen=True, slots=True)
class ReportExcess:
    """Report what would be stopped now; nothing is."""

    excess: Excess | Powerless
    process: Process | None = None
    """The first victim; None where no process could be stopped."""


Action = Terminate | Kill | StopContainer | Freed | ReportBlind | EndPod | ReportExcess


def step(
    state: StepState, observation: Observation, cap: Cap, now_s: float
) -> tuple[StepState, tuple[Action, ...]]:
    """Take one observation into account and return what to do about it."""
    known = _largest_per_process(observation.usages)
    state, actions = _judge_blindness(state, observation, known, cap, now_s)
    state = _follow(state, known, observation, now_s)
    state, stopped = _follow_victims(state, observation, known, cap, now_s)
    sums = _sums(known)
    judged = {gpu: _judged(gpu, known, observation, cap.cap_bytes) for gpu in sums}
    state = replace(
        state,
        over={gpu: state.over.get(gpu, 0) + 1 for gpu in sums if judged[gpu] > cap.ceiling_bytes},
        lateness=_count_time_over(state, observation, judged, cap, now_s),
        peaks={
            gpu: max(state.peaks.get(gpu, 0), sums.get(gpu, 0)) for gpu in {*state.peaks, *sums}
        },
    )
    state = replace(state, reported=_still_over(state, observation, judged, cap))
    for gpu in sorted(state.over):
        late = state.lateness[gpu].over_s >= cap.delay_s
        if gpu in state.reported:
            # Nothing waits to be confirmed, so it may be measured as seldom as within the cap.
            state = replace(state, over={**state.over, gpu: 0})
        elif late and state.over[gpu] >= CONFIRMATIONS and not _is_busy(state, gpu):
            state, chosen = _stop(state, gpu, known, cap, now_s)
            stopped += chosen
    return state, actions + stopped


def name_victim(state: StepState, fresh: Process) -> StepState:
    """Name a victim by its present command, for what is reported of it later.

    A process may have executed another program since it was first seen; it stays the same one.
    """
    victims = (
        replace(victim, process=fresh) if victim.process == fresh else victim
        for victim in state.victims
    )
    return replace(state, victims=tuple(victims))


def _largest_per_process(usages: Iterable[Usage]) -> dict[tuple[str, Process], int | None]:
    """Count a process that is listed twice once, by its largest figure; 0 is no figure."""
    known: dict[tuple[str, Process], int | None] = {}
    for usage in usages:
        key = usage.gpu, usage.process
        known[key] = max(known.get(key) or 0, usage.used_bytes or 0) or None
    return known


def _sums(known: Mapping[tuple[str, Process], int | None]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for (gpu, _), used_bytes in known.items():
        sums[gpu] = sums.get(gpu, 0) + (used_bytes or 0)
    return sums


def _judged(
    gpu: str,
    known: Mapping[tuple[str, Process], int | None],
    observation: Observation,
    cap_bytes: int,
) -> int:
    """Return the amount by which the pod is judged on a GPU; reports name the sum of the list."""
    figures = [used for (where, _), used in known.items() if where == gpu and used]
    return judged_bytes(figures, observation.counted.get(gpu), cap_bytes)


def _count_time_over(
    state: StepState, observation: Observation, sums: Mapping[str, int], cap: Cap, now_s: float
) -> Mapping[str, Lateness]:
    """Add the time between two samples over the cap, and take off that between two within it.

    Between one of each it is unknown when the sum changed, so that time counts for neither. No more
    is kept than is asked for.
    """
    lateness = dict(state.lateness)
    for gpu in {*sums, *lateness}:
        if gpu not in sums and observation.fault and gpu not in observation.listed_at_s:
            continue  # not seen is not within the cap
        over = sums.get(gpu, 0) > cap.ceiling_bytes
        before = lateness.get(gpu, Lateness(0.0, now_s, over))
        over_s, since_s = before.over_s, now_s - before.at_s
        if over and before.over:
            over_s = min(over_s + min(since_s, LONGEST_STEP_S), cap.delay_s)
        elif not over and not before.over:
            over_s = max(over_s - since_s, 0.0)
        lateness[gpu] = Lateness(over_s, now_s, over)
    return lateness


def _still_over(
    state: StepState, observation: Observation, sums: Mapping[str, int], cap: Cap
) -> frozenset[str]:
    """Return the GPUs with a reported excess that is not over yet.

    Not seen is not within the cap, and where an excess has to last, so has its end.
    """

    def lasts(gpu: str) -> bool:
        if gpu not in sums and observation.fault and gpu not in observation.listed_at_s:
            return True
        return sums.get(gpu, 0) > cap.ceiling_bytes or state.lateness[gpu].over_s > 0

    return frozenset(filter(lasts, state.reported))


def _judge_blindness(
    state: StepState,
    observation: Observation,
    known: Mapping[tuple[str, Process], int | None],
    cap: Cap,
    now_s: float,
) -> tuple[StepState, tuple[Action, ...]]:
    unknown = sorted({process.pid for (_, process), used in known.items() if used is None})
    why = observation.fault
    if not why and unknown:
        pids = ", ".join(map(str, unknown))
        why = f"the driver lists process {pids} without a figure for its memory"
    if not why:
        reports: tuple[Action, ...] = ()
        if state.blind_reported and state.blind_since_s is not None:
            reports = (ReportBlind(blind=False, since_s=state.blind_since_s, why=""),)
        return replace(state, blind_since_s=None, blind_reported=False), reports
    since_s = now_s if state.blind_since_s is None else state.blind_since_s
    state = replace(state, blind_since_s=since_s)
    if state.blind_reported or now_s - since_s < cap.blind_after_s:
        return state, ()
    report: Action = ReportBlind(blind=True, since_s=since_s, why=why)
    ending = (EndPod(f"blind for {now_s - since_s:.0f} s: {why}"),) * cap.terminate_when_blind
    return replace(state, blind_reported=True), (report, *ending)


def _follow(
    state: StepState,
    known: Mapping[tuple[str, Process], int | None],
    observation: Observation,
    now_s: float,
) -> StepState:
    """Remember who grew when; a process without a figure keeps its last one, to compare with."""
    tracks: dict[tuple[str, Process], Track] = {}
    for key, used_bytes in known.items():
        before = state.tracks.get(key)
        seen_s = observation.listed_at_s.get(key[0], now_s)
        if used_bytes is None:
            if before is not None:
                tracks[key] = before
        elif before is None:
            tracks[key] = Track(
                process=key[1],
                used_bytes=used_bytes,
                seen_s=seen_s,
                grew_at_s=seen_s,
                grew_bytes=used_bytes,
                grew_within_s=0.0,
            )
        elif used_bytes > before.used_bytes:
            grown, within_s = used_bytes - before.used_bytes, seen_s - before.seen_s
            tracks[key] = Track(
                process=key[1],
                used_bytes=used_bytes,
                seen_s=seen_s,
                grew_at_s=seen_s,
                grew_bytes=grown,
                grew_within_s=within_s,
            )
        else:
            tracks[key] = replace(before, used_bytes=used_bytes, seen_s=seen_s)
    return replace(state, tracks=tracks)


def _follow_victims(
    state: StepState,
    observation: Observation,
    known: Mapping[tuple[str, Process], int | None],
    cap: Cap,
    now_s: float,
) -> tuple[StepState, tuple[Action, ...]]:
    """Kill victims whose grace is over; forget those that have left the list."""
    victims: list[Victim] = []
    actions: list[Action] = []
    given_up = set(state.given_up) & {process for _, process in known}
    for victim in state.victims:
        after_s = now_s - victim.terminated_at_s
        if (victim.gpu, victim.process) not in known:
            if observation.fault and victim.gpu not in observation.listed_at_s:
                victims.append(victim)  # not seen is not gone
            else:
                freed = victim.used_bytes
                actions.append(Freed(victim.process, victim.gpu, freed, after_s, returned=True))
        elif victim.process in observation.rejected:
            given_up.add(victim.process)
        elif victim.killed_at_s is None and after_s >= cap.grace_s:
            victims.append(replace(victim, killed_at_s=now_s))
            actions.append(Kill(victim.process, victim.gpu))
        elif victim.killed_at_s is not None and now_s - victim.killed_at_s >= TEARDOWN_S:
            given_up.add(victim.process)
            actions.append(Freed(victim.process, victim.gpu, 0, after_s, returned=False))
        else:
            victims.append(victim)
    return replace(state, victims=tuple(victims), given_up=frozenset(given_up)), tuple(actions)


def _is_busy(state: StepState, gpu: str) -> bool:
    return any(victim.gpu == gpu for victim in state.victims)


def _stop(
    state: StepState,
    gpu: str,
    known: Mapping[tuple[str, Process], int | None],
    cap: Cap,
    now_s: float,
) -> tuple[StepState, tuple[Action, ...]]:
    """Stop one process; where that did not help often enough its container, and then the pod.

    Where the cap only reports, say so instead. A process without a figure now is no candidate.
    """
    sum_bytes = _sums(known)[gpu]
    candidates = [
        track
        for (where, process), track in state.tracks.items()
        if where == gpu
        and known[where, process] is not None
        and process.started != UNIDENTIFIED
        and process.pid not in cap.protected
        and process not in state.given_up
    ]
    over = {**state.over, gpu: 0}
    if cap.reports_only:
        state = replace(state, reported=state.reported | {gpu})
    if not candidates:
        over_cap = Powerless(gpu, sum_bytes, cap.cap_bytes, state.peaks[gpu])
        action = ReportExcess(over_cap) if cap.reports_only else None
        return replace(state, over=over), (action or EndPod("none can be stopped", over_cap),)
    track = max(candidates, key=_grew_last if cap.first is First.GREW_LAST else _largest)
    recent = _stops_that_count(state, gpu, now_s)
    excess = Excess(
        gpu=gpu,
        used_bytes=track.used_bytes,
        sum_bytes=sum_bytes,
        cap_bytes=cap.cap_bytes,
        peak_bytes=state.peaks[gpu],
        grew_bytes=track.grew_bytes,
        grew_within_s=track.grew_within_s,
        stops_before=len(recent),
        stops_within_s=now_s - recent[0] if recent else 0.0,
        first=cap.first,
    )
    if cap.reports_only:
        return replace(state, over=over), (ReportExcess(excess, track.process),)
    actions, killed, killed_at_s = _choose(track, candidates, excess, cap, now_s)
    bans = state.bans
    if isinstance(actions[0], StopContainer | EndPod):
        escalations = bans[gpu].escalations + 1 if gpu in bans else 1
        longer_s = min(ESCALATION_S * 2 ** min(escalations, 10), LONGEST_BAN_S)
        bans = {**bans, gpu: Ban(escalations, now_s + longer_s)}
    victims = [Victim(gpu, one.process, one.used_bytes, now_s, killed_at_s) for one in killed]
    state = replace(
        state,
        victims=(*state.victims, *victims),
        stops={**state.stops, gpu: (*recent, now_s)[-MOST_STOPS:]},
        bans=bans,
        over=over,
    )
    return state, actions


def _choose(
    track: Track, candidates: list[Track], excess: Excess, cap: Cap, now_s: float
) -> tuple[tuple[Action, ...], list[Track], float | None]:
    """Return what to do, whose memory must then come back, and when they were killed, if now."""
    process, container = track.process, track.process.container
    if excess.stops_before >= cap.pod_after:
        return (EndPod("stops were not enough", None, process, excess),), candidates, now_s
    if cap.container_after is not None and excess.stops_before >= cap.container_after:
        whose = [one for one in candidates if container in ("", one.process.container)]
        return (StopContainer(container, excess, process),), whose, now_s
    ask = Terminate(process, excess)
    if cap.grace_s > 0:
        return (ask,), [track], None
    return (ask, Kill(process, excess.gpu)), [track], now_s


def _stops_that_count(state: StepState, gpu: str, now_s: float) -> tuple[float, ...]:
    stops = state.stops.get(gpu, ())
    if gpu in state.bans and now_s < state.bans[gpu].until_s:
        return stops
    return tuple(at_s for at_s in stops if now_s - at_s < ESCALATION_S)


def _grew_last(track: Track) -> tuple[float, int, int]:
    return track.grew_at_s, track.used_bytes, track.process.started


def _largest(track: Track) -> tuple[float, int, int]:
    return 0.0, track.used_bytes, track.process.started
