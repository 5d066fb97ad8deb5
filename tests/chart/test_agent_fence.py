"""The agent's account may change its own node alone, and there only what is ours."""

from __future__ import annotations

import json
import uuid

import pytest
import urllib3

from tests.chart.admission_policies import POLICY, Line, is_denied_by
from tests.chart.recorded_reviews import denial
from tests.support.charts import NAMESPACE, one
from tests.support.control_planes import Api, ApiError, needs
from webhook import names
from webhook.adapters.kube.client import connect
from webhook.adapters.kube.events import Events, node_reference
from webhook.core.node.patching import without_taint
from webhook.core.placement.assignments import config_map_name

NAME = "vramwarden-agent"
FENCE = "vramwarden-accounts"
OBJECTS = (
    ("ServiceAccount", NAME),
    ("ClusterRole", NAME),
    ("ClusterRoleBinding", NAME),
    ("Role", NAME),
    ("RoleBinding", NAME),
    ("Role", f"{NAME}-events"),
    ("RoleBinding", f"{NAME}-events"),
)
TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"
OWN, OTHER = "fenced-1", "fenced-2"
LABELS = {
    "vramwarden.io/gpu": "true",
    "vramwarden.io/gpu-memory-mib": "81920",
    names.NODE_ASKS_LABEL: "1764000000",
}


def node_path(name, subresource=""):
    return f"/api/v1/nodes/{name}{subresource}"


def a_token(api, node):
    """Fetch a token as a kubelet does for the pod of an agent; of no pod where no node is named."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    if node is None:
        return api.request("POST", path, request)["status"]["token"]
    name = f"agent-{uuid.uuid4().hex[:8]}"
    metadata = {"name": name, "namespace": NAMESPACE}
    spec = {
        "nodeName": node,
        "serviceAccountName": NAME,
        "containers": [{"name": "agent", "image": "example"}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    uid = api.create(pod)["metadata"]["uid"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
    request["spec"] = {"boundObjectRef": bound}
    return api.request("POST", path, request)["status"]["token"]


@pytest.fixture(scope="module")
def agent(control_plane, helm):
    """Be the agent of one node, under the rights and the fence of the chart."""
    api, objects = control_plane.api, helm.render()
    needs(api, POLICY)
    with_taint = helm.render({"agent": {"startupTaint": TAINT}})
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for kind, name in OBJECTS:
        api.apply(one(objects, kind, name))
    for name in (OWN, OTHER):
        metadata = {"name": name, "labels": {"example.com/rack": "7"}}
        api.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    ca = str(control_plane.state / "ca.crt")
    with urllib3.PoolManager(ca_certs=ca) as pool:

        def acting(node):
            headers = {"Authorization": f"Bearer {a_token(api, node)}"}
            return Api(control_plane.url, pool, headers)

        found = acting(OWN)

        def tried(mark):
            return patch(found, {"metadata": {"labels": {"probe": mark}}}, dryRun="All")

        line = Line(api, FENCE, tried)
        line.use(objects)
        found.of = acting
        found.under_taint = lambda: line.use(with_taint)
        found.under_none = lambda: line.use(objects)
        yield found
        line.remove()
    for kind, name in OBJECTS:
        api.delete(one(objects, kind, name))
    for name in (OWN, OTHER):
        api.request("DELETE", node_path(name))
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    for pod in api.list(pods):
        api.request("DELETE", f"{pods}/{pod['metadata']['name']}", gracePeriodSeconds="0")


def patch(agent, change, node=OWN, subresource="", **query):
    kind = "application/merge-patch+json"
    return agent.request("PATCH", node_path(node, subresource), change, content_type=kind, **query)


KUBELET = {
    "conditions": [{"type": "Ready", "status": "True"}],
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    "images": [{"names": ["example"], "sizeBytes": 1}],
}


def test_the_agent_shows_on_its_node_what_it_found(agent, api):
    patch(api, {"status": KUBELET}, subresource="/status")
    annotations = {"vramwarden.io/gpus": "[]", names.NODE_HELD_ANNOTATION: "by a device plugin"}
    patch(agent, {"metadata": {"labels": LABELS, "annotations": annotations}})
    amounts = {"vramwarden.io/vram": "80Gi"}
    change = {"status": {"capacity": amounts, "allocatable": amounts}}
    patch(agent, change, subresource="/status")
    shown = agent.request("GET", node_path(OWN))["status"]
    assert shown["capacity"] == amounts
    assert {key: len(shown[key]) for key in KUBELET} == dict.fromkeys(KUBELET, 1)
    patch(agent, {"metadata": {"labels": {"vramwarden.io/gpu": None}}})


CHANGES = {
    "another's label": {"metadata": {"labels": {"example.com/rack": "8"}}},
    "a label taken away": {"metadata": {"labels": {"example.com/rack": None}}},
    "a label that draws pods": {"metadata": {"labels": {"disk": "ssd"}}},
    "another's annotation": {"metadata": {"annotations": {"example.com/a": "1"}}},
    "a taint": {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
    "no more pods": {"spec": {"unschedulable": True}},
    "another's capacity": {"status": {"capacity": {"nvidia.com/gpu": "8"}}},
    "another's allocatable": {"status": {"allocatable": {"cpu": "1000"}}},
    "where the API server finds its kubelet": {
        "status": {"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]}
    },
    "whether it is ready": {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    "what it runs": {"status": {"nodeInfo": {"kubeletVersion": "v1.0.0"}}},
    "that it is never deleted": {"metadata": {"finalizers": ["example.com/a"]}},
    "with whom it is deleted": {
        "metadata": {
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "a"}]
        }
    },
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_agent_changes_nothing_of_others(agent, change):
    where = "/status" if "status" in change else ""
    assert is_denied_by(denial(lambda: patch(agent, change, subresource=where)), FENCE)


@pytest.mark.parametrize("subresource", ["", "/status"])
def test_the_agent_changes_no_other_node(agent, subresource):
    change = {"metadata": {"labels": LABELS}, "status": {"capacity": {"vramwarden.io/vram": "1Gi"}}}
    why = denial(lambda: patch(agent, change, OTHER, subresource))
    assert is_denied_by(why, FENCE)
    assert "its own node only" in why
    patch(agent.of(OTHER), change, OTHER, subresource)


def test_others_change_nodes_as_before(agent, api):
    change = {"metadata": {"labels": {"example.com/rack": "9"}}}
    patch(api, change)
    patch(api, {"metadata": {"labels": {"example.com/rack": "7"}}})


@pytest.fixture
def assignments(api):
    """Keep a list of who has which GPUs of the agent's node, as the webhook does."""
    metadata = {"name": config_map_name(OWN), "namespace": NAMESPACE}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"uid": "{}"}}
    yield api.create(made)
    api.delete(made)


def test_the_agent_reads_and_watches_who_has_its_gpus_and_changes_nothing_there(agent, assignments):
    assert agent.get(assignments)["data"] == {"uid": "{}"}
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    name = config_map_name(OWN)
    of_it = {"fieldSelector": f"metadata.name={name}", "resourceVersion": "0"}
    event = agent.request("GET", path, watch="true", timeoutSeconds="1", **of_it)
    assert (event["type"], event["object"]["data"]) == ("ADDED", {"uid": "{}"})
    for method in ("PUT", "DELETE"):
        with pytest.raises(ApiError, match=r"cannot (update|delete)"):
            agent.request(method, f"{path}/{name}", assignments)


@pytest.mark.parametrize("path", ["/api/v1/namespaces/default/configmaps", "/api/v1/secrets"])
def test_the_agent_reads_no_other_namespace_and_no_secret(agent, path):
    with pytest.raises(ApiError, match="cannot list"):
        agent.request("GET", path)


@pytest.fixture
def kubeconfig(agent, control_plane, tmp_path):
    """Return a configuration with the agent's token."""
    config = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": a_token(control_plane.api, OWN)}
    written = tmp_path / "kubeconfig"
    written.write_text(json.dumps(config))
    return written


def an_event(name=OWN, kind="Node", namespace="default", **involved):
    about = {"apiVersion": "v1", "kind": kind, "name": name, "uid": name, **involved}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name or 'x'}-", "namespace": namespace},
        "eventTime": "2026-11-22T12:00:00.000000Z",
        "regarding": about,
        "type": "Warning",
        "reason": "Example",
        "action": "Advertise",
        "note": "an example",
        "reportingController": names.AGENT_REPORTER,
        "reportingInstance": name or "x",
    }


def test_the_agent_writes_events_of_its_node(agent, api, kubeconfig):
    events = Events(connect(kubeconfig, tries=1), names.AGENT_REPORTER, OWN)
    for _ in range(3):
        events.write(node_reference(OWN), "Tried", "a sentence", action="Advertise")
    path = "/api/v1/namespaces/default/events"
    selector = f"involvedObject.kind=Node,involvedObject.name={OWN},reason=Tried"
    (found,) = api.request("GET", path, fieldSelector=selector)["items"]
    assert (found["message"], found["involvedObject"]["uid"]) == ("a sentence", OWN)
    assert found["series"]["count"] == 3
    api.delete({**found, "apiVersion": "v1", "kind": "Event"})
    api.create(an_event(OTHER), dry_run=True)  # of others nothing is asked


@pytest.mark.parametrize(
    "event",
    [
        an_event(OTHER),
        an_event(OWN, kind="Pod", namespace="default"),
        an_event(OWN, kind="node"),
        an_event(""),
        an_event(OWN, kind=""),
    ],
    ids=["another node", "a pod", "no kind that exists", "no name", "no kind"],
)
def test_the_agent_writes_no_events_of_others(agent, event):
    event["metadata"]["generateName"] = "made-up-"
    why = denial(lambda: agent.create(event, dry_run=True))
    assert is_denied_by(why, FENCE)
    assert "Events of its own node only" in why


@pytest.mark.parametrize("name", [OWN, ""])
def test_a_token_that_names_no_node_writes_no_events(agent, api, name):
    nobody = agent.of(None)
    event = an_event(name)
    event["metadata"]["generateName"] = "made-up-"
    assert is_denied_by(denial(lambda: nobody.create(event, dry_run=True)), FENCE)


def test_the_agent_writes_events_nowhere_else_and_changes_none(agent, api):
    with pytest.raises(ApiError, match="cannot create"):
        agent.create(an_event(namespace=NAMESPACE), dry_run=True)
    made = api.create(an_event())
    path = f"/api/v1/namespaces/default/events/{made['metadata']['name']}"
    for method in ("GET", "PUT", "DELETE"):
        with pytest.raises(ApiError, match=r"cannot (get|update|delete)"):
            agent.request(method, path, made)
    api.delete(made)


OURS = {"key": TAINT, "value": "true", "effect": "NoSchedule"}
TWICE = {"key": TAINT, "effect": "NoExecute"}
THEIRS = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def taints(api, *wanted, **spec):
    """Give the agent's node these taints; return it as it is then."""
    patch(api, {"spec": {"taints": list(wanted) or None, "providerID": "example://1", **spec}})
    return api.request("GET", node_path(OWN))


@pytest.fixture
def tainted(agent, api):
    """Put the fence with a startup taint into force."""
    agent.under_taint()
    yield agent
    taints(api)
    agent.under_none()


@pytest.mark.parametrize("others", [(), (THEIRS,)], ids=["alone", "beside another"])
def test_the_agent_takes_the_startup_taint_off_and_shows_its_gpus_as_before(tainted, api, others):
    node = taints(api, *others[:1], OURS, TWICE)
    patch(tainted, {"metadata": {"labels": LABELS}})
    patch(tainted, without_taint(node | {"metadata": {"resourceVersion": ""}}, TAINT))
    assert api.request("GET", node_path(OWN))["spec"].get("taints", []) == list(others)
    amounts = {"vramwarden.io/vram": "80Gi"}
    change = {"status": {"capacity": amounts, "allocatable": amounts}}
    patch(tainted, change, subresource="/status")


def test_a_taint_that_was_added_meanwhile_is_not_lost(tainted, api):
    change = without_taint(taints(api, OURS), TAINT)
    taints(api, OURS, THEIRS)
    with pytest.raises(ApiError, match="the object has been modified"):
        patch(tainted, change)
    assert api.request("GET", node_path(OWN))["spec"]["taints"] == [OURS, THEIRS]


SPECS = {
    "another taint": {"taints": [OURS]},
    "all taints": {"taints": None},
    "a taint added": {"taints": [THEIRS, {"key": "a", "effect": "NoExecute"}]},
    "a taint changed": {"taints": [{**THEIRS, "effect": "NoExecute"}]},
    "one of two of its own": {"taints": [THEIRS, OURS]},
    "something besides": {"taints": [THEIRS], "unschedulable": True},
    "something else": {"unschedulable": True},
    "an address besides": {"taints": [THEIRS], "podCIDR": "10.9.0.0/24", "podCIDRs": None},
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_agent_changes_nothing_else_of_the_spec(tainted, api, spec):
    taints(api, THEIRS, OURS, TWICE)
    why = denial(lambda: patch(tainted, {"spec": spec}, dryRun="All"))
    assert is_denied_by(why, FENCE)
    assert f"may take the taint {TAINT} off, and change nothing else" in why


def test_the_agent_uncordons_no_node_beside_its_taint(tainted, api):
    taints(api, OURS, unschedulable=True)
    change = {"spec": {"taints": None, "unschedulable": None}}
    assert is_denied_by(denial(lambda: patch(tainted, change, dryRun="All")), FENCE)
    taints(api, unschedulable=None)


def test_the_agent_takes_off_no_taint_of_another_node(tainted, api):
    patch(api, {"spec": {"taints": [OURS]}}, OTHER)
    assert is_denied_by(denial(lambda: patch(tainted, {"spec": {"taints": None}}, OTHER)), FENCE)
    patch(api, {"spec": {"taints": None}}, OTHER)


def test_without_the_value_the_agent_takes_off_no_taint(agent, api):
    node = taints(api, OURS)
    change = without_taint(node, TAINT)
    assert is_denied_by(denial(lambda: patch(agent, change)), FENCE)
    taints(api)
