"""Lists rebuilt from pods, and entries completed from pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.assignments import NODE, NOW_S, entry, pod
from webhook.core.placement.assignments import (
    Assignment,
    complete_terms,
    rebuild_from_pods,
    unlisted_pods,
)
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.pod.gpus import EVERY_GPU
from webhook.core.pod.quantity import MIB
from webhook.core.policy.model import DriverLimit

HOLD, OTHER = (
    CapTerms(cap_bytes=300 * MIB, tolerance_bytes=6 * MIB, delay_s=6.5, enforce=True),
    CapTerms(cap_bytes=1, tolerance_bytes=0, delay_s=0.0, enforce=False),
)


@pytest.mark.parametrize(
    ("known", "adopted"),
    [
        (pod("p", 300, node=NODE, gpus="b"), "b"),
        (pod("p", 600, node=NODE, gpus="ab"), "ab"),  # the amount is for all GPUs together
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
    assert rebuild_from_pods(NODE, {}, [known], 77.9) == expected


@pytest.mark.parametrize("gpus", ["", "b"])
def test_a_pod_that_sees_all_gpus_is_adopted_with_all_whatever_it_names(gpus):
    known = pod("p", 300, node=NODE, gpus=gpus, at_binding=False, terms=HOLD)
    assert rebuild_from_pods(NODE, {}, [known], 77.9) == {
        "p": Assignment(
            pod="ns/p", uuids=(EVERY_GPU,), memory_bytes=300 * MIB, since_s=77, terms=HOLD
        )
    }


def test_what_is_entered_already_is_not_changed_by_adopting():
    known = pod("p", 300, node=NODE, gpus="b", terms=HOLD)
    entered = {"p": entry("a", since_s=1, terms=OTHER), "q": entry("b")}
    assert rebuild_from_pods(NODE, entered, [known], NOW_S) == entered


def test_entries_without_readable_terms_take_those_of_their_pods():
    pods = [pod("p", 300, node=NODE, gpus="b", terms=HOLD), pod("q", 300, node=NODE, gpus="b")]
    old = {"p": entry("a", since_s=1), "q": entry("b"), "unknown": entry("b")}
    new = old | {"p": entry("a", since_s=1, terms=HOLD)}
    known = {found_pod.uid: found_pod for found_pod in pods}
    assert complete_terms(old, known) == rebuild_from_pods(NODE, old, pods, NOW_S) == new
    assert complete_terms(new, known) is new


@pytest.mark.parametrize("promised", DriverLimit)
@pytest.mark.parametrize("entered", DriverLimit)
@pytest.mark.parametrize("gpus", ["b", ""])
def test_an_entry_has_the_limit_of_its_pod_once_that_has_its_gpus(entered, promised, gpus):
    """Two bindings of a pod may see different states of the node. The pod keeps the first limit."""
    known = {"p": pod("p", 300, node=NODE, gpus=gpus, terms=replace(OTHER, limit=promised))}
    old = {"p": entry("a", since_s=1, terms=replace(HOLD, limit=entered))}
    new = complete_terms(old, known)
    limit = promised if gpus else entered
    assert new == {"p": entry("a", since_s=1, terms=replace(HOLD, limit=limit))}
    assert complete_terms(new, known) is new


@pytest.mark.parametrize(
    ("known", "is_found"),
    [
        (pod("p", 300, node=NODE, gpus="b"), True),
        (pod("p", 300, node=NODE, at_binding=False), True),
        (pod("p", 300, node=NODE), False),  # it still waits for a GPU
        (pod("p", None, node=NODE, gpus="b"), False),
        (pod("p", 300, node=NODE, gpus="b", finished=True), False),
        (pod("p", 300, node=NODE, gpus="b", gone=True), False),
        (pod("p", 300, node="n2", at_binding=False), False),
        (pod("p", 300, at_binding=False), False),
        (pod("in", 300, node=NODE, at_binding=False), False),
    ],
)
def test_pods_that_came_past_us_are_found(known, is_found):
    found = unlisted_pods(NODE, {"in": entry("*")}, {known.uid: known})
    assert found == ([known] if is_found else [])
