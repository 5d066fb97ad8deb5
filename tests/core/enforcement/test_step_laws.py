"""Laws of the enforcer's judgement, which hold for every history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.enforcement.observations import CAP, MIB
from tests.support.paths import ROOT
from webhook.core.enforcement.driver_limit import CONTEXT_BYTES, MOST_CONTEXTS, judged_bytes
from webhook.core.enforcement.model import (
    ESCALATE_AFTER,
    EndPod,
    Freed,
    Kill,
    Observation,
    Process,
    StepState,
    StopContainer,
    Terminate,
    Usage,
)
from webhook.core.enforcement.step import step

CONTAINERS = {1: "", 7: "", 50: "a" * 64, 51: "a" * 64, 52: "b" * 64, 53: ""}
GPUS = ("GPU-a", "GPU-b")
PROCESSES = [
    Process(pid, started, container=container)
    for pid, container in CONTAINERS.items()
    for started in (10, 20)
]


def usages(*amounts):
    """Draw process lists; each list is one choice, since choices take most of the time."""
    one = [
        Usage(gpu, process, None if mib is None else mib * MIB)
        for gpu in GPUS
        for process in PROCESSES
        for mib in amounts
    ]
    return st.lists(st.sampled_from(one), max_size=5)


def observations(*amounts):
    faults = st.sampled_from(["", "", "", "fault"])
    return st.builds(
        lambda listed, fault: Observation(tuple(listed), fault), usages(*amounts), faults
    )


ACTS = Terminate | Kill | StopContainer | EndPod
OVER = (1, 300, 500, 999, 1000, 1020, 1021, 2000, 3000)
ANY_USE = (None, 0, *OVER)


def played(script, cap=CAP):
    """Play observations a second apart, yielding each with its actions."""
    state = StepState()
    for now_s, observation in enumerate(script):
        state, actions = step(state, observation, cap, float(now_s))
        yield now_s, observation, actions


@given(
    st.lists(observations(None, 0, 1, 100, 199, 200), max_size=40)
    | st.lists(observations(None, 0), max_size=40)
)
def test_no_action_while_use_never_exceeds_the_cap_and_unknown_use_is_no_excess(script):
    """Five processes of at most 200 MiB stay below the cap of 1000 MiB."""
    for _, _, actions in played(script):
        assert not [a for a in actions if isinstance(a, ACTS)]


@given(st.lists(observations(*ANY_USE), max_size=40))
def test_no_action_names_the_protected_or_the_absent(script):
    for _, observation, actions in played(script):
        present = {usage.process for usage in observation.usages}
        for action in actions:
            if isinstance(action, Terminate | Kill | StopContainer):
                assert action.process in present
                assert action.process.pid not in CAP.protected


@given(st.lists(observations(*ANY_USE), max_size=40))
def test_nobody_is_killed_who_was_not_asked_to_end_a_grace_before(script):
    asked = {}
    for now_s, _, actions in played(script):
        for action in actions:
            if isinstance(action, Terminate):
                asked[action.excess.gpu, action.process] = now_s
            elif isinstance(action, Kill):
                assert now_s - asked[action.gpu, action.process] >= CAP.grace_s


@given(
    st.lists(observations(*ANY_USE), max_size=20),
    usages(*OVER).filter(lambda listed: listed),
)
def test_an_excess_that_lasts_is_always_acted_on(before, listed):
    """After any history, the same excess seen for long enough gets an action."""
    excess = Observation(tuple(listed))
    largest = {gpu: {} for gpu in GPUS}
    for usage in listed:
        used = largest[usage.gpu]
        used[usage.process] = max(used.get(usage.process, 0), usage.used_bytes)
    over = [gpu for gpu, used in largest.items() if sum(used.values()) > CAP.ceiling_bytes]
    script = [*before, *[excess] * 50]
    acted = [
        action
        for now_s, _, actions in played(script)
        for action in actions
        if now_s >= len(before) and isinstance(action, ACTS)
    ]
    assert acted or not over


SEEN = st.tuples(usages(*OVER), st.sampled_from(["", "fault"]), st.sets(st.sampled_from(GPUS)))


@given(st.lists(SEEN, max_size=40))
def test_a_victim_is_let_go_of_as_soon_as_its_gpu_is_seen_without_it_and_no_sooner(script):
    waiting, given_up = set(), set()
    seen = [
        Observation(tuple(listed), fault, listed_at_s=dict.fromkeys(gpus, 0.0) if fault else {})
        for listed, fault, gpus in script
    ]
    for _, observation, actions in played(seen):
        listed = {(usage.gpu, usage.process) for usage in observation.usages}
        let_go = [action for action in actions if isinstance(action, Freed)]
        waiting -= {(item.gpu, item.process) for item in let_go if not item.returned}
        given_up |= {item.process for item in let_go if not item.returned}
        given_up &= {process for _, process in listed}
        freed = {(item.gpu, item.process) for item in let_go if item.returned}
        assert freed == {
            (gpu, process)
            for gpu, process in waiting - listed
            if not observation.fault or gpu in observation.listed_at_s
        }
        waiting -= freed
        for action in actions:
            if isinstance(action, Terminate):
                waiting.add((action.excess.gpu, action.process))
            elif getattr(action, "excess", None):
                waiting |= {
                    (gpu, process)
                    for gpu, process in listed
                    if gpu == action.excess.gpu
                    and process.pid not in CAP.protected
                    and process not in given_up
                    and getattr(action, "container", "") in ("", process.container)
                }


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(800, 1200)), min_size=1, max_size=40))
def test_growth_is_reported_as_the_lists_show_it_however_often_they_are_read(lists):
    """A list is read every ten seconds, and judged `more` times before the next read."""
    process, state, grown = Process(50, 10), StepState(), None
    before = None
    for number, (more, mib) in enumerate(lists):
        listed_s = 10.0 * number
        if before is None or mib > before[1]:
            grown = (mib, 0.0) if before is None else (mib - before[1], listed_s - before[0])
        before = listed_s, mib
        seen = Observation((Usage("GPU-a", process, mib * MIB),), listed_at_s={"GPU-a": listed_s})
        for later_s in range(more + 1):
            state, actions = step(state, seen, CAP, listed_s + later_s)
            for action in actions:
                if isinstance(action, Terminate):
                    reported = action.excess.grew_bytes // MIB, action.excess.grew_within_s
                    assert reported == grown


@given(st.lists(observations(600, 700, 1000, 1020, 1021, 3000), min_size=30, max_size=60))
def test_one_process_is_stopped_at_a_time_until_that_was_not_enough_then_a_container(script):
    """A script is shorter than the time for which a stop counts."""
    stops = {"GPU-a": 0, "GPU-b": 0}
    for _, observation, actions in played(script):
        measures = [action for action in actions if getattr(action, "excess", None)]
        assert len({action.excess.gpu for action in measures}) == len(measures)
        for action in measures:
            gpu = action.excess.gpu
            assert action.process in {
                usage.process for usage in observation.usages if usage.gpu == gpu
            }
            assert action.process.pid not in CAP.protected
            if stops[gpu] < ESCALATE_AFTER:
                assert isinstance(action, Terminate)
            elif stops[gpu] == ESCALATE_AFTER:
                assert isinstance(action, StopContainer)
                assert action.container == action.process.container
            else:
                assert isinstance(action, EndPod)
            stops[gpu] += 1


AMOUNTS = st.integers(0, 10 * CONTEXT_BYTES)


@given(st.lists(AMOUNTS, max_size=20), AMOUNTS | st.none(), AMOUNTS)
def test_what_the_driver_does_not_count_is_judged_beyond_two_contexts(figures, counted, cap):
    judged, listed = judged_bytes(figures, counted, cap), sum(figures)
    contexts = sorted((min(figure, CONTEXT_BYTES) for figure in figures), reverse=True)[
        :MOST_CONTEXTS
    ]
    margin = min(sum(contexts), cap)
    assert listed - margin <= judged <= listed
    if counted is None or counted >= listed:
        assert judged == listed
    else:
        assert judged == counted + max(0, listed - counted - margin)


@pytest.mark.parametrize(
    ("cap", "figures", "counted", "over"),
    [
        (64, [518], 0, 390),  # the allowance is at most the cap
        (64, [600] * 8, 0, 4672),
        (64, [4800, *[1] * 7], 0, 4679),
        (8192, [8192 + 590, *[590] * 7], 8192, 4720 - 1190),
        (8192, [12_992, *[1] * 7], 8192, 4807 - 601),
        (8192, [8192 + 518], 8192, 0),
        (8192, [8192 + 518, 518], 8192, 0),
        (8192, [8192 + 518, 518, 518], 8192, 436),
    ],
)
def test_contexts_explain_no_more_than_they_hold(cap, figures, counted, over):
    judged = judged_bytes([figure * MIB for figure in figures], counted * MIB, cap * MIB)
    assert max(0, judged - cap * MIB) == over * MIB


@given(st.lists(AMOUNTS, max_size=20), st.integers(0, 10 * CONTEXT_BYTES))
def test_under_a_limit_a_pod_holds_at_most_what_security_md_states(figures, cap):
    stated = "can hold twice its cap on a GPU, and at most 1200Mi more than its cap"
    assert stated in " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
    for counted in (0, cap, sum(figures)):
        if judged_bytes(figures, min(counted, cap), cap) <= cap:
            assert sum(figures) <= cap + min(cap, 1200 * MIB)


@given(
    st.lists(usages(*OVER).filter(len), min_size=1, max_size=20),
    st.dictionaries(st.sampled_from(GPUS), st.integers(0, 3000)),
)
def test_under_a_limit_a_pod_is_acted_on_by_what_is_judged_and_by_nothing_else(lists, counted):
    """MiB that the driver counts on each GPU with a limit, whatever the lists show."""
    held = {gpu: mib * MIB for gpu, mib in counted.items()}
    script = [Observation(tuple(listed), counted=held) for listed in lists for _ in range(50)]
    acted = {now_s // 50 for now_s, _, actions in played(script) for action in actions
             if isinstance(action, ACTS) and not isinstance(action, Kill)}  # fmt: skip
    for number, listed in enumerate(lists):
        uses = {}
        for item in listed:
            of_gpu = uses.setdefault(item.gpu, {})
            of_gpu[item.process] = max(of_gpu.get(item.process, 0), item.used_bytes)
        judged = (
            judged_bytes(used.values(), held.get(gpu), CAP.cap_bytes) for gpu, used in uses.items()
        )
        assert (number in acted) == any(item > CAP.ceiling_bytes for item in judged)
