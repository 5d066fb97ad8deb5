"""Which entries of the list join, are asked for, stay and leave: every row of the tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.assignments import NODE, NOW_S, entry, pod
from webhook.core.placement.assignments import (
    UNBOUND_S,
    Assignment,
    adopt,
    complete,
    settle,
    to_adopt,
    to_ask,
)
from webhook.core.placement.pods import CapTerms
from webhook.core.pod.gpus import EVERY_GPU
from webhook.core.pod.quantity import MIB
from webhook.core.policy.values import DriverLimit

HOLD, OTHER = (
    CapTerms(cap_bytes=300 * MIB, tolerance_bytes=6 * MIB, delay_s=6.5, enforce=True),
    CapTerms(cap_bytes=1, tolerance_bytes=0, delay_s=0.0, enforce=False),
)


@pytest.mark.parametrize(
    ("known", "adopted"),
    [
        (pod("p", 300, node=NODE, gpus="b"), "b"),
        (pod("p", 600, node=NODE, gpus="ab"), "ab"),  # once in all
        (pod("p", 300, node=NODE), ""),
        (pod("p", 300, node=NODE, gpus="b", gone=True), ""),
        (pod("p", None, node=NODE, gpus="b"), ""),
        (pod("p", 300, node=NODE, gpus="b", finished=True), ""),
        (pod("p", 300, node="n2", gpus="b"), ""),
        (pod("p", 300, gpus="b"), ""),
    ],
)
def test_pods_that_have_gpus_here_are_entered_where_the_list_was_lost(known, adopted):
    expected = {"p": entry(*adopted, mib=300, since_s=77)} if adopted else {}
    assert adopt(NODE, {}, [known], 77.9) == expected


@pytest.mark.parametrize("gpus", ["", "b"])
def test_a_pod_that_sees_all_gpus_is_adopted_with_all_whatever_it_names(gpus):
    known = pod("p", 300, node=NODE, gpus=gpus, at_binding=False, terms=HOLD)
    assert adopt(NODE, {}, [known], 77.9) == {
        "p": Assignment(
            pod="ns/p", uuids=(EVERY_GPU,), memory_bytes=300 * MIB, since_s=77, terms=HOLD
        )
    }


def test_what_is_entered_already_is_not_changed_by_adopting():
    known = pod("p", 300, node=NODE, gpus="b", terms=HOLD)
    entered = {"p": entry("a", since_s=1, terms=OTHER), "q": entry("b")}
    assert adopt(NODE, entered, [known], NOW_S) == entered


def test_entries_without_readable_terms_take_those_of_their_pods():
    pods = [pod("p", 300, node=NODE, gpus="b", terms=HOLD), pod("q", 300, node=NODE, gpus="b")]
    old = {"p": entry("a", since_s=1), "q": entry("b"), "unknown": entry("b")}
    new = old | {"p": entry("a", since_s=1, terms=HOLD)}
    known = {one.uid: one for one in pods}
    assert complete(old, known) == adopt(NODE, old, pods, NOW_S) == new
    assert complete(new, known) is new


@pytest.mark.parametrize("promised", DriverLimit)
@pytest.mark.parametrize("entered", DriverLimit)
@pytest.mark.parametrize("gpus", ["b", ""])
def test_an_entry_has_the_limit_of_its_pod_once_that_has_its_gpus(entered, promised, gpus):
    """Two bindings of one pod may see two states of its node, and the pod keeps the first."""
    known = {"p": pod("p", 300, node=NODE, gpus=gpus, terms=replace(OTHER, limit=promised))}
    old = {"p": entry("a", since_s=1, terms=replace(HOLD, limit=entered))}
    new = complete(old, known)
    limit = promised if gpus else entered
    assert new == {"p": entry("a", since_s=1, terms=replace(HOLD, limit=limit))}
    assert complete(new, known) is new


@pytest.mark.parametrize(
    ("known", "is_found"),
    [
        (pod("p", 300, node=NODE, gpus="b"), True),
        (pod("p", 300, node=NODE, at_binding=False), True),
        (pod("p", 300, node=NODE), False),  # it waits
        (pod("p", None, node=NODE, gpus="b"), False),
        (pod("p", 300, node=NODE, gpus="b", finished=True), False),
        (pod("p", 300, node=NODE, gpus="b", gone=True), False),
        (pod("p", 300, node="n2", at_binding=False), False),
        (pod("p", 300, at_binding=False), False),
        (pod("in", 300, node=NODE, at_binding=False), False),
    ],
)
def test_pods_that_came_past_us_are_found(known, is_found):
    found = to_adopt(NODE, {"in": entry("*")}, {known.uid: known})
    assert found == ([known] if is_found else [])


YOUNG, OLD = int(NOW_S - UNBOUND_S), int(NOW_S - UNBOUND_S - 1)


@pytest.mark.parametrize(
    ("known", "since_s", "asked"),
    [
        (None, YOUNG, True),
        (None, OLD, True),
        (pod("u"), YOUNG, False),
        (pod("u"), OLD, True),
        (pod("u", node=NODE), OLD, False),
        (pod("u", node="n2"), OLD, False),
        (pod("u", node=NODE, finished=True), OLD, False),
        (pod("u", node=NODE, gone=True), YOUNG, True),
        (pod("u", gone=True), YOUNG, True),
        (pod("u", node=NODE, gone=True, finished=True), OLD, False),
    ],
)
def test_only_what_is_not_known_or_long_unbound_is_asked_for(known, since_s, asked):
    entered = {"u": entry("a", since_s=since_s), "fine": entry("a")}
    pods = {"fine": pod("fine", node=NODE)} | ({"u": known} if known else {})
    assert to_ask(entered, pods, NOW_S) == ({"u": entered["u"]} if asked else {})


NOT_ASKED = object()


@pytest.mark.parametrize(
    ("known", "answer", "since_s", "stays"),
    [
        # is bound here and not finished
        (pod("u", node=NODE), NOT_ASKED, OLD, True),
        (pod("u"), pod("u", node=NODE), OLD, True),
        (None, pod("u", node=NODE), OLD, True),
        # is finished, or bound elsewhere
        (pod("u", node=NODE, finished=True), NOT_ASKED, YOUNG, False),
        (pod("u", node="n2"), NOT_ASKED, YOUNG, False),
        (None, pod("u", node=NODE, finished=True), YOUNG, False),
        (pod("u", node=NODE), pod("u", node="n2"), YOUNG, False),
        # is gone, as the API server said; another may have its name
        (pod("u", node=NODE), None, YOUNG, False),
        (None, None, YOUNG, False),
        (None, pod("another", node=NODE), YOUNG, False),
        # is not bound, as the API server said, and the entry is older, or younger
        (pod("u"), pod("u"), OLD, False),
        (None, pod("u"), OLD, False),
        (pod("u"), pod("u"), YOUNG, True),
        (None, pod("u"), YOUNG, True),
        (pod("u", node=NODE), pod("u"), OLD, False),  # the answer counts, not the watch
        # is gone, as a watch said, and was asked for or not
        (pod("u", node=NODE, gone=True), None, YOUNG, False),
        (pod("u", node=NODE, gone=True), pod("u", node=NODE), OLD, True),
        (pod("u", node=NODE, gone=True), NOT_ASKED, OLD, True),
        # is not known, or not bound, and was not asked for
        (None, NOT_ASKED, OLD, True),
        (pod("u"), NOT_ASKED, OLD, True),
    ],
)
def test_an_entry_leaves_only_for_what_cannot_be_undone(known, answer, since_s, stays):
    entered = {"u": entry("a", since_s=since_s)}
    answers = {} if answer is NOT_ASKED else {"u": answer}
    left = settle(NODE, entered, {"u": known} if known else {}, answers, NOW_S)
    assert left == (entered if stays else {})
