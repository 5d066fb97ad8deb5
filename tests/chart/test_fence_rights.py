"""What takes a right of its own: to enter the sidecar, and to exempt a namespace."""

from __future__ import annotations

import uuid

import pytest

from tests.chart.admission_policies import BINDING, POLICY, apply, is_denied_by
from tests.chart.fenced import MERGE, Fenced, allow, granted
from tests.chart.recorded_reviews import denial
from tests.support.charts import one
from tests.support.control_planes import wait_until
from tests.support.pods import a_container, a_pod

ENFORCER, EXEMPTION = "vramwarden-enforcer", "vramwarden-exemption"
LABEL = "vramwarden.io/webhook"
GROUP = "vramwarden.io"


@pytest.fixture(scope="module")
def cluster(control_plane, helm):
    found = Fenced(control_plane, helm, ENFORCER)
    for name in (ENFORCER, EXEMPTION):
        for kind in (POLICY, BINDING):
            apply(found.api, one(found.objects, kind, name))
    yield found
    found.close()
    for name in (ENFORCER, EXEMPTION):
        for kind in (BINDING, POLICY):
            found.api.delete(one(found.objects, kind, name))


@pytest.fixture(scope="module")
def pod(cluster):
    sidecar = a_container("vram-enforcer", restartPolicy="Always")
    return cluster.create(a_pod(initContainers=[sidecar]), dry_run=False)


def enters(cluster, pod, how, api=None, **query):
    """Try to enter a pod; return what the API server says: it is bound to no node, at the best."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/{how}"
    command = {"command": "id"} if how == "exec" else {}
    return denial(
        lambda: (api or cluster.alice).request("POST", path, **command, stdout="true", **query)
    )


HOW = pytest.mark.parametrize("how", ["exec", "attach"])
NO_NODE = "does not have a host assigned"


@pytest.fixture(scope="module")
def fenced(cluster, pod):
    wait_until(
        "the sidecar is fenced",
        lambda: is_denied_by(enters(cluster, pod, "exec", container="vram-enforcer"), ENFORCER),
    )
    return cluster


@HOW
def test_a_tenant_enters_her_container_and_not_the_sidecar(fenced, pod, how):
    why = enters(fenced, pod, how, container="vram-enforcer")
    assert is_denied_by(why, ENFORCER)
    assert "Name another container with --container" in why
    assert NO_NODE in enters(fenced, pod, how, container="main")
    assert NO_NODE in enters(fenced, pod, how)


@HOW
def test_the_server_never_means_the_sidecar_where_no_container_is_named(fenced, how):
    """The annotation of the default container is for clients alone."""
    annotations = {"kubectl.kubernetes.io/default-container": "vram-enforcer"}
    containers = [a_container(), a_container("vram-enforcer")]
    both = fenced.create(a_pod(containers=containers, annotations=annotations), dry_run=False)
    why = enters(fenced, both, how)
    assert "a container name must be specified" in why or NO_NODE in why


@HOW
def test_every_right_in_her_namespace_is_not_enough(fenced, pod, how):
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    allow(fenced.api, "bob", "default", rule)
    bob = fenced.api.acting_as("bob", "system:authenticated")
    assert NO_NODE in enters(fenced, pod, how, bob, container="main")
    assert is_denied_by(enters(fenced, pod, how, bob, container="vram-enforcer"), ENFORCER)


@HOW
def test_who_may_exec_on_enforcers_enters_it(fenced, pod, how):
    rule = {"apiGroups": [GROUP], "resources": ["enforcers"], "verbs": ["exec"]}
    with granted(fenced.api, "alice", rule):
        assert NO_NODE in enters(fenced, pod, how, container="vram-enforcer")
    assert is_denied_by(enters(fenced, pod, how, container="vram-enforcer"), ENFORCER)
    assert NO_NODE in enters(fenced, pod, how, fenced.api, container="vram-enforcer")


def test_a_container_of_that_name_in_an_exempt_namespace_is_not_ours(fenced):
    fenced.namespace("labelled-rights", {LABEL: "disabled"})
    for namespace in ("labelled-rights", "nvidia-rights"):
        containers = [a_container("vram-enforcer")]
        pod = fenced.create(a_pod(containers=containers), namespace, dry_run=False)
        assert NO_NODE in enters(fenced, pod, "exec", container="vram-enforcer")


NAMESPACES = {
    "apiGroups": [""],
    "resources": ["namespaces", "namespaces/status", "namespaces/finalize"],
    "verbs": ["*"],
}
EXEMPT = {"apiGroups": [GROUP], "resources": ["namespaces"], "verbs": ["exempt"]}


@pytest.fixture(scope="module")
def carol(cluster):
    """Be somebody who may do everything with namespaces."""
    with granted(cluster.api, "carol", NAMESPACES):
        api = cluster.api.acting_as("carol", "system:authenticated")
        labels = {LABEL: "disabled"}
        wait_until(
            "the label is fenced",
            lambda: is_denied_by(denial(lambda: making(api, labels)), EXEMPTION),
        )
        yield api


def making(api, labels=None):
    metadata = {"name": f"made-{uuid.uuid4().hex[:8]}", "labels": labels or {}}
    return api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, dry_run=True)


def relabelling(api, namespace, labels, how):
    """Try to change labels of a namespace on one of three ways; return why it is denied."""
    path = f"/api/v1/namespaces/{namespace}"
    if how == "/finalize":
        found = api.request("GET", path)
        before = found["metadata"].get("labels") or {}
        after = {key: value for key, value in {**before, **labels}.items() if value is not None}
        found["metadata"]["labels"] = after
        return denial(lambda: api.request("PUT", path + how, found, dryRun="All"))
    change = {"metadata": {"labels": labels}}
    return denial(
        lambda: api.request("PATCH", path + how, change, content_type=MERGE, dryRun="All")
    )


WAYS = pytest.mark.parametrize("how", ["", "/status", "/finalize"])


@WAYS
@pytest.mark.parametrize("value", ["disabled", "x", ""])
def test_who_may_change_namespaces_exempts_none(cluster, carol, how, value):
    why = relabelling(carol, "default", {LABEL: value}, how)
    assert is_denied_by(why, EXEMPTION)
    assert "by who may `exempt` on `namespaces`" in why
    assert is_denied_by(denial(lambda: making(carol, {LABEL: value})), EXEMPTION)


@WAYS
@pytest.mark.parametrize("value", [None, "x"])
def test_nor_takes_an_exemption_away(cluster, carol, how, value):
    cluster.namespace("labelled-rights", {LABEL: "disabled"})
    assert is_denied_by(relabelling(carol, "labelled-rights", {LABEL: value}, how), EXEMPTION)
    assert relabelling(carol, "labelled-rights", {"app": "web"}, how) == ""


@WAYS
def test_all_else_of_namespaces_is_changed_as_before(cluster, carol, how):
    assert relabelling(carol, "default", {"app": "web"}, how) == ""
    assert denial(lambda: making(carol, {"app": "web"})) == ""
    assert denial(lambda: making(carol)) == ""


@WAYS
def test_who_may_exempt_does(cluster, carol, how):
    with granted(cluster.api, "carol", EXEMPT):
        assert relabelling(carol, "default", {LABEL: "disabled"}, how) == ""
        assert denial(lambda: making(carol, {LABEL: "disabled"})) == ""
    # Every right within a namespace is none in the cluster.
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    allow(cluster.api, "carol", "default", rule)
    assert is_denied_by(relabelling(carol, "default", {LABEL: "disabled"}, how), EXEMPTION)
    assert relabelling(cluster.api, "default", {LABEL: "disabled"}, how) == ""
