"""Which processes are stopped, and when: incidents and laws."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sentry.fakes import (
    CAP_MIB,
    OTHER,
    TRAINER,
    a_scan,
    an_assignment,
    cap_terms,
    held,
    sentry_terms,
)
from tests.support.paths import TESTS
from webhook.adapters.kube.node_objects import AssignmentsSeen
from webhook.core.enforcement.model import EndPod, Freed, Kill, ReportExcess, Terminate
from webhook.core.nvidia.drivers import Fault
from webhook.sentry.assignments import MOST_KEPT, NodeAssignments, keep_last_entries
from webhook.sentry.judge import LATER_S, Judge, Judgement, list_thresholds
from webhook.sentry.scanner import ProcessScan

LATE_S = 6.5 + LATER_S
SECURITY = " ".join((TESTS.parent / "SECURITY.md").read_text(encoding="utf-8").split())


class ListedJudge:
    """A judge with the node's assignments, which lists and scans change."""

    def __init__(self, counted_bytes=lambda *_: None):
        self._judge = Judge(counted_bytes)
        self._judgement = Judgement()
        self._assignments = NodeAssignments()

    def on_list(self, lines):
        self._assignments = self._assignments.with_list(AssignmentsSeen(lines), 0.0)

    def judge(self, scan, now_s):
        self._assignments = self._assignments.after_scan(scan.lists)
        self._judgement = self._judge.judge(scan, self._assignments, now_s)
        return list(self._judgement.actions)

    @property
    def active(self):
        return self._judgement.active.intersection(self.capped)

    @property
    def capped(self):
        return self._assignments.capped

    @property
    def is_ending(self):
        return self._judgement.is_ending

    @property
    def thresholds(self):
        return list_thresholds(self._assignments, self.active)


def played(scans, lines=None, *, every_s=0.5, counted_bytes=lambda *_: None):
    """Yield each time with its actions; scans are `every_s` apart."""
    judge = ListedJudge(counted_bytes)
    judge.on_list(lines if lines is not None else {TRAINER: an_assignment()})
    for number, scan in enumerate(scans):
        yield number * every_s, judge.judge(scan, number * every_s)


def stops(scans, lines=None, **more):
    """Return the times of stops, each with its process, or None if a pod ended."""
    found = []
    for now_s, actions in played(scans, lines, **more):
        for uid, action in actions:
            if isinstance(action, Terminate):
                found.append((now_s, uid, action.process.pid))
            elif isinstance(action, EndPod):
                found.append((now_s, uid, None))
    return found


def test_the_largest_is_stopped_after_the_sidecars_time_and_five_seconds():
    scans = [a_scan(held(50, 700), held(51, 900))] * 10 + [
        a_scan(held(50, 800), held(51, 900))
    ] * 14
    assert stops(scans) == [(LATE_S, TRAINER, 51)]  # not the process that grew last
    assert stops(scans[:-1]) == []


def by_sentry(scans, every_s, **terms):
    """Return the actions on a pod by Sentry: time, type and PID."""
    lines = {TRAINER: an_assignment(terms=sentry_terms(**terms))}
    return [
        (now_s, type(action), getattr(action, "process", None) and action.process.pid)
        for now_s, actions in played(scans, lines, every_s=every_s)
        for _, action in actions
    ]


@pytest.mark.parametrize("delay_s", [0.2, 1.0, 1.5, 2.5, 10.5, 60.5])
def test_by_sentry_a_process_is_stopped_once_its_pod_was_seen_over_the_cap_for_late_s(delay_s):
    """Time between two scans, or before the sentry started, does not count."""
    over = [a_scan(held(50, 5000))] * 700
    for before in ([], [a_scan()]):
        (when_s, what, pid), *_ = by_sentry([*before, *over], 0.1, delay_s=delay_s)
        assert when_s == pytest.approx(len(before) * 0.1 + delay_s)
        assert (what, pid) == (Terminate, 50)


def test_by_sentry_the_grace_is_between_the_signals_and_the_second_excess_ends_the_pod():
    first, again = a_scan(held(50, 5000), held(51, 900)), a_scan(held(51, 5000))
    found = by_sentry([a_scan(), *[first] * 12, *[again] * 3], 0.5, grace_s=2.0)
    assert found == [
        (2.0, Terminate, 50),
        (4.0, Kill, 50),
        (6.5, Freed, 50),
        (6.5, EndPod, 51),
    ]  # fmt: skip
    assert [name for _, name, _ in by_sentry([first] * 5, 0.5, grace_s=0.0)] == [Terminate, Kill]


def test_memory_is_waited_for_in_a_hurry_only_after_sigkill():
    judge = ListedJudge()
    judge.on_list({TRAINER: an_assignment(terms=sentry_terms(grace_s=2.0))})
    ending = []
    for number in range(9):
        judge.judge(a_scan(held(50, 5000)), number / 2)
        ending.append(judge.is_ending)
    assert ending == [False] * 7 + [True] * 2


def test_by_sentry_an_excess_that_is_only_reported_is_reported_late_s_after_it_was_seen():
    terms = {"enforce": False, "reports": True}
    found = by_sentry([a_scan(), *[a_scan(held(50, 5000))] * 20], 0.5, **terms)
    assert found == [(2.0, ReportExcess, 50)]


@pytest.mark.parametrize(
    ("terms", "poll_s"),
    [
        ([], inf),
        ([cap_terms()], inf),
        ([cap_terms(), sentry_terms(1.5)], 1.0),
        ([sentry_terms(2.5), sentry_terms(0.2), sentry_terms(1.5)], 0.1),
        ([sentry_terms(0.2, enforce=False, reports=True), sentry_terms(3.5)], 3.0),
    ],
)
def test_the_shortest_poll_of_pods_by_sentry_that_may_be_stopped_counts(terms, poll_s):
    lines = {str(number): an_assignment(terms=term) for number, term in enumerate(terms)}
    assert NodeAssignments().with_list(AssignmentsSeen(lines), 0.0).poll_s == poll_s


def test_what_was_not_enough_ends_the_pod_at_once():
    first, again = a_scan(held(50, 5000)), a_scan(held(51, 5000))
    assert stops([first] * 24 + [again] * 2) == [
        (LATE_S, TRAINER, 50),
        (LATE_S + 1.0, TRAINER, None),
    ]


def test_a_dead_owner_that_is_listed_on_and_on_ends_the_pod():
    scans = [a_scan(held(50, 5000))] * 4 + [a_scan(held(50, 5000, dead=True))] * 20
    assert stops(scans) == [(LATE_S, TRAINER, None)]


def test_who_ends_by_our_signal_and_leaves_its_memory_to_others_does_not_keep_it():
    scans = [a_scan(held(50, 5000))] * 24 + [a_scan(held(50, 5000, dead=True))] * 4
    assert [who for _, _, who in stops(scans)] == [50, None]
    assert stops(scans)[-1][0] <= 15.0


@pytest.mark.parametrize(
    ("listed", "counted_mib", "stopped"),
    [
        ([900, 590], 900, False),
        ([900, 590], None, True),
        ([1420, 600, None], 900, False),
        ([1430, 600, None], 900, True),
        ([1480, 1], 900, False),
        ([1700, *[1] * 7], 900, True),
        ([518] * 8, 0, True),
        ([1530], 1530, True),
    ],
)
def test_two_contexts_that_the_driver_does_not_count_are_not_judged_up_to_the_cap(
    listed, counted_mib, stopped
):
    asked = []

    def counted_bytes(*of):
        asked.append(of)
        return counted_mib and counted_mib * 2**20

    scan = a_scan(*(held(50 + number, mib) for number, mib in enumerate(listed)))
    found = stops([scan] * 24, {TRAINER: an_assignment("*")}, counted_bytes=counted_bytes)
    assert [who for _, _, who in found] == [50] * stopped
    assert set(asked) == {(TRAINER, "GPU-a", CAP_MIB * 2**20)}


def test_processes_that_are_started_again_and_again_do_not_begin_at_zero():
    greedy, none = [a_scan(held(50, 5000))] * 6, [a_scan()] * 1
    found = stops((greedy + none) * 12)
    assert found
    assert found[0][0] < 2 * LATE_S


def test_each_pod_has_a_judgement_of_its_own():
    lines = {TRAINER: an_assignment(), OTHER: an_assignment(pod="team/other")}
    scan = a_scan(held(50, 5000), held(60, 900, OTHER))
    assert stops([scan] * 24, lines) == [(LATE_S, TRAINER, 50)]


def test_eleven_seconds_of_excess_and_as_long_within_the_cap_are_never_stopped():
    stated = "holds too much for eleven seconds and then little for as long, is never stopped"
    assert stated in SECURITY
    over, within = a_scan(held(50, 5000)), a_scan(held(50, 10))
    assert stops(([over] * 22 + [within] * 22) * 5) == []
    assert stops(([over] * 22 + [within] * 11) * 5) != []


def test_memory_on_a_gpu_that_the_line_does_not_name_is_not_judged():
    scan = a_scan(b=(held(50, 5000),))
    assert stops([scan] * 60) == []
    assert stops([scan] * 24, {TRAINER: an_assignment("*")}) == [(LATE_S, TRAINER, 50)]


def test_a_pod_that_left_the_list_and_holds_nothing_keeps_nothing():
    judge = ListedJudge()
    for now_s in (0.0, 10.0):
        judge.on_list({TRAINER: an_assignment(), OTHER: an_assignment()})
        assert judge.judge(a_scan(held(50, 5000)), now_s) == []
        assert judge.active == {TRAINER}
        assert judge.judge(a_scan(), now_s + 0.5) == []
        judge.on_list({})
        assert (judge.active, judge.capped) == (frozenset(), {})
        assert judge.judge(a_scan(held(50, 5000)), now_s + 9) == []


def test_a_pod_that_was_deleted_by_force_is_held_to_its_cap_until_it_holds_nothing():
    """Its containers run on for the grace period that the pod requests."""
    judge = ListedJudge()
    judge.on_list({TRAINER: an_assignment(), OTHER: an_assignment("GPU-b")})
    judge.judge(a_scan(held(50, 900), b=[held(60, 900, OTHER)]), 0.0)
    judge.on_list({})
    assert set(judge.capped) == {TRAINER, OTHER}
    done = [judge.judge(a_scan(held(50, 5000)), 1.0 + second) for second in range(14)]
    assert [uid for actions in done for uid, item in actions if isinstance(item, Kill)] == [TRAINER]
    judge.judge(a_scan(b=[held(60, 900, OTHER)]), 20.0)
    assert set(judge.capped) == {OTHER}
    judge.judge(a_scan(), 21.0)
    judge.judge(ProcessScan(failed="GPU-b is gone"), 22.0)
    assert set(judge.capped) == {OTHER}
    judge.judge(a_scan(b=[]), 23.0)
    assert judge.capped == {}
    assert "forgets them where it restarts" in SECURITY
    assert stops([a_scan(held(50, 5000))] * 60, {}) == []


@pytest.mark.parametrize("before", [TRAINER, OTHER])
def test_unreadable_terms_do_not_end_the_judgement_of_a_pod_that_holds_memory(before):
    judge = ListedJudge()
    judge.on_list({before: an_assignment()})
    judge.judge(a_scan(held(50, 900)), 0.0)
    judge.on_list({TRAINER: replace(an_assignment(), terms=None)})
    assert set(judge.capped) == {TRAINER} & {before}


def test_a_malformed_list_leaves_terms_and_pods_as_they_were_read_last():
    before = {"gone": an_assignment(), TRAINER: an_assignment()}
    read = {
        TRAINER: replace(an_assignment("GPU-b"), terms=None),
        OTHER: replace(an_assignment(), terms=None),
    }
    assert keep_last_entries(read, before) == {
        "gone": an_assignment(), TRAINER: an_assignment("GPU-b"), OTHER: read[OTHER],
    }  # fmt: skip
    cap = {TRAINER: an_assignment(terms=cap_terms(cap_mib=3000))}
    assert keep_last_entries(cap, before) == before | cap


def test_of_pods_that_a_malformed_list_does_not_name_the_newest_are_kept():
    before = {str(number): an_assignment() for number in range(2 * MOST_KEPT)}
    kept = keep_last_entries({"0": an_assignment()}, before)
    assert list(kept) == [*map(str, range(MOST_KEPT, 2 * MOST_KEPT)), "0"]


def test_a_line_that_says_something_else_now_counts_at_once():
    judge = ListedJudge()
    judge.on_list({TRAINER: an_assignment()})
    judge.judge(a_scan(held(50, 900)), 0.0)
    judge.on_list({TRAINER: an_assignment(terms=cap_terms(cap_mib=500))})
    assert (judge.thresholds["GPU-a"], judge.judge(a_scan(held(50, 900)), 1.0)) == (520 * 2**20, [])
    assert judge.active == {TRAINER}
    judge.on_list({TRAINER: an_assignment(terms=cap_terms(enforce=False))})
    assert judge.capped == {}


def test_while_the_driver_gives_no_answer_nothing_is_judged_and_nothing_forgotten():
    judge = ListedJudge()
    judge.on_list({TRAINER: an_assignment()})
    for second in range(8):
        judge.judge(a_scan(held(50, 5000)), float(second))
    broken = ProcessScan(failed="the driver is down", fault=Fault.DRIVER_DOWN)
    assert [judge.judge(broken, 8.0 + second) for second in range(3)] == [[], [], []]
    assert judge.active == {TRAINER}
    actions = [judge.judge(a_scan(held(50, 5000)), 10.0 + second) for second in range(3)]
    assert [bool(done) for done in actions] == [False, False, True]


def test_lists_are_wanted_of_gpus_whose_pods_may_be_over():
    judge = ListedJudge()
    lines = {
        TRAINER: an_assignment(),
        OTHER: an_assignment("GPU-a", "GPU-b", terms=cap_terms(cap_mib=3000)),
        "reported": an_assignment("GPU-b", terms=cap_terms(cap_mib=1, enforce=False)),
    }
    judge.on_list(lines)
    assert judge.thresholds == {"GPU-a": 1020 * 2**20, "GPU-b": 3020 * 2**20}
    judge.judge(a_scan(held(60, 5000, OTHER)), 0.0)
    assert judge.thresholds == {"GPU-a": -1, "GPU-b": -1}


HELD = st.builds(
    lambda pid, mib, pod, dead: held(pid, mib, pod, dead=dead),
    st.integers(50, 54),
    st.none() | st.integers(0, 3000),
    st.sampled_from([TRAINER, OTHER, "", None]),
    st.booleans(),
)
LOOKS = st.builds(
    lambda on_a, on_b, failed: a_scan(*on_a, failed=failed, b=tuple(on_b)),
    st.lists(HELD, max_size=4),
    st.lists(HELD, max_size=2),
    st.sampled_from(["", "", "GPU-b fell off the bus"]),
)


def signals(script, lines):
    for _, actions in played(script, lines):
        for uid, action in actions:
            if isinstance(action, Terminate | Kill | EndPod):
                yield uid, action


@given(st.lists(LOOKS, max_size=60))
def test_only_a_pods_own_living_processes_are_stopped(script):
    lines = {TRAINER: an_assignment("*"), OTHER: an_assignment("*")}
    for number, (_, actions) in enumerate(played(script, lines, every_s=2.0)):
        there = {
            (item.owner.place.pod, item.owner.process)
            for listed in script[number].lists.values()
            for item in listed
            if item.owner
        }
        gone = {
            item.owner.process.pid
            for listed in script[number].lists.values()
            for item in listed
            if item.owner and item.dead
        }
        for uid, action in actions:
            assert uid in lines
            if isinstance(action, Terminate | Kill):
                assert (uid, action.process) in there
                assert action.process.pid not in gone


@given(st.lists(LOOKS, max_size=60), st.booleans())
def test_a_pod_that_may_not_be_stopped_never_is(script, known):
    lines = {TRAINER: an_assignment("*", terms=cap_terms(enforce=False))}
    if not known:  # the terms are unreadable
        lines = {TRAINER: replace(an_assignment("*"), memory_bytes=1, terms=None)}
    assert list(signals(script, lines)) == []


@given(st.lists(LOOKS, max_size=60))
def test_a_pod_that_is_not_on_the_list_is_never_stopped(script):
    assert list(signals(script, {})) == []


UNKNOWN = st.builds(lambda pid: held(pid, None), st.integers(50, 54))


@given(st.lists(st.lists(UNKNOWN, max_size=4).map(lambda listed: a_scan(*listed)), max_size=60))
def test_what_has_no_figure_never_leads_to_a_signal(script):
    assert list(signals(script, {TRAINER: an_assignment()})) == []


@given(
    st.lists(
        st.tuples(
            st.integers(1, 13),  # half seconds over: a sidecar stops it within late_s, 6.5 s
            st.integers(CAP_MIB + 21, 80_000),
            st.integers(14, 60),  # then the pod is within its cap for at least as long
            st.integers(0, CAP_MIB),
        ),
        max_size=6,
    )
)
def test_an_excess_that_its_sidecar_ends_in_its_time_never_leads_to_a_signal(history):
    script = []
    for over, mib, within, rest in history:
        script += [a_scan(held(50, mib))] * over
        script += [a_scan(*([held(51, rest)] if rest else []))] * within
    assert list(signals(script, {TRAINER: an_assignment()})) == []


SMALL = st.builds(
    lambda pid, mib, dead: held(pid, mib, dead=dead),
    st.integers(50, 54),
    st.none() | st.integers(0, 200),
    st.booleans(),
)


@given(
    st.lists(st.lists(SMALL, max_size=4).map(lambda listed: a_scan(*listed)), max_size=20),
    st.integers(CAP_MIB + 21, 80_000),
)
def test_an_excess_that_lasts_is_ended_in_fifteen_seconds_whatever_was_listed_before(before, mib):
    found = [
        now_s
        for now_s, _, who in stops(
            [*before, *[a_scan(held(70, mib))] * 31], {TRAINER: an_assignment()}
        )
        if who == 70
    ]
    assert found
    assert found[0] - len(before) * 0.5 <= 15.0
