"""`vramwarden simulate`, run as a user runs it."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.tools.simulate.scene import SCENE, gpus, listed, node, pod
from webhook.cli.main import main
from webhook.tools.simulate.command import simulate_command

SPLIT = """\
nodes: [{name: n1, gpus: 2x8Gi}]
pods: [{name: web, count: 3, memory: 5Gi}]
"""


@pytest.fixture
def replayed(simulate):
    """Replay one text that holds nodes and pods; return what JSON says, and our order's part."""

    def run(text, *arguments):
        done = simulate("--nodes", "f", "--pods", "f", "-o", "json", *arguments, f=text)
        assert done.code == 0, done.err
        return done.value, done.value["orders"]["best fit"]

    return run


def test_a_workload_in_short_form_is_replayed(replayed):
    all_, ours = replayed(SCENE)
    assert (all_["nodes"], all_["gpus"], all_["pods"]) == (3, 18, 15)
    assert all_["memoryBytes"] == (16 * 80 + 40) * 2**30
    assert all_["scheduler"] == "spread"
    assert all_["lowerBoundGPUs"] == 10
    assert list(all_["orders"]) == ["best fit", "first fit", "worst fit"]
    assert ours["startedAtOnce"] == 14
    assert ours["neverStarted"] == 1
    assert ours["refused"] == {"TooLarge": {"pods": 1, "first": {"pod": "huge", "sentence": ""}}}


def test_the_table_says_how_much_is_used_and_why_pods_do_not_start(simulate):
    done = simulate("--nodes", "f", "--pods", "f", f=SPLIT)
    assert (done.code, done.err) == (0, "")
    lines = [line.split("  ") for line in done.out.splitlines()]
    rows = {cells[0]: [cell.strip() for cell in cells[1:] if cell] for cells in lines if cells[0]}
    assert done.out.startswith("1 node with 2 GPUs (16Gi), 3 pods; the scheduler spreads\n")
    assert rows["pods that started at once"] == ["2", "2", "2"]
    assert rows["GPUs in use at most"] == ["2", "2", "2"]
    assert rows["GPUs needed at least"] == ["3"]
    assert done.out.endswith(
        "  web-2: no GPU of node n1 has 5Gi free, which this pod needs; the largest free amount is "
        "3Gi, on GPU 0 (GPU-n1-0); the scheduler retries, also on other nodes\n"
    )
    assert "\n  fits the sum of a node, not its GPUs " in done.out


def test_amounts_and_times_are_told_to_programs(replayed):
    text = """\
nodes: [{name: n1, gpus: 8Gi}]
pods:
- {name: a, memory: 6Gi, duration: 90s}
- {name: b, memory: 4Gi, arrival: 1m}
"""
    _, ours = replayed(text)
    assert ours["startedLater"] == 1
    assert ours["longestWaitSeconds"] == 30.0
    assert ours["takenBytes"] == 6 * 2**30
    assert ours["freeBytes"] == 2 * 2**30
    assert ours["strandedBytes"] == 2 * 2**30
    assert (ours["gpusUsed"], ours["usedGPUsBytes"]) == (1, 8 * 2**30)


def test_the_scheduler_may_pack(replayed):
    text = "nodes: [{name: n1, count: 4, gpus: 8Gi}]\npods: [{name: p, count: 4, memory: 2Gi}]\n"
    assert replayed(text)[1]["gpusUsed"] == 4
    all_, ours = replayed(text, "--scheduler", "pack")
    assert (all_["scheduler"], ours["gpusUsed"]) == ("pack", 1)


def test_copies_arrive_one_after_the_other(replayed):
    text = """\
nodes: [{name: n1, gpus: 8Gi}]
pods: [{name: p, count: 2, memory: 8Gi, every: 10m, duration: 15m}]
"""
    _, ours = replayed(text)
    assert ours["refused"]["NoRoom"]["first"]["pod"] == "p-1"
    assert (ours["startedLater"], ours["longestWaitSeconds"]) == (1, 300.0)


def test_what_names_no_time_comes_at_once(replayed):
    text = """\
nodes: [{name: n1, gpus: 8Gi}]
pods:
- {name: a, memory: 8Gi, duration: 5s}
- {name: b, memory: 8Gi, arrival: 1s}
"""
    assert replayed(text)[1]["longestWaitSeconds"] == 4.0


@pytest.mark.parametrize("form", [json.dumps, yaml.safe_dump])
def test_what_kubectl_prints_is_read(simulate, form):
    nodes = {"kind": "NodeList", "apiVersion": "v1", "items": [node("n1", gpus(8192, 8192))]}
    pods = {"kind": "List", "items": [pod("a"), pod("b"), pod("c"), pod("d", memory=None)]}
    done = simulate("--nodes", "n", "--pods", "p", "-o", "json", n=form(nodes), p=form(pods))
    assert done.err == "left out: pods without a demand: 1\n"
    (blocked,) = done.value["orders"]["best fit"]["refused"].items()
    assert blocked[0] == "GPUsSplit"
    assert blocked[1]["first"]["pod"] == "team/c"
    assert "no GPU of node n1 has 5Gi free" in blocked[1]["first"]["sentence"]


def test_items_of_a_typed_list_may_leave_out_their_kind(simulate):
    bare = {key: value for key, value in node("n1", gpus(8192)).items() if key == "metadata"}
    nodes = json.dumps({"kind": "NodeList", "apiVersion": "v1", "items": [bare]})
    done = simulate("--nodes", "n", "--pods", "p", "-o", "json", n=nodes, p=json.dumps(pod()))
    assert done.value["nodes"] == 1


def test_one_file_may_hold_all_objects_of_a_cluster(replayed):
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    text = listed(node("n1", gpus(8192)), service, pod(), node("n2", None))
    all_, ours = replayed(text)
    assert (all_["nodes"], all_["pods"], ours["startedAtOnce"]) == (1, 1, 1)


def test_nodes_without_gpus_are_left_out_and_counted(simulate):
    text = listed(node("n1", gpus(8192)), node("n2"), node("n3", "[]"), pod())
    done = simulate("--nodes", "f", "--pods", "f", f=text)
    assert done.code == 0
    assert done.err == "left out: nodes without GPUs (annotation vramwarden.io/gpus): 2\n"


@pytest.mark.parametrize("stored", [{"uid": "1-2"}, {"status": {"phase": "Running"}}])
def test_pods_of_a_cluster_whose_demand_cannot_be_read_are_left_out_and_counted(simulate, stored):
    bad = [pod(name, memory="8GB", status=stored.get("status")) for name in ("a", "b")]
    for one in bad:
        one["metadata"] |= {key: value for key, value in stored.items() if key == "uid"}
    text = listed(node("n1", gpus(8192)), *bad, pod("c"))
    done = simulate("--nodes", "f", "--pods", "f", "-o", "json", f=text)
    assert (done.code, done.value["pods"]) == (0, 1)
    assert done.err == (
        "left out: pods whose demand cannot be read (first: team/a: InvalidQuantity: "
        "metadata.annotations[vramwarden.io/gpu-memory]: 8GB is not a Kubernetes quantity; "
        "use 8G or 8Gi): 2\n"
    )


def test_labels_and_node_selectors_of_objects_count(replayed):
    text = listed(
        node("n1", gpus(8192), zone="a"),
        pod("a", nodeSelector={"zone": "a"}),
        pod("b", nodeSelector={"zone": "b"}),
    )
    assert list(replayed(text)[1]["refused"]) == ["NodeSelector"]


def test_nodes_in_short_form_have_the_label_that_translated_pods_select(replayed):
    chosen = json.dumps(pod(nodeSelector={"vramwarden.io/gpu": "true"}))
    text = f"nodes: [{{name: n1, gpus: 8Gi}}]\n---\n{chosen}\n"
    assert replayed(text)[1]["startedAtOnce"] == 1


@pytest.mark.parametrize(
    ("kind", "version", "spec", "pods"),
    [
        ("Deployment", "apps/v1", {"replicas": 3}, 3),
        ("Deployment", "apps/v1", {}, 1),
        ("StatefulSet", "apps/v1", {"replicas": 2}, 2),
        ("Job", "batch/v1", {"parallelism": 2, "completions": 9}, 2),
        ("Job", "batch/v1", {}, 1),
    ],
)
def test_a_workload_counts_as_its_pods(replayed, kind, version, spec, pods):
    template = {"metadata": pod()["metadata"], "spec": pod()["spec"]}
    workload = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "w", "namespace": "ns"},
        "spec": {**spec, "template": template},
    }
    assert replayed(listed(node("n1", gpus(8192)), workload))[0]["pods"] == pods


@pytest.mark.parametrize(
    ("kind", "namespace", "name"),
    [
        ("Pod", "ns", "ns/w"),
        ("Pod", None, "default/w"),
        ("Deployment", "ns", "ns/w-0"),
        ("Deployment", None, "default/w-0"),
        ("PodTemplate", None, "default/w-0"),
    ],
)
def test_pods_are_named_as_people_call_them(replayed, kind, namespace, name):
    metadata = {"name": "w", "namespace": namespace}
    template = {
        "metadata": {"annotations": pod()["metadata"]["annotations"]},
        "spec": pod()["spec"],
    }
    if kind == "Pod":
        one = {**pod(), "metadata": {**pod()["metadata"], **metadata}}
    elif kind == "PodTemplate":
        one = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "template": template}
    else:
        spec = {"template": template}
        one = {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}
    _, ours = replayed(listed(node("n1", gpus(1024)), one))
    assert ours["refused"]["TooLarge"]["first"]["pod"] == name


def test_pods_of_a_daemon_set_are_left_out(simulate):
    template = {"metadata": pod()["metadata"], "spec": pod()["spec"]}
    workload = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "w"},
        "spec": {"template": template},
    }
    text = listed(node("n1", gpus(8192)), workload, pod())
    done = simulate("--nodes", "f", "--pods", "f", f=text)
    assert done.err == "left out: pods of a DaemonSet (pass its pods instead): 1\n"


def ended(started="2026-01-01T00:00:00Z", *finished):
    states = [{"state": {"terminated": {"finishedAt": one}}} for one in finished]
    return {"phase": "Succeeded", "startTime": started, "containerStatuses": states}


def test_pods_of_a_cluster_arrive_when_they_were_created_and_end_when_they_did(replayed):
    status = ended("2026-01-01T00:00:00Z", "2026-01-01T00:09:00Z", "2026-01-01T00:10:00Z")
    text = listed(
        node("n1", gpus(8192)),
        pod("second", created="2026-01-01T00:04:00Z"),
        pod("first", created="2026-01-01T00:00:00Z", status=status),
    )
    _, ours = replayed(text)
    assert ours["refused"]["NoRoom"]["first"]["pod"] == "team/second"
    assert ours["longestWaitSeconds"] == 360.0


def test_the_first_pod_of_a_cluster_arrives_with_those_of_manifests(replayed):
    text = listed(node("n1", gpus(8192)), pod("a", created="2026-01-01T00:00:00Z"), pod("b"))
    assert replayed(text)[1]["refused"]["NoRoom"]["first"]["pod"] == "team/b"


@pytest.mark.parametrize("status", [ended(), ended(None, "2026-01-01T00:09:00Z")])
def test_finished_pods_whose_end_nobody_knows_are_left_out(simulate, status):
    text = listed(node("n1", gpus(8192)), pod("a", status=status), pod("b"))
    done = simulate("--nodes", "f", "--pods", "f", f=text)
    assert done.err == "left out: pods that finished, and nobody knows when: 1\n"


def test_a_workload_is_made_up_from_a_seed(simulate):
    first, again, other = (
        simulate("--generate", "40,4", "--seed", seed, "-o", "json") for seed in "778"
    )
    assert first.value["pods"] == 40
    assert first.value["nodes"] == 4
    assert first == again
    assert first != other


def test_standard_input_may_be_one_of_both(simulate):
    done = simulate("--nodes", "f", "--pods", "-", "-o", "json", stdin=SPLIT, f=SPLIT)
    assert done.value["pods"] == 3


def test_the_command_is_one_of_vramwarden_s():
    assert main.commands["simulate"] is simulate_command
