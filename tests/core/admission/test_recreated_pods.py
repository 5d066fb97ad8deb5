"""Pods restored, copied or applied again are not denied for fields that vramwarden wrote."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given

from tests.core.admission.decisions import (
    BY_SENTRY,
    VISIBLE,
    WITHOUT_SIDECAR,
    a_full_pod,
    a_plain_pod,
    another_policy,
    assert_denied,
    assert_unchanged,
    decide_pod,
    decide_update,
    find_container,
    stored_pod,
    translate,
    variable,
)
from tests.core.admission.test_laws import RULES, mutated
from tests.support.pods import a_policy, a_rule
from tests.support.strategies import asking_pods
from webhook.core.admission.decision import Phase
from webhook.core.policy.model import EnforceBy, Placement
from webhook.names import (
    BINDING_ANNOTATIONS,
    ENFORCER_CONTAINER,
    GATE_VARIABLE,
    GATE_VOLUME,
    OUR_VOLUMES,
)


def changed(pod):
    """Return a translated pod with the sidecar and gate of another policy or registry."""
    pod = copy.deepcopy(pod)
    enforcer = enforcer_of(pod)
    if enforcer:
        enforcer["image"] = "old.example/vramwarden/enforcer:0.1.0"
        enforcer["startupProbe"] |= {"failureThreshold": 4, "initialDelaySeconds": 5}
        amounts = {"cpu": "10m", "memory": "64Mi"}
        enforcer["resources"] = {"requests": amounts, "limits": amounts}
        optional = {"VRAM_GPUS", "VRAM_DRIVER_LIMIT", "VRAMWARDEN_GPU_ASSIGNMENT"}
        enforcer["env"] = [one for one in enforcer["env"] if one["name"] not in optional]
        enforcer["volumeMounts"] = enforcer["volumeMounts"][:2]
    for volume in pod["spec"].get("volumes") or ():
        if volume["name"] == GATE_VOLUME:
            volume["emptyDir"] = {}
    return pod


def as_bound(pod):
    """Return a stored pod as users copy it after binding."""
    pod = copy.deepcopy(pod)
    pod["metadata"]["annotations"].update(dict.fromkeys(BINDING_ANNOTATIONS, "GPU-1"))
    return pod


def enforcer_of(pod):
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    found = [one for one in containers if one["name"] == ENFORCER_CONTAINER]
    return found[0] if found else None


def volumes_of(pod):
    volumes = pod["spec"].get("volumes") or ()
    return {one["name"]: one for one in volumes if one["name"] in OUR_VOLUMES}


def gates_of(pod):
    """Return all parts of the gate in each container except the sidecar."""
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    return {
        one["name"]: [
            entry
            for key, name in (("env", GATE_VARIABLE), ("volumeMounts", GATE_VOLUME))
            for entry in one.get(key) or ()
            if entry["name"] == name
        ]
        for one in containers
        if one["name"] != ENFORCER_CONTAINER
    }


@given(asking_pods(), RULES, RULES)
def test_a_pod_of_any_rule_comes_again_under_any_rule(pod, before, now):
    policy = another_policy(now)
    fresh = mutated(pod, policy).obj
    stored = mutated(pod, a_policy(before)).obj
    for comes in (stored, as_bound(stored), as_bound(changed(stored))):
        again = mutated(comes, policy).obj
        assert enforcer_of(again) == enforcer_of(fresh)
        assert volumes_of(again) == volumes_of(fresh)
        assert gates_of(again) == gates_of(fresh)
        assert not set(BINDING_ANNOTATIONS) & set(again["metadata"]["annotations"])
        assert mutated(again, policy).patch == ()
        assert_unchanged(decide_pod(again, phase=Phase.VALIDATE, policy=policy))


@given(asking_pods(), RULES)
def test_a_pod_that_comes_again_is_translated_as_if_it_were_new(pod, rule):
    policy = a_policy(rule)
    once = mutated(pod, policy).obj
    for comes in (as_bound(once), as_bound(changed(once))):
        assert mutated(comes, policy).obj == once


ALL = {"name": VISIBLE, "value": "all"}


@pytest.mark.parametrize(
    "break_",
    [
        lambda main: main.pop("resources"),
        lambda main: main["resources"].pop("requests"),
        lambda main: main["env"].pop(),
        lambda main: main["env"].append(ALL),
    ],
    ids=["amounts", "requests", "the driver's libraries", "twice"],
)
def test_seeing_every_gpu_is_set_by_hand_unless_all_is_as_translation_writes_it(break_):
    pod = stored_pod(a_rule(placement=Placement.NONE))
    main = find_container(pod, "main")
    assert ALL in main["env"]
    break_(main)
    assert decide_pod(pod).reasons[-1] == "VisibleDevicesOverride"


@pytest.mark.parametrize(
    "rule", [a_rule(), BY_SENTRY, WITHOUT_SIDECAR], ids=["sidecar", "sentry", "none"]
)
@pytest.mark.parametrize(
    "fields",
    [
        {"image": "elsewhere/enforcer@sha256:1"},
        {"lifecycle": {"postStart": {"exec": {"command": ["x"]}}}},
        {"envFrom": [{"configMapRef": {"name": "m"}}]},
        {"env": [{"name": "LD_PRELOAD", "value": "/x.so"}]},
        {"env": None},
        {"volumeMounts": [{"name": "v", "mountPath": "/usr"}]},
        {"startupProbe": None, "livenessProbe": {"exec": {"command": ["true"]}}},
        {"resources": {"limits": {"vramwarden.io/vram": "1Gi", "memory": "1Gi"}}},
        {"securityContext": {"privileged": True}},
        {"fieldOfTheFuture": {"a": 1}},
    ],
    ids=str,
)
def test_whatever_else_a_sidecar_with_our_command_has_is_written_again(fields, rule):
    pod = a_full_pod()
    comes = translate(pod)
    find_container(comes, "vram-enforcer").update(copy.deepcopy(fields))
    again = translate(comes, rule)
    assert enforcer_of(again) == enforcer_of(translate(pod, rule))
    assert volumes_of(again) == volumes_of(translate(pod, rule))


OURS_SPELT = [{"emptyDir": {}}, {"emptyDir": {"sizeLimit": "9Gi"}}]
FOREIGN = [
    {"hostPath": {"path": "/data"}},
    {"configMap": {"name": "m"}},
    {"persistentVolumeClaim": {"claimName": "c"}},
    {"projected": {"sources": []}},
    {"downwardAPI": {}},
    {"emptyDir": {}, "hostPath": {"path": "/data"}},
    {},
]


@pytest.mark.parametrize("volume", [*OURS_SPELT, *FOREIGN], ids=str)
@pytest.mark.parametrize("index", [0, 1])
def test_a_volume_of_ours_in_another_spelling_is_written_again_and_a_foreign_one_denied(
    index, volume
):
    clean = translate(a_full_pod())
    pod = copy.deepcopy(clean)
    volumes = pod["spec"]["volumes"]
    volumes[index] = {"name": volumes[index]["name"], **volume}
    if volume in OURS_SPELT:
        volumes.append({"name": volumes[index]["name"], "emptyDir": {}})
        assert decide_pod(pod).obj == clean
        return
    for phase in Phase:
        assert_denied(decide_pod(pod, phase=phase), "ReservedName", f"spec.volumes[{index}].name")


# --- during an upgrade, replicas of two releases judge each other's pods


OTHER = another_policy()


def judged(pod, policy=OTHER):
    return decide_pod(pod, phase=Phase.VALIDATE, policy=policy)


@pytest.mark.parametrize("placement", Placement)
def test_a_pod_that_was_translated_when_the_rule_placed_otherwise_is_stored(placement):
    (other,) = set(Placement) - {placement}
    policy = another_policy(a_rule(placement=other))
    assert_unchanged(judged(stored_pod(a_rule(placement=placement)), policy))


def newer(pod):
    """Return a pod with additions that a later release might write to the sidecar."""
    enforcer = find_container(pod, "vram-enforcer")
    enforcer["image"] = "vramwarden/enforcer:9"
    source = {"fieldRef": {"fieldPath": "metadata.annotations['vramwarden.io/to-come']"}}
    enforcer["env"] += [
        {"name": "VRAM_ON_EXCESS", "value": "Stop"},
        {"name": "VRAM_TO_COME", "valueFrom": source},
    ]
    enforcer["resources"]["limits"]["cpu"] = "2"
    codes = {"operator": "NotIn", "values": [0, 70, 75, 77]}
    enforcer["restartPolicyRules"] = [{"action": "RestartAllContainers", "exitCodes": codes}]
    mount = {"name": "vram-enforcer-to-come", "mountPath": "/run/vram-enforcer-to-come"}
    enforcer["volumeMounts"].append(mount)
    enforcer["resizePolicy"] = [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]
    pod["spec"]["volumes"].append({"name": "vram-enforcer-to-come", "emptyDir": {}})
    return pod


def test_a_pod_that_a_newer_release_has_just_translated_is_stored():
    assert_unchanged(judged(newer(stored_pod())))


def in_enforcer(**fields):
    def change(pod):
        find_container(pod, "vram-enforcer").update(copy.deepcopy(fields))

    return change


def with_variable(name, value=None, **source):
    def change(pod):
        env = find_container(pod, "vram-enforcer")["env"]
        wanted = variable(name, value, **source)["env"]
        env[:] = [one for one in env if one["name"] != name] + wanted

    return change


def with_more(field, **item):
    def change(pod):
        find_container(pod, "vram-enforcer").setdefault(field, []).append(item)

    return change


def with_mount(name, path):
    return with_more("volumeMounts", name=name, mountPath=path)


def field(of_metadata):
    return {"fieldRef": {"fieldPath": f"metadata.{of_metadata}"}}


FROM_MAP = {"configMapKeyRef": {"name": "m", "key": "k"}}


@pytest.mark.parametrize(
    "change",
    {
        "no GPU": with_variable(VISIBLE, "void"),
        "another GPU": with_variable(VISIBLE, "GPU-2"),
        "GPUs by hand": with_variable("VRAM_GPUS", "GPU-2"),
        "GPUs from another annotation": with_variable("VRAM_GPUS", **field("annotations['mine']")),
        "a limit by hand": with_variable("VRAM_DRIVER_LIMIT", "Auto"),
        "a limit from another annotation": with_variable(
            "VRAM_DRIVER_LIMIT", **field("annotations['vramwarden.io/gpu']")
        ),
        "a cap from a map": with_variable("VRAM_CAP_BYTES", **FROM_MAP),
        "a setting from a map": with_variable("VRAM_GRACE", **FROM_MAP),
        "a setting from the pod": with_variable("VRAM_GRACE", **field("labels['grace']")),
        "NVIDIA's": with_variable("NVIDIA_DISABLE_REQUIRE", **FROM_MAP),
        "the loader": with_variable("LD_PRELOAD", "/x.so"),
        "Python's path": with_variable("PYTHONPATH", "/x"),
        "no GPU after ours": with_more("env", name=VISIBLE, value="void"),
        "a second cap": with_more("env", name="VRAM_CAP_BYTES", value="1"),
        "two tolerances": lambda pod: find_container(pod, "vram-enforcer")["env"].extend(
            [{"name": "VRAM_TOLERANCE", "value": value} for value in ("2%", "9Ti")]
        ),
        "variables from a map": with_more("envFrom", configMapRef={"name": "m"}),
        "a mount over /usr": with_mount("v", "/usr"),
        "NVML's debugging": with_variable("__NVML_DBG_FILE", "/x"),
        "a GPU of its own": in_enforcer(resources={"limits": {"nvidia.com/gpu": "1"}}),
        "a claim": in_enforcer(resources={"claims": [{"name": "gpu"}]}),
        "a hook": in_enforcer(lifecycle={"postStart": {"exec": {"command": ["x"]}}}),
        "another image": in_enforcer(image="evil/enforcer:1"),
        "another rule": in_enforcer(restartPolicyRules=[{"action": "Restart"}]),
        "rules of no kind": in_enforcer(restartPolicyRules="RestartAllContainers"),
        "a number for rules": in_enforcer(restartPolicyRules=5),
        "no folder for the heartbeat": in_enforcer(volumeMounts=[]),
        "no gate": lambda pod: find_container(pod, "vram-enforcer")["volumeMounts"].pop(),
        "a gate that is open": with_variable("VRAMWARDEN_GPU_ASSIGNMENT", "0.5"),
        "a gate by another annotation": with_variable(
            "VRAMWARDEN_GPU_ASSIGNMENT", **field("annotations['vramwarden.io/gpu']")
        ),
        "a second variable of the gate": with_more(
            "env", name="VRAMWARDEN_GPU_ASSIGNMENT", value="0.5"
        ),
        "a second mount of the gate": with_mount("vram-gate", "/run/vram-enforcer-x"),
        "a forged heartbeat": with_mount("vram-enforcer-x", "/run/vram-enforcer"),
        "a mount over us": with_mount("vram-enforcer-x", "/opt/vramwarden"),
        "a detour": with_mount("vram-enforcer-x", "/run/vram-enforcer-x/../../opt"),
        "a mount of the user's": with_mount("v", "/run/vram-enforcer-x"),
        "two sidecars": lambda pod: pod["spec"]["containers"].append(
            find_container(pod, "vram-enforcer")
        ),
    }.items(),
    ids=lambda case: case[0],
)
def test_no_release_lets_others_steer_or_blind_the_sidecar(change):
    pod = stored_pod()
    change[1](pod)
    assert judged(pod).reasons == ("Unmutated",)


# --- updates of stored pods


@pytest.mark.parametrize(
    "rule", [a_rule(), BY_SENTRY, WITHOUT_SIDECAR], ids=["sidecar", "sentry", "none"]
)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "change",
    [
        lambda pod: pod["metadata"]["labels"].update(app="x"),
        lambda pod: pod["metadata"]["annotations"].update(note="x"),
        lambda pod: pod["metadata"].update(finalizers=[]),
        lambda pod: pod["spec"]["containers"][0].update(image="main:2"),
        lambda pod: pod["spec"].update(activeDeadlineSeconds=5),
        lambda pod: pod["spec"].update(schedulingGates=[]),
        lambda pod: pod["spec"].setdefault("tolerations", []).append({"operator": "Exists"}),
    ],
    ids=["label", "annotation", "finalizer", "image", "deadline", "gate", "toleration"],
)
@pytest.mark.parametrize("by", EnforceBy)
def test_a_stored_pod_may_change_under_any_later_rule(by, change, phase, rule):
    old = stored_pod(rule)
    old["metadata"]["finalizers"] = ["x"]
    new = copy.deepcopy(old)
    change(new)
    policy = another_policy(a_rule(enforcement={"by": by}))
    for subresource in ("", "resize"):
        assert_unchanged(
            decide_update(old, new, policy=policy, phase=phase, subresource=subresource)
        )


@pytest.mark.parametrize("key", ["gpu", "visible-devices", "driver-limit", "gpu-waits"])
def test_a_stored_pod_gets_no_gpu_by_hand(key):
    old = stored_pod()
    new = copy.deepcopy(old)
    new["metadata"]["annotations"][f"vramwarden.io/{key}"] = "GPU-2"
    assert decide_update(old, new).reasons == ("Immutable",)


def test_what_a_binding_wrote_brings_no_warning():
    assert decide_pod(as_bound(translate(a_plain_pod()))).notes == ()
