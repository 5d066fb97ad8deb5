"""The webhook's account may change only pods that wait for a GPU, and our own ConfigMaps."""

from __future__ import annotations

import base64
import copy
import time

import pytest

from tests.chart.admission_policies import BINDING, POLICY, apply, is_denied_by, parameter
from tests.chart.fenced import MERGE, Fenced
from tests.chart.recorded_reviews import denial
from tests.support.charts import NAMESPACE, one
from tests.support.control_planes import wait_until
from tests.support.kube_api import account_kubeconfig
from tests.support.logs import RecordedLog
from tests.support.pods import a_container, a_pod, a_policy, a_review, a_rule
from tests.support.servers import running
from webhook.adapters.kube.client import KubeError, connect
from webhook.adapters.kube.placement import PlacementApi
from webhook.core.nvidia.device_names import DeviceNames
from webhook.core.placement.assignments import config_map_name
from webhook.core.placement.binding_review import BindingOutcome, BindingVerdict
from webhook.core.placement.pods import gpu_annotations
from webhook.core.pod.gpus import Gpu
from webhook.core.policy.fence import RULES_KEY, fence_data, sealed
from webhook.core.policy.values import VisibleDevices
from webhook.names import ASSIGNMENTS_LABEL, ASSIGNMENTS_NODE_ANNOTATION
from webhook.server.fence import PAUSE_S
from webhook.server.metrics import Metrics, PlacementMetrics
from webhook.server.placement.late import LateAssignments

NAME = "vramwarden-webhook"
FENCE = "vramwarden-accounts"
US = f"system:serviceaccount:{NAMESPACE}:{NAME}"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
GPU, VISIBLE, FRACTION, WAITS = (
    f"vramwarden.io/{key}" for key in ("gpu", "visible-devices", "gpu-memory-fraction", "gpu-waits")
)
GIVEN = {GPU: "GPU-1", VISIBLE: "GPU-1", FRACTION: "0.1000"}
GIB = 2**30
KEY = b"0123456789abcdef" * 2
LABEL = {"vramwarden.io/managed": "true"}


class Accounts(Fenced):
    """Makes pods that are bound, and writes their status as the webhook."""

    def bound(
        self, annotations=None, labels=LABEL, node="node-1", namespace="default", containers=None
    ):
        annotations = {"example.com/a": "1", **(annotations or {})}
        pod = a_pod(annotations=annotations, labels=labels, containers=containers)
        made = self.create(pod, namespace, self.api, dry_run=False)
        if node:
            name = made["metadata"]["name"]
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            head = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
            path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
            self.api.request("POST", path, {**head, "target": target})
        return made

    def writes(self, pod, annotations, **metadata):
        """Write as the webhook; return why that is denied, or nothing."""
        change = {"metadata": {"annotations": annotations, **metadata}}
        return denial(lambda: self.patch(pod, change, "/status", self.us, MERGE))

    def deletes(self, pod):
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        return denial(lambda: self.us.request("DELETE", path, dryRun="All"))


@pytest.fixture(scope="module")
def cluster(control_plane, helm):
    """Be a cluster with the webhook's rights and its fence."""
    found = Accounts(control_plane, helm, FENCE)
    groups = ("system:serviceaccounts", "system:authenticated")
    found.us = found.api.acting_as(US, *groups)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    found.api.apply(namespace)
    for kind in RIGHTS:
        found.api.apply(one(found.objects, kind, NAME))
    for kind in (POLICY, BINDING):
        apply(found.api, one(found.objects, kind, FENCE))
    waiting = found.bound()
    wait_until("it is in force", lambda: is_denied_by(found.writes(waiting, {"a": "b"}), FENCE))
    yield found
    for kind, name in (
        *((kind, FENCE) for kind in (BINDING, POLICY)),
        *((k, NAME) for k in RIGHTS),
    ):
        found.api.delete(one(found.objects, kind, name))
    for pod in found._pods:
        found.api.delete(pod, gracePeriodSeconds="0")


@pytest.fixture(scope="module")
def waiting(cluster):
    return cluster.bound({WAITS: "no GPU of node-1 has 8Gi free"})


@pytest.mark.parametrize(
    "annotations",
    [
        {**GIVEN, WAITS: None},
        {WAITS: "another reason"},
        {WAITS: None},
        {},
    ],
    ids=str,
)
def test_it_gives_a_waiting_pod_its_gpu_or_says_why_it_waits(cluster, waiting, annotations):
    assert cluster.writes(waiting, annotations) == ""
    # A pod that nobody said anything about yet.
    assert cluster.writes(cluster.bound(), annotations) == ""


@pytest.mark.parametrize(
    "annotations",
    [
        {GPU: "GPU-1", WAITS: None},
        {VISIBLE: "GPU-1", WAITS: None},
        {FRACTION: "0.1000"},
        {VISIBLE: "GPU-1", FRACTION: "0.1000"},
        {**GIVEN, GPU: "", WAITS: None},
        {**GIVEN, VISIBLE: "", WAITS: None},
        {**GIVEN, FRACTION: "", WAITS: None},
        {GPU: "GPU-1", VISIBLE: "GPU-1", WAITS: None},
        {**GIVEN, WAITS: "still"},
        GIVEN,
        {**GIVEN, WAITS: None, "example.com/a": "2"},
        {**GIVEN, WAITS: None, "example.com/a": None},
        {**GIVEN, WAITS: None, "vramwarden.io/gpu-memory": "1Mi"},
        {WAITS: "x", "vramwarden.io/admitted": "v1 x y"},
        {"example.com/b": "1"},
    ],
    ids=str,
)
def test_it_writes_nothing_else_and_nothing_in_part(cluster, waiting, annotations):
    why = cluster.writes(waiting, annotations)
    assert is_denied_by(why, FENCE)
    assert "only vramwarden.io/gpu-waits, or in its place vramwarden.io/gpu" in why


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"app": "web"}}},
        {"metadata": {"labels": {"vramwarden.io/managed": None}}},
        {"metadata": {"finalizers": ["example.com/x"]}},
        {"status": {"phase": "Failed"}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    ],
    ids=str,
)
def test_it_changes_nothing_but_annotations(cluster, waiting, change):
    change = copy.deepcopy(change)
    change.setdefault("metadata", {})["annotations"] = {**GIVEN, WAITS: None}
    why = denial(lambda: cluster.patch(waiting, change, "/status", cluster.us, MERGE))
    assert is_denied_by(why, FENCE)
    assert "only annotations of a pod, through its status" in why


NOT_WAITING = {
    "a pod that is not bound": {"node": ""},
    "a pod of others": {"labels": {}},
    "a pod with another label": {"labels": {"vramwarden.io/managed": "no"}},
    "a pod that has a GPU": {"annotations": GIVEN},
    "a pod whose GPU is empty": {"annotations": {GPU: ""}},
}


@pytest.mark.parametrize("pod", NOT_WAITING.values(), ids=NOT_WAITING)
def test_it_touches_no_pod_that_does_not_wait(cluster, pod):
    pod = cluster.bound(**pod)
    for change in ({**GIVEN, GPU: "GPU-2"}, {WAITS: "x"}, {GPU: None}):
        why = cluster.writes(pod, change)
        assert is_denied_by(why, FENCE)
        assert "only pods with VRAM that are bound and have no GPU yet" in why
    assert is_denied_by(cluster.deletes(pod), FENCE)


def test_it_deletes_a_pod_that_waits(cluster, waiting):
    assert cluster.deletes(waiting) == ""


def test_others_write_and_delete_as_before(cluster, waiting):
    pod = cluster.bound(GIVEN)
    change = {"metadata": {"labels": {"app": "web"}}, "status": {"phase": "Running"}}
    assert denial(lambda: cluster.patch(pod, change, "/status", cluster.api, MERGE)) == ""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    assert denial(lambda: cluster.alice.request("DELETE", path, dryRun="All")) == ""


def config_map(name, node="", namespace=NAMESPACE):
    metadata = {"name": name, "namespace": namespace}
    if node:
        metadata |= {"labels": {ASSIGNMENTS_LABEL: "true"}}
        metadata |= {"annotations": {ASSIGNMENTS_NODE_ANNOTATION: node}}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"assignments": ""},
    }


LONG = ".".join(["n" * 60] * 4)
HASHED = config_map_name(LONG)


@pytest.mark.parametrize(
    ("name", "node", "allowed"),
    [
        ("gpu-assignments-node-1", "node-1", "create change delete"),
        (HASHED, LONG, "create change delete"),
        ("gpu-assignments-node-1", "", "change delete"),
        ("gpu-assignments-node-1", "node-2", "change delete"),
        ("gpu-assignments-", "", "change delete"),
        (HASHED, "node-1", "change delete"),
        ("vramwarden-fence", "", "create change"),
        ("vramwarden-policies", "", ""),
        ("vramwarden-policy-objects", "", ""),
        ("kube-root-ca.crt", "", ""),
        ("my-gpu-assignments-node-1", "node-1", ""),
    ],
)
def test_it_writes_no_config_map_but_its_own_and_deletes_lists_alone(cluster, name, node, allowed):
    made = {**config_map(name, node), "data": {"whole": "{}"}}
    if name.endswith("-"):  # as the API server completes it
        made["metadata"] |= {"name": name + "node-1"}
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{made['metadata']['name']}"
    cluster.api.delete(made)
    unnamed = copy.deepcopy(made)
    del unnamed["metadata"]["name"]
    unnamed["metadata"]["generateName"] = name
    said = {
        "create": denial(lambda: cluster.us.create(made, dry_run=True)),
        "a name that is made up": denial(lambda: cluster.us.create(unnamed, dry_run=True)),
    }
    cluster.api.create(made)
    said["change"] = denial(lambda: cluster.us.request("PUT", path, made, dryRun="All"))
    said["delete"] = denial(lambda: cluster.us.request("DELETE", path, dryRun="All"))
    cluster.api.delete(made)
    assert {what for what, why in said.items() if not why} == set(allowed.split())
    assert all(is_denied_by(why, FENCE) for why in said.values() if why)


def test_its_token_reads_no_key(cluster):
    for name in ("vramwarden-key", ""):
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}"
        assert "forbidden" in denial(lambda path=path: cluster.us.request("GET", path))


@pytest.fixture
def kubeconfig(cluster, tmp_path):
    """Return a configuration with the webhook's token."""
    admins = cluster.control_plane.kubeconfig
    return account_kubeconfig(cluster.api, admins, NAMESPACE, NAME, tmp_path / "kubeconfig")


def waits(cluster):
    """Make a pod that is bound and waits, and whose containers would be shown its GPU."""
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{VISIBLE}']"}
    shown = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": field}}
    limits = {"limits": {"vramwarden.io/vram": "1Gi"}, "requests": {"vramwarden.io/vram": "1Gi"}}
    return cluster.bound(containers=[a_container(env=[shown], resources=limits)])


@pytest.mark.parametrize(
    ("reporter", "why"),
    [
        ("vramwarden.io/webhook", ""),
        ("vramwarden.io/sentry", "Events only as vramwarden.io/webhook"),
        ("kubelet", "Events only as vramwarden.io/webhook"),
    ],
)
def test_it_writes_events_as_itself_alone(cluster, reporter, why):
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "made-up-", "namespace": "default"},
        "eventTime": "2026-11-22T12:00:00.000000Z",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "x", "namespace": "default"},
        "type": "Warning",
        "reason": "BoundWithoutGPU",
        "action": "Binding",
        "note": "an example",
        "reportingController": reporter,
        "reportingInstance": "replica",
    }
    said = denial(lambda: cluster.us.create(event, dry_run=True))
    assert why in said
    assert is_denied_by(said, FENCE) is bool(why)


def test_it_is_let_through_what_a_replica_does_to_assign_late(cluster, kubeconfig):
    placement = PlacementApi(connect(kubeconfig, tries=1), NAMESPACE)
    assigning = LateAssignments(placement, PlacementMetrics(Metrics()), RecordedLog())
    assert placement.may("patch", "pods", "status")

    def stored(pod):
        return placement.stored_pod(f"default/{pod['metadata']['name']}")

    def marks(pod):
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
        written = cluster.api.request("GET", path)["metadata"]["annotations"]
        return {key: written[key] for key in (GPU, VISIBLE, FRACTION, WAITS) if key in written}

    told, at_once, other = (waits(cluster) for _ in range(3))
    for reason in ("no room", "still no room"):
        assigning._told_s.clear()
        assert assigning._annotate(stored(told).state, reason)
        assert marks(told) == {WAITS: reason}
    gpus = [
        Gpu(uuid=f"GPU-{number}", memory_bytes=40 * GIB, product="TEST", index=number)
        for number in (1, 2)
    ]
    uuids = ("GPU-1", "GPU-2")
    given = gpu_annotations(uuids, gpus, DeviceNames.SPECIFICATION, 4 * GIB)
    verdict = BindingVerdict(outcome=BindingOutcome.PLACED, uuids=uuids, annotations=given)
    for pod in (told, at_once):
        assert assigning._assign(stored(pod).state, verdict) == "assigned"
        assert marks(pod) == {
            GPU: "GPU-1,GPU-2",
            VISIBLE: "nvidia.com/gpu=GPU-1,nvidia.com/gpu=GPU-2",
            FRACTION: "0.0853",
        }
    placement.warn_of(stored(other).state, "BoundWithoutGPU", "why")
    placement.delete_pod(stored(other))
    assert stored(other).state.waits is None  # it is being deleted
    with pytest.raises(KubeError) as caught:
        placement.delete_pod(stored(told))
    assert caught.value.forbidden
    placement.remove(placement.store("node-1", {}, ""))


@pytest.fixture
def server(cluster, tmp_path, kubeconfig, monkeypatch):
    """Run a replica that speaks to the API server with the webhook's token."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    cluster.api.delete(parameter())
    (tmp_path / "key").write_bytes(KEY)
    options = (f"--placement-namespace={NAMESPACE}", f"--key-file={tmp_path / 'key'}")
    with running(tmp_path, *options) as found:
        yield found
    cluster.api.delete(parameter())


def test_a_replica_has_the_right_to_know_the_runtime_class(cluster, server):
    def chosen():
        patch = server.review(a_review(a_pod("8Gi"), namespace="default"))["patch"]
        return '"runtimeClassName":"nvidia"' in base64.b64decode(patch).decode()

    assert not chosen()
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
    manifest = {**kind, "metadata": {"name": "nvidia"}}
    cluster.api.create(manifest)
    try:
        server.wait_for("the class", chosen)
    finally:
        cluster.api.delete(manifest)
    server.wait_for("its end", lambda: not chosen())


def stored(cluster):
    found = cluster.api.list(f"/api/v1/namespaces/{NAMESPACE}/configmaps")
    (data,) = [one["data"] for one in found if one["metadata"]["name"] == "vramwarden-fence"] or [
        {}
    ]
    return data


RULES = "^(watched)$ - ^$ -\n^(.*)$ - ^$ - translated sidecar marks variables annotations void\n"


def test_a_replica_keeps_the_rules_in_force_where_the_fence_reads_them(cluster, server):
    server.wait_for("the parameter", lambda: stored(cluster).get(RULES_KEY) == RULES)
    cluster.api.delete(parameter())
    server.wait_for("its return", lambda: stored(cluster).get(RULES_KEY) == RULES)
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/vramwarden-fence"
    change = {"data": {RULES_KEY: "^(.*)$\n", "rules.v3": "of another release"}}
    cluster.api.request("PATCH", path, change, content_type=MERGE)
    server.wait_for("its repair", lambda: stored(cluster).get(RULES_KEY) == RULES)
    assert stored(cluster)["rules.v3"] == "of another release"
    policy = server.policy / "policy.yaml"
    policy.write_text(policy.read_text() + "    visibleDevices: Ignore\n")
    changed = RULES.replace(" variables annotations void", "")
    server.wait_for("the new policy", lambda: stored(cluster).get(RULES_KEY) == changed)
    # What the webhook's token wrote is none of ours, however often and whatever its sum says.
    other = fence_data(a_policy(a_rule(visible_devices=VisibleDevices.VOID)))
    for data in (other, {RULES_KEY: ""}, sealed(other, b"", time.time())):
        cluster.us.request("PUT", path, {**config_map("vramwarden-fence"), "data": data})
        wait_until("its repair", lambda: stored(cluster).get(RULES_KEY) == changed, timeout=5)
    # Another replica's rules, of another policy, are left alone for now.
    data = {"data": sealed(other, KEY, time.time())}
    cluster.api.request("PATCH", path, data, content_type=MERGE)
    time.sleep(2 * PAUSE_S)
    assert stored(cluster).get(RULES_KEY) == other[RULES_KEY]
    policy.write_text(policy.read_text() + "    action: Ignore\n")
    ignored = "^(watched)$ - ^$ -\n^(.*)$ - ^$ -\n"
    server.wait_for("a newer policy", lambda: stored(cluster).get(RULES_KEY) == ignored)
    written = [line for line in server.log() if line["msg"] == "the fence's rules are written"]
    assert len(written) == 8
