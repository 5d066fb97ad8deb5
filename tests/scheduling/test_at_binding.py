"""Placement at binding with the stock scheduler: chosen GPUs, denials and their messages."""

from __future__ import annotations

import contextlib
import json

import pytest

from tests.scheduling.replicas import BINDING, SYSTEM, Cluster, replica
from tests.support.control_planes import ApiError, free_port, wait_until
from tests.support.pods import a_container, a_pod
from tests.support.schedulers import GIB, bound, finish, messages, patch, remove_pod
from tests.support.webhook_configurations import installed, webhook_configurations
from tests.support.webhook_on_cluster import refused
from webhook.core.placement.assignment_codec import (
    WholeGpuPods,
    read_assignments,
    read_whole_gpu_pods,
    write_assignments,
)
from webhook.core.placement.assignments import Assignment
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.pod.gpus import EVERY_GPU, EnforceBy
from webhook.core.pod.quantity import MIB
from webhook.names import NODE_QUESTION_LABEL, NODE_SENTRY_LABEL

GIVEN = {  # annotations of a pod of 5Gi on a node with a GPU of 8Gi
    "vramwarden.io/gpu": "GPU-n1-0",
    "vramwarden.io/visible-devices": "GPU-n1-0",
    "vramwarden.io/gpu-memory-fraction": "0.5151",  # 5Gi less 900Mi
}


def test_two_pods_get_a_gpu_each_and_the_third_is_told_what_is_free(cluster):
    cluster.node("n1", 8, 8)
    for name in ("a", "b"):
        cluster.create(name, "5Gi")
    placed = cluster.wait(2)
    assert sorted(placed.values()) == [("n1", "GPU-n1-0"), ("n1", "GPU-n1-1")]

    cluster.create("c", "5Gi")
    said = wait_until(
        "a refusal",
        lambda: [
            line for line in messages(cluster.api, cluster.namespace, "c") if "bind.vram" in line
        ],
    )
    assert (
        'admission webhook "bind.vramwarden.io" denied the request: no GPU of node n1 has 5Gi '
        "free, which this pod needs; the largest free amount is 3Gi, on GPU 0 (GPU-n1-0); the "
        "scheduler retries, also on other nodes"
    ) in said[-1]

    for name in ("d", "e"):
        cluster.create(name, "3Gi")
    placed = cluster.wait(4)
    assert {placed["d"][1], placed["e"][1]} == {"GPU-n1-0", "GPU-n1-1"}
    assert "c" not in placed
    first = next(pod for pod in cluster.pods() if pod["metadata"]["name"] == "a")
    remove_pod(cluster.api, first)
    assert cluster.wait(4)["c"] == ("n1", placed["a"][1])


def test_gpus_of_a_finished_pod_are_free_and_its_entry_leaves(cluster):
    cluster.node("n1", 8)
    pod = cluster.create("a", "8Gi")
    cluster.wait(1)
    assert cluster.lists() == {"a": ["GPU-n1-0"]}
    finish(cluster.api, pod)
    wait_until("an empty list", lambda: cluster.lists() == {})
    cluster.create("b", "8Gi")
    assert cluster.wait(2)["b"] == ("n1", "GPU-n1-0")


def test_a_pod_for_two_gpus_gets_two_of_them_in_the_drivers_order(cluster):
    cluster.node("n1", 8, 16, 8)
    cluster.create("a", "7Gi")
    cluster.wait(1)
    cluster.create("b", "8Gi", count=2)
    assert cluster.wait(2)["b"] == ("n1", "GPU-n1-1,GPU-n1-2")


def test_containers_read_a_gpu_as_the_node_names_it_and_programs_their_share(cluster):
    cluster.node("n1", 8, **{"vramwarden.io/device-names": "k8s.device-plugin.nvidia.com"})
    cluster.create("a", "5Gi")
    cluster.wait(1)
    (pod,) = cluster.pods()
    named = {"vramwarden.io/visible-devices": "k8s.device-plugin.nvidia.com/gpu=GPU-n1-0"}
    assert pod["metadata"]["annotations"].items() >= (GIVEN | named).items()


def test_a_node_without_names_that_work_gets_no_pod(cluster, held):
    cluster.node("n1", 8, **{"vramwarden.io/device-names": "none"})
    pod = held("a", "5Gi")
    error = refused(lambda: cluster.bind(pod, "n1"))
    assert (error.code, error.status["reason"]) == (403, "Forbidden")
    assert (
        "resolves no name of its GPUs (label vramwarden.io/device-names is none)" in error.message
    )
    assert cluster.lists() == {}


def test_of_two_nodes_who_requires_the_drivers_limit_runs_on_the_one_that_has_it(cluster):
    label = {"vramwarden.io/driver-limit": "true"}
    cluster.node("n1", 16)
    pod = cluster.create("a", "5Gi", nodeSelector=label)
    error = refused(lambda: cluster.bind(pod, "n1"))
    assert "requires a node whose driver holds caps (driverLimit: Require)" in error.message
    cluster.node("n2", 16, **label)
    cluster.create("b", "5Gi", nodeSelector={"kubernetes.io/hostname": "n2"})
    cluster.create("c", "5Gi", nodeSelector={"kubernetes.io/hostname": "n1"})
    assert {name: node for name, (node, _) in cluster.wait(3).items()} == {
        "a": "n2",
        "b": "n2",
        "c": "n1",
    }
    of_cap = {"vramwarden.io/gpu-memory-fraction": "0.8242"}  # (5Gi - 900Mi) / 5Gi
    given = {
        pod["metadata"]["name"]: {
            key: pod["metadata"]["annotations"].get(key) for key in (*label, *of_cap)
        }
        for pod in cluster.pods()
    }
    assert given == {
        "a": dict.fromkeys(label, "Require") | of_cap,
        "b": dict.fromkeys(label, "Auto") | of_cap,
        "c": dict.fromkeys(label) | {"vramwarden.io/gpu-memory-fraction": "0.2575"},
    }


def test_other_pods_are_bound_untouched(cluster):
    cluster.node("n1", 8)
    pod = a_pod(None)
    pod["metadata"] |= {"namespace": cluster.namespace, "name": "plain"}
    cluster.api.create(pod)
    assert cluster.wait(1) == {"plain": ("n1", "")}
    assert cluster.lists() == {}


def test_a_pod_that_sees_all_gpus_is_entered_and_counts_on_each(cluster, make_namespace):
    cluster.node("n1", 8, 8)
    with Cluster(cluster.api, make_namespace("seeing")) as seeing:
        seeing.create("all", "5Gi")
        seeing.wait(1)
        (entry,) = entries(cluster)
        assert (entry.pod, entry.uuids) == (f"{seeing.namespace}/all", (EVERY_GPU,))
        assert entry.terms == CapTerms(
            cap_bytes=5 * GIB, tolerance_bytes=5 * GIB // 50, delay_s=6.5, enforce=True
        )
        cluster.create("large", "5Gi")
        cluster.create("small", "3Gi")
        assert list(cluster.wait(1)) == ["small"]
        said = wait_until("a refusal", lambda: messages(cluster.api, cluster.namespace, "large"))
        assert any("the largest free amount is " in line for line in said)
    cluster.wait(2)
    wait_until("its entry left", lambda: cluster.lists().keys() == {"large", "small"})


@pytest.mark.parametrize(
    ("by", "enforce", "grace_s", "tolerance"),
    [("sentry", True, 9.0, MIB), ("none", False, 5.0, 5 * GIB // 50)],
)
def test_a_pod_without_a_sidecar_is_entered_with_the_terms_of_its_rule(
    cluster, make_namespace, by, enforce, grace_s, tolerance
):
    cluster.node("n1", 8, **{NODE_SENTRY_LABEL: "true"})
    with Cluster(cluster.api, make_namespace(by)) as without:
        without.create("one", "5Gi")
        assert without.wait(1) == {"one": ("n1", "GPU-n1-0")}
        assert entries(cluster)[0].terms == CapTerms(
            cap_bytes=5 * GIB,
            tolerance_bytes=tolerance,
            delay_s=1.5,
            enforce=enforce,
            by=EnforceBy(by.capitalize()),
            grace_s=grace_s,
        )


def test_a_node_that_asks_is_told_which_pods_with_whole_gpus_run_there(cluster):
    """The agent asks before it shares the node. Afterwards no such pod is scheduled on the node."""
    cluster.node("n1", 8, **{NODE_QUESTION_LABEL: "1764000000"})
    amounts = {"limits": {"nvidia.com/gpu": "1"}}
    whole = a_pod(None, containers=[a_container(resources=amounts)], schedulerName="nobody")
    whole["metadata"] |= {"namespace": cluster.namespace, "name": "whole"}

    def answer():
        path = f"/api/v1/namespaces/{SYSTEM}/configmaps"
        found = [
            item for item in cluster.api.list(path) if item["metadata"]["name"].endswith("-n1")
        ]
        return read_whole_gpu_pods(found[0]["data"]) if found else None

    def ask(question):
        change = {"metadata": {"labels": {NODE_QUESTION_LABEL: question}}}
        patch(cluster.api, "/api/v1/nodes/n1", change)

    wait_until("an answer", lambda: answer() == WholeGpuPods("1764000000", 0, ()))
    made = cluster.api.create(whole)
    cluster.bind(made, "n1")
    finish(cluster.api, made, "Running")
    ask("1764000030")
    running = WholeGpuPods("1764000030", 1, (f"{cluster.namespace}/whole",))
    wait_until("an answer", lambda: answer() == running)
    cluster.create("share", "5Gi")
    cluster.wait(2)
    assert (list(cluster.lists()), answer()) == (["share"], running)
    finish(cluster.api, made)
    ask("1764000060")
    wait_until("an answer", lambda: answer() == WholeGpuPods("1764000060", 0, ()))
    assert list(cluster.lists()) == ["share"]
    if claim_a_gpu(cluster):
        pod = a_pod(None, schedulerName="nobody")
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "one"}]
        pod["metadata"] |= {"namespace": cluster.namespace, "name": "claiming"}
        cluster.bind(cluster.api.create(pod), "n1")
        ask("1764000090")
        claiming = WholeGpuPods("1764000090", 1, (f"{cluster.namespace}/claiming",))
        wait_until("an answer", lambda: answer() == claiming)


def claim_a_gpu(cluster):
    """Create a claim with a GPU of NVIDIA's DRA driver; return False before Kubernetes 1.34."""
    path = f"/apis/resource.k8s.io/v1/namespaces/{cluster.namespace}/resourceclaims"
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim = {"metadata": {"name": "one"}, "spec": {"devices": {"requests": [request]}}}
    try:
        made = cluster.api.request("POST", path, claim)
    except ApiError as error:
        assert error.code == 404
        return False
    device = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
    made["status"] = {"allocation": {"devices": {"results": [device]}}}
    cluster.api.request("PUT", f"{path}/one/status", made)
    return True


def entries(cluster):
    """Return the assignments of the test's only node."""
    path = f"/api/v1/namespaces/{SYSTEM}/configmaps/gpu-assignments-{cluster.nodes[0]}"
    return list(read_assignments(cluster.api.request("GET", path)["data"])[0].values())


ESCAPE = "\x1b]0;pwn\x07\n\u202e"


@pytest.mark.parametrize(
    "malformed",
    [
        {"gpus": {"uuid": f"GPU-{ESCAPE}evil"}},
        {"gpus": {"uuid": "G" * 100_000}},
        {"gpus": {"uuid": "GPU-x", "index": 10**300}},
        {"held": ESCAPE + "h" * 100_000},
    ],
    ids=["raw", "long", "index", "held"],
)
def test_no_text_of_a_node_reaches_pods_lists_and_events_raw_or_long(cluster, replicas, malformed):
    """One of two listed GPUs is malformed. The other is used and quoted."""
    cluster.node("n1", 8, 8)
    (node,) = (
        item for item in cluster.api.list("/api/v1/nodes") if item["metadata"]["name"] == "n1"
    )
    shown = json.loads(node["metadata"]["annotations"]["vramwarden.io/gpus"])
    annotations = {
        "vramwarden.io/gpus": json.dumps([shown[0] | malformed.get("gpus", {}), shown[1]])
    }
    if "held" in malformed:
        annotations["vramwarden.io/sharing"] = f"Draining: {malformed['held']}"
    logged = [len(server.log()) for server in replicas]
    patch(cluster.api, "/api/v1/nodes/n1", {"metadata": {"annotations": annotations}})
    if "gpus" in malformed:
        wait_until(
            "a report of each replica",
            lambda: all(
                any("malformed" in line["msg"] for line in server.log()[before:])
                for server, before in zip(replicas, logged, strict=True)
            ),
        )
    for name in ("a", "b", "c"):
        cluster.create(name, "7Gi")

    def says():
        return [
            line
            for name in "abc"
            for line in messages(cluster.api, cluster.namespace, name)
            if "bind.vramwarden.io" in line
        ]

    wait_until("a denial", says)
    if "gpus" in malformed:
        placed = bound(cluster.api, cluster.namespace)
        assert list(placed.values()) == [("n1", "GPU-n1-1")]
    conditions = [
        condition.get("message", "")
        for pod in cluster.pods()
        for condition in pod["status"].get("conditions", [])
    ]
    notes = [
        value
        for pod in cluster.pods()
        for key, value in pod["metadata"].get("annotations", {}).items()
        if key.startswith("vramwarden.io/")
    ]
    entries = [
        line
        for config_map in cluster.api.list(f"/api/v1/namespaces/{SYSTEM}/configmaps")
        for text in config_map.get("data", {}).values()
        for line in text.splitlines()
        if config_map["metadata"]["name"] == "gpu-assignments-n1"
    ]
    texts = [*says(), *conditions, *notes, *entries]
    assert [text for text in texts if not text.isprintable() or len(text) > 1024] == []


@pytest.fixture
def held(cluster):
    """Return a function that creates a pod which the scheduler ignores."""
    return lambda name, size: cluster.create(name, size, schedulerName="nobody")


def test_a_dry_run_of_a_binding_leaves_no_trace(cluster, held):
    cluster.node("n1", 8)
    pod = held("a", "5Gi")
    cluster.bind(pod, "n1", dryRun="All")
    assert cluster.lists() == {}
    cluster.bind(pod, "n1")
    assert bound(cluster.api, cluster.namespace) == {"a": ("n1", "GPU-n1-0")}


def test_a_node_that_does_not_show_its_gpus_gets_no_pod_with_a_demand(cluster, held):
    cluster.node("n1")
    pod = held("a", "5Gi")

    def refusal():
        with contextlib.suppress(AssertionError):
            return refused(lambda: cluster.bind(pod, "n1", dryRun="All"))
        return None

    # Until the pod is known, no request is sent for a node without GPUs, where the pod is harmless.
    error = wait_until("a refusal", refusal)
    assert (error.code, error.status["reason"]) == (403, "Forbidden")
    assert "node n1 does not show its GPUs (annotation vramwarden.io/gpus)" in error.message


def test_a_binding_by_the_old_resource_goes_on_without_a_gpu(cluster, held):
    """The API server removes the UID from these (rest.WipeObjectMetaSystemFields)."""
    cluster.node("n1", 8)
    pod = held("a", "5Gi")
    path = f"/api/v1/namespaces/{cluster.namespace}/bindings"
    cluster.api.request("POST", path, cluster.binding(pod, "n1"))
    assert bound(cluster.api, cluster.namespace)["a"][0] == "n1"


FORGED = {
    "annotations": {
        "vramwarden.io/gpu-memory": "1Mi",
        "vramwarden.io/gpu": "GPU-x",
        "vramwarden.io/gpu-memory-fraction": "1.0000",
        "a": "b",
    },
    "labels": {"vramwarden.io/managed": "no", "vramwarden.io/x": "y"},
}


def test_what_a_binding_brings_along_does_not_replace_our_marks(cluster, held):
    cluster.node("n1", 8)
    plain = a_pod(None, schedulerName="nobody")
    plain["metadata"] |= {"namespace": cluster.namespace, "name": "plain"}
    for pod, given in ((held("a", "5Gi"), GIVEN), (cluster.api.create(plain), {})):
        before = pod["metadata"]
        forged = cluster.binding(pod, "n1")
        forged["metadata"] |= FORGED
        cluster.post_binding(before["name"], forged)
        after = cluster.api.get(pod)["metadata"]
        assert after["annotations"] == before.get("annotations", {}) | given | {"a": "b"}
        assert after.get("labels") == before.get("labels")
    assert bound(cluster.api, cluster.namespace) == {"a": ("n1", "GPU-n1-0"), "plain": ("n1", "")}


def test_a_binding_by_name_alone_reserves_nothing(cluster, held):
    cluster.node("n1", 8)
    pod = held("a", "5Gi")
    nameless = cluster.binding(pod, "n1")
    del nameless["metadata"]["uid"]
    nameless["metadata"]["resourceVersion"] = "1"  # so that it fails after the webhook was called
    assert refused(lambda: cluster.post_binding("a", nameless)).code == 409
    assert cluster.lists() == {}
    cluster.bind(held("b", "8Gi"), "n1")
    assert bound(cluster.api, cluster.namespace) == {"b": ("n1", "GPU-n1-0")}


def test_a_forged_pod_that_nobody_judged_takes_nothing_from_others(cluster, held):
    cluster.node("n1", 8)
    namespace = f"{cluster.namespace}-left-alone"
    labels = {"vramwarden.io/webhook": "disabled"}
    cluster.api.create(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": labels},
        }
    )
    account = {"name": "default", "namespace": namespace}
    cluster.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    forged = a_pod("8GB", labels={"vramwarden.io/managed": "true"})
    forged["metadata"] |= {"namespace": namespace, "name": "forged"}
    forged["spec"]["nodeName"] = "n1"
    try:
        pod = cluster.api.create(forged)
        cluster.bind(held("a", "8Gi"), "n1")
        assert bound(cluster.api, cluster.namespace) == {"a": ("n1", "GPU-n1-0")}
        remove_pod(cluster.api, pod)
    finally:
        cluster.api.request("DELETE", f"/api/v1/namespaces/{namespace}")


def test_a_list_that_somebody_deleted_or_spoilt_is_made_anew_from_the_pods(cluster, held):
    cluster.node("n1", 8, 8)
    cluster.bind(held("a", "5Gi"), "n1")
    path = f"/api/v1/namespaces/{SYSTEM}/configmaps/gpu-assignments-n1"
    cluster.api.request("DELETE", path)
    cluster.bind(held("b", "5Gi"), "n1")
    assert set(cluster.lists()) == {"a", "b"}
    patch(cluster.api, path, {"data": {"assignments": "{"}})
    error = refused(lambda: cluster.bind(held("c", "5Gi"), "n1"))
    assert "the largest free amount is 3Gi" in error.message
    cluster.bind(held("d", "3Gi"), "n1")
    assert set(cluster.lists()) == {"a", "b", "d"}


def test_a_pod_deleted_while_it_is_bound_leaves_nothing_reserved(cluster, held):
    cluster.node("n1", 8)
    pod = held("a", "5Gi")
    # A binding that failed after the webhook was called leaves a reservation but no pod.
    path = f"/api/v1/namespaces/{SYSTEM}/configmaps/gpu-assignments-n1"
    cluster.bind(held("other", "1Gi"), "n1")
    assignments, _ = read_assignments(cluster.api.request("GET", path)["data"])
    name = f"{cluster.namespace}/a"
    assignments[pod["metadata"]["uid"]] = Assignment(
        pod=name, uuids=("GPU-n1-0",), memory_bytes=5 * GIB, since_s=1
    )
    patch(cluster.api, path, {"data": write_assignments(assignments)})
    remove_pod(cluster.api, pod)
    cluster.bind(held("b", "7Gi"), "n1")
    wait_until("an entry less", lambda: set(cluster.lists()) == {"other", "b"})


def test_a_replica_that_does_not_reach_the_api_server_keeps_nobody_waiting(
    cluster, control_plane, held, tmp_path
):
    cluster.node("n1", 8)
    pod = held("a", "5Gi")
    config = json.loads(control_plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
    (tmp_path / "cut-off").write_text(json.dumps(config))
    with replica(control_plane, tmp_path / "server", tmp_path / "cut-off") as server:
        server.wait_for("life", lambda: any(line["msg"] == "serving" for line in server.log()))
        ca = (server.certificates / "ca.crt").read_bytes()
        url = f"https://127.0.0.1:{server.port}"
        (manifest,) = webhook_configurations(url, ca, path=BINDING, bind_path=server.bind_path)
        # An additional webhook, called after vramwarden's.
        manifest["metadata"]["name"] = "zzz"
        with installed(control_plane.api, manifest):
            cluster.bind(pod, "n1")
        lines = [line for line in server.log() if line.get("webhook") == "bind"]
    assert [(line["decision"], line["reasons"]) for line in lines] == [
        ("untouched", ["APIServerAway"])
    ]
    chosen = {"a": ("n1", "GPU-n1-0")}  # by vramwarden, at once or late: the node may be unknown
    wait_until("its GPU", lambda: bound(cluster.api, cluster.namespace) == chosen)
