"""The ConfigMap that holds a node's list: what is written, and what is read of what was edited."""

from __future__ import annotations

import json

import pytest

from tests.support.assignments import entry
from webhook.core.placement.assignments import (
    Assignment,
    config_map_name,
    read_assignments,
    write_assignments,
)
from webhook.core.pod.quantity import MIB


def test_the_config_map_is_named_after_the_node():
    assert config_map_name("n1") == "gpu-assignments-n1"


def test_a_name_that_would_be_too_long_is_a_digest_of_its_own():
    longest = "n" * 237
    assert config_map_name(longest) == f"gpu-assignments-{longest}"
    names = {config_map_name("n" * 238), config_map_name("n" * 237 + "m")}
    assert len(names) == 2
    assert all(len(name) == 80 for name in names)


ENTERED = {
    "u-2": entry("a", "b", mib=300, since_s=5, pod="ns/two"),
    "u-1": entry("a", mib=1, since_s=6, pod="ns/one"),
}


def test_one_line_is_written_for_each_pod():
    (text,) = write_assignments(ENTERED).values()
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines == [
        {
            "uid": "u-2",
            "pod": "ns/two",
            "gpus": ["GPU-a", "GPU-b"],
            "memory": 300 * MIB,
            "since": 5,
        },
        {"uid": "u-1", "pod": "ns/one", "gpus": ["GPU-a"], "memory": MIB, "since": 6},
    ]


@pytest.mark.parametrize("entered", [{}, ENTERED])
def test_what_is_written_is_read(entered):
    assert read_assignments(write_assignments(entered)) == (entered, True)


@pytest.mark.parametrize("data", [None, {}, [], "x", {"other": "x"}, {"assignments": 7}])
def test_a_config_map_that_holds_no_list_was_edited(data):
    assert read_assignments(data) == ({}, False)


def written(**changes):
    entry = {"uid": "u", "pod": "ns/p", "gpus": ["GPU-a"], "memory": 5, "since": 1} | changes
    return json.dumps({key: value for key, value in entry.items() if value is not ...})


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "7",
        "null",
        "[]",
        "[" * 100_000,
        "9" * 5000,
        written(uid=7),
        written(uid=...),
        written(pod=None),
        written(pod="p"),
        written(pod="/p"),
        written(pod="ns/"),
        written(pod="ns/p/q"),
        written(gpus=[]),
        written(gpus="GPU-a"),
        written(gpus=["GPU-a", 7]),
        written(gpus=[7, "GPU-a"]),
        written(gpus=...),
        written(memory=0),
        written(memory=-1),
        written(memory=2**63),
        written(memory="5"),
        written(memory=5.0),
        written(memory=...),
        written(since="1"),
        written(since=1.5),
        written(since=-1),
        written(since=10**400),
        written(since=...),
        written(uid="u-1"),  # twice
    ],
)
def test_a_line_that_cannot_be_read_hides_no_other_and_is_reported(line):
    (text,) = write_assignments(ENTERED).values()
    read, whole = read_assignments({"assignments": f"{line}\n{text}"})
    assert read == ENTERED
    assert not whole


def test_fields_of_the_future_are_passed_over():
    assert read_assignments({"assignments": written(more=[1])})[0] == {
        "u": Assignment("ns/p", ("GPU-a",), 5, 1)
    }
