"""The agent's account may change its own node alone, and there only what is ours."""

from __future__ import annotations

import uuid

import pytest
import urllib3

from tests.chart.admission_policies import Line, is_denied_by
from tests.chart.recorded_reviews import denial
from tests.support.charts import NAMESPACE, one
from tests.support.control_planes import Api, ApiError
from webhook.core.placement.assignments import config_map_name

NAME = "vramwarden-agent"
OBJECTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
OWN, OTHER = "fenced-1", "fenced-2"
LABELS = {"vramwarden.io/gpu": "true", "vramwarden.io/gpu-memory-mib": "81920"}


def node_path(name, subresource=""):
    return f"/api/v1/nodes/{name}{subresource}"


def a_token(api, node):
    """Fetch a token as a kubelet does for the pod of an agent."""
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
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"boundObjectRef": bound},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"
    return api.request("POST", path, request)["status"]["token"]


@pytest.fixture(scope="module")
def agent(control_plane, helm):
    """Be the agent of one node, under the rights and the fence of the chart."""
    api, objects = control_plane.api, helm.render()
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for kind in OBJECTS:
        api.apply(one(objects, kind, NAME))
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

        line = Line(api, NAME, tried)
        line.use(objects)
        found.of = acting
        yield found
        line.remove()
    for kind in OBJECTS:
        api.delete(one(objects, kind, NAME))
    for name in (OWN, OTHER):
        api.request("DELETE", node_path(name))
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    for pod in api.list(pods):
        api.request("DELETE", f"{pods}/{pod['metadata']['name']}", gracePeriodSeconds="0")


def patch(agent, change, node=OWN, subresource="", **query):
    kind = "application/merge-patch+json"
    return agent.request("PATCH", node_path(node, subresource), change, content_type=kind, **query)


def test_the_agent_shows_on_its_node_what_it_found(agent):
    annotations = {"vramwarden.io/gpus": "[]"}
    patch(agent, {"metadata": {"labels": LABELS, "annotations": annotations}})
    amounts = {"vramwarden.io/vram": "80Gi"}
    change = {"status": {"capacity": amounts, "allocatable": amounts}}
    patch(agent, change, subresource="/status")
    assert agent.request("GET", node_path(OWN))["status"]["capacity"] == amounts
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
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_agent_changes_nothing_of_others(agent, change):
    where = "/status" if "status" in change else ""
    assert is_denied_by(denial(lambda: patch(agent, change, subresource=where)), NAME)


@pytest.mark.parametrize("subresource", ["", "/status"])
def test_the_agent_changes_no_other_node(agent, subresource):
    change = {"metadata": {"labels": LABELS}, "status": {"capacity": {"vramwarden.io/vram": "1Gi"}}}
    why = denial(lambda: patch(agent, change, OTHER, subresource))
    assert is_denied_by(why, NAME)
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
