"""Scripted incidents of the enforcer's judgement."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.enforcement.observations import CAP, LOADER, MIB, TRAINER, names, run_script, using
from webhook.core.enforcement.explanation import explain_end
from webhook.core.enforcement.step import (
    TEARDOWN_S,
    UNIDENTIFIED,
    Cap,
    EndPod,
    Freed,
    Process,
    ReportBlind,
    Terminate,
    name_victim,
    step,
)


def test_a_victim_is_reported_by_the_command_that_it_has_when_it_is_stopped():
    before, other = Process(100, 1000, "sh -c train"), Process(101, 1001, "loader")
    seen = using((before, 1500), (other, 10))
    _, state = run_script([(0, seen), (1, seen)])
    named = name_victim(state, Process(100, 1000, "python train.py"))
    (kill,) = step(named, seen, CAP, 6)[1]
    (freed,) = step(named, using((other, 10)), CAP, 2)[1]
    assert [one.process.command for one in (kill, freed)] == ["python train.py"] * 2


@pytest.mark.parametrize("who", [LOADER, Process(100, 1)])
def test_only_the_victim_itself_is_renamed(who):
    _, state = run_script([(t, using((TRAINER, 1500), (LOADER, 10))) for t in (0, 1)])
    assert name_victim(state, replace(who, command="other")).victims == state.victims
    assert [victim.process.command for victim in name_victim(state, who).victims] == [""]


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
    cap = Cap(
        cap_bytes=CAP.cap_bytes,
        tolerance_bytes=0,
        grace_s=0.0,
        blind_after_s=60.0,
        terminate_when_blind=False,
        protected=frozenset({1}),
    )
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
        (2, using((TRAINER, 1500), rejected=[TRAINER])),
        (3, using((TRAINER, 1500))),
        (4, using((TRAINER, 1500))),
    ]
    log, _ = run_script(script)
    assert names(log) == [(1, "Terminate"), (3, "EndPod")]
    assert explain_end(log[-1][1]) == (
        "over the VRAM cap on GPU GPU-0: the pod holds 1.5Gi, the cap is 1000Mi, and none of its "
        "processes can be stopped from here; vramwarden.io/gpu-memory: 1500Mi would have been "
        "enough until then"
    )


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
    cap = Cap(
        cap_bytes=CAP.cap_bytes,
        tolerance_bytes=0,
        grace_s=5.0,
        blind_after_s=60.0,
        terminate_when_blind=True,
        protected=frozenset({1}),
    )
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


@pytest.mark.parametrize("gpu", ["GPU-0", "GPU-1"])
def test_a_victim_on_a_gpu_that_was_seen_is_let_go_although_another_gpu_is_at_fault(gpu):
    script = [(t, using((TRAINER, 1500))) for t in range(2)]
    script += [(2, using(fault="a GPU is lost", listed_at_s={gpu: 2}))]
    log, state = run_script(script)
    let_go = gpu == "GPU-0"
    assert names(log) == [(1, "Terminate"), (2, "Freed")][: 1 + let_go]
    assert len(state.victims) == 1 - let_go


def test_growth_is_told_between_the_lists_that_show_it_not_between_looks_at_old_ones():
    """Lists are read at 0, 10 and 10.5; the observations between show the first one again."""
    script = [(t, using((TRAINER, 800), listed_at_s={"GPU-0": 0})) for t in range(10)]
    script += [(t, using((TRAINER, 1500), listed_at_s={"GPU-0": t})) for t in (10, 10.5)]
    ((now_s, action),) = run_script(script)[0]
    assert now_s == 10.5
    assert (action.excess.grew_bytes, action.excess.grew_within_s) == (700 * MIB, 10)


def test_a_process_that_nobody_could_identify_is_counted_and_never_stopped():
    stranger = Process(300, UNIDENTIFIED)
    both = [(t, using((TRAINER, 600), (stranger, 1500))) for t in range(2)]
    log, state = run_script([*both, *[(t, using((stranger, 1500))) for t in range(2, 5)]])
    assert [(t, type(one), getattr(one, "process", None)) for t, one in log] == [
        (1, Terminate, TRAINER), (2, Freed, TRAINER), (3, EndPod, None),
    ]  # fmt: skip
    assert state.victims == ()
    assert "none of its processes can be stopped" in explain_end(log[-1][1])
