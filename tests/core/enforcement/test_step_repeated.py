"""Excesses that come back: who is stopped when stopping one process was not enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.enforcement.observations import CAP, MIB, names, run_script, using
from webhook.core.enforcement.explanation import explain_stop
from webhook.core.enforcement.step import ESCALATE_AFTER, ESCALATION_S, Process, Terminate

ONE, TWO = "1" * 64, "2" * 64
MINE = [Process(number, number, container=ONE) for number in (101, 102, 103)]
OTHER = Process(200, 200, container=TWO)
UNKNOWN = Process(300, 300)
FOREIGN = [OTHER, UNKNOWN]


def earlier(times=ESCALATE_AFTER, start_s=0.0, gpu="GPU-0"):
    """Return a script of stops: each time another process, which ends when it is asked to."""
    script = []
    for number in range(times):
        began_s = start_s + 3 * number
        over = using((Process(500 + number, 500 + number, container=ONE), 1500, gpu))
        script += [(began_s, over), (began_s + 1, over), (began_s + 2, using())]
    return script


def excess(calm, hogs, start_s=100.0):
    """Return a script: some exist, others start and are over the cap together."""
    there = [(process, 300) for process in calm]
    over = using(*there, *((process, 1100) for process in hogs))
    return [(start_s, using(*there)), (start_s + 1, over), (start_s + 2, over)]


def stopped(log, after_s=100.0):
    return [
        action.process
        for now_s, action in log
        if isinstance(action, Terminate) and now_s >= after_s
    ]


def test_after_three_stops_all_that_the_victims_container_runs_on_the_gpu_is_stopped():
    log, state = run_script([*earlier(), *excess(FOREIGN, MINE)])
    assert stopped(log) == MINE[::-1]
    assert [victim.process for victim in state.victims] == MINE[::-1]


def test_two_stops_are_not_enough_for_that():
    log, _ = run_script([*earlier(ESCALATE_AFTER - 1), *excess(FOREIGN, MINE)])
    assert stopped(log) == MINE[-1:]


def test_each_explanation_says_who_and_why():
    log, _ = run_script([*earlier(), *excess(FOREIGN, MINE)])
    stops = [action for now_s, action in log if isinstance(action, Terminate) and now_s > 100]
    for action in stops:
        assert action.excess.used_bytes == 1100 * MIB
        assert action.excess.sum_bytes == action.excess.peak_bytes == 3900 * MIB
        text = explain_stop(action.process, action.excess)
        assert f"process {action.process.pid} of container 111111111111 holds 1100Mi" in text
        assert (
            "; 3 stops in 10 minutes were not enough, so all processes of its container on this "
            "GPU end; the pod's peak was 3900Mi"
        ) in text


def test_where_the_victims_container_is_unknown_all_of_the_pods_processes_are_stopped():
    log, _ = run_script([*earlier(), *excess([OTHER, *MINE], [UNKNOWN])])
    assert stopped(log) == [UNKNOWN, OTHER, *MINE[::-1]]
    (first, *_) = [action for now_s, action in log if now_s > 100]
    assert "so all processes of the pod on this GPU end" in explain_stop(
        first.process, first.excess
    )


@pytest.mark.parametrize(("later_s", "count"), [(ESCALATION_S - 1, 3), (ESCALATION_S, 1)])
def test_a_stop_counts_for_ten_minutes(later_s, count):
    """The first of the three stops was at 1 s, the next one comes two seconds after its start."""
    start_s = later_s + 1 - 2
    log, _ = run_script([*earlier(), *excess(FOREIGN, MINE, start_s)])
    assert len(stopped(log, start_s)) == count


def test_stops_on_one_gpu_say_nothing_of_another():
    log, _ = run_script([*earlier(gpu="GPU-1"), *excess(FOREIGN, MINE)])
    assert stopped(log) == MINE[-1:]


def test_it_stays_so_while_stops_follow_each_other():
    again = [Process(number, number, container=ONE) for number in (104, 105)]
    script = [*earlier(), *excess(FOREIGN, MINE), *excess(FOREIGN, again, 400)]
    assert stopped(run_script(script)[0], 400) == again[::-1]


def test_each_of_them_gets_its_grace_and_is_killed_by_itself():
    script = [*earlier(), *excess(FOREIGN, MINE)]
    left = using((MINE[0], 1100), (MINE[1], 1100))
    log, state = run_script([*script, (104, left), (107, left), (108, using())])
    who = [(now_s, type(action).__name__, action.process) for now_s, action in log if now_s > 102]
    assert who == [
        (104, "Freed", MINE[2]),
        (107, "Kill", MINE[1]),
        (107, "Kill", MINE[0]),
        (108, "Freed", MINE[1]),
        (108, "Freed", MINE[0]),
    ]
    assert state.victims == ()


def test_without_a_grace_each_is_asked_and_killed():
    log, _ = run_script([*earlier(), *excess([], MINE[:2])], replace(CAP, grace_s=0.0))
    assert names([one for one in log if one[0] > 100]) == [
        (102, "Terminate"), (102, "Kill"), (102, "Terminate"), (102, "Kill"),
    ]  # fmt: skip


def test_who_may_not_be_stopped_is_not_among_them():
    ours = Process(7, 7, container=ONE)
    rejecting = using((ours, 1100), *((process, 1100) for process in MINE), rejected=MINE[:1])
    script = [*earlier(), *excess([], [ours, MINE[0]]), (103, rejecting), (104, rejecting)]
    assert stopped(run_script(script)[0]) == [MINE[0], MINE[2], MINE[1]]
