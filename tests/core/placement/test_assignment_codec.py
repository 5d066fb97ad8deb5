"""ConfigMap of a node's assignment list: how it is written, and how edited data is read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.assignments import NODE, entry
from tests.support.pods import a_container, a_pod
from webhook.core.bounds import MAX_UUID_LENGTH
from webhook.core.nvidia.variables import CHOSEN_PATH, VISIBLE_DEVICES_ENV
from webhook.core.placement.assignment_codec import (
    WholeGpuPods,
    config_map_name,
    read_assignments,
    read_whole_gpu_pods,
    write_assignments,
    write_whole_gpu_pods,
)
from webhook.core.placement.assignments import Assignment, rebuild_from_pods
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.placement.pod_state import read_pod_state
from webhook.core.pod.gpus import MAX_GPUS
from webhook.core.pod.quantity import MIB
from webhook.core.policy.model import DriverLimit, EnforceBy
from webhook.names import GPU_ANNOTATION, VRAM_RESOURCE


def test_the_config_map_is_named_after_the_node():
    assert config_map_name("n1") == "gpu-assignments-n1"


def test_a_name_that_would_be_too_long_is_a_digest_of_its_own():
    longest = "n" * 237
    assert config_map_name(longest) == f"gpu-assignments-{longest}"
    names = {config_map_name("n" * 238), config_map_name("n" * 237 + "m")}
    assert len(names) == 2
    assert all(len(name) == 80 for name in names)


ENFORCED = [by for by in EnforceBy if by is not EnforceBy.NONE]
HOLD = CapTerms(cap_bytes=300 * MIB, tolerance_bytes=6 * MIB, delay_s=6.5, enforce=True)
UNENFORCED = replace(HOLD, delay_s=0.2, enforce=False, by=EnforceBy.NONE, grace_s=0.0)
ENTERED = {
    "u-2": entry("a", "b", mib=300, since_s=5, pod="ns/two", terms=HOLD),
    "u-1": entry("a", mib=1, since_s=6, pod="ns/one", terms=HOLD),
    "u-3": entry("*", mib=1, since_s=7, terms=UNENFORCED, count=2),
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
            "cap": 300 * MIB,
            "tolerance": 6 * MIB,
            "late_s": 6.5,
            "by": "Sidecar",
            "grace_s": 5.0,
            "act": True,
        },
        {
            "uid": "u-1",
            "pod": "ns/one",
            "gpus": ["GPU-a"],
            "memory": MIB,
            "since": 6,
            "cap": 300 * MIB,
            "tolerance": 6 * MIB,
            "late_s": 6.5,
            "by": "Sidecar",
            "grace_s": 5.0,
            "act": True,
        },
        {
            "uid": "u-3",
            "pod": "ns/p",
            "gpus": ["*"],
            "memory": MIB,
            "since": 7,
            "count": 2,
            "cap": 300 * MIB,
            "tolerance": 6 * MIB,
            "late_s": 0.2,
            "by": "None",
            "grace_s": 0.0,
            "act": False,
        },
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
        written(count=2),  # a count of GPUs that are also named
        *(written(gpus=["*"], count=count) for count in (0, -1, 65, 10**400, 2.0, "2", True, None)),
        written(uid="u-1"),  # the UID occurs twice
    ],
)
def test_a_line_that_cannot_be_read_hides_no_other_and_is_reported(line):
    (text,) = write_assignments(ENTERED).values()
    read, whole = read_assignments({"assignments": f"{line}\n{text}"})
    assert read == ENTERED
    assert not whole


HELD = {"cap": 5, "tolerance": 0, "late_s": 6, "by": "Sidecar", "grace_s": 5, "act": True}


def test_what_a_pod_is_held_to_is_read():
    read = read_assignments({"assignments": written(**HELD)})
    terms = CapTerms(cap_bytes=5, tolerance_bytes=0, delay_s=6.0, enforce=True)
    assert read == (
        {"u": Assignment(pod="ns/p", uuids=("GPU-a",), memory_bytes=5, since_s=1, terms=terms)},
        True,
    )


@pytest.mark.parametrize(
    "change",
    [
        dict.fromkeys(HELD, ...),
        *({key: ...} for key in HELD),
        *({key: None} for key in HELD),
        {"cap": 0},
        {"cap": -1},
        {"cap": 2**63},
        {"cap": "5"},
        {"cap": 5.0},
        {"cap": True},
        {"tolerance": -1},
        {"tolerance": 2**63},
        {"tolerance": "2%"},
        {"tolerance": False},
        {"late_s": -0.1},
        {"late_s": 86_401},
        {"late_s": 10**400},
        {"late_s": float("inf")},
        {"late_s": float("nan")},
        {"late_s": "6.5"},
        {"late_s": True},
        {"grace_s": -0.1},
        {"grace_s": 3_601},
        {"grace_s": 10**400},
        {"grace_s": float("inf")},
        {"grace_s": float("nan")},
        {"grace_s": "5s"},
        {"grace_s": True},
        *({"by": by} for by in ("sidecar", "", True, 1, [], {})),
        {"by": "None"},  # by None, but acts
        {"by": "None", "act": False, "report": True},
        {"act": 1},
        {"act": "true"},
        {"act": []},
        {"report": True},  # both acts and only reports
        {"act": False, "report": 1},
        {"act": False, "report": None},
        *({"limit": limit} for limit in ("auto", "", None, True, 1, [], {})),
    ],
)
def test_a_line_that_does_not_say_well_what_a_pod_is_held_to_counts_and_is_reported(change):
    """The pod is only measured until the line is rewritten (`rebuild_from_pods`)."""
    read, whole = read_assignments({"assignments": written(**HELD | change)})
    assert read == {
        "u": Assignment(pod="ns/p", uuids=("GPU-a",), memory_bytes=5, since_s=1, terms=None)
    }
    assert not whole


@pytest.mark.parametrize("limit", DriverLimit)
@pytest.mark.parametrize(
    ("by", "act", "report"),
    [
        *((by, True, False) for by in ENFORCED),
        *((by, False, True) for by in ENFORCED),
        *((by, False, False) for by in EnforceBy),
    ],
)
def test_who_enforces_whether_it_stops_or_reports_and_the_limit_are_kept(by, act, report, limit):
    terms = CapTerms(
        cap_bytes=5,
        tolerance_bytes=0,
        delay_s=6.0,
        enforce=act,
        reports=report,
        limit=limit,
        by=by,
        grace_s=0.5,
    )
    entered = {
        "u": Assignment(pod="ns/p", uuids=("GPU-a",), memory_bytes=5, since_s=1, terms=terms)
    }
    data = write_assignments(entered)
    assert read_assignments(data) == (entered, True)
    assert ("report" in data["assignments"]) is report
    assert ("limit" in data["assignments"]) is (limit is not DriverLimit.OFF)


def test_no_pod_has_a_line_that_is_much_longer_than_others():
    """The API server stores at most 1 MiB."""
    raw = a_pod(
        annotations={GPU_ANNOTATION: ",".join(f"{n:0{MAX_UUID_LENGTH}}" for n in range(9999))},
        containers=[a_container(resources={"limits": {VRAM_RESOURCE: "1"}})],
        nodeName=NODE,
    )
    raw["metadata"] |= {"name": "n" * 253, "namespace": "s" * 63, "uid": "u" * 36}
    raw["spec"]["containers"][0]["env"] = [
        {"name": VISIBLE_DEVICES_ENV, "valueFrom": {"fieldRef": {"fieldPath": CHOSEN_PATH}}}
    ]
    state = read_pod_state(raw)
    assert len(state.uuids) == MAX_GPUS
    (text,) = write_assignments(rebuild_from_pods(NODE, {}, [state], 2**40)).values()
    assert len(text) < 4096


def test_fields_of_the_future_are_passed_over():
    assert read_assignments({"assignments": written(more=[1])})[0] == {
        "u": Assignment(pod="ns/p", uuids=("GPU-a",), memory_bytes=5, since_s=1)
    }


ANSWER = {"asked": "1764000000", "count": 4, "pods": ["ml/a", "ml/b", "ml/c"]}


@pytest.mark.parametrize(
    ("change", "whole"),
    [
        ({}, WholeGpuPods("1764000000", 4, ("ml/a", "ml/b", "ml/c"))),
        ({"count": 0, "pods": []}, WholeGpuPods("1764000000", 0, ())),
        ({"of": "the future"}, WholeGpuPods("1764000000", 4, ("ml/a", "ml/b", "ml/c"))),
        *(({"asked": asked}, None) for asked in ("", "9" * 64, 1764000000, None)),
        *(({"count": count}, None) for count in (2, -1, 4.0, "4", True, None)),
        *(({"pods": pods}, None) for pods in (None, "ml/a", [7], ["p" * 318], ["p"] * 4)),
    ],
)
def test_an_answer_that_cannot_be_read_is_none_and_never_no_pods(change, whole):
    read = read_whole_gpu_pods({"whole": json.dumps(ANSWER | change)})
    assert read == whole
    assert read_whole_gpu_pods(write_whole_gpu_pods(read)) == whole


@pytest.mark.parametrize(
    "text", [None, 7, "", "{", "[" * 2000, "null", json.dumps(ANSWER) + " " * 2048]
)
def test_what_is_no_answer_is_none(text):
    assert read_whole_gpu_pods({"whole": text}) is None
    assert read_whole_gpu_pods(text) is None


def test_the_longest_answer_is_read():
    longest = WholeGpuPods("9" * 63, 10**9, ("n" * 317,) * 3)
    assert read_whole_gpu_pods(write_whole_gpu_pods(longest)) == longest
