"""What a real API server stores for a pod with a demand, after its own plugins and defaults."""

from __future__ import annotations

import pytest

from tests.support.control_planes import wait_until
from tests.support.our_server import container, denied, refused, variables
from tests.support.pods import a_container, a_pod
from webhook.core.pod.findings import Reason
from webhook.options import default_enforcer_image

GIB = 2**30
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
GPUS = {"apiVersion": "v1", "fieldPath": "metadata.annotations['vramwarden.io/gpu']"}
WAITS = {"apiVersion": "v1", "fieldPath": "metadata.annotations['vramwarden.io/gpu-waits']"}
CHOSEN_AT_BINDING = {
    "fieldRef": {
        "apiVersion": "v1",
        "fieldPath": "metadata.annotations['vramwarden.io/visible-devices']",
    }
}
STORED_GPU_VOLUME = {
    "name": "vram-enforcer-gpu",
    "downwardAPI": {
        "items": [{"path": "gpu", "fieldRef": GPUS}, {"path": "gpu-waits", "fieldRef": WAITS}],
        "defaultMode": 0o644,
    },
}
STORED_SIDECAR = {
    "name": "vram-enforcer",
    "image": default_enforcer_image(),
    "imagePullPolicy": "IfNotPresent",
    "command": ["python3", "-I", "-m", "webhook.sidecar"],
    "restartPolicy": "Always",
    "env": [
        {"name": "VRAM_CAP_BYTES", "value": str(8 * GIB)},
        {"name": "VRAM_POLL_INTERVAL", "value": "1s"},
        {"name": "VRAM_GRACE", "value": "5s"},
        {"name": "VRAM_TOLERANCE", "value": "2%"},
        {"name": "VRAM_BLIND_AFTER", "value": "60s"},
        {"name": "VRAM_WHEN_BLIND", "value": "Report"},
        {"name": "VRAM_GPUS", "valueFrom": {"fieldRef": GPUS}},
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
        {"name": "vram-enforcer-gpu", "mountPath": "/run/vram-enforcer-gpu", "readOnly": True},
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


def a_trainer():
    return a_pod("8Gi", initContainers=[a_container("fetch")])


def required_terms(pod):
    node_affinity = pod["spec"]["affinity"]["nodeAffinity"]
    return node_affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def test_a_quantity_becomes_equal_requests_and_limits(team):
    pod = team.accepts(a_trainer())
    amounts = {"vramwarden.io/vram": "8Gi"}
    assert container(pod, "main")["resources"] == {"requests": amounts, "limits": amounts}
    assert container(pod, "fetch")["resources"] == {}


def test_an_explicit_amount_is_translated_as_an_annotation_is(team):
    resources = {"limits": {"vramwarden.io/vram": "8192Mi"}}
    pod = team.accepts(a_pod(containers=[a_container(resources=resources)]))
    assert container(pod, "main")["resources"]["requests"] == {"vramwarden.io/vram": "8Gi"}
    assert container(pod, "vram-enforcer") == STORED_SIDECAR


def test_an_amount_is_rounded_up_to_a_whole_mebibyte(team):
    pod = team.accepts(a_pod("8G"))
    assert container(pod, "main")["resources"]["limits"] == {"vramwarden.io/vram": "7630Mi"}


def test_a_list_gives_each_container_its_own_and_the_sidecar_the_sum(team):
    containers = [a_container("trainer"), a_container("loader")]
    pod = team.accepts(a_pod("trainer=8Gi, loader=512Mi", containers=containers))
    limits = [found["resources"]["limits"] for found in pod["spec"]["containers"]]
    assert limits == [{"vramwarden.io/vram": "8Gi"}, {"vramwarden.io/vram": "512Mi"}]
    cap = variables(container(pod, "vram-enforcer"))["VRAM_CAP_BYTES"]
    assert cap == str(8 * GIB + GIB // 2)


def test_two_gpus_count_twice_and_cap_once(team):
    pod = team.accepts(a_pod("8Gi", annotations={"vramwarden.io/gpu-count": "2"}))
    assert container(pod, "main")["resources"]["limits"] == {"vramwarden.io/vram": "16Gi"}
    assert variables(container(pod, "vram-enforcer"))["VRAM_CAP_BYTES"] == str(8 * GIB)


def test_the_pod_goes_to_nodes_with_a_gpu_that_is_large_enough(team):
    pod = team.accepts(a_trainer())
    assert pod["spec"]["nodeSelector"] == {"vramwarden.io/gpu": "true"}
    expressions = [
        {"key": "vramwarden.io/gpu-memory-mib", "operator": "Gt", "values": ["8191"]},
        {"key": "vramwarden.io/enforcement", "operator": "In", "values": ["sidecar"]},
        {"key": "vramwarden.io/device-names", "operator": "NotIn", "values": ["none"]},
    ]
    assert required_terms(pod) == [{"matchExpressions": expressions}]
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert toleration in pod["spec"]["tolerations"]


def test_every_alternative_of_an_affinity_is_narrowed(team):
    zones = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
        for zone in ("a", "b")
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}
    pod = team.accepts(a_pod("8Gi", affinity={"nodeAffinity": required}))
    for term, zone in zip(required_terms(pod), zones, strict=True):
        assert term["matchExpressions"][0] == zone["matchExpressions"][0]
        keys = [expression["key"] for expression in term["matchExpressions"][1:]]
        assert keys == [
            f"vramwarden.io/{key}" for key in ("gpu-memory-mib", "enforcement", "device-names")
        ]


def test_containers_see_the_gpu_that_binding_chooses_and_others_none(team):
    pod = team.accepts(a_trainer())
    shown = variables(container(pod, "main"))
    assert shown["NVIDIA_VISIBLE_DEVICES"] == CHOSEN_AT_BINDING
    assert shown["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert variables(container(pod, "fetch")) == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_containers_with_vram_know_their_cap_first_of_all(team):
    pod = team.accepts(a_trainer())
    field = "metadata.annotations['vramwarden.io/gpu-memory-fraction']"
    assert list(variables(container(pod, "main")).items()) == [
        ("VRAMWARDEN_GPU_MEMORY_MIB", "8192"),
        (
            "VRAMWARDEN_GPU_MEMORY_FRACTION",
            {"fieldRef": {"apiVersion": "v1", "fieldPath": field}},
        ),
        ("NVIDIA_VISIBLE_DEVICES", CHOSEN_AT_BINDING),
        ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"),
        ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
        ("TF_FORCE_GPU_ALLOW_GROWTH", "true"),
    ]


def test_the_sidecar_is_first_and_stored_as_we_wrote_it(team):
    pod = team.accepts(a_trainer())
    assert [found["name"] for found in pod["spec"]["initContainers"]] == ["vram-enforcer", "fetch"]
    assert container(pod, "vram-enforcer") == STORED_SIDECAR
    assert pod["spec"]["shareProcessNamespace"] is True


def test_a_rule_may_put_the_sidecar_among_the_containers(make_team):
    pod = make_team("plain").accepts(a_trainer())
    assert [found["name"] for found in pod["spec"]["containers"]] == ["main", "vram-enforcer"]
    wanted = {key: value for key, value in STORED_SIDECAR.items() if key != "restartPolicy"}
    wanted["volumeMounts"] = wanted["volumeMounts"][:2]  # nobody waits for it
    assert container(pod, "vram-enforcer") == wanted


def test_a_rule_may_say_how_the_sidecar_is_pulled_and_what_it_may_use(make_team):
    team = make_team("supplied")
    path = f"/api/v1/namespaces/{team.namespace}/serviceaccounts/default"
    named = {"imagePullSecrets": [{"name": "of-the-account"}]}
    kind = "application/merge-patch+json"
    team.api.request("PATCH", path, named, content_type=kind)

    def accounts():
        pod = team.accepts(a_pod(), dry_run=True)
        return pod["spec"].get("imagePullSecrets") == named["imagePullSecrets"]

    wait_until("the plugin knows the account", accounts)
    pod = team.accepts(a_trainer())
    assert pod["spec"]["imagePullSecrets"] == [{"name": "of-the-account"}, {"name": "registry"}]
    assert container(pod, "vram-enforcer")["resources"] == {
        "requests": {"cpu": "50m", "memory": "100M"},
        "limits": {"cpu": "1500m", "memory": "100M"},
    }
    copied = {key: pod["metadata"][key] for key in ("annotations", "labels")}
    again = team.accepts({**pod, "metadata": copied})
    assert again["spec"] == pod["spec"]
    assert team.calls()[-2:] == [("mutate", "allowed", 0), ("validate", "allowed", 0)]


def test_a_rule_may_do_without_sidecar_and_binding(make_team):
    pod = make_team("trusted").accepts(a_pod("8Gi", hostPID=True))
    assert "initContainers" not in pod["spec"]
    assert variables(container(pod, "main"))["NVIDIA_VISIBLE_DEVICES"] == "all"


def test_a_class_adds_its_node_selector(make_team):
    pod = make_team("capped").accepts(a_pod("8Gi", annotations={"vramwarden.io/gpu-class": "a100"}))
    assert pod["spec"]["nodeSelector"]["nvidia.com/gpu.product"] == "A100"


def test_only_the_sidecar_gets_no_token(team):
    pod = team.accepts(a_trainer())
    mounts = {
        found["name"]: [
            mount["name"] for mount in found["volumeMounts"] if mount["mountPath"] == TOKEN_PATH
        ]
        for found in (*pod["spec"]["containers"], *pod["spec"]["initContainers"])
    }
    (token,) = mounts["main"]
    assert token.startswith("kube-api-access-")
    assert mounts == {
        "main": [token],
        "fetch": [token],
        "vram-enforcer": ["vram-enforcer-no-token"],
    }


def test_a_pod_that_wants_no_token_gets_none(team):
    pod = team.accepts(a_pod("8Gi", automountServiceAccountToken=False))
    names = [volume["name"] for volume in pod["spec"]["volumes"]]
    assert names == ["vram-enforcer-run", "vram-enforcer-no-token", "vram-enforcer-gpu"]


def test_the_volumes_of_the_sidecar_are_small_and_in_memory(team):
    volumes = {v["name"]: v for v in team.accepts(a_trainer())["spec"]["volumes"]}
    for name in ("vram-enforcer-run", "vram-enforcer-no-token"):
        assert volumes[name]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Mi"}
    assert volumes["vram-enforcer-gpu"] == STORED_GPU_VOLUME


def test_a_copy_of_a_stored_pod_is_stored_as_that_one_was(team):
    stored = team.accepts(a_trainer())
    gpu = {"vramwarden.io/gpu": "GPU-1", "vramwarden.io/visible-devices": "GPU-1"}
    notes = stored["metadata"]["annotations"] | gpu
    metadata = {"name": "copied", "labels": stored["metadata"]["labels"], "annotations": notes}
    again = team.accepts(stored | {"metadata": metadata})
    assert again["spec"] == stored["spec"]
    assert again["metadata"]["annotations"] == stored["metadata"]["annotations"]


def test_the_pod_is_marked_with_the_rule_and_the_policy(team):
    metadata = team.accepts(a_trainer())["metadata"]
    assert metadata["labels"] == {"vramwarden.io/managed": "true"}
    assert metadata["annotations"]["vramwarden.io/gpu-memory"] == "8Gi"
    policy = team.ours.reviews(team.namespace)[-1]["policy"]
    assert metadata["annotations"]["vramwarden.io/admitted"] == f"v1 default {policy}"


def test_each_webhook_is_called_once_and_the_second_look_is_not_needed(team):
    team.accepts(a_trainer())
    (mutated, validated) = team.calls()
    assert mutated[:2] == ("mutate", "mutated")
    assert validated == ("validate", "allowed", 0)


@pytest.mark.parametrize(
    "requests",
    [{}, {"cpu": "1"}, {"cpu": "1", "memory": "1Gi"}],
    ids=["none", "some", "all"],
)
def test_the_quality_of_service_class_stays_what_it_was(team, requests):
    resources = {"requests": requests, "limits": requests}
    plain = team.accepts(a_pod(containers=[a_container(resources=resources)]))
    asking = team.accepts(a_pod("8Gi", containers=[a_container(resources=resources)]))
    before = {"BestEffort": "Burstable"}  # the sidecar asks for a little, so it cannot be the least
    wanted = plain["status"]["qosClass"]
    assert asking["status"]["qosClass"] == before.get(wanted, wanted)


def test_a_pod_without_a_demand_is_stored_as_without_us(team):
    pod = team.accepts(a_pod())
    assert "initContainers" not in pod["spec"]
    assert "labels" not in pod["metadata"]
    assert team.calls() == [("mutate", "allowed", 0), ("validate", "allowed", 0)]


def test_a_rule_may_void_a_hand_set_variable(make_team):
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    pod = make_team("void").accepts(a_pod(containers=[a_container(env=env)]))
    assert variables(container(pod, "main")) == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_a_stored_pod_can_be_created_again_elsewhere(team):
    """A copy of a pod, as `kubectl get -o yaml` gives it, is translated already."""
    stored = team.accepts(a_trainer())
    keep = {key: stored["metadata"][key] for key in ("annotations", "labels")}
    copied = team.accepts(
        {"apiVersion": "v1", "kind": "Pod", "metadata": keep} | {"spec": stored["spec"]}
    )
    assert copied["spec"] == stored["spec"]
    assert team.calls()[2:] == [("mutate", "allowed", 0), ("validate", "allowed", 0)]


def test_a_generated_name_is_as_good_as_a_given_one(team):
    manifest = team.pod(a_trainer())
    del manifest["metadata"]["name"]
    manifest["metadata"]["generateName"] = "train-"
    pod = team.api.create(manifest)
    assert container(pod, "vram-enforcer") == STORED_SIDECAR
    assert team.ours.reviews(team.namespace)[0]["name"] == "train-"


def test_a_server_side_dry_run_is_translated_and_nothing_is_stored(team):
    pod = team.accepts(a_trainer(), dry_run=True)
    assert container(pod, "vram-enforcer") == STORED_SIDECAR
    assert team.pods() == []
    assert [line["dryRun"] for line in team.ours.reviews(team.namespace)] == [True, True]


def test_a_server_side_dry_run_is_refused_as_a_creation_is(team):
    error = refused(lambda: team.accepts(a_pod("8GB"), dry_run=True))
    assert "use 8G or 8Gi" in denied(error, Reason.INVALID_QUANTITY)
