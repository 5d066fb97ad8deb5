"""Scripted incidents, and laws, of the enforcer's judgement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.enforcement import (
    TEARDOWN_S,
    Cap,
    EndPod,
    Freed,
    Kill,
    Observation,
    Process,
    ReportBlind,
    State,
    Terminate,
    Usage,
    step,
)

MIB = 2**20
GPU = "GPU-0"
CAP = Cap(
    cap_bytes=1000 * MIB,
    tolerance_bytes=20 * MIB,
    grace_s=5.0,
    blind_after_s=60.0,
    terminate_when_blind=False,
    protected=frozenset({1, 7}),
)
TRAINER, LOADER = Process(100, 1000), Process(101, 1001)


def using(*usages, fault="", refused=()):
    """Return an observation; each usage is (process, MiB or None[, gpu])."""
    listed = tuple(
        Usage(gpu[0] if gpu else GPU, process, None if mib is None else mib * MIB)
        for process, mib, *gpu in usages
    )
    return Observation(listed, fault, frozenset(refused))


def run_script(script, cap=CAP, state=None):
    """Play (time, observation) pairs; return the actions as (time, action) and the last state."""
    state = state or State()
    log = []
    for now_s, observation in script:
        state, actions = step(state, observation, cap, now_s)
        log += [(now_s, action) for action in actions]
    return log, state


def names(log):
    return [(now_s, type(action).__name__) for now_s, action in log]


def test_a_pod_within_its_cap_is_left_alone():
    log, _ = run_script([(t, using((TRAINER, 600), (LOADER, 400))) for t in range(100)])
    assert log == []


def test_use_up_to_cap_and_tolerance_is_no_excess():
    log, _ = run_script([(t, using((TRAINER, 1020))) for t in range(10)])
    assert log == []
    log, _ = run_script([(t, using((TRAINER, 1021))) for t in range(10)])
    assert names(log)[0] == (1, "Terminate")


def test_one_sample_over_is_not_enough():
    script = [(t, using((TRAINER, 1500 if t % 2 else 900))) for t in range(20)]
    assert run_script(script)[0] == []


def test_the_process_that_grew_last_is_stopped_not_the_largest():
    script = [
        (0, using((TRAINER, 800), (LOADER, 100))),
        (1, using((TRAINER, 800), (LOADER, 300))),
        (2, using((TRAINER, 800), (LOADER, 300))),
    ]
    log, _ = run_script(script)
    ((now_s, action),) = log
    assert (now_s, type(action), action.process) == (2, Terminate, LOADER)
    assert action.excess.used_bytes == 300 * MIB
    assert action.excess.sum_bytes == action.excess.peak_bytes == 1100 * MIB
    assert (action.excess.grew_bytes, action.excess.grew_within_s) == (200 * MIB, 1)


@pytest.mark.parametrize(
    ("usages", "want"),
    [
        ([(TRAINER, 700), (LOADER, 600)], TRAINER),  # both seen at once: the largest
        ([(TRAINER, 650), (LOADER, 650)], LOADER),  # as large: the youngest
        ([(Process(1, 1), 900), (LOADER, 300)], LOADER),  # never PID 1
        ([(Process(7, 5000), 900), (LOADER, 300)], LOADER),  # never itself
    ],
)
def test_ties_are_broken_by_size_then_youth_and_some_are_never_stopped(usages, want):
    log, _ = run_script([(t, using(*usages)) for t in range(2)])
    assert log[0][1].process == want


def test_term_then_kill_after_the_grace_then_the_memory_is_back():
    over = using((TRAINER, 1500))
    script = [(t, over) for t in range(9)] + [(9, using()), (10, using())]
    log, state = run_script(script)
    assert names(log) == [(1, "Terminate"), (6, "Kill"), (9, "Freed")]
    freed = log[-1][1]
    assert (freed.returned, freed.freed_bytes, freed.after_s) == (True, 1500 * MIB, 8)
    assert state.victims == ()


def test_a_victim_that_obeys_is_not_killed():
    script = [(0, using((TRAINER, 1500))), (1, using((TRAINER, 1500))), (2, using())]
    assert names(run_script(script)[0]) == [(1, "Terminate"), (2, "Freed")]


def test_a_grace_of_zero_kills_at_once():
    cap = Cap(CAP.cap_bytes, 0, 0.0, 60.0, False, frozenset({1}))
    log, _ = run_script([(t, using((TRAINER, 1500))) for t in range(2)], cap)
    assert names(log) == [(1, "Terminate"), (1, "Kill")]


def test_no_second_process_is_stopped_while_the_first_one_is_on_its_way():
    both = using((TRAINER, 1500), (LOADER, 1500))
    log, _ = run_script([(t, both) for t in range(6)])
    assert names(log) == [(1, "Terminate")]


def test_an_excess_that_stays_costs_the_next_process():
    script = [
        (0, using((TRAINER, 1500), (LOADER, 1400))),
        (1, using((TRAINER, 1500), (LOADER, 1400))),
    ]
    script += [(t, using((LOADER, 1400))) for t in range(2, 5)]
    log, _ = run_script(script)
    assert [a.process for _, a in log if isinstance(a, Terminate)] == [TRAINER, LOADER]


def test_a_process_that_outlives_its_kill_is_given_up_for_the_next():
    script = [(t, using((TRAINER, 1500), (LOADER, 1400))) for t in range(int(TEARDOWN_S) + 12)]
    log, _ = run_script(script)
    victims = [action.process for _, action in log if isinstance(action, Terminate)]
    assert victims == [TRAINER, LOADER]
    assert [a.returned for _, a in log if isinstance(a, Freed)] == [False]


def test_a_process_that_may_not_be_signalled_is_given_up_and_then_the_pod_ends():
    script = [
        (0, using((TRAINER, 1500))),
        (1, using((TRAINER, 1500))),
        (2, using((TRAINER, 1500), refused=[TRAINER])),
        (3, using((TRAINER, 1500))),
        (4, using((TRAINER, 1500))),
    ]
    log, _ = run_script(script)
    assert names(log) == [(1, "Terminate"), (3, "EndPod")]
    assert "none of its processes can be stopped" in log[-1][1].why


def test_each_gpu_is_held_to_the_cap_by_itself():
    script = [(t, using((TRAINER, 900, "GPU-a"), (TRAINER, 900, "GPU-b"))) for t in range(5)]
    assert run_script(script)[0] == []
    script = [(t, using((TRAINER, 900, "GPU-a"), (LOADER, 1100, "GPU-b"))) for t in range(2)]
    ((_, action),) = run_script(script)[0]
    assert (action.process, action.excess.gpu) == (LOADER, "GPU-b")


def test_a_process_listed_twice_counts_once_by_its_largest_figure():
    twice = using((TRAINER, 600), (TRAINER, 900))
    assert run_script([(t, twice) for t in range(5)])[0] == []


def test_a_pid_that_is_somebody_else_now_is_another_process():
    again = Process(TRAINER.pid, TRAINER.started + 50)
    script = [
        (0, using((TRAINER, 1500))),
        (1, using((TRAINER, 1500))),
        (2, using((again, 400))),
        (8, using((again, 400))),
    ]
    log, _ = run_script(script)
    assert names(log) == [(1, "Terminate"), (2, "Freed")]


@pytest.mark.parametrize("mib", [None, 0])
def test_unknown_is_not_zero_and_never_a_reason_to_kill(mib):
    log, _ = run_script([(t, using((TRAINER, mib))) for t in range(0, 130, 10)])
    ((now_s, report),) = log
    assert (now_s, report.blind) == (60, True)
    assert "process 100 without a figure" in report.why


def test_blindness_ends_the_pod_where_the_policy_says_so():
    cap = Cap(CAP.cap_bytes, 0, 5.0, 60.0, True, frozenset({1}))
    log, _ = run_script([(t, using(fault="GPU is lost")) for t in range(0, 80, 10)], cap)
    assert names(log) == [(60, "ReportBlind"), (60, "EndPod")]
    assert "GPU is lost" in log[-1][1].why


def test_sight_that_comes_back_is_reported_only_where_blindness_was():
    script = [(0, using(fault="x")), (30, using()), (40, using(fault="x"))]
    script += [(101, using(fault="x")), (102, using((TRAINER, 10)))]
    log, _ = run_script(script)
    assert [(t, a.blind) for t, a in log if isinstance(a, ReportBlind)] == [
        (101, True),
        (102, False),
    ]


def test_an_excess_that_is_known_is_acted_on_although_another_figure_is_not():
    script = [(t, using((TRAINER, 1500), (LOADER, None))) for t in range(3)]
    assert names(run_script(script)[0]) == [(1, "Terminate")]


def test_a_victim_that_cannot_be_seen_for_a_moment_is_not_taken_for_gone():
    script = [(0, using((TRAINER, 1500))), (1, using((TRAINER, 1500))), (2, using(fault="x"))]
    script += [(6, using((TRAINER, 1500)))]
    assert names(run_script(script)[0]) == [(1, "Terminate"), (6, "Kill")]


PROCESSES = st.builds(Process, st.sampled_from([1, 7, 50, 51, 52]), st.sampled_from([10, 20]))
GPUS = st.sampled_from(["GPU-a", "GPU-b"])


def usages(mib):
    return st.lists(
        st.builds(
            lambda gpu, process, mib: Usage(gpu, process, None if mib is None else mib * MIB),
            GPUS,
            PROCESSES,
            mib,
        ),
        max_size=5,
    )


def observations(mib):
    return st.builds(
        lambda listed, fault: Observation(tuple(listed), fault),
        usages(mib),
        st.sampled_from(["", "", "", "fault"]),
    )


ANY_USE = st.none() | st.integers(0, 3000)


def played(script, cap=CAP):
    """Play observations a second apart, yielding each with its actions."""
    state = State()
    for now_s, observation in enumerate(script):
        state, actions = step(state, observation, cap, float(now_s))
        yield now_s, observation, actions


@given(st.lists(observations(st.none() | st.integers(0, 200)), max_size=40))
def test_no_action_while_use_never_exceeds_the_cap(script):
    """Five processes of at most 200 MiB stay under 1000."""
    for _, _, actions in played(script):
        assert not [a for a in actions if isinstance(a, Terminate | Kill | EndPod)]


@given(st.lists(observations(ANY_USE), max_size=40))
def test_no_action_names_the_protected_or_the_absent(script):
    for _, observation, actions in played(script):
        present = {usage.process for usage in observation.usages}
        for action in actions:
            if isinstance(action, Terminate | Kill):
                assert action.process in present
                assert action.process.pid not in CAP.protected


@given(st.lists(observations(ANY_USE), max_size=40))
def test_nobody_is_killed_who_was_not_asked_to_end_a_grace_before(script):
    asked = {}
    for now_s, _, actions in played(script):
        for action in actions:
            if isinstance(action, Terminate):
                asked[action.process] = now_s
            elif isinstance(action, Kill):
                assert now_s - asked[action.process] >= CAP.grace_s


@given(
    st.lists(observations(ANY_USE), max_size=20),
    usages(st.integers(1, 3000)).filter(lambda listed: listed),
)
def test_an_excess_that_lasts_is_always_acted_on(before, listed):
    """After any history, the same excess seen for long enough gets an action."""
    excess = Observation(tuple(listed))
    sums = {}
    for usage in listed:
        key = usage.gpu
        largest = sums.setdefault(key, {})
        largest[usage.process] = max(largest.get(usage.process, 0), usage.used_bytes)
    over = [gpu for gpu, used in sums.items() if sum(used.values()) > CAP.ceiling_bytes]
    script = [*before, *[excess] * 50]
    acted = [
        action
        for now_s, _, actions in played(script)
        for action in actions
        if now_s >= len(before) and isinstance(action, Terminate | Kill | EndPod)
    ]
    assert acted or not over


@given(st.lists(observations(st.none() | st.just(0)), max_size=40))
def test_unknown_use_alone_never_stops_anybody(script):
    for _, _, actions in played(script):
        assert not [a for a in actions if isinstance(a, Terminate | Kill | EndPod)]
