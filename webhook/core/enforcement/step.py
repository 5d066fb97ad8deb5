"""The enforcer's judgement: observations in, actions out; no NVML, no signal, no clock.

A complete incident is a list of observations in a test. `webhook.adapters.nvml` says where figures
come from, `webhook.adapters.processes` how a process is stopped.

Per GPU, a step goes through these states; `blind` is kept beside them for the pod as a whole.

| state | holds while | then |
| --- | --- | --- |
| watching | the known sum is within cap and tolerance | one sample over: suspecting |
| suspecting | one sample was over | the next one is, too: terminate a victim |
| escalated | three stops lie less than ten minutes back | as suspecting, but all of a container |
| terminating | the victim got SIGTERM and is still listed | gone: watching; grace over: kill |
| killing | the victim got SIGKILL and is still listed | gone: watching; long after: next victim |
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONFIRMATIONS: Final = 2
"""Samples over the cap before any process is stopped: one sample may be a moment's overlap."""

TEARDOWN_S: Final = 30.0
"""After SIGKILL, how long the driver may take to give a process's memory back."""

ESCALATE_AFTER: Final = 3
"""Stops on one GPU that were not enough: what restarts processes must end, not the next one."""

ESCALATION_S: Final = 600.0
"""For how long a stop counts towards that."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the pod by its identity: a pid alone may be somebody else a moment later."""

    pid: int
    """In the pod's process namespace."""
    started: int
    """Start time in clock ticks since boot: field 22 of /proc/<pid>/stat, proc(5)."""
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


@dataclass(frozen=True, slots=True)
class Cap:
    """What the pod is held to, on each GPU."""

    cap_bytes: int
    tolerance_bytes: int
    grace_s: float
    blind_after_s: float
    terminate_when_blind: bool
    protected: frozenset[int]
    """Pids that are never stopped: PID 1, the enforcer itself."""

    @property
    def ceiling_bytes(self) -> int:
        """Above this, a sum is an excess."""
        return self.cap_bytes + self.tolerance_bytes


@dataclass(frozen=True, slots=True)
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
class State:
    """All that a step remembers."""

    tracks: Mapping[tuple[str, Process], Track] = field(default_factory=dict)
    over: Mapping[str, int] = field(default_factory=dict)
    """Samples over the ceiling in a row, by GPU."""
    peaks: Mapping[str, int] = field(default_factory=dict)
    """The highest sum seen, in bytes, by GPU."""
    victims: tuple[Victim, ...] = ()
    stops: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """When processes were stopped recently, by GPU."""
    given_up: frozenset[Process] = frozenset()
    """Processes that outlived their SIGKILL, or may not be signalled."""
    blind_since_s: float | None = None
    blind_reported: bool = False


@dataclass(frozen=True, slots=True)
class Excess:
    """Why a process is stopped: the figures behind the explanation, all in bytes."""

    gpu: str
    used_bytes: int
    """By the victim."""
    sum_bytes: int
    cap_bytes: int
    peak_bytes: int
    grew_bytes: int
    grew_within_s: float
    stops_before: int = 0
    """On this GPU, less than `ESCALATION_S` ago."""


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
    """End the whole pod: it is blind and the policy says so, or nothing else can be stopped."""

    why: str
    powerless: Powerless | None = None
    """Where nothing can be stopped."""


Action = Terminate | Kill | Freed | ReportBlind | EndPod


def step(
    state: State, observation: Observation, cap: Cap, now_s: float
) -> tuple[State, tuple[Action, ...]]:
    """Take one observation into account and return what to do about it."""
    known = _largest_per_process(observation.usages)
    state, actions = _judge_blindness(state, observation, known, cap, now_s)
    state = _follow(state, known, observation, now_s)
    state, stopped = _follow_victims(state, observation, known, cap, now_s)
    sums = _sums(known)
    state = replace(
        state,
        over={gpu: state.over.get(gpu, 0) + 1 for gpu in sums if sums[gpu] > cap.ceiling_bytes},
        peaks={
            gpu: max(state.peaks.get(gpu, 0), sums.get(gpu, 0)) for gpu in {*state.peaks, *sums}
        },
    )
    for gpu in sorted(state.over):
        if state.over[gpu] >= CONFIRMATIONS and not _is_busy(state, gpu):
            state, chosen = _stop(state, gpu, sums[gpu], cap, now_s)
            stopped += chosen
    return state, actions + stopped


def name_victim(state: State, fresh: Process) -> State:
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


def _judge_blindness(
    state: State,
    observation: Observation,
    known: Mapping[tuple[str, Process], int | None],
    cap: Cap,
    now_s: float,
) -> tuple[State, tuple[Action, ...]]:
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
    state: State,
    known: Mapping[tuple[str, Process], int | None],
    observation: Observation,
    now_s: float,
) -> State:
    """Remember who grew when; a process without a figure keeps its last one, to compare with."""
    tracks: dict[tuple[str, Process], Track] = {}
    for key, used_bytes in known.items():
        before = state.tracks.get(key)
        seen_s = observation.listed_at_s.get(key[0], now_s)
        if used_bytes is None:
            if before is not None:
                tracks[key] = before
        elif before is None:
            tracks[key] = Track(key[1], used_bytes, seen_s, seen_s, used_bytes, 0.0)
        elif used_bytes > before.used_bytes:
            grown, within_s = used_bytes - before.used_bytes, seen_s - before.seen_s
            tracks[key] = Track(key[1], used_bytes, seen_s, seen_s, grown, within_s)
        else:
            tracks[key] = replace(before, used_bytes=used_bytes, seen_s=seen_s)
    return replace(state, tracks=tracks)


def _follow_victims(
    state: State,
    observation: Observation,
    known: Mapping[tuple[str, Process], int | None],
    cap: Cap,
    now_s: float,
) -> tuple[State, tuple[Action, ...]]:
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


def _is_busy(state: State, gpu: str) -> bool:
    return any(victim.gpu == gpu for victim in state.victims)


def _stop(
    state: State, gpu: str, sum_bytes: int, cap: Cap, now_s: float
) -> tuple[State, tuple[Action, ...]]:
    """Stop the process that grew last (ties: the largest, then the youngest).

    Where that did not help often enough, stop all that its container runs on this GPU; where its
    container is unknown, all that may be stopped.
    """
    candidates = [
        track
        for (where, process), track in state.tracks.items()
        if where == gpu and process.pid not in cap.protected and process not in state.given_up
    ]
    over = {**state.over, gpu: 0}
    if not candidates:
        over_cap = Powerless(gpu, sum_bytes, cap.cap_bytes, state.peaks[gpu])
        return replace(state, over=over), (EndPod("none can be stopped", over_cap),)
    candidates.sort(
        key=lambda track: (track.grew_at_s, track.used_bytes, track.process.started), reverse=True
    )
    chosen = candidates[:1]
    recent = tuple(at_s for at_s in state.stops.get(gpu, ()) if now_s - at_s < ESCALATION_S)
    if len(recent) >= ESCALATE_AFTER:
        container = chosen[0].process.container
        chosen = [track for track in candidates if container in ("", track.process.container)]
    victims = list(state.victims)
    actions: list[Action] = []
    for track in chosen:
        excess = Excess(
            gpu=gpu,
            used_bytes=track.used_bytes,
            sum_bytes=sum_bytes,
            cap_bytes=cap.cap_bytes,
            peak_bytes=state.peaks[gpu],
            grew_bytes=track.grew_bytes,
            grew_within_s=track.grew_within_s,
            stops_before=len(recent),
        )
        actions.append(Terminate(track.process, excess))
        victim = Victim(gpu, track.process, track.used_bytes, now_s)
        if cap.grace_s <= 0:
            victim = replace(victim, killed_at_s=now_s)
            actions.append(Kill(track.process, gpu))
        victims.append(victim)
    stops = {**state.stops, gpu: (*recent, now_s)}
    return replace(state, victims=tuple(victims), stops=stops, over=over), tuple(actions)
