from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.support.assignments import NODE, NOW_S, TWO, Plan, entry, plan, pod
from tests.support.gpus import a_gpu
from tests.support.pods import a_container, a_pod
from webhook.core.placement import assignments
from webhook.core.placement.assignments import (
    RENEW_S,
    Assignment,
    free_bytes_by_gpu,
    plan_assignments,
    promised_bytes,
)
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.placement.fit import RETRIES, Denial, deny_unknown_gpus
from webhook.core.placement.pod_state import read_pod_state
from webhook.core.pod.quantity import MIB

HOLD = CapTerms(cap_bytes=300 * MIB, tolerance_bytes=6 * MIB, delay_s=6.5, enforce=True)


def planned(assignments, pods, one, gpus=TWO, **more):
    return plan(
        NODE,
        gpus,
        assignments,
        {found_pod.uid: found_pod for found_pod in pods},
        one,
        NOW_S,
        **more,
    )


def test_a_pod_that_is_not_entered_gets_gpus_and_is_entered():
    new = pod("new", 300)
    result = planned({"old": entry("a", mib=600)}, [new], new)
    assert result == Plan(
        uuids=("GPU-a",),
        assignments={
            "old": entry("a", mib=600),
            "new": Assignment(
                pod="ns/new", uuids=("GPU-a",), memory_bytes=300 * MIB, since_s=10_000
            ),
        },
        changed=True,
    )


@pytest.mark.parametrize("gpu", ["b", "*"])
@pytest.mark.parametrize(
    ("age_s", "renewed"), [(0, False), (RENEW_S, False), (RENEW_S + 1, True), (-50, False)]
)
def test_a_binding_that_comes_twice_gets_the_same_gpus(gpu, age_s, renewed):
    again = pod("u", 300, at_binding=gpu != "*")
    before = entry(gpu, mib=300, since_s=int(NOW_S - age_s))
    result = planned({"u": before}, [again], again)
    after = replace(before, since_s=int(NOW_S)) if renewed else before
    assert result == Plan(before.uuids, {"u": after}, changed=renewed)


def test_a_pod_keeps_its_gpu_that_is_not_healthy_now_and_nobody_joins_it():
    failing = [replace(TWO[0], healthy=False), TWO[1]]
    again, new = pod("u", 300), pod("new", 600)
    entered = {"u": entry("a", mib=300)}
    assert planned(entered, [again], again, gpus=failing) == Plan(("GPU-a",), entered, False)
    assert planned(entered, [new], new, gpus=failing).uuids == ("GPU-b",)
    assert planned(entered, [new], new).uuids == ("GPU-a",)


OVERFULL = {"u": entry("a", mib=900), "v": entry("a", mib=900)}
GIVEN = {
    "several": ({}, pod("u", 300, 2), "ab"),
    "the same, although overfull by now": (OVERFULL, pod("u", 900), "a"),
    "another, where its own left": ({"u": entry("x", mib=300)}, pod("u", 300), "a"),
    "others, where one of them left": ({"u": entry("a", "x")}, pod("u", 300, 2), "ab"),
    "what its own entry fills": ({"u": entry("a", "x", mib=900)}, pod("u", 900, 2), "ab"),
    "what it has and is not entered": ({}, pod("u", 800, node=NODE, gpus="a"), "a"),
    "what it is entered with as with all": ({"u": entry("*", mib=800)}, pod("u", 800), "a"),
}


@pytest.mark.parametrize(("entered", "one", "gpus"), GIVEN.values(), ids=GIVEN)
def test_a_pod_is_entered_with_the_gpus_that_it_gets(entered, one, gpus):
    result = planned(entered, [one], one)
    assert result.uuids == result.assignments["u"].uuids == tuple(f"GPU-{name}" for name in gpus)
    assert result.changed == (entered != result.assignments)
    assert result.assignments["u"].memory_bytes == one.need.memory_bytes


def test_what_a_pod_took_that_saw_all_gpus_does_not_stand_in_its_way():
    known = pod("u", 800, node=NODE, at_binding=False)
    assert planned({}, [known], replace(known, at_binding=True)).uuids == ("GPU-a",)


@pytest.mark.parametrize("full", [True, False])
def test_a_pod_that_sees_all_gpus_is_entered_with_all_and_never_denied(full):
    new = pod("new", 300, 2, at_binding=False, terms=HOLD)
    entered = {"old": entry("a", mib=900)} if full else {}
    expected = entered | {
        "new": Assignment(
            pod="ns/new", uuids=("*",), memory_bytes=300 * MIB, since_s=10_000, terms=HOLD, count=2
        )
    }
    for gpus in (TWO, []):
        assert planned(entered, [new], new, gpus=gpus) == Plan(("*",), expected, True)


def test_what_a_pod_takes_that_sees_all_gpus_is_not_free_on_any():
    seeing, after = pod("seeing", 700, at_binding=False), pod("after", 400)
    draft = plan_assignments(NODE, TWO, {}, {}, [seeing, after], NOW_S)
    assert isinstance(draft.results[1], Denial)
    assert list(draft.assignments) == ["seeing"]
    assert isinstance(planned(draft.assignments, [], after), Denial)


def test_entries_whose_terms_could_not_be_read_take_them_from_their_pods():
    old, new = pod("old", 300, node=NODE, terms=HOLD), pod("new", 300, terms=HOLD)
    entered = {"old": entry("a"), "else": entry("a")}
    result = planned(entered, [old, new], new)
    assert {uid: assignment.terms for uid, assignment in result.assignments.items()} == {
        "old": HOLD,
        "else": None,
        "new": HOLD,
    }
    again = planned({"old": entry("a"), "new": entry("b")}, [old], replace(new, terms=None))
    assert again.changed


def test_a_pod_that_sees_all_gpus_is_promised_its_amount_for_each_gpu_of_its_request():
    seeing = pod("seeing", 1, 99, at_binding=False)
    entered = planned({}, [], seeing).assignments
    assert entered["seeing"].count == 64
    assert promised_bytes(entered | {"two": entry("a", "b")}) == (64 + 200) * MIB


def test_who_is_planned_after_another_gets_what_that_one_left():
    has = pod("has", 800, node=NODE, gpus="a")  # it is bound but has no entry
    wanted = [pod("one", 300), has, pod("two", 900), pod("three", 700), pod("four", 200)]
    draft = plan_assignments(NODE, TWO, {}, {"has": has}, wanted, NOW_S)
    got = [None if isinstance(result, Denial) else result for result in draft.results]
    assert got == [("GPU-b",), ("GPU-a",), None, ("GPU-b",), ("GPU-a",)]
    assert list(draft.assignments) == ["one", "has", "three", "four"]


def test_the_list_and_the_pods_are_gone_through_once_however_many_are_planned(monkeypatch):
    visited = Counter()

    def counted(name):
        real = getattr(assignments, name)

        def call(*arguments):
            visited[name] += 1
            return real(*arguments)

        monkeypatch.setattr(assignments, name, call)

    for name in ("may_use_gpus", "_usage_without_entry", "free_bytes"):
        counted(name)
    entered = {f"in{number}": entry("a", mib=1) for number in range(40)}
    beside = {f"out{number}": pod(f"out{number}", 1, node=NODE, gpus="b") for number in range(30)}
    wanted = [pod(f"new{number}", 1) for number in range(50)]
    assert plan_assignments(NODE, TWO, entered, beside, wanted, NOW_S).changed
    assert visited == {"may_use_gpus": 40, "_usage_without_entry": 30, "free_bytes": 1}


def test_a_pod_that_does_not_fit_is_denied_and_names_the_largest_free_amount():
    new = pod("new", 500)
    entered = {"one": entry("a", mib=600), "two": entry("b", mib=700)}
    result = planned(entered, [new], new)
    assert isinstance(result, Denial)
    assert result.sentence.startswith("no GPU of node n1 has 500Mi free, which this pod needs")
    assert "400Mi, on GPU 0 (GPU-a)" in result.sentence
    assert planned({}, [new], new, gpus=[]) == deny_unknown_gpus(NODE)


def test_on_a_held_node_nobody_gets_another_gpu_than_before():
    def on_closed(entered, one):
        return planned(entered, [one], one, closed_reason="a device plugin offers its GPUs")

    why = "node n1 gives no GPU to further pods now: a device plugin offers its GPUs" + RETRIES
    new, seeing = pod("u", 300), pod("u", 300, at_binding=False)
    entered = {"u": entry("a", mib=300)}
    assert on_closed(entered, new) == Plan(("GPU-a",), entered, False)
    assert on_closed({}, seeing).uuids == ("*",)
    for before in ({}, {"u": entry("x", mib=300)}):
        assert on_closed(before, new) == Denial(why)
    assert on_closed({}, pod("u", 300, node=NODE, gpus="a")) == Denial(why)


@pytest.mark.parametrize(
    ("leaving", "stays"),
    [
        (pod("old", finished=True, node=NODE), False),
        (pod("old", finished=True), False),
        (pod("old", gone=True, node=NODE), True),  # until the API server also reports it as deleted
        (pod("old", node="n2"), False),
        (pod("old", node=NODE), True),
        (pod("old"), True),  # not bound, but may be bound at any moment
        (None, True),  # unknown: the watch may lag behind
    ],
)
def test_pods_that_are_finished_or_elsewhere_make_room(leaving, stays):
    new = pod("new", 1000, 2)
    known = [new] if leaving is None else [new, leaving]
    result = planned({"old": entry("a")}, known, new)
    if stays:
        assert isinstance(result, Denial)
    else:
        assert list(result.assignments) == ["new"]


def test_their_leaving_is_a_change_although_the_pod_itself_is_entered():
    again = pod("u")
    done = pod("old", finished=True, node=NODE)
    entered = {"old": entry("a"), "u": entry("b")}
    assert planned(entered, [again, done], again) == Plan(("GPU-b",), {"u": entry("b")}, True)


@pytest.mark.parametrize("leaving", [True, False])
def test_a_pod_without_a_demand_gets_nothing(leaving):
    new = pod("new", None)
    done = pod("old", finished=leaving, node=NODE)
    result = planned({"old": entry("a")}, [new, done], new)
    assert result == Plan((), {} if leaving else {"old": entry("a")}, changed=leaving)


def test_two_gpus_of_8gi_take_5_5_then_3_3_and_never_5_5_5():
    gpus, entered = [a_gpu("a", 8192), a_gpu("b", 8192, 1)], {}
    got = []
    for number, mib in enumerate([5120, 5120, 5120, 3072, 3072, 1]):
        one = pod(f"u{number}", mib)
        result = planned(entered, [one], one, gpus=gpus)
        got.append(result.uuids if isinstance(result, Plan) else None)
        entered = result.assignments if isinstance(result, Plan) else entered
    assert got == [("GPU-a",), ("GPU-b",), None, ("GPU-a",), ("GPU-b",), None]


@pytest.mark.parametrize(
    ("known", "free"),
    [
        (pod("p", 300, node=NODE, gpus="a"), (700, 1000)),  # bound without the webhook
        (pod("p", 300, 2, node=NODE, gpus="ab"), (700, 700)),
        (pod("p", 300, node=NODE, gpus="ab"), (850, 850)),  # the amount is for all GPUs together
        (pod("p", 100, node=NODE, gpus="abx"), (966, 966)),  # rounded up to MiB
        (pod("p", 300, 2, node=NODE, gpus="a"), (700, 1000)),
        (pod("p", 300, node=NODE, at_binding=False), (700, 700)),  # the pod sees all GPUs
        (pod("p", 300, node=NODE, gpus="a", at_binding=False), (700, 700)),
        (pod("p", 300, node=NODE), (1000, 1000)),  # bound, but its GPU is unknown
        (pod("p", 300, node=NODE, gpus="x"), (1000, 1000)),
        (pod("p", 300, node="n2", gpus="a"), (1000, 1000)),
        (pod("p", 300, gpus="a"), (1000, 1000)),
        (pod("p", 300, node=NODE, gpus="a", finished=True), (1000, 1000)),
        (pod("p", 300, node=NODE, gpus="a", gone=True), (1000, 1000)),
        (pod("p", None, node=NODE, gpus="a"), (1000, 1000)),
        (pod("in", 300, node=NODE, gpus="b"), (900, 1000)),  # has an entry: only the entry counts
    ],
)
def test_what_is_free_counts_pods_that_are_not_entered(known, free):
    entered = {"in": entry("a")} if known.uid == "in" else {}
    found = free_bytes_by_gpu(NODE, TWO, entered, {known.uid: known})
    assert found == {"GPU-a": free[0] * MIB, "GPU-b": free[1] * MIB}


def test_an_entry_counts_whether_its_pod_is_known_or_not():
    assert free_bytes_by_gpu(NODE, TWO, {"u": entry("a", "b")}, {}) == {
        "GPU-a": 900 * MIB,
        "GPU-b": 900 * MIB,
    }


def test_a_pod_whose_demand_cannot_be_read_takes_what_its_kubelet_admitted():
    amounts = {"requests": {"vramwarden.io/vram": "300Mi"}}
    raw = a_pod("8GB", containers=[a_container(resources=amounts)], nodeName=NODE)
    raw["metadata"]["uid"] = "u"
    state = read_pod_state(raw)
    assert state.unreadable
    free = free_bytes_by_gpu(NODE, TWO, {}, {"u": state})
    assert free == {"GPU-a": 700 * MIB, "GPU-b": 700 * MIB}
