"""An excess that has to last, the largest process first, and reports in place of stops."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.enforcement.observations import CAP, GPU, LOADER, TRAINER, names, run_script, using
from webhook.core.enforcement.messages import explain_report, explain_stop
from webhook.core.enforcement.model import (
    EndPod,
    NothingToStop,
    Process,
    ReportBlind,
    ReportExcess,
    StepState,
    Terminate,
    VictimOrder,
)
from webhook.core.enforcement.step import LONGEST_STEP_S, step

LATE = replace(CAP, delay_s=12.0)
OVER, UNDER, UNSEEN = using((TRAINER, 1500)), using((TRAINER, 10)), using(fault="x")


def stopped_at(script, cap=LATE):
    return [now_s for now_s, action in run_script(script, cap)[0] if isinstance(action, Terminate)]


@pytest.mark.parametrize(
    ("every_s", "want"), [(0.5, [12.0]), (1, [12]), (5, [15]), (8, [16]), (20, [40])]
)
def test_an_excess_must_have_lasted(every_s, want):
    """A gap counts as ten seconds at most, since nothing was observed in it."""
    script = [(number * every_s, OVER) for number in range(int(60 / every_s))]
    assert stopped_at(script)[:1] == want
    assert LONGEST_STEP_S == 10


@pytest.mark.parametrize(
    ("pattern", "want"),
    [
        ("O" * 13, [12]),
        ("O" * 12, []),
        ("O" * 7 + "U" * 7 + "O" * 12, []),  # 6 s over, then 6 s within: the timer is 0 again
        ("O" * 12 + "UU" + "O" * 5, [16]),  # 11 s over, 1 s within, then 2 s more make 12 s
        ("O" * 9 + "U" + "O" * 6, [14]),  # one sample within the cap costs the time around it
        ("OU" * 30, []),  # the time of each change is unknown
        ("O" * 6 + "?" * 3 + "O" * 6, [12]),  # an unobserved pod does not count as within the cap
        ("O" * 12 + "?" * 3 + "O" * 3, [16]),  # two consecutive samples are still required
    ],
)
def test_time_over_adds_up_and_time_within_the_cap_takes_it_off(pattern, want):
    samples = {"O": OVER, "U": UNDER, "?": UNSEEN}
    assert stopped_at([(t, samples[letter]) for t, letter in enumerate(pattern)]) == want


def test_what_is_started_again_does_not_begin_at_zero():
    again = Process(102, 2000)
    script = [(t, OVER) for t in range(13)] + [(13, using())]
    script += [(t, using((again, 1500))) for t in range(14, 30)]
    assert stopped_at(script) == [12, 15]


def test_no_more_time_is_kept_than_is_asked_for():
    """Twelve seconds within the cap clear a day over it in which no process could be stopped."""
    script = [(t, using((Process(1, 1), 1500))) for t in range(0, 3600, 10)]
    script += [(3600 + t, UNDER) for t in range(13)]
    _, state = run_script(script, LATE)
    assert state.timers["GPU-0"].over_s == 0.0


@pytest.mark.parametrize(
    ("order", "grows_to", "want", "why"),
    [
        (VictimOrder.GREW_LAST, 300, LOADER, "it grew last, by 200Mi within 1.0 s"),
        (VictimOrder.LARGEST, 300, TRAINER, "it holds the most"),
        (VictimOrder.LARGEST, 800, LOADER, "it holds the most"),  # equal sizes: the youngest
    ],
)
def test_the_program_sets_the_order_of_victims(order, grows_to, want, why):
    script = [(0, using((TRAINER, 800), (LOADER, 100)))]
    script += [(t, using((TRAINER, 800), (LOADER, grows_to))) for t in (1, 2)]
    ((_, action),) = run_script(script, replace(CAP, order=order))[0]
    assert action.process == want
    assert f"; {why}; " in explain_stop(action.process, action.excess)


def test_each_gpu_has_its_own_time():
    script = [(t, using((TRAINER, 1500, "GPU-a"))) for t in range(12)]
    script += [(t, using((TRAINER, 1500, "GPU-b"))) for t in range(12, 25)]
    assert names(run_script(script, LATE)[0]) == [(24, "Terminate")]


@given(
    st.lists(st.tuples(st.floats(0.1, 30), st.sampled_from("OU?")), max_size=60),
    st.floats(0, 60),
)
def test_nothing_is_stopped_before_an_excess_lasted_and_an_excess_that_lasts_is(script, delay_s):
    """Samples over the cap bound the time over it from above and from below."""
    cap = replace(CAP, delay_s=delay_s)
    samples = {"O": OVER, "U": UNDER, "?": UNSEEN}
    state, now_s, longest_s, before = StepState(), 0.0, 0.0, ""
    script = [*script, *[(LONGEST_STEP_S, "O")] * (20 + int(delay_s / LONGEST_STEP_S))]
    for since_s, letter in script:
        now_s += since_s
        longest_s += since_s if "U" not in (before, letter) else 0.0
        before = letter if letter != "?" or not before else before
        state, actions = step(state, samples[letter], cap, now_s)
        if [action for action in actions if isinstance(action, Terminate)]:
            assert longest_s >= delay_s - 1e-6
            return
    pytest.fail("nothing was stopped")


REPORTING = replace(CAP, reports_only=True)
BOTH_OVER, WITHIN = using((TRAINER, 1500), (LOADER, 10)), using((TRAINER, 900), (LOADER, 10))
WHY_NOT = "the policy only reports"


def test_an_excess_is_reported_once_when_it_would_be_stopped_and_in_the_same_words():
    script = [(t, BOTH_OVER) for t in range(30)]
    log, state = run_script(script, REPORTING)
    assert names(log) == [(1, "ReportExcess")]
    ((_, stop), *_) = run_script(script)[0]
    ((_, report),) = log
    assert isinstance(stop, Terminate)
    assert (report.process, report.excess) == (stop.process, stop.excess)
    words = explain_report(report, WHY_NOT)
    assert words == f"{explain_stop(stop.process, stop.excess)}; nothing is stopped: {WHY_NOT}"
    assert (state.victims, dict(state.stops)) == ((), {})


@pytest.mark.parametrize(
    ("pattern", "delay_s", "want"),
    [
        pytest.param("OOOOUOOOO", 0.0, [1, 6], id="the next excess is reported again"),
        pytest.param("OOOO???OOOO", 0.0, [1], id="what cannot be seen for a moment is the same"),
        pytest.param("O" * 10 + "UUU" + "O" * 10 + "U" * 10 + "O" * 10, 5.0, [5, 38],
                     id="one that has to last is over only once as much time has passed"),
    ],
)  # fmt: skip
def test_each_excess_is_reported_once(pattern, delay_s, want):
    samples = {"O": BOTH_OVER, "U": WITHIN, "?": UNSEEN}
    script = enumerate(samples[letter] for letter in pattern)
    log, _ = run_script(script, replace(REPORTING, delay_s=delay_s))
    assert names(log) == [(second, "ReportExcess") for second in want]


def test_a_reported_excess_is_measured_no_oftener_than_what_is_within_the_cap():
    _, state = run_script([(t, BOTH_OVER) for t in range(9)], REPORTING)
    assert not any(state.over.values())


def test_who_could_not_be_stopped_ends_no_pod():
    log, _ = run_script([(t, using((TRAINER, 1500))) for t in range(9)], replace(
        REPORTING, protected=frozenset({TRAINER.pid})
    ))  # fmt: skip
    ((_, report),) = log
    assert isinstance(report.excess, NothingToStop)
    assert "none of its processes can be stopped from here" in explain_report(report, WHY_NOT)
    assert explain_report(report, WHY_NOT).endswith(f"; nothing is stopped: {WHY_NOT}")


@pytest.mark.parametrize("ends", [False, True])
def test_blindness_counts_as_ever(ends):
    cap = replace(REPORTING, terminate_when_blind=ends)
    log, _ = run_script([(t, using((TRAINER, None))) for t in range(0, 100, 10)], cap)
    assert [type(item) for _, item in log] == [ReportBlind, EndPod][: 1 + ends]


AMOUNTS = st.one_of(st.integers(1, 3000), st.none())


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=40))
def test_whatever_is_seen_nothing_is_stopped(amounts):
    seen = [using((TRAINER, item), (LOADER, other)) for item, other in amounts]
    log, _ = run_script(list(enumerate(seen)), REPORTING)
    assert {type(action) for _, action in log} <= {ReportExcess, ReportBlind}
    assert all(action.excess.gpu == GPU for _, action in log if isinstance(action, ReportExcess))
