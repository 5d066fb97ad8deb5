"""Our label and annotations on pods that ask for nothing: nobody else writes them."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import assert_denied, decided, found_in
from tests.support.pods import a_pod
from webhook.core.admission.decide import Outcome, Phase

ANNOTATIONS = [
    "vramwarden.io/admitted",
    "vramwarden.io/gpu",
    "vramwarden.io/visible-devices",
    "vramwarden.io/gpu-memory-fraction",
    "vramwarden.io/gpu-waits",
]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("value", ["x", ""])
@pytest.mark.parametrize("key", ANNOTATIONS)
def test_our_annotations_without_a_demand_are_denied(key, value, phase):
    decision = decided(a_pod(annotations={key: value}), phase=phase)
    assert_denied(decision, "ReservedName", f"metadata.annotations[{key}]")


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("value", ["true", "false", ""])
def test_our_label_without_a_demand_is_denied(value, phase):
    decision = decided(a_pod(labels={"vramwarden.io/managed": value}), phase=phase)
    assert_denied(decision, "ReservedName", "metadata.labels[vramwarden.io/managed]")


def test_all_marks_of_a_pod_whose_demand_was_taken_out_are_reported():
    pod = a_pod(
        labels={"vramwarden.io/managed": "true"}, annotations=dict.fromkeys(ANNOTATIONS, "x")
    )
    assert found_in(decided(pod)) == [
        ("ReservedName", "metadata.labels[vramwarden.io/managed]"),
        *(("ReservedName", f"metadata.annotations[{key}]") for key in ANNOTATIONS),
    ]


def test_labels_and_annotations_of_ours_that_mark_nothing_are_fine():
    pod = a_pod(
        labels={"vramwarden.io/workload": "nightly", "vramwarden.io/gpu": "x"},
        annotations={"vramwarden.io/managed": "true"},
    )
    assert decided(pod).outcome is Outcome.ALLOWED


def test_with_a_demand_the_label_is_where_it_belongs():
    pod = a_pod("8Gi", labels={"vramwarden.io/managed": "true"})
    assert decided(pod).outcome is Outcome.MUTATED
