"""`vramwarden check` before an installation, of one that works, and of broken ones."""

from __future__ import annotations

import base64
import itertools
import json
import re
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.chart.admission_policies import POLICY
from tests.chart.served import behind_the_service, own_address, served, show_ready
from tests.support.charts import CHART, NAMESPACE, Release, hooks, one
from tests.support.checked import INSTALLED, a_raw_node
from tests.support.commands import runner
from tests.support.control_planes import free_port, needs, wait_until
from tests.support.kube_api import _collection
from tests.support.pki import Authority
from webhook.cli.main import main
from webhook.tools.check.judge.facts import read_sources, read_workload
from webhook.tools.check.judge.fence import KEY, PARTS, WEAK, weakened
from webhook.tools.check.judge.webhook import EXPECTED
from webhook.tools.check.read import (
    CREATED,
    CREATED_IN_CLUSTER,
    CREATED_WHERE_SERVED,
    GRANTED,
)
from webhook.tools.shared.node import AGENT_KEYS, AGENT_LABELS

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{REGISTRATION}/mutatingwebhookconfigurations/vramwarden"
SENTRY = "vramwarden-sentry"
ENFORCE = "pod-security.kubernetes.io/enforce"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


def plural(thing):
    """Return group and resource of an object."""
    group = thing["apiVersion"].rpartition("/")[0]
    return group, _collection({**thing, "metadata": {"name": "x"}}).rpartition("/")[2]


def test_rights_are_asked_for_all_that_the_chart_creates(helm):
    made = [thing for thing in helm.render() if hooks(thing) != "test"]
    created = {*CREATED, *CREATED_IN_CLUSTER, *CREATED_WHERE_SERVED}
    assert {plural(thing) for thing in made} - created == set()
    namespaced = {
        plural(thing) for thing in made if thing["metadata"].get("namespace") == NAMESPACE
    }
    assert namespaced == set(CREATED)


def test_rights_are_asked_for_all_that_the_chart_grants(helm):
    asked = {(group, resource): set(verbs) for group, resource, verbs in GRANTED}
    for role in (thing for thing in helm.render() if thing["kind"] == "ClusterRole"):
        for rule in role["rules"]:
            if rule.get("resourceNames"):
                continue
            for group, resource in itertools.product(rule["apiGroups"], rule["resources"]):
                assert set(rule["verbs"]) <= asked[group, resource], role["metadata"]["name"]


def test_webhooks_are_expected_as_the_chart_registers_them(helm):
    found = {
        (thing["kind"], hook["name"]): hook["failurePolicy"]
        for thing in helm.render()
        for hook in thing.get("webhooks", ())
    }
    assert {key: found.pop(key) for key in EXPECTED} == EXPECTED
    assert set(found.values()) <= {"Ignore"}


@pytest.mark.parametrize("value", PARTS)
def test_each_part_of_the_fence_is_what_its_value_installs(helm, value):
    def policies(values=None):
        kind = "ValidatingAdmissionPolicy"
        return {thing["metadata"]["name"] for thing in helm.render(values) if thing["kind"] == kind}

    missing = policies() - policies({"fence": {value.removeprefix("fence."): False}})
    assert set(PARTS[value]) <= missing


def test_the_labels_that_bring_the_agent_are_the_charts(helm):
    spec = one(helm.render(), "DaemonSet", "vramwarden-agent")["spec"]["template"]["spec"]
    wanted = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = spec["affinity"]["nodeAffinity"][wanted]["nodeSelectorTerms"]
    keys = {expression["key"] for term in terms for expression in term["matchExpressions"]}
    assert keys == {*AGENT_LABELS, *AGENT_KEYS, "vramwarden.io/gpu"}


OF_VERSION = {"kubernetes-version", "admission-policies"}
"""Checks whose result is another before Kubernetes 1.30."""
STRONG = {"networkPolicy": {"apiServerCIDRs": ["192.0.2.0/24"]}}
OPEN = {
    "networkPolicy.enabled": {"networkPolicy": {"enabled": False}},
    "networkPolicy.apiServerCIDRs": {"networkPolicy": {}},
    "agent.gpuAccess": {"agent": {"gpuAccess": "Privileged"}},
}


@pytest.mark.parametrize("value", sorted(WEAK.keys() - {KEY}))
def test_each_value_that_weakens_it_is_seen_in_what_it_renders(helm, value):
    def found(values):
        objects = helm.render(values)
        policies = [thing for thing in objects if thing["kind"] == "NetworkPolicy"]
        named = {thing["metadata"]["name"]: thing for thing in policies}
        return weakened(
            replace(
                INSTALLED,
                agent=read_workload(one(objects, "DaemonSet", "vramwarden-agent")),
                sources=read_sources(named.get("vramwarden-webhook")),
            )
        ).about

    assert (found(STRONG), found({**STRONG, **OPEN[value]})) == ((), (value,))


@pytest.mark.parametrize(
    ("named", "values"),
    [
        *OPEN.items(),
        *((part, {"fence": {part.removeprefix("fence."): False}}) for part in PARTS),
        *(
            (f"webhook.{phase}.failurePolicy", {"webhook": {phase: {"failurePolicy": "Ignore"}}})
            for phase in ("mutating", "validating")
        ),
    ],
)
def test_the_notes_name_each_value_that_weakens_it(api, live_helm, named, values):
    needs(api, POLICY)  # without it they name each part of the fence

    def said(values):
        command = ("install", "notes", str(CHART), "--namespace", NAMESPACE, "--dry-run=client")
        # Of its own namespace a release of another name may have been here.
        values = {**values, "sentry": {"createNamespace": False}, "crds": {"install": False}}
        notes = live_helm.run(*command, *live_helm.values(values)).partition("NOTES:")[2]
        return re.findall(r"^- (\S+) is ", notes, re.MULTILINE)

    assert (said(STRONG), said({**STRONG, **values})) == ([], [named])


class Checked:
    """What a run of the command said."""

    def __init__(self, kubeconfig, *options):
        arguments = ["check", "--kubeconfig", str(kubeconfig), "-o", "json", *options]
        done = runner().invoke(main, arguments)
        self.code = done.exit_code
        assert done.stdout, done.output
        self.report = json.loads(done.stdout)
        self.checks = {entry["id"]: entry for entry in self.report["checks"]}

    def __getitem__(self, name):
        return self.checks[name]["result"]

    def named(self, *results):
        """Return the checks that ended so."""
        return {name for name, entry in self.checks.items() if entry["result"] in results}


@pytest.fixture(scope="module")
def check(control_plane):
    control_plane.ensure_service_account("default")
    return lambda *options: Checked(control_plane.kubeconfig, *options)


@contextmanager
def a_node_of_its_own(control_plane, **parts):
    """Keep a node with a GPU in the cluster for the length of a block."""
    node = {"apiVersion": "v1", "kind": "Node", **a_raw_node("gpu-1", **parts)}
    api, path = control_plane.api, "/api/v1/nodes/gpu-1"
    api.create(node)
    status = {"status": {**node["status"], "capacity": node["status"]["allocatable"]}}
    api.request("PATCH", f"{path}/status", status, content_type=MERGE)
    # The API server gives new nodes a taint that only controllers take off.
    api.request("PATCH", path, {"spec": {"taints": None}}, content_type=MERGE)
    try:
        yield
    finally:
        api.delete(node)


def test_an_empty_cluster_can_take_it_and_lacks_nodes_alone(check):
    found = check("--pre")
    assert found.code == 0
    assert found.report["kind"] == "CheckReport"
    assert found.report["mode"] == "pre"
    assert found.named("warning", "failed", "notLookedAt") - OF_VERSION == {"gpu-nodes"}


def test_what_is_not_there_is_one_failure_with_the_command_that_installs_it(check):
    found = check()
    assert found.code == 1
    assert found.named("failed") == {"release"}
    assert "helm install vramwarden" in found.checks["release"]["cure"]


def test_before_an_installation_nodes_are_judged(check, control_plane):
    with a_node_of_its_own(control_plane, allocatable={"nvidia.com/gpu": "4"}):
        found = check("--pre")
    assert found.code == 0
    assert found.named("warning", "failed") - OF_VERSION == {"whole-gpus", "runtime-class"}
    assert found.checks["whole-gpus"]["objects"] == ["gpu-1"]


def test_a_user_without_rights_learns_which_and_what_is_left_is_looked_at(
    check, control_plane, tmp_path
):
    account = {"apiVersion": "v1", "kind": "ServiceAccount",
               "metadata": {"name": "nobody", "namespace": "default"}}  # fmt: skip
    control_plane.api.apply(account)
    path = "/api/v1/namespaces/default/serviceaccounts/nobody/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = control_plane.api.request("POST", path, request)["status"]["token"]
    content = json.loads(control_plane.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": token}
    (tmp_path / "kubeconfig").write_text(json.dumps(content))
    found = Checked(tmp_path / "kubeconfig", "--pre")
    assert found.code == 1
    assert found.named("failed") == {"may-install", "may-grant"}
    assert found.named("ok") - OF_VERSION == {"api-server"}
    assert found.checks["gpu-nodes"]["detail"] == "needs the right to list nodes"
    assert found.checks["pod-shape"]["detail"] == "needs the right to create pods in default"
    installed = Checked(tmp_path / "kubeconfig")
    assert installed.code == 0
    assert installed.named("failed") == set()
    assert installed.checks["release"]["detail"] == "needs the right to get deployments"
    control_plane.api.delete(account)


@pytest.fixture(scope="module")
def server(check, control_plane, live_helm, tmp_path_factory):
    """Install the chart and run what it would run."""
    needs(control_plane.api, POLICY)
    if not own_address():
        pytest.skip("needs an address that is not loopback")
    ports = {"webhook": {"port": free_port(), "operationsPort": free_port()}}
    values = {**STRONG, **ports, "rollout": "Enforce"}
    release = Release(live_helm)
    release.install(values)
    folder = tmp_path_factory.mktemp("checked")
    with (
        served(control_plane, live_helm.render(values), folder) as server,
        behind_the_service(control_plane, server),
    ):
        server.wait_for("readiness", server.ready)
        show_ready(control_plane, 2)
        wait_until("it works", lambda: works(check()))
        yield server
    release.uninstall()


NOT_HERE = {"gpu-nodes", "agents", "kinds"}
"""There are no nodes, and nobody installs kinds."""


def works(found):
    return found.code == 0 and found.named("warning") <= NOT_HERE


def test_what_works_passes(check, server):
    found = check()
    assert found.code == 0
    assert found.named("notLookedAt") == {"binding", "sidecar-image"}  # no kubelet is here
    assert {
        *("release", "release-version", "webhook-ready", "configurations", "bind-path"),
        *("ca-bundle", "certificate", "pod-asks", "pod-wrong", "pod-plain"),
        *("policy-valid", "policy-in-force", "fence-policies", "fence-rules", "sentry-namespace"),
        "weakened",
    } <= found.named("ok")
    assert "by rule default, with a sidecar" in found.checks["pod-asks"]["detail"]
    assert found.checks["pod-wrong"]["detail"].startswith("InvalidQuantity: ")
    assert check("-n", NAMESPACE).checks.keys() == found.checks.keys()


def test_nothing_is_left_of_the_pods_that_it_tries(check, server, control_plane):
    check()
    check("--pre")
    assert control_plane.api.list("/api/v1/namespaces/default/pods") == []


DRIVER = "gpu.nvidia.com"


def of_dra(kind, name, **rest):
    metadata = {"name": name, **rest.pop("metadata", {})}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, **rest}


def a_pod_there(name, **container):
    spec = {"nodeName": "gpu-1", "containers": [{"name": "main", "image": "x", **container}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def test_what_others_give_away_of_a_shared_node_is_named(check, server, control_plane):
    """The GPUs of a real slice, a pod with a whole GPU, and one with an allocated claim."""
    api = control_plane.api
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": "GPU-a"}}
    slice_ = of_dra(
        "ResourceSlice",
        "gpu-1-gpus",
        spec={
            "driver": DRIVER,
            "nodeName": "gpu-1",
            "pool": {"name": "gpu-1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": attributes}],
        },
    )
    requests = [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]
    claim = of_dra(
        "ResourceClaim",
        "gpu",
        metadata={"namespace": "default"},
        spec={"devices": {"requests": requests}},
    )
    whole = a_pod_there("whole", resources={"limits": {"nvidia.com/gpu": "1"}})
    claims = a_pod_there("claims", resources={"claims": [{"name": "gpu"}]})
    claims["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "gpu"}]
    gpu = {"uuid": "GPU-a", "memory": 80 * 2**30, "product": "H100", "index": 0}
    parts = {
        "metadata": {"annotations": {"vramwarden.io/gpus": json.dumps([gpu])}},
        "allocatable": {"vramwarden.io/vram": "80Gi"},
    }
    with a_node_of_its_own(control_plane, **parts):
        for thing in (slice_, claim, whole, claims):
            api.create(thing)
        result = {"request": "gpu", "driver": DRIVER, "pool": "gpu-1", "device": "gpu-0"}
        status = {"allocation": {"devices": {"results": [result]}}}
        path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/gpu/status"
        api.request("PATCH", path, {"status": status}, content_type=MERGE)
        beside = check()
        api.delete(slice_)
        after = check()
        for thing in (whole, claims):
            api.delete(thing, gracePeriodSeconds="0")
        api.delete(claim)
        alone = check()
    named = {name: after.checks[name]["objects"] for name in ("whole-gpu-pods", "resource-claims")}
    assert (beside["resource-claims"], beside.checks["resource-claims"]["objects"]) == (
        "failed",
        ["gpu-1"],
    )
    assert (after["whole-gpu-pods"], after["resource-claims"]) == ("failed", "failed")
    assert named == {"whole-gpu-pods": ["default/whole"], "resource-claims": ["default/claims"]}
    assert (alone["whole-gpu-pods"], alone["resource-claims"]) == ("ok", "ok")


@contextmanager
def patched(api, path, change, back, kind=MERGE):
    api.request("PATCH", path, change, content_type=kind)
    try:
        yield
    finally:
        api.request("PATCH", path, back, content_type=kind)


def eventually(check, name, result="failed", *options):
    """Run until a check ends so; the API server learns of changes a moment after they are made."""
    found = []

    def ended():
        found[:] = [check(*options)]
        return found[0][name] == result

    wait_until(f"{name}: {result}", ended)
    return found[0]


def test_an_exempt_namespace_is_named(check, server, control_plane):
    label = {"metadata": {"labels": {"vramwarden.io/webhook": "disabled"}}}
    none = {"metadata": {"labels": {"vramwarden.io/webhook": None}}}
    with patched(control_plane.api, "/api/v1/namespaces/default", label, none):
        found = eventually(check, "pod-asks")
    assert found.named("failed") == {"pod-asks", "pod-wrong"}
    assert "--test-namespace names another" in found.checks["pod-asks"]["cure"]
    eventually(check, "pod-asks", "ok")


def test_a_sentry_whose_namespace_denies_it_is_named(check, server, control_plane):
    path = f"/api/v1/namespaces/{SENTRY}"
    change = {"metadata": {"labels": {ENFORCE: "baseline"}}}
    back = {"metadata": {"labels": {ENFORCE: "privileged"}}}
    with patched(control_plane.api, path, change, back):
        found = check()
    assert found.named("failed") == {"sentry-namespace"}
    assert f"kubectl label namespace {SENTRY}" in found.checks["sentry-namespace"]["cure"]


BROKEN = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: zz}
spec: {rulez: []}
"""


def test_a_policy_that_is_not_valid_is_shown_with_its_place(check, server, control_plane):
    path = f"{CONFIG_MAPS}/vramwarden-policies"
    with patched(
        control_plane.api,
        path,
        {"data": {"zz.yaml": BROKEN}},
        {"data": {"zz.yaml": None}},
    ):
        found = check()
    assert found.named("failed") == {"policy-valid"}
    assert "zz.yaml:4: spec.rulez: unknown field" in found.checks["policy-valid"]["detail"]


def test_a_policy_that_no_replica_has_taken_up_is_named(check, server, control_plane):
    """The server's folder is no ConfigMap's here, so an edit does not reach it."""
    rule = "{name: late, match: {namespaces: [late]}, action: Ignore}"
    text = f"""\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {{name: late}}
spec: {{rules: [{rule}]}}
"""
    path = f"{CONFIG_MAPS}/vramwarden-policies"
    added, back = {"data": {"00-late.yaml": text}}, {"data": {"00-late.yaml": None}}
    with patched(control_plane.api, path, added, back):
        found = check()
    assert found.code == 0
    assert {"policy-in-force", "fence-rules"} <= found.named("warning")


def test_a_fence_without_bindings_and_without_rules_is_named(check, server, control_plane):
    path = f"{REGISTRATION}/validatingadmissionpolicybindings/vramwarden-second-line"
    api = control_plane.api
    binding = api.request("GET", path)
    api.request("DELETE", path)
    try:
        found = check()
    finally:
        for key in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"):
            binding["metadata"].pop(key, None)
        api.create(binding)
    assert found.named("failed") == {"fence-policies"}
    assert found.checks["fence-policies"]["objects"] == ["vramwarden-second-line"]


def test_a_binding_that_only_warns_is_none(check, server, control_plane):
    path = f"{REGISTRATION}/validatingadmissionpolicybindings/vramwarden-sidecar"
    warns, denies = ({"spec": {"validationActions": [one]}} for one in ("Warn", "Deny"))
    with patched(control_plane.api, path, warns, denies):
        found = check()
    assert found.named("failed") == {"fence-policies"}
    assert found.checks["fence-policies"]["objects"] == ["vramwarden-sidecar"]


def test_memory_that_a_young_node_does_not_show_yet_is_no_failure(check, server, control_plane):
    with a_node_of_its_own(control_plane):
        found = check()
    assert found.checks["advertised"]["objects"] == ["gpu-1"]
    assert "advertised" in found.named("warning")
    assert found.code == 0


def test_a_node_that_offers_whole_gpus_is_named_and_nothing_fails(check, server, control_plane):
    with a_node_of_its_own(control_plane, allocatable={"nvidia.com/gpu": "4"}):
        found = check()
    assert found.code == 0
    assert found.checks["whole-gpus"]["objects"] == ["gpu-1"]


def test_a_sidecar_whose_image_cannot_be_pulled_is_named(check, server, control_plane):
    api = control_plane.api
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "checked",
            "namespace": "default",
            "annotations": {"vramwarden.io/gpu-memory": "1Gi"},
        },
        "spec": {"containers": [{"name": "main", "image": "example"}]},
    }
    api.create(pod)
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    status = {
        "name": "vram-enforcer", "image": "vramwarden/enforcer", "imageID": "", "ready": False,
        "restartCount": 0, "state": {"waiting": waiting},
    }  # fmt: skip
    path = "/api/v1/namespaces/default/pods/checked/status"
    api.request(
        "PATCH", path, {"status": {"initContainerStatuses": [status]}}, content_type=STRATEGIC
    )
    found = check()
    api.delete(pod, gracePeriodSeconds="0")
    assert found.named("failed") == {"sidecar-image"}
    assert found.checks["sidecar-image"]["objects"] == ["default/checked"]


def test_a_ca_bundle_of_somebody_else_is_named_and_so_is_what_follows(check, server, control_plane):
    """Last but one: the server, which would restore it, is stopped."""
    server.quit()
    api = control_plane.api
    stored = api.request("GET", MUTATING)
    strange = base64.b64encode(Authority("nobody").pem).decode()
    hooks = [{"name": hook["name"], "clientConfig": {"caBundle": strange}}
             for hook in stored["webhooks"]]  # fmt: skip
    back = [{"name": hook["name"], "clientConfig": {"caBundle": hook["clientConfig"]["caBundle"]}}
            for hook in stored["webhooks"]]  # fmt: skip
    with patched(api, MUTATING, {"webhooks": hooks}, {"webhooks": back}, STRATEGIC):
        found = check()
    assert found["ca-bundle"] == "failed"
    assert "another CA" in found.checks["ca-bundle"]["detail"]


def test_a_webhook_that_does_not_answer_is_seen_by_the_dry_runs(check, server, control_plane):
    server.quit()
    show_ready(control_plane, 0)
    found = check()
    assert found.code == 1
    assert found.named("failed") == {"webhook-ready", "pod-asks", "pod-wrong"}
    assert "failed calling webhook" in found.checks["pod-asks"]["detail"]
    assert found["pod-plain"] == "ok"
