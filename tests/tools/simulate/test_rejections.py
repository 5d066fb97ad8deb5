"""What `vramwarden simulate` says of files that it cannot use."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.strategies import ANY_JSON
from tests.tools.simulate.scene import SCENE, gpus, listed, node, pod
from webhook.tools.simulate.reading import UnreadableError, read_nodes, read_pods

BOTH = ("--nodes", "f", "--pods", "f")
FIELDS = "known fields: name, count, memory, gpus, nodeSelector, arrival, every, duration"
TEXTS = "must be an object of text; put numbers, true and false in quotes"


@pytest.fixture
def problems(simulate):
    """Return what is wrong with a text, one line each."""

    def run(text):
        done = simulate(*BOTH, f=text)
        assert (done.code, done.out) == (2, "")
        first, *lines = done.err.splitlines()
        assert first == "Error: nothing was replayed:"
        return lines

    return run


def test_all_errors_are_told_together_with_their_lines(problems):
    text = """\
# a comment
nodes:
- {name: big, count: 0, gpus: 8x80Gx}
- gpus: 3
  label: {zone: a}
- 7
pods:
- name: train
  gpus: 100
  nodeSelector: 5
  duration: 0
---
node: []
pods: [{memory: 8GB}]
"""
    assert problems(text) == [
        'f:3: nodes[0].count: "0" is not a number from 1 to 1000000',
        'f:3: nodes[0].gpus: "8x80Gx" is not GPUs; write how many and how large, e.g. 8x80Gi',
        "f:4: nodes[1].name: must be text; write a name",
        'f:4: nodes[1].gpus: "3" is not GPUs; write how many and how large, e.g. 8x80Gi',
        "f:5: nodes[1].label: unknown field; known fields: name, count, gpus, labels",
        "f:6: nodes[2]: must be an object with name, count, gpus, labels",
        "f:13: node: unknown field; known fields: nodes, pods",
        "f:8: pods[0]: has no memory; write the VRAM per GPU, e.g. memory: 8Gi",
        'f:9: pods[0].gpus: "100" is not a number from 1 to 99',
        f"f:10: pods[0].nodeSelector: {TEXTS}",
        "f:11: pods[0].duration: must be longer than 0s; leave it out for a pod that runs on",
        "f:14: pods[0].name: must be text; write a name",
        'f:14: pods[0].memory: "8GB" is not a Kubernetes quantity; use 8G or 8Gi',
    ]


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ({"name": ""}, ".name: must be text; write a name"),
        ({"name": False}, ".name: must be text; put it in quotes"),  # n, in YAML 1.1
        ({"memory": 8192}, '.memory: "8192" is 8192 bytes; for MiB write 8192Mi'),
        ({"memory": ["8Gi"]}, ".memory: a list is not a Kubernetes quantity; write a size, e.g. "),
        ({"gpus": True}, '.gpus: "True" is not a number from 1 to 99'),
        ({"gpus": "2"}, '.gpus: "2" is not a number from 1 to 99'),
        ({"count": -1}, '.count: "-1" is not a number from 1 to 1000000'),
        ({"count": 1000001}, '.count: "1000001" is not a number from 1 to 1000000'),
        ({"arrival": "soon"}, '.arrival: "soon" is not a duration; write e.g. 90s, 10m or 2h'),
        ({"every": "-5s"}, '.every: "-5s" is not a duration; write e.g. 90s, 10m or 2h'),
        ({"duration": "9" * 400}, "is more than ten years; write a shorter time"),
        ({"duration": "0s"}, ".duration: must be longer than 0s"),
        ({"nodeSelector": {"a": 1}}, f".nodeSelector: {TEXTS}"),
        ({"memoy": "8Gi"}, f".memoy: unknown field; {FIELDS}"),
    ],
)
def test_a_field_of_a_pod_that_is_wrong_is_reported(problems, entry, wrong):
    entry = {"name": "p", "memory": "8Gi"} | entry
    nodes = [{"name": "n", "gpus": "8Gi"}]
    (line,) = problems(json.dumps({"nodes": nodes, "pods": [entry]}))
    assert line.startswith("f:1: pods[0].")
    assert wrong in line


@pytest.mark.parametrize(
    ("gpus", "wrong"),
    [
        (None, "nothing is not GPUs"),
        ({"a": 1}, "an object is not GPUs"),
        ("0x8Gi", '"0x8Gi" is not GPUs'),
        ("100x8Gi", '"100x8Gi" is not GPUs'),
        ("8x", '"8x" is not GPUs'),
        ("8x80GB", '"80GB" is not a Kubernetes quantity; use 80G or 80Gi'),
        ("8x80", '"80" is less than 1Mi; write a size, e.g. 80Gi'),
        (["8Gi", 5], '"5" is not GPUs'),
        ("-1Gi", '"-1Gi" is less than 1Mi'),
    ],
)
def test_gpus_that_cannot_be_are_reported(problems, gpus, wrong):
    pods = [{"name": "p", "memory": "8Gi"}]
    text = json.dumps({"nodes": [{"name": "n", "gpus": gpus}], "pods": pods})
    (line,) = problems(text)
    assert line.startswith(f"f:1: nodes[0].gpus: {wrong}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: 7\npods: []\n", ["f:1: nodes: must be a list"]),
        ("a: [\n", None),
        ("- a\n", None),
        (
            "",
            [
                "f: no node with GPUs in it; pass the output of: kubectl get nodes -o json",
                "f: no pod in it; pass manifests, or the output of: kubectl get pods -A -o json",
            ],
        ),
        (
            "nodes: [{name: z, gpus: 8Gi}, {name: z, gpus: 8Gi}]\npods: [{name: p, memory: 1Gi}]\n",
            ["f: node z stands twice; keep one"],
        ),
    ],
)
def test_a_text_that_is_something_else_is_rejected_once(problems, text, expected):
    lines = problems(text)
    if expected is None:
        assert len(lines) == 1
        assert lines[0].startswith("f:")
    else:
        assert lines[: len(expected)] == expected


def test_objects_that_cannot_be_read_are_told_by_their_place(problems):
    broken = {**node("n2", "[]"), "metadata": {"name": "n2", "labels": {"a": 1}}}
    wrong_pod = {**pod("b"), "spec": {"containers": {}}}
    items = [node("n1", "nonsense"), broken, pod("a", memory="8GB"), wrong_pod, 5]
    text = "{'apiVersion': v1, kind: List, items: [\n" + ",\n".join(map(json.dumps, items)) + "]}\n"
    annotation = "items[0].metadata.annotations[vramwarden.io/gpus]"
    found = problems(text)
    assert (
        f"f:2: {annotation}: is no list of objects with uuid, memory, product and index; "
        in (found[0])
    )
    assert found[1] == "f:3: items[1]: metadata.labels[a]: must be a string, not a number"
    assert found[2] == "f:6: items[4]: must be an object"
    assert found[3].startswith("f:4: items[2]: team/a: InvalidQuantity: metadata.annotations[")
    assert found[4] == "f:5: items[3]: team/b: spec.containers: must be a list, not an object"


AGENT = (
    "GPUs in the annotation vramwarden.io/gpus, which the node agent writes; install the agent, "
    "pass --today, which needs none, or write the nodes in the short form "
    "(vramwarden simulate --help)"
)


def test_nodes_that_no_agent_has_written_are_not_asked_for_again(problems):
    three = listed(node("n1"), node("n2"), node("n3", "[]"), pod())
    assert problems(three) == [f"f: none of its 3 nodes has {AGENT}"]
    assert problems(listed(node("n1"), pod())) == [f"f: its only node has no {AGENT}"]


def test_where_all_pods_are_left_out_it_says_why(problems):
    text = listed(node("n1", gpus(8192)), pod("a", memory=None), pod("b", memory=None))
    assert problems(text) == ["f: no pod is left to replay; left out: pods without a demand: 2"]


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata": []},
        {"metadata": "x"},
        {"status": []},
        {"status": {"phase": []}},
        {"spec": 5},
        {"spec": {"containers": [{"name": "a"}], "nodeSelector": {"a": 1}}},
    ],
)
def test_no_pod_makes_it_fail_in_another_way(problems, changes):
    text = listed({**pod(), **changes}, node("n1", "x"))
    assert any(" must be " in line for line in problems(text))


@pytest.mark.parametrize("replicas", [-1, "3", 2.5, True, 1_000_001])
def test_replicas_that_are_no_number_are_reported(problems, replicas):
    template = {"metadata": pod()["metadata"], "spec": pod()["spec"]}
    spec = {"replicas": replicas, "template": template}
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}, "spec": spec}
    lines = problems(listed(workload, node("n1", "x")))
    assert "f:1: items[0].spec.replicas: is not a number from 0 to 1000000" in lines


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nodes", "f"),
        ("--pods", "f"),
        ("--generate", "1,1", "--nodes", "f"),
        ("--generate", "1,1", "--pods", "f"),
        ("--generate", "10"),
        ("--generate", "0,1"),
        ("--generate", "1,0"),
        ("--generate", "100001,1"),
        ("--generate", "a,b"),
        ("--nodes", "-", "--pods", "-"),
        ("--nodes", "f", "--pods", "nowhere"),
        ("--nodes", "f", "--pods", "."),
        (*BOTH, "--scheduler", "best"),
        (*BOTH, "--as", "8Gi"),
        (*BOTH, "--sizes", "f"),
        (*BOTH, "--gpu-memory", "80Gi"),
        (*BOTH, "--context", "c"),
        ("--today", "--generate", "1,1"),
        ("--today", "--nodes", "f", "--scheduler", "pack"),
        ("--today", "--nodes", "-", "--sizes", "-"),
        ("--today", "--nodes", "f", "--as", "8GB"),
        ("--today", "--nodes", "f", "--gpu-memory", "a=b=80Gi"),
        ("--today", "--nodes", "f", "--gpu-memory", "80GB"),
        (*BOTH, "-o", "yaml"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_a_word_of_what_to_do(simulate, arguments):
    done = simulate(*arguments, f=SCENE)
    assert (done.code, done.out) == (2, "")
    assert "Error: " in done.err
    assert "Traceback" not in done.err


def test_what_is_no_utf_8_is_told_with_its_line(simulate):
    done = simulate(*BOTH, f=b"a: 1\nb: \xff\n")
    assert done.code == 2
    assert "f:2: byte 0xff is not UTF-8; save it as UTF-8" in done.err


PARTS = ["kind", "metadata", "spec", "status", "items", "nodes", "pods"]
FIELDS_WITHIN = [
    *("name", "namespace", "labels", "annotations", "creationTimestamp", "containers", "phase"),
    *("startTime", "containerStatuses", "nodeSelector", "template", "replicas", "parallelism"),
]
OBJECTS = st.sampled_from(
    [node("n1", "[]"), pod(status={"phase": "Failed"}), {"kind": "Deployment", "spec": {}}]
)


@st.composite
def hostile(draw):
    """Draw objects with fields of the wrong types."""
    value = {**draw(OBJECTS), **draw(st.dictionaries(st.sampled_from(PARTS), ANY_JSON, max_size=2))}
    part = draw(st.sampled_from(PARTS))
    value[part] = draw(ANY_JSON | st.dictionaries(st.sampled_from(FIELDS_WITHIN), ANY_JSON))
    return value if draw(st.booleans()) else {"kind": "List", "items": [value]}


@given(hostile())
def test_whatever_is_given_is_read_or_rejected(value):
    for read in (read_nodes, read_pods):
        with contextlib.suppress(UnreadableError):
            read("f", json.dumps(value))
