"""Creation of pods: what a real API server stores, and its message for a denial.

Rules and translation are tested in tests/core/admission. A row here tests what only an API server
does: defaults, plugins, application of the patch, selectors, messages.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.core.pod.test_views import GUARANTEED, NOT
from tests.support.pods import a_container, a_pod
from tests.support.webhook_on_cluster import Team, container, denied, refused
from webhook.core.pod.findings import Reason
from webhook.options import default_enforcer_image

GPU, RESOURCE = "nvidia.com/gpu", "vramwarden.io/vram"
VRAM = {RESOURCE: "8Gi"}
MEMORY_KEY = "vramwarden.io/gpu-memory"
WRONG = (
    f"InvalidQuantity: metadata.annotations[{MEMORY_KEY}]: "
    "8GB is not a Kubernetes quantity; use 8G or 8Gi"
)
HOST_PID = "remove hostPID; the sidecar that holds the cap needs the pod's own process namespace"
WHOLE_GPU_SAID = (
    f'spec.containers[0].resources.limits[{GPU}]: rule "shared" gives 16Gi of a GPU in place of a '
    f"whole one; for another size write {MEMORY_KEY} in its place; for a whole GPU ask your "
    "platform team"
)
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path


def of_annotation(name):
    return {"apiVersion": "v1", "fieldPath": f"metadata.annotations['vramwarden.io/{name}']"}


CHOSEN_AT_BINDING = {"fieldRef": of_annotation("visible-devices")}
STORED_SIDECAR = {
    "name": "vram-enforcer",
    "image": default_enforcer_image(),
    "imagePullPolicy": "IfNotPresent",
    "command": ["python3", "-I", "-m", "webhook.sidecar"],
    "restartPolicy": "Always",
    "env": [
        {"name": "VRAM_CAP_BYTES", "value": str(8 * 2**30)},
        {"name": "VRAM_GPUS", "valueFrom": {"fieldRef": of_annotation("gpu")}},
        {
            "name": "VRAMWARDEN_GPU_ASSIGNMENT",
            "valueFrom": {"fieldRef": of_annotation("gpu-memory-fraction")},
        },
        {"name": "VRAM_DRIVER_LIMIT", "valueFrom": {"fieldRef": of_annotation("driver-limit")}},
        {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": CHOSEN_AT_BINDING},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
    ],
    "resources": {
        "requests": {"cpu": "10m", "memory": "64Mi"},
        "limits": {"cpu": "1", "memory": "64Mi"},
    },
    "volumeMounts": [
        {"name": "vram-enforcer-run", "mountPath": "/run/vram-enforcer"},
        {"name": "vram-enforcer-no-token", "mountPath": TOKEN_PATH, "readOnly": True},
        {
            "name": "vram-gate",
            "mountPath": "/run/vram-gate",
            "readOnly": True,
            "subPathExpr": "$(VRAMWARDEN_GPU_ASSIGNMENT)",
        },
    ],
    "startupProbe": {
        "exec": {"command": ["/opt/vramwarden/bin/vram-enforcer-probe", "startup", "25"]},
        "periodSeconds": 1,
        "timeoutSeconds": 30,
        "failureThreshold": 2**31 - 1,
        "successThreshold": 1,
    },
    "livenessProbe": {
        "exec": {"command": ["/opt/vramwarden/bin/vram-enforcer-probe", "liveness"]},
        "periodSeconds": 20,
        "timeoutSeconds": 15,
        "failureThreshold": 3,
        "successThreshold": 1,
    },
    "securityContext": {
        "runAsUser": 0,
        "runAsNonRoot": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["KILL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
SHOWN = [  # the cap is first, so that other variables may refer to it
    {"name": "VRAMWARDEN_GPU_MEMORY_MIB", "value": "8192"},
    {
        "name": "VRAMWARDEN_GPU_MEMORY_FRACTION",
        "valueFrom": {"fieldRef": of_annotation("gpu-memory-fraction")},
    },
    {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": CHOSEN_AT_BINDING},
    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
    {"name": "XLA_PYTHON_CLIENT_PREALLOCATE", "value": "false"},
    {"name": "TF_FORCE_GPU_ALLOW_GROWTH", "value": "true"},
]
VOID = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
IN_MEMORY = {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
VOLUMES = [
    {"name": name, **IN_MEMORY}
    for name in ("vram-enforcer-run", "vram-enforcer-no-token", "vram-gate")
]
NODES = [
    {"key": "vramwarden.io/gpu-memory-mib", "operator": "Gt", "values": ["8191"]},
    {"key": "vramwarden.io/enforcement", "operator": "In", "values": ["sidecar"]},
    {"key": "vramwarden.io/device-names", "operator": "NotIn", "values": ["none"]},
]
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def a_trainer():
    return a_pod("8Gi", initContainers=[a_container("fetch")])


def spec_of(pod):
    """Return a spec without the token volume's generated name."""
    return json.loads(re.sub(r"kube-api-access-\w+", "token", json.dumps(pod["spec"])))


def test_a_pod_is_stored_as_without_us_and_with_what_we_add(team):
    plain = spec_of(team.accepts(a_pod(initContainers=[a_container("fetch")])))
    assert team.calls() == [("mutate", "allowed", 0), ("validate", "allowed", 0)]
    pod = team.accepts(a_trainer())
    found, (main,), (fetch,) = spec_of(pod), plain["containers"], plain["initContainers"]
    del found["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    required = {"nodeSelectorTerms": [{"matchExpressions": NODES}]}
    assert found == {
        **plain,
        "containers": [main | {"resources": {"requests": VRAM, "limits": VRAM}, "env": SHOWN}],
        "initContainers": [STORED_SIDECAR, fetch | {"env": VOID}],
        "volumes": [*plain["volumes"], *VOLUMES],
        "nodeSelector": {"vramwarden.io/gpu": "true"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "tolerations": [*plain["tolerations"], TOLERATION],
        "shareProcessNamespace": True,
    }
    policy = team.ours.reviews(team.namespace)[-1]["policy"]
    assert pod["metadata"]["labels"] == {"vramwarden.io/managed": "true"}
    assert pod["metadata"]["annotations"] == {
        "vramwarden.io/gpu-memory": "8Gi",
        "vramwarden.io/admitted": f"v1 default {policy}",
    }
    mutated, validated = team.calls()[2:]  # each webhook is called once
    assert (mutated[:2], validated) == (("mutate", "mutated"), ("validate", "allowed", 0))


def test_a_pod_by_sentry_gets_the_gate_and_no_container(make_team):
    found = make_team("sentry").accepts(a_trainer())["spec"]
    (main,), (fetch,) = found["containers"], found["initContainers"]
    gate, mount = STORED_SIDECAR["env"][2], STORED_SIDECAR["volumeMounts"][2]
    assert main["env"] == [*SHOWN[:2], gate, *SHOWN[2:]]
    assert mount in main["volumeMounts"]
    assert (fetch["env"], mount in fetch["volumeMounts"]) == (VOID, False)
    assert VOLUMES[2] in found["volumes"]
    assert "shareProcessNamespace" not in found


def test_a_pod_that_wants_no_token_gets_none(team):
    pod = team.accepts(a_pod("8Gi", automountServiceAccountToken=False))
    assert pod["spec"]["volumes"] == VOLUMES


# The API server rejects two; one requests VRAM itself; one uses the sidecar's name.
LEFT_OUT = {
    *("a malformed limit", "equal in sum only", "another resource"),
    "our own container, which does not count",
}
PODS = {name: pod for name, pod in {**GUARANTEED, **NOT}.items() if name not in LEFT_OUT}


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_the_sidecar_leaves_the_quality_of_service_of_a_pod_as_it_is(team, pod):
    plain = team.accepts(pod)
    before = plain["status"]["qosClass"]
    stored = team.accepts(pod | {"metadata": {"annotations": {MEMORY_KEY: "c0=1Gi"}}})
    # Any amount makes a pod Burstable that has none, unless pod-level resources decide.
    raised = before == "BestEffort" and "resources" not in plain["spec"]
    assert stored["status"]["qosClass"] == ("Burstable" if raised else before)
    requests = container(stored, "vram-enforcer")["resources"]["requests"]
    assert (requests["cpu"] == "200m") is (before == "Guaranteed")


BOUND = {
    "vramwarden.io/gpu": "GPU-1",
    "vramwarden.io/visible-devices": "GPU-1",
    "vramwarden.io/gpu-memory-fraction": "0.5",
}


@pytest.mark.parametrize(
    ("brings", "patched"),
    [
        pytest.param({}, "allowed", id="as kubectl get -o yaml gives it"),
        pytest.param(BOUND, "mutated", id="with the GPU that it got"),
    ],
)
@pytest.mark.parametrize("rule", ["team", "sentry"])
def test_a_copy_of_a_stored_pod_is_stored_as_that_one_was(make_team, rule, brings, patched):
    team = make_team(rule)
    stored = team.accepts(a_trainer())
    notes, labels = stored["metadata"]["annotations"], stored["metadata"]["labels"]
    again = team.accepts(stored | {"metadata": {"annotations": notes | brings, "labels": labels}})
    assert again["spec"] == stored["spec"]
    assert again["metadata"]["annotations"] == notes
    assert [call[:2] for call in team.calls()[2:]] == [("mutate", patched), ("validate", "allowed")]


def test_a_generated_name_is_as_good_as_a_given_one(team):
    manifest = team.pod(a_trainer())
    manifest["metadata"] |= {"name": None, "generateName": "train-"}
    assert container(team.api.create(manifest), "vram-enforcer") == STORED_SIDECAR
    assert team.ours.reviews(team.namespace)[0]["name"] == "train-"


def test_a_server_side_dry_run_is_judged_as_a_creation_is_and_stores_nothing(team):
    assert container(team.accepts(a_trainer(), dry_run=True), "vram-enforcer") == STORED_SIDECAR
    error = refused(lambda: team.accepts(a_pod("8GB"), dry_run=True))
    assert "use 8G or 8Gi" in denied(error, Reason.INVALID_QUANTITY)
    assert team.pods() == []
    assert [line["dryRun"] for line in team.ours.reviews(team.namespace)] == [True] * 3


def test_a_whole_gpu_is_stored_as_a_share_and_who_creates_it_reads_so(make_team, kubectl):
    team = make_team("shared")
    whole = a_container(resources={"limits": {GPU: 1}})
    done = kubectl("create", team.pod(a_pod(containers=[whole])))
    assert (done.returncode, done.stderr) == (0, f"Warning: {WHOLE_GPU_SAID}\n")
    (pod,) = team.pods()
    share = {RESOURCE: "16Gi"}
    assert container(pod, "main")["resources"] == {"limits": share, "requests": share}
    assert container(pod, "vram-enforcer")["restartPolicy"] == "Always"
    notes = pod["metadata"]["annotations"]
    assert (notes[MEMORY_KEY], notes["vramwarden.io/in-place-of"]) == ("main=16Gi", GPU)
    assert [call[:2] for call in team.calls()] == [("mutate", "mutated"), ("validate", "allowed")]


# --- pods that are not changed, or only warned about

ALL_GPUS = a_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
OPTED_OUT = {"vramwarden.io/webhook": "disabled"}


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease", None])
def test_the_systems_namespaces_and_those_that_opted_out_are_left_alone(
    control_plane, ours, make_namespace, namespace
):
    namespace = namespace or make_namespace(OPTED_OUT)
    control_plane.ensure_service_account(namespace)
    team = Team(control_plane.api, ours, namespace)
    pod = team.accepts(a_pod("8GB", containers=[ALL_GPUS]), dry_run=True)
    assert container(pod, "main")["env"] == ALL_GPUS["env"]
    assert "initContainers" not in pod["spec"]
    assert team.calls() == []


def test_a_drivers_namespace_is_seen_and_left_alone(make_team):
    team = make_team("nvidia")
    driver = ALL_GPUS | {"securityContext": {"privileged": True}}
    team.accepts(a_pod(containers=[driver], hostPID=True))
    assert team.calls() == [("mutate", "skipped", 0), ("validate", "skipped", 0)]


def test_a_mirror_pod_from_a_kubelet_is_not_denied(team):
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}}
    owner = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "controller": True}
    owner["uid"] = team.api.apply(node)["metadata"]["uid"]
    mirror = {"kubernetes.io/config.mirror": "abc", "kubernetes.io/config.source": "file"}
    manifest = team.pod(a_pod("8GB", containers=[ALL_GPUS], annotations=mirror, nodeName="gpu-1"))
    manifest["metadata"]["ownerReferences"] = [owner]
    kubelet = team.api.acting_as("system:node:gpu-1", "system:nodes", "system:authenticated")
    try:
        pod = kubelet.create(manifest)
    finally:
        team.api.delete(node)
    assert "initContainers" not in pod["spec"]
    assert [line["reasons"] for line in team.ours.reviews(team.namespace)] == [["MirrorPod"]] * 2


@pytest.mark.parametrize(
    ("rule", "decided", "warnings"),
    [
        ("watched", "warned", f"Warning: {WRONG}\nWarning: HostPID: spec.hostPID: {HOST_PID}\n"),
        ("audited", "audited", ""),
    ],
)
def test_kubectl_shows_what_a_rule_warns_of_and_the_pod_is_stored_as_it_came(
    make_team, kubectl, rule, decided, warnings
):
    team = make_team(rule)
    done = kubectl("create", team.pod(a_pod("8GB", hostPID=True)))
    assert (done.returncode, done.stderr) == (0, warnings)
    (pod,) = team.pods()
    assert ("initContainers" in pod["spec"], "labels" in pod["metadata"]) == (False, False)
    logged = [(line["decision"], line["reasons"]) for line in team.ours.reviews(team.namespace)]
    assert logged == [(decided, ["InvalidQuantity", "HostPID"])] * 2


# --- denials


@pytest.mark.parametrize(
    ("reason", "path", "resources"),
    [
        ("InvalidQuantity", f"limits[{RESOURCE}]", {"limits": {RESOURCE: "500m"}}),
        ("RequestsLimitsMismatch", f"requests[{RESOURCE}]", {"requests": {RESOURCE: "8Gi"}}),
        (
            "RequestsLimitsMismatch",
            f"requests[{GPU}]",
            {"requests": {GPU: "1"}, "limits": {GPU: "2"}},
        ),
        ("FractionalWholeGPU", f"limits[{GPU}]", {"limits": {GPU: "0.5"}}),
    ],
    ids=["a part of a byte", "no limit", "unlike", "half a GPU"],
)
def test_we_deny_what_the_api_server_would_deny_in_our_words(make_team, reason, path, resources):
    pod = a_pod(containers=[a_container(resources=resources)])
    assert make_team(labels=OPTED_OUT).refuses(pod).code == 422
    said = make_team().denies(pod, Reason(reason))
    assert said.startswith(f"spec.containers[0].resources.{path}: ")


def test_all_findings_arrive_at_once_each_as_a_cause(team):
    error = team.refuses(a_pod("8GB", hostPID=True, nodeName="gpu-1"))
    assert denied(error, Reason.INVALID_QUANTITY)
    causes = error.status["details"]["causes"]
    assert [cause["reason"] for cause in causes] == ["InvalidQuantity", "NodeNamePreset", "HostPID"]
    assert causes[2] == {"reason": "HostPID", "field": "spec.hostPID", "message": HOST_PID}
    assert team.pods() == []


def test_kubectl_shows_a_denial_in_one_line(kubectl, team):
    done = kubectl("create", team.pod(a_pod("8GB")))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        'Error from server (Forbidden): error when creating "STDIN": '
        f'admission webhook "mutate.vramwarden.io" denied the request: {WRONG}\n'
    )


def test_what_slips_past_the_mutating_webhook_the_validating_one_denies(team):
    with team.ours.without(team.api, team.ours.mutating):
        said = team.denies(a_pod("8Gi"), Reason.UNMUTATED, phase="validate")
    assert said.startswith("metadata.annotations[vramwarden.io/admitted]: create the pod again; ")
