"""Excesses that return: what is stopped when stopping one process was not enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.enforcement.observations import CAP, MIB, names, run_script, using
from webhook.core.enforcement.messages import explain_container_stop, explain_end
from webhook.core.enforcement.model import (
    ESCALATE_AFTER,
    EndPod,
    Freed,
    Kill,
    Process,
    StopContainer,
    Terminate,
)
from webhook.core.enforcement.step import ESCALATION_S, LONGEST_ESCALATION_S, MOST_STOPS, step

ONE, TWO = "1" * 64, "2" * 64
MINE = [Process(number, number, container=ONE) for number in (101, 102, 103)]
OTHER = Process(200, 200, container=TWO)
UNKNOWN = Process(300, 300)
FOREIGN = [OTHER, UNKNOWN]


def earlier(times=ESCALATE_AFTER, start_s=0.0, gpu="GPU-0"):
    """Return a script of stops: each time another process, which ends at SIGTERM."""
    script = []
    for number in range(times):
        began_s = start_s + 3 * number
        over = using((Process(500 + number, 500 + number, container=ONE), 1500, gpu))
        script += [(began_s, over), (began_s + 1, over), (began_s + 2, using())]
    return script


def excess(calm, hogs, start_s=100.0):
    """Return a script: `hogs` start next to `calm` processes, and exceed the cap together."""
    there = [(process, 300) for process in calm]
    over = using(*there, *((process, 1100) for process in hogs))
    return [(start_s, using(*there)), (start_s + 1, over), (start_s + 2, over)]


def measures(log, after_s=100.0):
    """Return the stops and their targets, without the actions that follow from them."""
    return [
        (type(action).__name__, getattr(action, "container", ""), action.process)
        for now_s, action in log
        if isinstance(action, Terminate | StopContainer | EndPod) and now_s >= after_s
    ]


@pytest.mark.parametrize(
    ("stops", "want"),
    [
        (0, ("Terminate", "", MINE[2])),
        (2, ("Terminate", "", MINE[2])),
        (3, ("StopContainer", ONE, MINE[2])),
        (4, ("EndPod", "", MINE[2])),
    ],
)
def test_the_fourth_stop_is_of_a_container_and_the_next_ends_the_pod(stops, want):
    log, _ = run_script([*earlier(stops), *excess(FOREIGN, MINE)])
    assert measures(log) == [want]


@pytest.mark.parametrize(
    ("container_after", "pod_after", "want"),
    [
        (None, 1, ["Terminate", "EndPod", "EndPod", "EndPod"]),
        (None, 3, ["Terminate", "Terminate", "Terminate", "EndPod"]),
        (1, 2, ["Terminate", "StopContainer", "EndPod", "EndPod"]),
        (0, 1, ["StopContainer", "EndPod", "EndPod", "EndPod"]),
        (3, 0, ["EndPod"] * 4),
    ],
)
def test_each_program_says_after_how_many_stops(container_after, pod_after, want):
    cap = replace(CAP, grace_s=0.0, container_after=container_after, pod_after=pod_after)
    assert [what for what, _, _ in measures(run_script(earlier(4), cap)[0], 0)] == want


def test_the_explanations_say_what_was_not_enough():
    log, _ = run_script([*earlier(), *excess(FOREIGN, MINE), (103, using())])
    (stop,) = [action for _, action in log if isinstance(action, StopContainer)]
    assert explain_container_stop(stop) == (
        "over the VRAM cap on GPU GPU-0: process 103 of container 111111111111 holds 1.1Gi, other "
        "processes of the pod 2.8Gi, the cap is 1000Mi; 3 stops were not enough in 101 s, so all "
        "processes of its container end; the pod's peak was 3.9Gi, so write "
        "vramwarden.io/gpu-memory: 4.5Gi (the peak and 15 %)"
    )
    log, _ = run_script([*earlier(), *excess(FOREIGN, MINE), *excess([], [OTHER], 200)])
    (end,) = [action for _, action in log if isinstance(action, EndPod)]
    assert explain_end(end) == (
        "over the VRAM cap on GPU GPU-0: process 200 of container 222222222222 holds 1.1Gi, the "
        "cap is 1000Mi; 4 stops were not enough in 201 s, so all processes of the pod end; the "
        "pod's peak was 3.9Gi, so write vramwarden.io/gpu-memory: 4.5Gi (the peak and 15 %)"
    )


def test_one_stop_is_one_in_words():
    cap = replace(CAP, grace_s=0.0, pod_after=1, container_after=None)
    log, _ = run_script([*earlier(1), *excess([], [OTHER], 16)], cap)
    (end,) = [action for _, action in log if isinstance(action, EndPod)]
    assert "; 1 stop was not enough in 17 s, so all processes of the pod end; " in explain_end(end)


def test_where_the_victims_container_is_unknown_all_of_the_pod_that_may_be_is_stopped():
    log, state = run_script([*earlier(), *excess([OTHER, *MINE], [UNKNOWN])])
    assert measures(log) == [("StopContainer", "", UNKNOWN)]
    assert {victim.process for victim in state.victims} == {UNKNOWN, OTHER, *MINE}
    (stop,) = [action for _, action in log if isinstance(action, StopContainer)]
    assert "so all processes of the pod end" in explain_container_stop(stop)


@pytest.mark.parametrize(
    ("later_s", "want"), [(ESCALATION_S - 1, "StopContainer"), (ESCALATION_S, "Terminate")]
)
def test_a_stop_counts_for_ten_minutes(later_s, want):
    """The first of the three stops was at 1 s. The next stop comes two seconds after the start."""
    start_s = later_s + 1 - 2
    log, _ = run_script([*earlier(), *excess(FOREIGN, MINE, start_s)])
    assert [what for what, _, _ in measures(log, start_s)] == [want]


@pytest.mark.parametrize(
    ("later_s", "want"), [(2 * ESCALATION_S - 1, "EndPod"), (2 * ESCALATION_S, "Terminate")]
)
def test_after_an_escalation_all_that_led_to_it_counts_for_twice_as_long(later_s, want):
    """The container was stopped at 102 s."""
    script = [*earlier(), *excess([], MINE), (103, using())]
    start_s = 102 + later_s - 2
    log, _ = run_script([*script, *excess(FOREIGN, MINE, start_s)])
    assert [what for what, _, _ in measures(log, start_s)] == [want]


def test_a_ban_doubles_with_each_escalation_up_to_a_day():
    cap = replace(CAP, grace_s=0.0, pod_after=1, container_after=None)
    _, state = run_script(earlier(1), cap)
    now_s, escalations = 100.0, []
    for number in range(1, 12):
        process = Process(400 + number, number, container=ONE)
        script = [*excess([], [process], now_s), (now_s + 3, using())]
        log, state = run_script(script, cap, state)
        assert names(log)[0] == (now_s + 2, "EndPod")
        escalations.append(state.escalations["GPU-0"].until_s - now_s - 2)
        now_s += escalations[-1] - 1
    assert escalations[:7] == [1200 * 2**number for number in range(7)]
    assert escalations[7:] == [LONGEST_ESCALATION_S] * 4


def test_a_day_of_stops_costs_no_memory():
    cap = replace(CAP, grace_s=0.0, pod_after=1, container_after=None)
    _, state = run_script(earlier(4 * MOST_STOPS), cap)
    assert len(state.stops["GPU-0"]) == MOST_STOPS


def test_stops_on_one_gpu_say_nothing_of_another():
    log, _ = run_script([*earlier(4, gpu="GPU-1"), *excess(FOREIGN, MINE)])
    assert measures(log) == [("Terminate", "", MINE[2])]


@pytest.mark.parametrize(
    ("stops", "whose"), [(3, set(MINE)), (4, {OTHER, UNKNOWN, *MINE})], ids=["container", "pod"]
)
def test_what_an_escalation_kills_is_followed_until_its_memory_is_back(stops, whose):
    script = [*earlier(stops), *excess(FOREIGN, MINE)]
    left = using((MINE[0], 900))
    log, state = run_script([*script, (104, left), (130, left), (133, left)])
    assert {action.process for _, action in log[-len(whose) :]} == whose
    assert all(isinstance(action, Freed) for _, action in log[-len(whose) :])
    assert [action.process for _, action in log if getattr(action, "returned", 1) is False] == [
        MINE[0]
    ]
    assert not [action for _, action in log if isinstance(action, Kill)]
    assert state.victims == ()


def test_who_may_not_be_stopped_is_not_among_the_victims():
    ours = Process(7, 7, container=ONE)
    script = [*earlier(), *excess([], [ours, *MINE])]
    _, state = run_script(script)
    assert {victim.process for victim in state.victims} == set(MINE)


def test_a_process_that_is_stopped_in_time_is_not_judged_by_an_old_escalation():
    """After a history that is over, one process is stopped, with one grace period."""
    script = [*earlier(), *excess([], MINE), (103, using())]
    _, state = run_script(script)
    delay_s = 103 + 3 * ESCALATION_S
    state, _ = step(state, using((OTHER, 1500)), CAP, delay_s)
    state, actions = step(state, using((OTHER, 1500)), CAP, delay_s + 1)
    assert [type(action) for action in actions] == [Terminate]
    assert actions[0].excess.stops_before == 0
    assert actions[0].excess.used_bytes == 1500 * MIB
