"""Enforcement of a cap: an observation in, actions out, without NVML, signals or a clock.

The sidecar and the sentry share this module, with different values of `Cap`. A test describes an
incident as a list of observations. `webhook.adapters.nvml` reads the figures,
`webhook.adapters.processes` stops processes.

A GPU has one of the states below. In addition, a pod as a whole can be blind: its memory in use
cannot be measured.

| state | condition | next |
| --- | --- | --- |
| watching | the known sum is within cap and tolerance | a sample over the cap: suspecting |
| suspecting | the excess has too few samples, or is too short | it lasts: stop a process |
| terminating | the victim got SIGTERM and is still listed | gone: watching; grace over: kill |
| killing | the victim got SIGKILL and is still listed | gone: watching; long after: next victim |

The number of insufficient stops in the last ten minutes decides what is stopped:

| insufficient stops | number by default | action |
| --- | --- | --- |
| fewer than `container_after` and `pod_after` | 0 to 2 | one process: SIGTERM, then `Kill` |
| at least `container_after`, fewer than `pod_after` | 3 | `StopContainer`, which has no grace |
| at least `pod_after` | 4 or more | `EndPod` |

The last two are escalations. After an escalation, the stops before it count for longer than ten
minutes: twice as long with each escalation, at most for a day.

A `Cap` that only reports has one action, `ReportExcess`, once for each excess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.enforcement.driver_limit import judged_bytes
from webhook.core.enforcement.model import (
    UNIDENTIFIED,
    Action,
    Cap,
    EndPod,
    Escalation,
    Excess,
    Freed,
    Kill,
    NothingToStop,
    Observation,
    OverCapTimer,
    Process,
    ReportBlind,
    ReportExcess,
    StepState,
    StopContainer,
    Terminate,
    Track,
    Usage,
    Victim,
    VictimOrder,
)
from webhook.core.frozen import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONFIRMATIONS: Final = 2
"""Minimum number of samples over the cap before a stop: processes may overlap for a moment."""

TEARDOWN_S: Final = 30.0
"""Time after SIGKILL within which the driver should free the memory, in seconds."""

ESCALATION_S: Final = 600.0
"""Time for which a stop counts towards an escalation, in seconds."""

LONGEST_ESCALATION_S: Final = 86_400.0
"""Maximum time for which stops count after an escalation, in seconds."""

MOST_STOPS: Final = 100
"""Maximum number of remembered stops per GPU, which limits memory."""

LONGEST_STEP_S: Final = 10.0
"""Maximum time between two samples that counts as time over the cap, in seconds."""


def step(
    state: StepState, observation: Observation, cap: Cap, now_s: float
) -> tuple[StepState, tuple[Action, ...]]:
    """Return the state after an observation, and the resulting actions."""
    by_process = _largest_per_process(observation.usages)
    state, actions = _judge_blindness(state, observation, by_process, cap, now_s)
    state = _track_usage(state, by_process, observation, now_s)
    state, stopped = _kill_or_forget_victims(state, observation, by_process, cap, now_s)
    sums = _sum_by_gpu(by_process)
    judged = {gpu: _judged_bytes(gpu, by_process, observation, cap.cap_bytes) for gpu in sums}
    state = replace(
        state,
        over={gpu: state.over.get(gpu, 0) + 1 for gpu in sums if judged[gpu] > cap.ceiling_bytes},
        timers=_count_time_over(state, observation, judged, cap, now_s),
        peaks={
            gpu: max(state.peaks.get(gpu, 0), sums.get(gpu, 0)) for gpu in {*state.peaks, *sums}
        },
    )
    state = replace(state, reported=_still_over(state, observation, judged, cap))
    for gpu in sorted(state.over):
        late = state.timers[gpu].over_s >= cap.delay_s
        if gpu in state.reported:
            # Nothing has to be confirmed, so samples are as rare as within the cap.
            state = replace(state, over={**state.over, gpu: 0})
        elif late and state.over[gpu] >= CONFIRMATIONS and not _is_busy(state, gpu):
            state, chosen = _stop(state, gpu, by_process, cap, now_s)
            stopped += chosen
    return state, actions + stopped


def name_victim(state: StepState, fresh: Process) -> StepState:
    """Return the state with a victim's current command, for later reports.

    A process may have executed another program since it was first listed.
    """
    victims = (
        replace(victim, process=fresh) if victim.process == fresh else victim
        for victim in state.victims
    )
    return replace(state, victims=tuple(victims))


def _largest_per_process(usages: Iterable[Usage]) -> dict[tuple[str, Process], int | None]:
    """Return bytes by GPU and process: the largest figure if listed twice, None for 0."""
    by_process: dict[tuple[str, Process], int | None] = {}
    for usage in usages:
        key = usage.gpu, usage.process
        by_process[key] = max(by_process.get(key) or 0, usage.used_bytes or 0) or None
    return by_process


def _sum_by_gpu(by_process: Mapping[tuple[str, Process], int | None]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for (gpu, _), used_bytes in by_process.items():
        sums[gpu] = sums.get(gpu, 0) + (used_bytes or 0)
    return sums


def _judged_bytes(
    gpu: str,
    by_process: Mapping[tuple[str, Process], int | None],
    observation: Observation,
    cap_bytes: int,
) -> int:
    """Return the bytes that are compared with the cap; reports have the sum of the list."""
    figures = [used for (where, _), used in by_process.items() if where == gpu and used]
    return judged_bytes(figures, observation.counted.get(gpu), cap_bytes)


def _count_time_over(
    state: StepState, observation: Observation, sums: Mapping[str, int], cap: Cap, now_s: float
) -> Mapping[str, OverCapTimer]:
    """Add time between two samples over the cap, and subtract time between two within the cap.

    Time between two different samples does not count, as the moment of the change is unknown. The
    sum is at most the cap's delay.
    """
    timers = dict(state.timers)
    for gpu in {*sums, *timers}:
        if gpu not in sums and observation.fault and gpu not in observation.listed_at_s:
            continue  # a GPU that was not observed does not count as within the cap
        over = sums.get(gpu, 0) > cap.ceiling_bytes
        before = timers.get(gpu, OverCapTimer(0.0, now_s, over))
        over_s, since_s = before.over_s, now_s - before.at_s
        if over and before.over:
            over_s = min(over_s + min(since_s, LONGEST_STEP_S), cap.delay_s)
        elif not over and not before.over:
            over_s = max(over_s - since_s, 0.0)
        timers[gpu] = OverCapTimer(over_s, now_s, over)
    return timers


def _still_over(
    state: StepState, observation: Observation, sums: Mapping[str, int], cap: Cap
) -> frozenset[str]:
    """Return the GPUs with a reported excess that has not ended.

    A GPU that was not observed does not count as within the cap. The end of an excess has to last
    as long as its start.
    """

    def lasts(gpu: str) -> bool:
        if gpu not in sums and observation.fault and gpu not in observation.listed_at_s:
            return True
        return sums.get(gpu, 0) > cap.ceiling_bytes or state.timers[gpu].over_s > 0

    return frozenset(filter(lasts, state.reported))


def _judge_blindness(
    state: StepState,
    observation: Observation,
    by_process: Mapping[tuple[str, Process], int | None],
    cap: Cap,
    now_s: float,
) -> tuple[StepState, tuple[Action, ...]]:
    unknown = sorted({process.pid for (_, process), used in by_process.items() if used is None})
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


def _track_usage(
    state: StepState,
    by_process: Mapping[tuple[str, Process], int | None],
    observation: Observation,
    now_s: float,
) -> StepState:
    """Record the growth of each process; a process without a figure keeps its last one."""
    tracks: dict[tuple[str, Process], Track] = {}
    for key, used_bytes in by_process.items():
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


def _kill_or_forget_victims(
    state: StepState,
    observation: Observation,
    by_process: Mapping[tuple[str, Process], int | None],
    cap: Cap,
    now_s: float,
) -> tuple[StepState, tuple[Action, ...]]:
    """Kill victims whose grace period is over; forget victims that are no longer listed."""
    victims: list[Victim] = []
    actions: list[Action] = []
    given_up = set(state.given_up) & {process for _, process in by_process}
    for victim in state.victims:
        after_s = now_s - victim.terminated_at_s
        if (victim.gpu, victim.process) not in by_process:
            if observation.fault and victim.gpu not in observation.listed_at_s:
                victims.append(victim)  # not observed, so it may still exist
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
    by_process: Mapping[tuple[str, Process], int | None],
    cap: Cap,
    now_s: float,
) -> tuple[StepState, tuple[Action, ...]]:
    """Stop one process; after enough insufficient stops its container, and then the pod.

    If the cap only reports, return a report instead. A process without a figure is no candidate.
    """
    sum_bytes = _sum_by_gpu(by_process)[gpu]
    candidates = [
        track
        for (where, process), track in state.tracks.items()
        if where == gpu
        and by_process[where, process] is not None
        and process.started != UNIDENTIFIED
        and process.pid not in cap.protected
        and process not in state.given_up
    ]
    over = {**state.over, gpu: 0}
    if cap.reports_only:
        state = replace(state, reported=state.reported | {gpu})
    if not candidates:
        over_cap = NothingToStop(gpu, sum_bytes, cap.cap_bytes, state.peaks[gpu])
        action = ReportExcess(over_cap) if cap.reports_only else None
        return replace(state, over=over), (action or EndPod("none can be stopped", over_cap),)
    track = max(candidates, key=_grew_last if cap.order is VictimOrder.GREW_LAST else _largest)
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
        order=cap.order,
    )
    if cap.reports_only:
        return replace(state, over=over), (ReportExcess(excess, track.process),)
    actions, killed, killed_at_s = _choose_actions(track, candidates, excess, cap, now_s)
    escalations = state.escalations
    if isinstance(actions[0], StopContainer | EndPod):
        count = escalations[gpu].count + 1 if gpu in escalations else 1
        longer_s = min(ESCALATION_S * 2 ** min(count, 10), LONGEST_ESCALATION_S)
        escalations = {**escalations, gpu: Escalation(count, now_s + longer_s)}
    victims = [Victim(gpu, track.process, track.used_bytes, now_s, killed_at_s) for track in killed]
    state = replace(
        state,
        victims=(*state.victims, *victims),
        stops={**state.stops, gpu: (*recent, now_s)[-MOST_STOPS:]},
        escalations=escalations,
        over=over,
    )
    return state, actions


def _choose_actions(
    track: Track, candidates: list[Track], excess: Excess, cap: Cap, now_s: float
) -> tuple[tuple[Action, ...], list[Track], float | None]:
    """Return the actions, the processes whose memory must be freed, and the time of SIGKILL."""
    process, container = track.process, track.process.container
    if excess.stops_before >= cap.pod_after:
        return (EndPod("stops were not enough", None, process, excess),), candidates, now_s
    if cap.container_after is not None and excess.stops_before >= cap.container_after:
        whose = [
            candidate for candidate in candidates if container in ("", candidate.process.container)
        ]
        return (StopContainer(container, excess, process),), whose, now_s
    ask = Terminate(process, excess)
    if cap.grace_s > 0:
        return (ask,), [track], None
    return (ask, Kill(process, excess.gpu)), [track], now_s


def _stops_that_count(state: StepState, gpu: str, now_s: float) -> tuple[float, ...]:
    stops = state.stops.get(gpu, ())
    if gpu in state.escalations and now_s < state.escalations[gpu].until_s:
        return stops
    return tuple(at_s for at_s in stops if now_s - at_s < ESCALATION_S)


def _grew_last(track: Track) -> tuple[float, int, int]:
    return track.grew_at_s, track.used_bytes, track.process.started


def _largest(track: Track) -> tuple[float, int, int]:
    return 0.0, track.used_bytes, track.process.started
