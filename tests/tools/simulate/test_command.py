"""`vramwarden simulate` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api_server import ApiServer
from tests.support.foreign_clusters import a_node, a_pod, gfd_node, listed, mixed_cluster, whole
from tests.support.golden_files import assert_recorded
from tests.support.run_command import runner
from tests.support.strategies import ANY_JSON
from webhook.options import ClusterConnection
from webhook.tools.simulate import command
from webhook.tools.simulate.command import simulate_command
from webhook.tools.simulate.comparison import compare
from webhook.tools.simulate.fetch import TodayObjects
from webhook.tools.simulate.node_gpus import parse_gpu_size

MIXED = listed(*mixed_cluster())


@pytest.fixture
def simulate(tmp_path, monkeypatch):
    """Run the command in a folder with these files."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, stdin="", **files):
        for name, text in files.items():
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return runner().invoke(simulate_command, arguments, input=stdin, catch_exceptions=False)

    return run


@pytest.fixture
def today(simulate):
    """Compare the objects in one file; return the JSON."""

    def run(text, *arguments, **files):
        done = simulate("--nodes", "f", "-o", "json", *arguments, f=text, **files)
        assert (done.exit_code, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return run


def test_a_cluster_with_every_product_is_compared(today):
    """The numbers for `mixed_cluster` are counted by hand.

    The shares are 18 of 8Gi, three halves of 49,140 MiB, and one of 10Gi. A GPU of 81,920 MiB holds
    nine of 8Gi. Two GPUs of one pod stay whole.
    """
    found = today(MIXED, "--size", "8Gi")
    assert found["wholeGPUsToday"] == 17
    assert (found["gpusHeldNow"], found["gpusAskedForByWaitingPods"]) == (16, 1)
    assert (found["gpusAsShares"], found["gpusOfPodsThatStayWhole"]) == (6, 2)
    assert (found["nodes"], found["gpus"], found["pods"]) == (5, 26, 23)
    assert {row["name"]: row["gpusHeldNow"] for row in found["products"]} == {
        "A40": 1,
        "NVIDIA-A10": 2,
        "NVIDIA-A100-SXM4-80GB": 11,
        "NVIDIA-L40": 2,
    }
    assert found["stayWhole"] == {"team/two": 2}
    assert (found["wouldNotFit"], len(found["assumed"])) == ([], 6)
    assert found["leftOut"] == {
        "of system namespaces": ["kai-resource-reservation/gpu-reservation-1"],
        "with MIG slices": ["team/slice"],
    }


@pytest.mark.parametrize(
    "write",
    [
        lambda nodes, pods: listed(*nodes, *pods),
        lambda nodes, pods: listed(*nodes) + "\n" + listed(*pods),
        lambda nodes, pods: "\n".join(map(json.dumps, [*nodes, *pods])),
        lambda nodes, pods: yaml.safe_dump({"kind": "List", "items": [*nodes, *pods]}),
        lambda nodes, pods: yaml.safe_dump_all([*nodes, *pods]),
        lambda nodes, pods: json.dumps(
            {"kind": "List", "items": [{"kind": "NodeList", "items": nodes}, *pods]}
        ),
    ],
)
def test_every_form_of_a_file_is_read(today, write):
    text = write([gfd_node("n1", 2)], [whole("a", "n1"), whole("b", "n1")])
    assert today(text, "--size", "8Gi")["wholeGPUsToday"] == 2


def test_nodes_and_pods_may_be_in_two_files_as_an_api_server_lists_them(today):
    def of(kind, *items):
        for item in items:
            del item["kind"]
        return json.dumps({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": items})

    nodes, pods = of("NodeList", gfd_node("n", 2)), of("PodList", whole("a", "n"))
    assert today(nodes, "--pods", "g", g=pods)["gpusHeldNow"] == 1
    assert today(nodes, "--pods", "-", stdin=pods)["gpusHeldNow"] == 1


def test_our_own_nodes_and_pods_count(today, simulate):
    gpu = {"uuid": "GPU-1", "memory": 1000 * 2**20, "product": "T4", "index": 0, "healthy": False}
    node = a_node("n", None, {"vramwarden.io/gpus": json.dumps([gpu])})
    pods = [a_pod(name, "n", annotations={"vramwarden.io/gpu-memory": "500Mi"}) for name in "abcd"]
    pods[3]["spec"]["nodeSelector"] = {"zone": "elsewhere"}
    text = listed(node, *pods)
    found = today(text)
    assert (found["gpus"], found["gpusAsShares"]) == (1, 1)
    unfit = {"gpus": 1, "memoryBytes": 500 * 2**20}  # usable memory, as the agent reports it
    assert found["wouldNotFit"] == [{"pod": f"team/{name}", **unfit} for name in "cd"]
    lines = simulate("--nodes", "f", f=text).stdout.splitlines()
    assert lines[0] == "whole GPUs today 1, as shares 1; 2 pods would not fit"
    assert "Would not fit: team/c (1 x 500Mi), team/d (1 x 500Mi)" in lines


def test_pods_that_are_not_counted_are_named(simulate, today):
    done = whole("done", "n")
    done["status"] = {"phase": "Succeeded"}
    claims = a_pod("claims", "n")
    claims["spec"]["resourceClaims"] = [{"name": "gpu"}]
    bad = [whole(name, "n", gpus="some") for name in ("bad", "worse")]
    text = listed(gfd_node("n"), done, claims, *bad, whole("a", "n"))
    found = today(text)
    assert found["wholeGPUsToday"] == 1
    unreadable = found["leftOut"].pop("with unreadable requests")
    assert found["leftOut"] == {"with resource claims (DRA)": ["team/claims"]}
    assert unreadable[0].startswith("team/bad: nvidia.com/gpu: some is not a Kubernetes quantity")
    line = "Left out: 1 pod with resource claims (DRA) (team/claims); 2 pods with unreadable "
    assert f"{line}requests (team/bad: " in simulate("--nodes", "f", f=text).stdout


def test_sizes_may_be_by_workload(today):
    pods = [whole("lone", "n"), whole("llm-5d9c7-x", "n", 2), whole("train", "n")]
    owner = {"kind": "ReplicaSet", "name": "llm-5d9c7", "controller": True}
    pods[1]["metadata"] |= {"ownerReferences": [owner], "labels": {"pod-template-hash": "5d9c7"}}
    options = ("team/llm*=20Gi", "*/train=whole", "8Gi")
    sizes = [part for option in options for part in ("--size", option)]
    found = today(listed(gfd_node("n"), *pods), *sizes)
    assert (found["wholeGPUsToday"], found["gpusAsShares"]) == (4, 3)
    assert found["stayWhole"] == {"team/train": 1}


@pytest.fixture
def api(monkeypatch):
    server = ApiServer()
    monkeypatch.setattr(
        command, "connect_to_cluster", lambda *_: ClusterConnection(server.kube(), "default")
    )
    return server


def test_a_cluster_and_a_file_of_its_objects_have_the_recorded_answer(simulate, api):
    objects = api.add(*mixed_cluster()).objects
    file = listed(*(objects[path] for path in sorted(objects)))
    done = simulate("--nodes", "f", "--size", "8Gi", f=file).stdout
    assert_recorded(Path(__file__).parent / "golden" / "mixed.txt", done)
    assert simulate("--size", "8Gi").stdout == done


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (403, "you may not list pods of all namespaces, or nodes; ask an"),
        (500, "Error: http://in-memory answers 500: the script says 500\n"),
    ],
)
@pytest.mark.parametrize("kind", ["nodes", "pods"])
def test_a_cluster_that_cannot_be_asked_is_exit_code_3(simulate, api, kind, code, said):
    api.fails(f"/{kind}", code)
    done = simulate()
    assert (done.exit_code, done.stdout) == (3, "")
    assert said in done.stderr


def test_nodes_of_unknown_memory_are_named_with_the_option(simulate):
    nodes = [a_node(f"old-{index}", **{"nvidia.com/gpu": 2}) for index in range(7)]
    text = listed(*nodes, whole("a", "old-0"))
    done = simulate("--nodes", "f", f=text)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: unknown memory of the GPUs of old-0, old-1, old-2, old-3, old-4 and 2 more; pass "
        "--gpu-memory 80Gi, or by node --gpu-memory 'old-0=8x80Gi', or install GPU feature "
        "discovery\n"
    )
    options = ("--gpu-memory", "old-0=1x80Gi", "--gpu-memory", "24Gi")
    assert json.loads(simulate("--nodes", "f", "-o", "json", *options).stdout)["gpus"] == 13


@pytest.mark.parametrize(
    ("nodes", "counts"),
    [
        ([], "0 nodes without GPUs, 0 nodes with MIG slices alone"),
        ([a_node("a"), a_node("b")], "2 nodes without GPUs, 0 nodes with MIG slices alone"),
        (
            [gfd_node("n", 7, "9728", "A100-MIG-1g.10gb")],
            "0 nodes without GPUs, 1 node with MIG slices alone",
        ),
    ],
)
def test_a_cluster_without_gpus_is_no_error(simulate, api, nodes, counts):
    api.add(*nodes, whole("a"))
    done = simulate()
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"No GPU is there to share: {counts}.\n"
    assert json.loads(simulate("-o", "json").stdout)["gpus"] == 0
    if nodes:
        assert simulate("--nodes", "f", f=listed(*nodes)).stdout == done.stdout


def test_the_pods_of_one_namespace_are_compared_alone(simulate, api):
    objects = [gfd_node("n"), whole("a", "n", namespace="x"), whole("b", "n", namespace="y")]
    found = simulate("--nodes", "f", "-n", "x", "-o", "json", f=listed(*objects))
    api.add(*objects)
    assert json.loads(found.stdout)["wholeGPUsToday"] == 1
    assert simulate("-n", "x", "-o", "json").stdout == found.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nodes", "nowhere"), "nowhere: cannot be read"),
        (("--nodes", "."), ".: cannot be read"),
        (("--nodes", "latin"), "latin:2: byte 0xff is not UTF-8; save it as UTF-8"),
        (("--nodes", "broken"), "broken:2: not valid YAML"),
        (("--nodes", "cut"), "cut: not valid JSON: expected one of"),
        (("--nodes", "pod"), "no node in it; pass the output of: kubectl get nodes,pods -A -o"),
        (("--nodes", "f", "--size", "8GB"), "'8GB' is not a Kubernetes quantity; use 8G or 8Gi"),
        (("--nodes", "f", "--gpu-memory", "a=b=80Gi"), "is not [NAMES=][COUNTx]SIZE; write e.g."),
        (("--nodes", "f", "-o", "html"), "is not one of 'text', 'json'"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_a_hint(simulate, arguments, said):
    files = {"latin": b"a: 1\nb: \xff\n", "broken": "a: [", "cut": MIXED[:-9]}
    done = simulate(*arguments, f=MIXED, pod=listed(whole("a")), **files)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


PARTS = ["kind", "metadata", "spec", "status", "items"]
WITHIN = [
    *("name", "namespace", "labels", "annotations", "creationTimestamp", "containers", "phase"),
    *("nodeSelector", "nodeName", "resourceClaims", "ownerReferences", "capacity"),
]


@given(
    st.sampled_from([gfd_node("n"), whole("p", "n")]),
    st.sampled_from(PARTS),
    ANY_JSON | st.dictionaries(st.sampled_from(WITHIN), ANY_JSON),
)
def test_any_object_is_read_or_left_out(whose, part, value):
    one = {**whose, part: value}
    found = TodayObjects(given=[parse_gpu_size("*=1x1Gi")])
    for raw in (one, {"kind": "List", "items": [one, value]}, gfd_node("other")):
        found.add(raw)
    found.check_nodes()
    compare(found.nodes, found.pods, [parse_gpu_size("1Gi")])
