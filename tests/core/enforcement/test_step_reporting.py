"""Where the policy only reports, everything is as ever, except for the stop."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.enforcement.observations import CAP, GPU, LOADER, TRAINER, names, run_script, using
from webhook.core.enforcement.explanation import explain_report, explain_stop
from webhook.core.enforcement.step import EndPod, Powerless, ReportBlind, ReportExcess, Terminate

REPORTING = replace(CAP, reports_only=True)
OVER, WITHIN = using((TRAINER, 1500), (LOADER, 10)), using((TRAINER, 900), (LOADER, 10))
WHY_NOT = "the policy only reports"


def test_an_excess_is_reported_once_when_it_would_be_stopped_and_in_the_same_words():
    script = [(t, OVER) for t in range(30)]
    log, state = run_script(script, REPORTING)
    assert names(log) == [(1, "ReportExcess")]
    ((_, stop), *_) = run_script(script)[0]
    ((_, report),) = log
    assert isinstance(stop, Terminate)
    assert (report.process, report.excess) == (stop.process, stop.excess)
    words = explain_report(report, WHY_NOT)
    assert words == f"{explain_stop(stop.process, stop.excess)}; nothing is stopped: {WHY_NOT}"
    assert (state.victims, dict(state.stops)) == ((), {})


def test_the_next_excess_is_reported_again():
    seen = [OVER] * 4 + [WITHIN] + [OVER] * 4
    log, _ = run_script(list(enumerate(seen)), REPORTING)
    assert names(log) == [(1, "ReportExcess"), (6, "ReportExcess")]


def test_what_cannot_be_seen_for_a_moment_is_the_same_excess():
    seen = [OVER] * 4 + [using(fault="the GPU does not answer")] * 3 + [OVER] * 4
    log, _ = run_script(list(enumerate(seen)), REPORTING)
    assert names(log) == [(1, "ReportExcess")]


def test_an_excess_that_has_to_last_is_over_only_once_as_much_time_has_passed():
    cap = replace(REPORTING, late_s=5.0)
    seen = [OVER] * 10 + [WITHIN] * 3 + [OVER] * 10 + [WITHIN] * 10 + [OVER] * 10
    log, _ = run_script(list(enumerate(seen)), cap)
    assert names(log) == [(5, "ReportExcess"), (38, "ReportExcess")]


def test_a_reported_excess_is_measured_no_oftener_than_what_is_within_the_cap():
    _, state = run_script([(t, OVER) for t in range(9)], REPORTING)
    assert not any(state.over.values())


def test_who_could_not_be_stopped_ends_no_pod():
    log, _ = run_script([(t, using((TRAINER, 1500))) for t in range(9)], replace(
        REPORTING, protected=frozenset({TRAINER.pid})
    ))  # fmt: skip
    ((_, report),) = log
    assert isinstance(report.excess, Powerless)
    assert "none of its processes can be stopped from here" in explain_report(report, WHY_NOT)
    assert explain_report(report, WHY_NOT).endswith(f"; nothing is stopped: {WHY_NOT}")


@pytest.mark.parametrize("ends", [False, True])
def test_blindness_counts_as_ever(ends):
    cap = replace(REPORTING, terminate_when_blind=ends)
    log, _ = run_script([(t, using((TRAINER, None))) for t in range(0, 100, 10)], cap)
    assert [type(one) for _, one in log] == [ReportBlind, EndPod][: 1 + ends]


AMOUNTS = st.one_of(st.integers(1, 3000), st.none())


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=40))
def test_whatever_is_seen_nothing_is_stopped(amounts):
    seen = [using((TRAINER, one), (LOADER, other)) for one, other in amounts]
    log, _ = run_script(list(enumerate(seen)), REPORTING)
    assert {type(action) for _, action in log} <= {ReportExcess, ReportBlind}
    assert all(action.excess.gpu == GPU for _, action in log if isinstance(action, ReportExcess))
