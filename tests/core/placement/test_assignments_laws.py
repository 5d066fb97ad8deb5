"""Laws of assignment lists: no overcommitted GPU, no unplaced pod that fits, no lost entry.

A list has one writer at a time, whose view of the pods may be outdated. `resourceVersion` resolves
conflicts between writers.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.support.assignments import NODE, Plan, plan, pod
from tests.support.gpus import a_gpu
from tests.support.strategies import ANY_JSON
from webhook.core.placement.assignment_codec import read_assignments, write_assignments
from webhook.core.placement.assignments import (
    Assignment,
    AssignmentPlan,
    complete_terms,
    free_bytes_by_gpu,
    plan_assignments,
    rebuild_from_pods,
)
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.placement.garbage import UNBOUND_S, entries_to_verify, prune
from webhook.core.pod.gpus import EVERY_GPU
from webhook.core.policy.model import DriverLimit, EnforceBy

GPUS = [a_gpu("a", 100), a_gpu("b", 60, 1), a_gpu("c", 100, 2)]
UUIDS = st.lists(st.sampled_from("abcx"), min_size=1, unique=True).map(
    lambda names: tuple(f"GPU-{name}" for name in names)
)
HOLDS = st.builds(
    CapTerms,
    by=st.sampled_from(EnforceBy),
    grace_s=st.floats(0, 3_600),
    cap_bytes=st.integers(1, 2**63 - 1),
    tolerance_bytes=st.integers(0, 2**63 - 1),
    delay_s=st.floats(0, 86_400),
    enforce=st.booleans(),
    limit=st.sampled_from(DriverLimit),
).filter(lambda terms: not terms.enforce or terms.by is not EnforceBy.NONE)
PODS = st.builds(
    pod,
    uid=st.sampled_from("uvwxyz"),
    mib=st.none() | st.integers(1, 110),
    count=st.integers(1, 4),
    node=st.sampled_from(["", NODE, "n2"]),
    gpus=st.sampled_from(["", "a", "bc", "x"]),
    finished=st.booleans(),
    gone=st.booleans(),
    at_binding=st.booleans(),
    terms=st.none() | HOLDS,
)
BINDABLE = PODS.filter(lambda item: item.need and not item.finished and item.node != "n2")
KNOWN = st.lists(PODS, max_size=5, unique_by=lambda found_pod: found_pod.uid).map(
    lambda pods: {found_pod.uid: found_pod for found_pod in pods}
)
ENTRIES = st.builds(
    Assignment,
    pod=st.from_regex("[^/]{1,3}/[^/]{1,3}", fullmatch=True),
    uuids=UUIDS | st.lists(st.text(), min_size=1, max_size=3).map(tuple),
    memory_bytes=st.integers(1, 2**63 - 1),
    since_s=st.integers(0, 2**53),
    terms=st.none() | HOLDS,
)
ENTRIES |= ENTRIES.flatmap(
    lambda item: st.integers(1, 64).map(lambda n: replace(item, uuids=(EVERY_GPU,), count=n))
)
LISTS = st.dictionaries(st.sampled_from("uvwxyz") | st.text(), ENTRIES, max_size=5)
TIMES = st.floats(0, 1e9)


@given(LISTS)
def test_what_is_written_is_read(entered):
    is_whole = all(item.terms for item in entered.values())
    assert read_assignments(write_assignments(entered)) == (entered, is_whole)


@given(LISTS, st.text(), st.integers(0, 4))
def test_what_somebody_writes_into_the_list_hides_no_entry(entered, noise, line):
    (text,) = write_assignments(entered).values()
    lines = text.splitlines()
    lines.insert(line, noise.replace("\n", ""))
    read, _ = read_assignments({"assignments": "\n".join(lines)})
    assert read == entered


@given(ANY_JSON | st.dictionaries(st.just("assignments"), ANY_JSON | st.text()))
def test_nothing_that_is_read_is_an_accident(data):
    read, _ = read_assignments(data)
    assert all(item.memory_bytes > 0 and item.uuids for item in read.values())


@given(LISTS, KNOWN, BINDABLE, TIMES)
def test_gpus_that_are_given_have_room_after_all_that_is_known(entered, pods, one, now_s):
    pods = pods | {one.uid: one}
    result = plan(NODE, GPUS, entered, pods, one, now_s)
    if isinstance(result, Plan) and one.uid not in entered and one.at_binding:
        free = free_bytes_by_gpu(NODE, GPUS, result.assignments, pods)
        assert all(free[uuid] >= 0 for uuid in result.uuids)
        assert result.assignments[one.uid].memory_bytes == one.need.memory_bytes
        assert len(set(result.uuids)) == one.need.gpu_count


@given(LISTS, KNOWN, BINDABLE, TIMES)
def test_a_binding_that_comes_again_changes_nothing(entered, pods, one, now_s):
    pods = pods | {one.uid: one}
    result = plan(NODE, GPUS, entered, pods, one, now_s)
    if isinstance(result, Plan) and one.uid in result.assignments:
        again = plan(NODE, GPUS, result.assignments, pods, one, now_s)
        assert again == replace(result, changed=False)


@given(LISTS, KNOWN, BINDABLE, TIMES)
def test_it_is_told_exactly_when_the_list_has_changed(entered, pods, one, now_s):
    result = plan(NODE, GPUS, entered, pods, one, now_s)
    if isinstance(result, Plan):
        assert result.changed == (result.assignments != entered)


@given(LISTS, KNOWN, BINDABLE, TIMES, st.booleans())
def test_an_entry_has_the_limit_that_is_written_with_its_gpus(entered, pods, one, now_s, limits):
    pods = pods | {one.uid: one}
    result = plan(NODE, GPUS, entered, pods, one, now_s, driver_limits=limits)
    if isinstance(result, Plan) and (terms := result.assignments[one.uid].terms):
        before = entered.get(one.uid)
        limit = one.limit_on(driver_limits=limits)
        assert limit is (one.limit if limits or one.uuids else DriverLimit.OFF)
        entered_with = before.terms.limit if before and before.terms else DriverLimit.OFF
        assert terms.limit is limit or (before and terms.limit is entered_with)


@given(LISTS, KNOWN, st.lists(BINDABLE, max_size=5, unique_by=lambda item: item.uid), TIMES)
def test_planning_many_is_planning_each_on_what_the_one_before_left(entered, pods, wanted, now_s):
    uids = {item.uid for item in wanted}
    pods = {uid: found_pod for uid, found_pod in pods.items() if uid not in uids}
    pods |= {item.uid: item for item in wanted[::2]}  # the watch has not reported the other pods
    results, assignments, changed = [], entered, False
    for item in wanted:
        made = plan(NODE, GPUS, assignments, pods, item, now_s)
        results.append(made)
        if isinstance(made, Plan):
            results[-1], assignments = made.uuids, made.assignments
            changed = changed or made.changed
    found = plan_assignments(NODE, GPUS, entered, pods, wanted, now_s)
    assert found == AssignmentPlan(assignments, tuple(results), changed)


@given(LISTS, KNOWN, TIMES)
def test_adopting_loses_nothing_and_comes_to_an_end(entered, pods, now_s):
    adopted = rebuild_from_pods(NODE, entered, pods.values(), now_s)
    assert {uid: adopted[uid] for uid in entered} == complete_terms(entered, pods)
    assert rebuild_from_pods(NODE, adopted, pods.values(), now_s + 99) == adopted
    assert all(pods[uid].node == NODE for uid in adopted.keys() - entered)


@given(LISTS, KNOWN, BINDABLE, TIMES)
def test_who_sees_all_gpus_is_never_denied(entered, pods, one, now_s):
    one = replace(one, at_binding=False)
    result = plan(NODE, GPUS, entered, pods, one, now_s)
    assert result.uuids == result.assignments[one.uid].uuids == (EVERY_GPU,)


@given(LISTS, KNOWN)
def test_completing_changes_nothing_that_is_said_and_comes_to_an_end(entered, pods):
    found = complete_terms(entered, pods)
    assert {uid: replace(item, terms=entered[uid].terms) for uid, item in found.items()} == entered
    assert complete_terms(found, pods) is found
    for uid, item in found.items():
        known = pods[uid].terms if uid in pods else None
        terms = entered[uid].terms or known
        if terms and uid in pods and (pods[uid].uuids or entered[uid].terms is None):
            limit = pods[uid].limit if pods[uid].uuids else DriverLimit.OFF
            terms = replace(terms, limit=limit)
        assert item.terms == terms


@given(LISTS, KNOWN, KNOWN, TIMES)
def test_settling_adds_and_changes_nothing_and_comes_to_an_end(entered, pods, answers, now_s):
    left = prune(NODE, entered, pods, answers, now_s)
    assert left.items() <= entered.items()
    assert prune(NODE, left, pods, answers, now_s) == left


@given(LISTS, KNOWN, TIMES)
def test_what_is_not_asked_for_leaves_only_if_it_is_finished_or_elsewhere(entered, pods, now_s):
    left = prune(NODE, entered, pods, {}, now_s)
    assert all(pods[uid].finished or pods[uid].node == "n2" for uid in entered.keys() - left)


class OneNode(RuleBasedStateMachine):
    """Pods are created, bound here or elsewhere, finish and are deleted. The watch may lag."""

    uids = Bundle("uids")

    def __init__(self):
        super().__init__()
        self.truth, self.view, self.entered = {}, {}, {}
        self.gpus = list(GPUS)
        self.now_s = 0.0

    @rule(target=uids, mib=st.integers(1, 110), count=st.integers(1, 3))
    def create(self, mib, count):
        uid = f"u{self.now_s}"
        self.now_s += 1
        self.truth[uid] = pod(uid, mib, count)
        return uid

    @rule(uid=uids, arrives=st.booleans())
    def bind(self, uid, arrives):
        one = self.truth.get(uid)
        if one is None or one.node or one.finished:
            return
        result = plan(NODE, self.gpus, self.entered, self.view | {uid: one}, one, self.now_s)
        if isinstance(result, Plan):
            healthy = {gpu.uuid for gpu in self.gpus if gpu.healthy}
            assert uid in self.entered or healthy.issuperset(result.uuids)
            self.entered = result.assignments
            if arrives:
                self.truth[uid] = replace(one, node=NODE, uuids=result.uuids)

    @rule(number=st.integers(0, 2), healthy=st.booleans())
    def fail_or_recover(self, number, healthy):
        """Toggle a GPU's health. An unhealthy GPU still counts, and gets no further pod."""
        self.gpus[number] = replace(self.gpus[number], healthy=healthy)

    @rule(uid=uids)
    def bind_elsewhere(self, uid):
        one = self.truth.get(uid)
        if one and not one.node:
            self.truth[uid] = replace(one, node="n2")

    @rule(uid=uids)
    def finish(self, uid):
        if uid in self.truth:
            self.truth[uid] = replace(self.truth[uid], finished=True)

    @rule(uid=consumes(uids))
    def delete(self, uid):
        self.truth.pop(uid, None)

    @rule(uid=uids)
    def observe(self, uid):
        if uid in self.truth:
            self.view[uid] = self.truth[uid]
        else:
            self.view.pop(uid, None)

    @rule(passed_s=st.sampled_from([1.0, UNBOUND_S + 1]))
    def prune(self, passed_s):
        self.now_s += passed_s
        asked = entries_to_verify(self.entered, self.view, self.now_s)
        answers = {uid: self.truth.get(uid) for uid in asked}
        self.entered = prune(NODE, self.entered, self.view, answers, self.now_s)

    @rule()
    def lose_the_list(self):
        """Empty the ConfigMap while no binding is in progress."""
        self.entered = rebuild_from_pods(NODE, {}, self.truth.values(), self.now_s)

    @invariant()
    def no_gpu_is_overcommitted(self):
        for gpu in GPUS:
            entered = [
                item.memory_bytes for item in self.entered.values() if gpu.uuid in item.uuids
            ]
            assert sum(entered) <= gpu.memory_bytes

    @invariant()
    def what_runs_is_entered(self):
        for uid, item in self.truth.items():
            if item.node == NODE and not item.finished:
                assert self.entered[uid].uuids == item.uuids
                assert self.entered[uid].memory_bytes == item.need.memory_bytes

    def teardown(self):
        """Check that pods that fit on an empty node are placed once all others are gone."""
        self.truth.clear()
        self.view.clear()
        answers = dict.fromkeys(entries_to_verify(self.entered, self.view, self.now_s))
        self.entered = prune(NODE, self.entered, self.view, answers, self.now_s)
        last = pod("last", 100, 2)
        result = plan(NODE, GPUS, self.entered, {}, last, self.now_s)
        assert isinstance(result, Plan)
        assert result.uuids == ("GPU-a", "GPU-c")
        assert list(result.assignments) == ["last"]


TestOneNode = OneNode.TestCase
TestOneNode.settings = settings(stateful_step_count=40)
