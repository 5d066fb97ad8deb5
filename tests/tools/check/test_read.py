"""What `check` reads of a cluster with a release, and what it says where something is not so."""

from __future__ import annotations

import re
from base64 import b64encode

import pytest

from tests.support.api_server import merged
from tests.support.clusters import a_cluster, a_gpu, a_node, a_pod, ago, held
from tests.support.installations import (
    DAEMON_SETS,
    HOOKS,
    IMAGE,
    IN_SYSTEM,
    POLICIES,
    REGISTRATION,
    SENTRY,
    SYSTEM,
    WEBHOOK,
    admission,
    each_hook,
    installed,
    patch,
)
from tests.support.pki import Authority
from webhook import __version__
from webhook.adapters.kube.client import KubeError
from webhook.tools.check.judge.findings import Level
from webhook.tools.check.judge.table import GROUPS, run
from webhook.tools.check.read import read_facts

pytestmark = pytest.mark.process  # Helm renders the chart
BINDINGS = f"{REGISTRATION}/validatingadmissionpolicybindings"
PODS = "/api/v1/namespaces/team-a/pods"


def sidecar(**state):
    """Return the status of a pod whose sidecar is in a state."""
    return {"initContainerStatuses": [{"name": "vram-enforcer", "image": IMAGE, "state": state}]}


@pytest.fixture
def cluster():
    """Return an API server with a release that works, a node that is shared, and a pod there."""
    node = a_node("n1", a_gpu(80, held("llama", 16, 6)))
    pod = a_pod(
        "llama", "16Gi", node="n1", gpus="GPU-n1-0", status=sidecar(running={"startedAt": ago(9)})
    )
    api = a_cluster([node, a_node("cpu")], [pod]).stored_in(installed())
    api.fails("POST .*/pods", admission, forever=True)
    return api


def check(api, *, pre=False, namespace=None):
    """Return what each check found, by its name."""
    facts = read_facts(
        api.kube(), __version__, pre=pre, namespace=namespace, test_namespace="default"
    )
    return {one.check.id: one.finding for one in run(facts, pre=pre)}


def not_ok(found):
    """Return what is not as it should be."""
    return {name: one.level.value for name, one in found.items() if one.level is not Level.OK}


def test_of_a_release_that_works_all_is_seen(cluster):
    found = check(cluster)
    assert not_ok(found) == {}
    seen = {
        "gpu-nodes": "1 of 2 nodes",
        "runtime-class": (
            "handler nvidia; every pod may name it, and sees GPUs unless fence.void is on"
        ),
        "sharing": "80Gi on 1 of 1 node",
        "release": f"{__version__} in namespace {SYSTEM}",
        "webhook-ready": "2 of 2 replicas",
        "configurations": "6 webhooks",
        "pod-asks": "in namespace default, by rule default, with a sidecar",
        "agents": "1 of 1 node",
        "sentries": "1 of 1 node",
        "figures": "1 node",
    }
    assert {name: found[name].detail for name in seen} == seen
    assert found["certificate"].detail.startswith(f"Secret {SYSTEM}/vramwarden-certificate: ")
    assert found["pod-wrong"].detail.startswith("InvalidQuantity: ")


FAILED, WARNING, UNSEEN = Level.FAILED, Level.WARNING, Level.NOT_CHECKED
OF_POLICY = ("policy-valid", "policy-in-force")
DRY_RUNS = ("pod-asks", "pod-wrong", "pod-plain")
ENFORCE = "pod-security.kubernetes.io/enforce"
NO_RULES = "apiVersion: vramwarden.io/v1alpha1\nkind: VRAMPolicy\nmetadata: {name: z}\nspec: "
ONE_RULE = NO_RULES + "{rules: [{name: late, match: {namespaces: [late]}, action: Ignore}]}"
WITH_PLUGIN = a_node(
    "n2", labels={"nvidia.com/gpu.present": "true"}, amounts={"nvidia.com/gpu": "4"}
).stored
DEVICE = {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-n2-0"}}}
SLICE = {
    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n2-gpus"},
    "spec": {"driver": "gpu.nvidia.com", "nodeName": "n2", "devices": [DEVICE]},
}  # fmt: skip
VALIDATOR = a_pod(
    "v", node="n1", namespace="gpu", status="Succeeded",
    metadata={"labels": {"app": "nvidia-device-plugin-validator"}},
)  # fmt: skip
PULLS = sidecar(waiting={"reason": "ImagePullBackOff", "message": "Back-off"})


def patched(path, change):
    return lambda api: patch(api, path, change)


def labelled(path, label, value):
    return patched(path, {"metadata": {"labels": {label: value}}})


def added(*manifests):
    return lambda api: api.add(*manifests)


def removed(path):
    return lambda api: api.remove(path)


MUTATING = f"{REGISTRATION}/mutatingwebhookconfigurations"
PODS_CREATED = {"apiGroups": ["*"], "operations": ["CREATE"], "resources": ["pods"]}


def others(name):
    hook = {"name": "mutate.example.com", "rules": [PODS_CREATED]}
    return {"metadata": {"name": name}, "webhooks": [hook]}


def renamed(api, name):
    """Return our configuration as an upgrade that gave it another name left it."""
    return merged(api.objects[HOOKS[0]], {"metadata": {"name": name}})


def another_authority(api):
    strange = b64encode(Authority("nobody").pem).decode()
    each_hook(api, HOOKS[0], {"caBundle": strange})


NOT_SO = {
    "a namespace that denies the sentry": (
        labelled(f"/api/v1/namespaces/{SENTRY}", ENFORCE, "baseline"),
        {"sentry-namespace": FAILED}, f"`kubectl label namespace {SENTRY}",
    ),
    "a policy that is not valid": (
        patched(POLICIES, {"data": {"zz.yaml": NO_RULES + "{rulez: []}"}}),
        {"policy-valid": FAILED, "taints": UNSEEN}, "zz.yaml:4: spec.rulez: unknown field",
    ),
    "a policy that no replica has taken up": (
        patched(POLICIES, {"data": {"00-late.yaml": ONE_RULE}}),
        {"policy-in-force": WARNING, "fence-rules": WARNING}, "replica",
    ),
    "a fence without a binding": (
        removed(f"{BINDINGS}/vramwarden-second-line"),
        {"fence-policies": FAILED}, ["vramwarden-second-line"],
    ),
    "a binding that only warns": (
        patched(f"{BINDINGS}/vramwarden-sidecar", {"spec": {"validationActions": ["Warn"]}}),
        {"fence-policies": FAILED}, ["vramwarden-sidecar"],
    ),
    "no key": (
        removed(f"{IN_SYSTEM}/secrets/vramwarden-key"),
        {"replicas-key": WARNING}, "create secret generic vramwarden-key",
    ),
    "a sidecar whose image cannot be pulled": (
        patched(f"{PODS}/llama", {"status": PULLS}), {"sidecar-image": FAILED}, ["team-a/llama"],
    ),
    "a validator of NVIDIA's operator": (added(VALIDATOR), {"validators": WARNING}, ["gpu"]),
    "a configuration without webhooks": (
        patched(HOOKS[1], {"webhooks": None}), {"configurations": FAILED},
        [f"{name}.vramwarden.io (ValidatingWebhookConfiguration)"
         for name in ("validate", "advise")],
    ),
    "a configuration of an earlier name": (
        lambda api: api.put(f"{MUTATING}/vramwarden", renamed(api, "vramwarden")),
        {"configurations": FAILED}, ["vramwarden"],
    ),
    "another webhook that changes pods after ours": (
        lambda api: api.put(f"{MUTATING}/zzz-other", others("zzz-other"))
        or api.put(f"{MUTATING}/zy-other", others("zy-other")),
        {"webhook-order": WARNING}, ["zzz-other"],
    ),
    "somebody else's CA": (another_authority, {"ca-bundle": FAILED}, "another CA"),
}  # fmt: skip
"""What is changed, what is not as it should be then, and what is said of it: words, or objects."""


@pytest.mark.parametrize(("change", "found", "said"), NOT_SO.values(), ids=NOT_SO)
def test_what_is_not_so_is_named(cluster, change, found, said):
    change(cluster)
    seen = check(cluster)
    assert not_ok(seen) == found
    first = seen[next(iter(found))]
    assert list(first.about) == said if isinstance(said, list) else said in str(first)


@pytest.mark.parametrize(
    ("kind", "code", "unseen"),
    [
        ("mutating", 404, set()),  # before Kubernetes 1.36
        ("mutating", 403, {"fence-policies", "fence-rules"}),
        ("validating", 404, {"fence-policies", "fence-rules"}),
    ],
)
def test_mutating_admission_policies_need_not_be_served(cluster, kind, code, unseen):
    cluster.fails(f"GET .*/{kind}admissionpolicies", code, forever=True)
    assert not_ok(check(cluster)).keys() == unseen


@pytest.mark.parametrize(
    ("denied", "right", "unseen"),
    [
        (
            "list nodes",
            "",
            {check.id for check in GROUPS["nodes with GPUs"]} | {"figures"},
        ),
        (
            *("list mutatingwebhookconfigurations", "list webhook configurations"),
            {"configurations", "webhook-order", "bind-path", "ca-bundle", "validators"},
        ),
        ("get runtimeclasses", "", {"runtime-class"}),
        ("get namespaces", "", {"sentry-namespace"}),
        ("get daemonsets", "", {"agents", "limiters"}),
        ("get configmaps", "", {*OF_POLICY, "fence-rules", "taints", "sentry-label"}),
        ("get secrets", "", {"certificate", "replicas-key"}),
        ("list gpunodes", "", {"figures", "driver-limits"}),
        ("create pods", "create pods in default", {*DRY_RUNS, "policy-in-force"}),
    ],
)
def test_a_right_that_is_missing_is_named_and_the_rest_is_seen(cluster, denied, right, unseen):
    if denied == "create pods":
        cluster.recovers()  # the API server answers by itself
    cluster.denied.add(tuple(denied.split()))
    found = check(cluster)
    said = {name: found[name].detail for name in not_ok(found)}
    assert said == dict.fromkeys(unseen, f"needs the right to {right or denied}")


def test_where_the_kind_of_figures_is_not_served_they_are_missed(cluster):
    cluster.unknown.add("gpunodes")
    found = check(cluster)
    assert not_ok(found) == {"figures": WARNING}
    assert "crds.install=true" in found["figures"].cure


def test_before_an_installation_nodes_are_judged_as_an_agent_would(cluster):
    def said():
        found = check(cluster, pre=True)["sharing"]
        return found.level.value, found.detail

    bare = a_node("n2", labels={"nvidia.com/gpu.present": "true"}).stored
    cluster.add(bare)
    assert said() == ("ok", "2 of 2 nodes")
    cluster.add(SLICE)
    cause = "a DRA driver gives the GPUs away (gpu.nvidia.com)"
    assert said() == ("warning", f"n2: NotShared: {cause}")
    cluster.unknown.add("resourceslices")
    why = "needs resource.k8s.io/v1, which Kubernetes serves from 1.34 on"
    assert said() == ("ok", f"2 of 2 nodes; DRA drivers: {why}")
    cluster.add(WITH_PLUGIN)
    assert said()[1].startswith("n2: NotShared: a device plugin offers the GPUs whole")
    young = {"creationTimestamp": ago(60), "labels": {"nvidia.com/gpu.deploy.dra-driver": "true"}}
    cluster.add(merged(bare, {"metadata": young}))
    assert said()[1].startswith("n2: NotShared: NVIDIA's operator is to bring its DRA driver")


@pytest.mark.parametrize("path", ["/nodes", "/daemonsets", "POST .*/pods"])
def test_an_api_server_that_goes_away_ends_it(cluster, path):
    cluster.recovers()
    cluster.fails(path, 0)
    with pytest.raises(KubeError, match="does not answer"):
        check(cluster)


def moved(api, path, namespace):
    """Let a workload be in another namespace."""
    found = api.objects[path]
    api.remove(path)
    metadata = {"metadata": {"namespace": namespace}}
    api.put(re.sub("/namespaces/[^/]+", f"/namespaces/{namespace}", path), merged(found, metadata))


def test_a_release_is_found_wherever_it_is_unless_its_namespace_is_given(cluster):
    for path in HOOKS:
        cluster.remove(path)
    moved(cluster, WEBHOOK, "gpu")
    assert check(cluster)["release"].detail == f"{__version__} in namespace gpu"
    assert check(cluster, namespace="gpu")["release"].detail == f"{__version__} in namespace gpu"
    assert check(cluster, namespace=SYSTEM)["release"].level is FAILED


@pytest.mark.parametrize("namespace", [SENTRY, SYSTEM])
def test_a_sentry_is_found_by_its_name_without_the_right_to_list(cluster, namespace):
    moved(cluster, DAEMON_SETS[1], namespace)
    labelled(f"/api/v1/namespaces/{SYSTEM}", ENFORCE, "privileged")(cluster)
    cluster.denied.add(("list", "daemonsets"))
    found = check(cluster)
    assert not_ok(found) == {}
    assert found["sentry-namespace"].detail == namespace


def test_dry_runs_store_nothing_and_are_of_pods_that_every_namespace_takes(cluster):
    before = dict(cluster.objects)
    check(cluster)
    check(cluster, pre=True)
    assert cluster.objects == before
    tried = [one for one in cluster.asked if one.method == "POST" and "dryRun" in one.query]
    assert [one.body["metadata"]["name"] for one in tried] == [
        f"vramwarden-check-{name}" for name in ("asks", "wrong", "plain")
    ]
