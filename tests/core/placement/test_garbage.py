"""Entries that are verified with the API server, and entries that are removed."""

from __future__ import annotations

import pytest

from tests.support.assignments import NODE, NOW_S, entry, pod
from webhook.core.placement.garbage import UNBOUND_S, entries_to_verify, prune

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
    assert entries_to_verify(entered, pods, NOW_S) == ({"u": entered["u"]} if asked else {})


NOT_ASKED = object()


@pytest.mark.parametrize(
    ("known", "answer", "since_s", "stays"),
    [
        # the pod is bound here and has not finished
        (pod("u", node=NODE), NOT_ASKED, OLD, True),
        (pod("u"), pod("u", node=NODE), OLD, True),
        (None, pod("u", node=NODE), OLD, True),
        # the pod has finished, or is bound to another node
        (pod("u", node=NODE, finished=True), NOT_ASKED, YOUNG, False),
        (pod("u", node="n2"), NOT_ASKED, YOUNG, False),
        (None, pod("u", node=NODE, finished=True), YOUNG, False),
        (pod("u", node=NODE), pod("u", node="n2"), YOUNG, False),
        # the API server reports the pod as deleted; another pod may have its name
        (pod("u", node=NODE), None, YOUNG, False),
        (None, None, YOUNG, False),
        (None, pod("another", node=NODE), YOUNG, False),
        # the API server reports the pod as not bound; the entry is old, then young
        (pod("u"), pod("u"), OLD, False),
        (None, pod("u"), OLD, False),
        (pod("u"), pod("u"), YOUNG, True),
        (None, pod("u"), YOUNG, True),
        (
            pod("u", node=NODE),
            pod("u"),
            OLD,
            False,
        ),  # the API server's response wins over the watch
        # the watch reports the pod as deleted; the API server was asked, then not asked
        (pod("u", node=NODE, gone=True), None, YOUNG, False),
        (pod("u", node=NODE, gone=True), pod("u", node=NODE), OLD, True),
        (pod("u", node=NODE, gone=True), NOT_ASKED, OLD, True),
        # the pod is unknown or not bound, and the API server was not asked
        (None, NOT_ASKED, OLD, True),
        (pod("u"), NOT_ASKED, OLD, True),
    ],
)
def test_an_entry_leaves_only_for_what_cannot_be_undone(known, answer, since_s, stays):
    entered = {"u": entry("a", since_s=since_s)}
    answers = {} if answer is NOT_ASKED else {"u": answer}
    left = prune(NODE, entered, {"u": known} if known else {}, answers, NOW_S)
    assert left == (entered if stays else {})
