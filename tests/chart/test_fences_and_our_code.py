"""vramwarden's own code with the chart's permissions: the fence allows its requests."""

from __future__ import annotations

import base64
import json
import time

import pytest

from certs import WebhookConfiguration
from tests.chart.admission_policies import parameter
from tests.chart.fenced import MERGE, STRATEGIC
from tests.chart.fences import FRACTION, GPU, HELD, LIMIT, OWN, TAINT, VISIBLE, WAITS, path_of
from tests.chart.test_fences import LABELS, LIST_OF_OWN, MAPS, OURS, THEIRS, TWICE, tells
from tests.support.charts import NAMESPACE
from tests.support.control_planes import ApiError, wait_until
from tests.support.pods import a_container, a_pod, a_policy, a_review, a_rule
from tests.support.recorded_log import RecordedLog
from tests.support.server_process import running
from webhook import names
from webhook.adapters.journal import Journal
from webhook.adapters.kube.certificates import CertificatesApi
from webhook.adapters.kube.connection import connect
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.events import Events, node_reference
from webhook.adapters.kube.placement import PlacementApi
from webhook.adapters.kube.release_objects import RegistrationApi
from webhook.core.node.events import EventReason
from webhook.core.node.patches import build_taint_removal
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.placement.binding_review import BindingOutcome, BindingVerdict
from webhook.core.placement.gpu_annotations import gpu_annotations
from webhook.core.pod.gpus import Gpu
from webhook.core.policy.fence import RULES_KEY, fence_data, seal_data
from webhook.core.policy.model import DriverLimit, VisibleDevices
from webhook.names import WEBHOOK_CONFIGURATION
from webhook.node_programs.events import EventWriter
from webhook.sentry.actions import cap_report, limit_report
from webhook.server.metrics import Metrics, PlacementMetrics
from webhook.server.placement.late_assigner import LateAssigner

GIB = 2**30
KEY = b"0123456789abcdef" * 2
AMOUNTS = {"vramwarden.io/vram": "80Gi"}
NODE = f"/api/v1/nodes/{OWN}"
SHOWN = {"status": {"capacity": AMOUNTS, "allocatable": AMOUNTS}}


@pytest.fixture
def replica(fences, tmp_path):
    """Return the webhook's client, which uses the webhook's token."""
    return connect(fences.kubeconfig("the webhook", tmp_path), tries=1)


def patch_node(api, change, part=""):
    return api.request("PATCH", NODE + part, change, content_type=MERGE)


def test_a_replica_writes_the_ca_the_path_of_bind_and_the_owner(fences, replica):
    """The webhook's code makes the writes."""
    registration = RegistrationApi(replica, WEBHOOK_CONFIGURATION)
    for path in ("/bind/first", "/bind/second"):
        registration.write_path(registration.read()[0], path)
        assert registration.read()[0].bind == path
    for found in registration.read():
        registration.write_owner(found)
    assert all(found.owned for found in registration.read())
    certificates = CertificatesApi(
        replica, NAMESPACE, "vramwarden-certificate", [WEBHOOK_CONFIGURATION]
    )
    for pem in (b"old", b"new"):
        for found in certificates.configurations():
            assert isinstance(found, WebhookConfiguration)
            certificates.publish(found, [(name, pem) for name, _ in found.bundles])
    bundles = [pem for found in certificates.configurations() for _, pem in found.bundles]
    assert bundles == [b"new"] * 6


def waits(fences):
    """Create a bound pod that waits and whose containers could see its GPU."""
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{VISIBLE}']"}
    shown = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": field}}
    limits = {"limits": {"vramwarden.io/vram": "1Gi"}, "requests": {"vramwarden.io/vram": "1Gi"}}
    return fences.make(spec={"containers": [a_container(env=[shown], resources=limits)]})


def test_it_is_let_through_what_a_replica_does_to_assign_late(fences, replica):
    placement = PlacementApi(replica, NAMESPACE)
    assigning = LateAssigner(placement, PlacementMetrics(Metrics()), RecordedLog())
    assert placement.is_allowed("patch", "pods", "status")

    def stored(pod):
        return placement.read_stored_pod(f"default/{pod['metadata']['name']}")

    def marks(pod):
        written = fences.read(pod)["metadata"]["annotations"]
        return {key: written[key] for key in names.BINDING_ANNOTATIONS if key in written}

    told, at_once, other = (waits(fences) for _ in range(3))
    for reason in ("no room", "still no room"):
        assigning._annotated_at_s.clear()
        assert assigning._annotate(stored(told).state, reason)
        assert marks(told) == {WAITS: reason}
    gpus = [
        Gpu(uuid=f"GPU-{number}", memory_bytes=40 * GIB, product="TEST", index=number)
        for number in (1, 2)
    ]
    uuids = ("GPU-1", "GPU-2")
    for pod, limit in ((told, DriverLimit.OFF), (at_once, DriverLimit.REQUIRE)):
        given = gpu_annotations(uuids, gpus, DeviceNames.SPECIFICATION, 4 * GIB, limit)
        verdict = BindingVerdict(outcome=BindingOutcome.PLACED, uuids=uuids, annotations=given)
        assert assigning._assign(stored(pod).state, verdict) == "assigned"
        assert marks(pod) == given
    assert given.keys() == {GPU, VISIBLE, FRACTION, LIMIT}
    placement.delete_pod(stored(other))
    assert stored(other).state.pending is None  # the pod is being deleted
    with pytest.raises(KubeError) as caught:
        placement.delete_pod(stored(told))
    assert caught.value.forbidden
    placement.delete_list(placement.write_list("node-1", {}, ""))


@pytest.fixture
def server(fences, tmp_path, monkeypatch):
    """Run a replica with the webhook's token."""
    monkeypatch.setenv("KUBECONFIG", str(fences.kubeconfig("the webhook", tmp_path)))
    fences.admin.delete(parameter())
    (tmp_path / "key").write_bytes(KEY)
    options = (f"--placement-namespace={NAMESPACE}", f"--key-file={tmp_path / 'key'}")
    with running(tmp_path, *options) as found:
        yield found
    fences.admin.delete(parameter())


def test_a_replica_has_the_right_to_know_the_runtime_class(fences, server):
    def chosen():
        patch = server.review(a_review(a_pod("8Gi"), namespace="default"))["patch"]
        return '"runtimeClassName":"nvidia"' in base64.b64decode(patch).decode()

    assert not chosen()
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
    manifest = {**kind, "metadata": {"name": "nvidia"}}
    fences.admin.create(manifest)
    try:
        server.wait_for("the class", chosen)
    finally:
        fences.admin.delete(manifest)
    server.wait_for("its end", lambda: not chosen())


def stored(fences):
    found = {
        found_map["metadata"]["name"]: found_map["data"] for found_map in fences.admin.list(MAPS)
    }
    return found.get("vramwarden-fence", {})


RULES = """\
^(watched)$ - ^$ -
^(.*)$ - ^$ - translated sidecar sidecar-gate marks variables annotations void
"""


def test_a_replica_keeps_the_rules_in_force_where_the_fence_reads_them(fences, server):
    server.wait_for("the parameter", lambda: stored(fences).get(RULES_KEY) == RULES)
    fences.admin.delete(parameter())
    server.wait_for("its return", lambda: stored(fences).get(RULES_KEY) == RULES)
    path = f"{MAPS}/vramwarden-fence"
    change = {"data": {RULES_KEY: "^(.*)$\n", "rules.v3": "of another release"}}
    fences.admin.request("PATCH", path, change, content_type=MERGE)
    server.wait_for("its repair", lambda: stored(fences).get(RULES_KEY) == RULES)
    assert stored(fences)["rules.v3"] == "of another release"
    policy = server.policy / "policy.yaml"
    policy.write_text(policy.read_text() + "    visibleDevices: Ignore\n")
    changed = RULES.replace(" variables annotations void", "")
    server.wait_for("the new policy", lambda: stored(fences).get(RULES_KEY) == changed)
    # An object that only the webhook's token wrote is rejected, whatever its checksum.
    other = fence_data(a_policy(a_rule(visible_devices=VisibleDevices.VOID)))
    for data in (other, {RULES_KEY: ""}, seal_data(other, b"", time.time())):
        fences.who("the webhook").request("PUT", path, parameter(data))
        wait_until("its repair", lambda: stored(fences).get(RULES_KEY) == changed)
    policy.write_text(policy.read_text() + "    action: Ignore\n")
    ignored = "^(watched)$ - ^$ -\n^(.*)$ - ^$ -\n"
    server.wait_for("a newer policy", lambda: stored(fences).get(RULES_KEY) == ignored)
    written = [line for line in server.log() if line["msg"] == "the fence's rules are written"]
    assert len(written) == 8


KUBELET = {
    "conditions": [{"type": "Ready", "status": "True"}],
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    "images": [{"names": ["example"], "sizeBytes": 1}],
}


@pytest.fixture
def agent(fences):
    return fences.who("the agent")


def test_the_agent_shows_on_its_node_what_it_found(fences, agent):
    patch_node(fences.admin, {"status": KUBELET}, "/status")
    notes = {
        "vramwarden.io/gpus": "[]",
        names.NODE_SHARING_ANNOTATION: "NotShared: a device plugin",
    }
    patch_node(agent, {"metadata": {"labels": LABELS, "annotations": notes}})
    patch_node(agent, SHOWN, "/status")
    shown = agent.request("GET", NODE)["status"]
    assert shown["capacity"] == AMOUNTS
    assert {key: len(shown[key]) for key in KUBELET} == dict.fromkeys(KUBELET, 1)
    patch_node(agent, {"metadata": {"labels": {"vramwarden.io/gpu": None}}})


def test_a_stolen_token_of_an_agent_brings_no_raw_or_long_text_to_the_replicas(agent, replica):
    """The policy `accounts` lets it write its node's annotations; see also tests/scheduling."""
    raw = "\x1b]0;pwn\x07\n\u202e"
    entry = {"memory": 8 * GIB, "product": "x", "index": 0}
    gpus = [{**entry, "uuid": uuid} for uuid in (f"GPU-{raw}", "G" * 100_000, "GPU-a")]
    notes = {
        "vramwarden.io/gpus": json.dumps(gpus),
        names.NODE_SHARING_ANNOTATION: f"Draining: {raw}{'h' * 9999}",
    }
    patch_node(agent, {"metadata": {"annotations": notes}})
    try:
        node = PlacementApi(replica, NAMESPACE).node(OWN)
    finally:
        patch_node(agent, {"metadata": {"annotations": dict.fromkeys(notes)}})
    assert ([gpu.uuid for gpu in node.gpus], node.unread) == (["GPU-a"], 2)
    assert (node.closed_reason.isprintable(), len(node.closed_reason)) == (True, 256)


def test_the_agent_and_the_sentry_read_who_has_their_gpus_and_the_agent_watches(fences, agent):
    made = fences.admin.create({**LIST_OF_OWN, "data": {"uid": "{}"}})
    try:
        for who in (agent, fences.who("the sentry")):
            assert who.get(made)["data"] == {"uid": "{}"}
        of_it = {"fieldSelector": f"metadata.name={made['metadata']['name']}"}
        watched = {"watch": "true", "timeoutSeconds": "1", "resourceVersion": "0"}
        event = agent.request("GET", MAPS, **watched, **of_it)
        assert (event["type"], event["object"]["data"]) == ("ADDED", {"uid": "{}"})
    finally:
        fences.admin.delete(made)


def test_the_agent_writes_events_of_its_node(fences, tmp_path):
    kube = connect(fences.kubeconfig("the agent", tmp_path), tries=1)
    events = Events(kube, names.AGENT_REPORTER, OWN)
    for _ in range(3):
        events.write(node_reference(OWN), "Tried", "a sentence", action="Advertise")
    selector = f"involvedObject.kind=Node,involvedObject.name={OWN},reason=Tried"
    (found,) = fences.admin.list("/api/v1/namespaces/default/events", fieldSelector=selector)
    assert (found["message"], found["involvedObject"]["uid"]) == ("a sentence", OWN)
    assert found["series"]["count"] == 3
    fences.admin.delete({**found, "apiVersion": "v1", "kind": "Event"})


@pytest.fixture
def taints(fences):
    """Return a function that makes the agent set its node's taints and returns the node."""

    def give(*wanted):
        change = {"spec": {"taints": list(wanted) or None, "providerID": "example://1"}}
        return patch_node(fences.admin, change)

    yield give
    give()


@pytest.mark.parametrize("others", [(), (THEIRS,)], ids=["alone", "beside another"])
def test_the_agent_takes_the_startup_taint_off_and_shows_its_gpus(tainted, agent, taints, others):
    node = taints(*others, OURS, TWICE)
    patch_node(agent, {"metadata": {"labels": LABELS}})
    node = patch_node(
        agent, build_taint_removal(node | {"metadata": {"resourceVersion": ""}}, TAINT)
    )
    assert node["spec"].get("taints", []) == list(others)
    patch_node(agent, SHOWN, "/status")


def test_a_taint_that_was_added_meanwhile_is_not_lost(tainted, agent, taints):
    change = build_taint_removal(taints(OURS), TAINT)
    taints(OURS, THEIRS)
    with pytest.raises(ApiError, match="the object has been modified"):
        patch_node(agent, change)
    assert agent.request("GET", NODE)["spec"]["taints"] == [OURS, THEIRS]


def conditions(pod):
    return {condition["type"]: condition["status"] for condition in pod["status"]["conditions"]}


def tell(api, pod, change):
    path = f"{path_of(pod)}/status"
    return api.request("PATCH", path, change, content_type=STRATEGIC)


def test_the_sentry_says_of_a_pod_of_its_node_that_its_cap_was_not_held(fences):
    pod, sentry = fences.make(), fences.who("the sentry")
    after = tell(sentry, pod, tells())
    assert conditions(after) == {"PodScheduled": "True", "Ready": "True", HELD["type"]: "False"}
    assert {**after["status"], "conditions": []} == {**pod["status"], "conditions": []}
    # The same for a pod whose status the kubelet has written since.
    ready = [{"type": "Ready", "status": "False"}]
    tell(fences.admin, pod, {"status": {"conditions": ready}})
    after = tell(sentry, pod, tells({**HELD, "message": "again"}))
    assert conditions(after) == {"PodScheduled": "True", "Ready": "False", HELD["type"]: "False"}
    assert [
        condition["message"]
        for condition in after["status"]["conditions"]
        if "message" in condition
    ] == ["again"]


@pytest.fixture
def events(fences, tmp_path):
    """Return the sentry's own Event writer."""
    kube, said = connect(fences.kubeconfig("the sentry", tmp_path), tries=1), []
    found = EventWriter(
        kube, Journal(said.append), node=OWN, reporter=names.SENTRY_REPORTER,
        instance=fences.who("the sentry").pod, action="Audit",
    )  # fmt: skip
    yield found
    assert said == []


def test_what_the_sentry_writes_is_let_through(fences, events):
    pod = fences.make()
    name, uid = (pod["metadata"][key] for key in ("name", "uid"))
    for stopped in (True, False, True):
        assert not events.write(cap_report(f"default/{name}", uid, "why", stopped=stopped))
    assert not events.write(limit_report(f"default/{name}", uid, "an image had its own"))
    events.report_node(EventReason.UNMANAGED, "who holds what")
    assert not events.write(events.waiting.get_nowait())
    after = fences.read(pod)
    assert conditions(after) == {"PodScheduled": "True", "Ready": "True", HELD["type"]: "False"}
    about = {"fieldSelector": f"reportingComponent={names.SENTRY_REPORTER}"}
    written = fences.admin.list("/api/v1/namespaces/default/events", **about)
    counted = {item["reason"]: (item.get("series") or {}).get("count") for item in written}
    assert (len(written), counted) == (
        3,
        {
            EventReason.CAP_EXCEEDED: 3,
            EventReason.LIMIT_RESET: None,
            EventReason.UNMANAGED: None,
        },
    )
    for event in written:
        fences.admin.delete({**event, "apiVersion": "v1", "kind": "Event"})
