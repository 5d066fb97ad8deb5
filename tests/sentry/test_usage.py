"""Unmanaged memory, and when none is reported."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.sentry.fakes import MIB, OTHER, TRAINER, a_scan, an_assignment, cap_terms, held
from webhook.core.placement.assignments import Assignment
from webhook.sentry.assignments import NodeAssignments
from webhook.sentry.scanner import ProcessScan
from webhook.sentry.usage import OLD_LIST_S, UsageTracker, describe_unmanaged

FOREVER = -1e9


def listed(lines=(), followed_since_s=FOREVER):
    return NodeAssignments(listed=dict(lines), followed_since_s=followed_since_s)


def found(scan, lines, now_s=100.0, first_s=0.0, followed_since_s=FOREVER):
    tracker, assignments = UsageTracker(), listed(lines, followed_since_s)
    tracker.update(scan, assignments, first_s)
    unmanaged = tracker.update(scan, assignments, now_s).unmanaged
    return {
        (gpu.uuid, pod): item // MIB
        for gpu, held in unmanaged.items()
        for pod, item in held.items()
    }


def test_the_table_of_the_docstring():
    scan = a_scan(
        held(50, 100), held(51, 30), held(60, 200, OTHER), held(70, 300, ""), held(71, 400, None),
        b=(held(50, 500),),
    )  # fmt: skip
    assert found(scan, {TRAINER: an_assignment()}) == {
        ("GPU-a", OTHER): 200,
        ("GPU-a", ""): 700,
        ("GPU-b", TRAINER): 500,
    }


def test_a_line_of_any_release_and_kind_manages():
    scan = a_scan(held(50, 100), b=(held(50, 100),))
    old = Assignment(pod="team/train", uuids=("*",), memory_bytes=1, since_s=1)
    for line in (old, an_assignment("*"), an_assignment("*", terms=cap_terms(enforce=False))):
        assert found(scan, {TRAINER: line}) == {}


def test_a_pod_is_not_called_unmanaged_in_its_first_minute():
    scan = a_scan(held(60, 200, OTHER))
    assert found(scan, {}, now_s=59.9) == {}
    assert found(scan, {}, now_s=60.0) == {("GPU-a", OTHER): 200}


def test_nor_in_the_first_minute_of_a_list_that_is_followed_again():
    scan = a_scan(held(60, 200, OTHER))
    assert found(scan, {}, now_s=200.0, followed_since_s=141.0) == {}
    assert found(scan, {}, now_s=200.0, followed_since_s=140.0) == {("GPU-a", OTHER): 200}


def test_while_the_list_cannot_be_followed_nothing_is_said():
    assert found(a_scan(held(70, 300, "")), {}, followed_since_s=None) == {}


def test_what_has_no_figure_adds_nothing():
    assert found(a_scan(held(60, None, OTHER), held(70, None, "")), {}) == {}


def test_where_gpus_are_not_shared_no_memory_is_unmanaged():
    scan = a_scan(held(70, 300, ""))
    assert UsageTracker().update(scan, listed(), 100.0, shared=False).unmanaged == {}


def test_a_gpus_last_list_counts_until_the_next_and_not_where_it_is_gone():
    tracker = UsageTracker()
    tracker.update(a_scan(held(70, 300, "")), listed(), 0.0)
    usage = tracker.update(ProcessScan(gpus=a_scan().gpus), listed(), 1.0)
    assert list(usage.unmanaged.values()) == [{"": 300 * MIB}]
    usage = tracker.update(ProcessScan(), listed(), 2.0)
    assert (usage.unmanaged, tracker.has_processes()) == ({}, False)


def test_a_list_that_could_not_be_read_again_for_long_says_nothing_of_now():
    tracker, scan = UsageTracker(), a_scan(held(70, 300, ""))
    tracker.update(scan, listed(), 0.0)
    unlisted = ProcessScan(gpus=scan.gpus)
    usage = tracker.update(unlisted, listed(), OLD_LIST_S - 1)
    assert (len(usage.unmanaged), tracker.has_processes()) == (1, True)
    usage = tracker.update(unlisted, listed(), OLD_LIST_S)
    assert (usage.unmanaged, tracker.has_processes()) == ({}, False)


def test_it_is_said_who_holds_how_much_where():
    tracker, assignments = UsageTracker(), listed({TRAINER: an_assignment()})
    scan = a_scan(b=(held(50, 500), held(60, 200, OTHER), held(70, 300, "")))
    tracker.update(scan, assignments, 0.0)
    where, others = "Mi on GPU 1 (GPU-b) are held by", "it can push others out"
    unmanaged = tracker.update(scan, assignments, 60.0).unmanaged
    assert [
        describe_unmanaged(gpu, pod, held, listed=pod in assignments.listed)
        for gpu, pods in unmanaged.items()
        for pod, held in pods.items()
    ] == [
        f"300{where} processes of no pod; they can push pods out of memory",
        f"500{where} pod uid {TRAINER}, which was given other GPUs; {others}",
        f"200{where} pod uid {OTHER}, which was promised none; {others}",
    ]


@given(
    st.lists(st.sampled_from([TRAINER, OTHER]), max_size=4),
    st.lists(st.tuples(st.integers(50, 60), st.integers(1, 900)), max_size=5),
)
def test_a_managed_pod_on_its_own_gpus_is_never_unmanaged(managed, processes):
    scan = a_scan(*(held(pid, mib) for pid, mib in processes))
    lines = {uid: an_assignment() for uid in managed} | {TRAINER: an_assignment()}
    assert found(scan, lines) == {}
