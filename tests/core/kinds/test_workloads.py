"""Workloads of pods: the table in the docstring, and tenants' input."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.page_commands import table_of
from tests.support.strategies import ANY_JSON
from webhook.core.kinds.workloads import Workload, find_workload, predict_workload


def rows():
    """Return the rows of the docstring's table as metadata and workload."""
    return [pytest.param(*_read(*row), id=" | ".join(row)) for row in table_of(find_workload)]


def _read(controller, has, workload):
    metadata = {"name": "own-name"}
    if controller == "any":
        controller = "Job embed-29384756"
        workload = f"CronJob {workload.split()[-1]}"
    if controller != "none":
        kind, name = controller.split()
        metadata["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    if found := re.fullmatch(r"label (.+)=(.+)", has):
        metadata["labels"] = {found[1]: found[2]}
    elif found := re.fullmatch("generateName (.+)", has):
        metadata["generateName"] = found[1]
    elif has == "neither, or another hash":
        metadata["labels"] = {"pod-template-hash": "other"}
    if workload == "Pod and its own name":
        workload = "Pod own-name"
    return metadata, Workload(*workload.split())


@pytest.mark.parametrize(("metadata", "workload"), rows())
def test_the_table_of_the_docstring(metadata, workload):
    assert find_workload(metadata) == workload


def test_the_table_has_rows():
    assert len(rows()) == 14


@pytest.mark.parametrize("value", ["", "-x", "a b", "x" * 64, 7, None, "ä"])
def test_a_label_that_kubernetes_would_not_store_is_passed_over(value):
    metadata = {"name": "mine", "labels": {"vramwarden.io/workload": value}}
    assert find_workload(metadata) == Workload("Pod", "mine")


@pytest.mark.parametrize(
    "owner",
    [
        {"kind": "Job", "name": "embed"},
        {"kind": "Job", "name": "embed", "controller": False},
        {"kind": "Job", "controller": True},
        {"kind": "Jo b", "name": "embed", "controller": True},
        {"kind": "K" * 64, "name": "embed", "controller": True},
        {"kind": "Job", "name": "embed\x1b[2J", "controller": True},
        {"kind": "Job", "name": "e" * 254, "controller": True},
        "Job",
    ],
)
def test_an_owner_that_is_no_controller_is_passed_over(owner):
    metadata = {"name": "mine", "ownerReferences": [owner]}
    assert find_workload(metadata) == Workload("Pod", "mine")


@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("name", "generateName", "labels", "ownerReferences"), ANY_JSON)
    )
)
def test_it_never_fails_and_names_are_bounded(metadata):
    found = find_workload(metadata)
    assert len(found.kind) <= 63
    assert len(found.name) <= 253


@pytest.mark.parametrize(
    ("kind", "name", "labels", "controller"),
    [
        ("Deployment", "llama", {}, ("ReplicaSet", "llama-5d9c7")),
        ("Deployment", "web-x7k2p", {}, ("ReplicaSet", "web-x7k2p-5d9c7")),
        ("CronJob", "embed", {}, ("Job", "embed-29384756")),
        ("CronJob", "try-x7k2p", {}, ("Job", "try-x7k2p-29384756")),
        ("Job", "embed-29384756", {}, ("Job", "embed-29384756")),
        ("Job", "embed-x7k2p", {}, ("Job", "embed-x7k2p")),
        ("StatefulSet", "db-x7k2p", {}, ("StatefulSet", "db-x7k2p")),
        ("Deployment", "llama", {"vramwarden.io/workload": "mine"}, ("ReplicaSet", "llama-5d9c7")),
        ("Job", "eval", {"vramwarden.io/workload": "!"}, ("Job", "eval")),
    ],
)
def test_a_workload_is_what_its_pods_will_be_of(kind, name, labels, controller):
    """The author of a template and the creator of its pods get the same history."""
    owner = {"kind": controller[0], "name": controller[1], "controller": True}
    hashed = {"pod-template-hash": "5d9c7"} if controller[0] == "ReplicaSet" else {}
    pod = {"labels": labels | hashed, "ownerReferences": [owner]}
    assert predict_workload(kind, name, {"labels": labels}) == find_workload(pod)
