"""The gate: its containers, older and forged gates, and denied mounts."""

from __future__ import annotations

import copy

import pytest

from tests.core.admission.decisions import (
    a_bound_pod,
    a_debugger,
    a_full_pod,
    another_policy,
    assert_denied,
    assert_unchanged,
    decide_debugging,
    decide_pod,
    find_container,
    merge_into_container,
    reasons_and_paths,
    translate,
)
from tests.core.admission.test_laws import defaulted
from tests.support.pods import a_container, a_pod, a_policy, a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.model import Accounting, EnforceBy, GPUClass, Placement
from webhook.names import BINDING_ANNOTATIONS

NAME, PATH, VARIABLE_NAME = "vram-gate", "/run/vram-gate", "VRAMWARDEN_GPU_ASSIGNMENT"
VOLUME = {"name": NAME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
MOUNT = {
    "name": NAME,
    "mountPath": PATH,
    "readOnly": True,
    "subPathExpr": "$(VRAMWARDEN_GPU_ASSIGNMENT)",
}
FRACTION = "metadata.annotations['vramwarden.io/gpu-memory-fraction']"
VARIABLE = {
    "name": VARIABLE_NAME,
    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": FRACTION}},
}
RULES = {
    (by, placement): a_rule(placement=placement, enforcement={"by": by})
    for by in EnforceBy
    for placement in Placement
}
SENTRY = RULES[EnforceBy.SENTRY, Placement.BINDING]
SIDECAR = RULES[EnforceBy.SIDECAR, Placement.BINDING]
EVERY = "main=8Gi,init=8Gi,side=8Gi"
"""VRAM for an app container, an init container and a native sidecar; none for `second`."""


def gates_of(pod):
    """Return the names of containers that have the complete gate exactly once."""
    found = set()
    for field in ("containers", "initContainers"):
        for container in pod["spec"].get(field) or ():
            variables = [e for e in container.get("env") or () if e["name"] == VARIABLE_NAME]
            mounts = [m for m in container.get("volumeMounts") or () if m["name"] == NAME]
            assert (variables, mounts) in (([], []), ([VARIABLE], [MOUNT])), container["name"]
            if mounts:
                found.add(container["name"])
    volumes = [one for one in pod["spec"].get("volumes") or () if one["name"] == NAME]
    assert volumes == [VOLUME] * bool(found)
    return found


GATED = {
    (EnforceBy.SIDECAR, Placement.BINDING): {"vram-enforcer"},
    (EnforceBy.SENTRY, Placement.BINDING): {"main", "init", "side"},
    (EnforceBy.NONE, Placement.BINDING): {"main", "init", "side"},
    **{(by, Placement.NONE): set() for by in EnforceBy},
}


@pytest.mark.parametrize("way", RULES, ids=str)
def test_who_has_the_gate(way):
    assert gates_of(translate(a_full_pod(EVERY), RULES[way])) == GATED[way]


def test_a_pod_whose_gpus_a_plugin_gives_has_no_gate():
    slots = GPUClass("slots", {}, (), Accounting.CAP_ONLY)
    policy = a_policy(SENTRY, classes={"slots": slots})
    pod = a_full_pod(annotations={"vramwarden.io/gpu-class": "slots"})
    assert gates_of(decide_pod(pod, policy=policy).obj) == set()


OPEN = {"name": VARIABLE_NAME, "value": "0.5"}
OLD = {**MOUNT, "mountPath": "/elsewhere"}
BROUGHT = {
    "a variable": {"env": [OPEN]},
    "two variables": {"env": [OPEN, {"name": "A", "value": "1"}, VARIABLE]},
    "variables from a map": {"envFrom": [{"configMapRef": {"name": "m"}}]},
    "the gate twice": {"volumeMounts": [MOUNT, OLD]},
    "the gate at another path": {"volumeMounts": [OLD, {"name": "data", "mountPath": "/data"}]},
}
VOLUMES = [VOLUME, {"name": NAME, "emptyDir": {}}, {"name": NAME, "configMap": {"name": "m"}}]


@pytest.mark.parametrize("way", RULES, ids=str)
@pytest.mark.parametrize("fields", BROUGHT.values(), ids=BROUGHT)
@pytest.mark.parametrize("volume", VOLUMES, ids=str)
def test_what_a_pod_brings_of_the_gate_is_replaced_or_removed(way, fields, volume):
    pod = a_full_pod(EVERY, volumes=[{"name": "data", "emptyDir": {}}, volume])
    for name in ("main", "second", "init", "side"):
        merge_into_container(pod, name, fields)
    once = translate(pod, RULES[way])
    assert gates_of(once) == GATED[way]
    assert decide_pod(defaulted(once), RULES[way]).patch == ()
    assert_unchanged(decide_pod(once, RULES[way], Phase.VALIDATE))


@pytest.mark.parametrize("before", RULES, ids=str)
@pytest.mark.parametrize("now", RULES, ids=str)
def test_a_restored_pod_has_the_gate_of_the_rule_in_force(before, now):
    old = defaulted(translate(a_full_pod(EVERY), RULES[before]))
    old["metadata"]["annotations"].update(dict.fromkeys(BINDING_ANNOTATIONS, "0.5"))
    for policy in (a_policy(RULES[now]), another_policy(RULES[now])):
        again = decide_pod(old, policy=policy).obj
        assert gates_of(again) == GATED[now]
        assert not set(BINDING_ANNOTATIONS) & again["metadata"]["annotations"].keys()
        assert decide_pod(again, policy=policy).patch == ()
        assert_unchanged(decide_pod(again, policy=policy, phase=Phase.VALIDATE))


# --- changes after translation


def without(key, name):
    def change(container):
        container[key] = [one for one in container[key] if one["name"] != name]

    return change


def more(key, entry):
    return lambda container: container[key].append(copy.deepcopy(entry))


def other(key, name, **fields):
    def change(container):
        next(one for one in container[key] if one["name"] == name).update(copy.deepcopy(fields))

    return change


BROKEN = {
    "no variable": without("env", VARIABLE_NAME),
    "another value": lambda container: (
        without("env", VARIABLE_NAME)(container),
        more("env", OPEN)(container),
    ),
    "from another annotation": other(
        "env",
        VARIABLE_NAME,
        valueFrom={"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['mine']"}},
    ),
    "the variable twice": more("env", OPEN),
    "no mount": without("volumeMounts", NAME),
}
DENIED_AS_RESERVED = {
    "a writable mount": other("volumeMounts", NAME, readOnly=False),
    "a mount of the whole volume": other("volumeMounts", NAME, subPathExpr=""),
    "a second mount": more("volumeMounts", {"name": NAME, "mountPath": "/x"}),
    "a second mount, read-only": more(
        "volumeMounts", {"name": NAME, "mountPath": "/x", "readOnly": True}
    ),
}
POLICIES = {
    "the same policy": a_policy,
    "another policy": another_policy,
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("break_", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize(
    ("rule", "name"),
    [(SENTRY, "main"), (SENTRY, "init"), (SENTRY, "side"), (SIDECAR, "vram-enforcer")],
    ids=["main", "init", "side", "vram-enforcer"],
)
def test_a_gate_that_was_broken_after_translation_is_not_stored(rule, name, break_, policy):
    pod = translate(a_full_pod(EVERY), rule)
    break_(find_container(pod, name))
    decision = decide_pod(pod, policy=policy(rule), phase=Phase.VALIDATE)
    assert decision.reasons == ("Unmutated",)
    assert gates_of(translate(pod, rule)) == gates_of(translate(a_full_pod(EVERY), rule))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("volumes", [[], [{"name": NAME, "hostPath": {"path": "/data"}}]], ids=str)
@pytest.mark.parametrize("rule", [SENTRY, SIDECAR], ids=["sentry", "sidecar"])
def test_a_gate_whose_volume_is_gone_or_another_is_not_stored(rule, volumes, policy):
    pod = translate(a_full_pod(EVERY), rule)
    kept = [one for one in pod["spec"]["volumes"] if one["name"] != NAME]
    pod["spec"]["volumes"] = kept + volumes
    decision = decide_pod(pod, policy=policy(rule), phase=Phase.VALIDATE)
    assert decision.reasons == ("Unmutated",)
    assert decision.findings[0].path.startswith("spec.volumes")


# --- other mounts of the volume


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("break_", DENIED_AS_RESERVED.values(), ids=DENIED_AS_RESERVED)
@pytest.mark.parametrize("name", ["main", "init", "side"])
def test_any_other_mount_of_the_gates_volume_is_denied(name, break_, phase):
    pod = translate(a_full_pod(EVERY), SENTRY)
    container = find_container(pod, name)
    break_(container)
    index = len(container["volumeMounts"]) - 1
    place = merge_into_container(pod, name, {})
    assert_denied(
        decide_pod(pod, SENTRY, phase), "ReservedName", f"{place}.volumeMounts[{index}].name"
    )


@pytest.mark.parametrize("way", RULES, ids=str)
@pytest.mark.parametrize("memory", ["8Gi", None])
def test_it_is_denied_under_every_rule_also_without_a_demand(way, memory):
    mount = {"name": NAME, "mountPath": "/x"}
    pod = a_pod(memory, containers=[a_container(volumeMounts=[mount])], volumes=[VOLUME])
    path = "spec.containers[0].volumeMounts[0].name"
    assert_denied(decide_pod(pod, RULES[way]), "ReservedName", path)


def test_without_a_demand_the_gate_itself_is_denied_too():
    """Such a container would never be created."""
    pod = a_pod(containers=[a_container(volumeMounts=[MOUNT])], volumes=[VOLUME])
    assert_denied(decide_pod(pod), "ReservedName", "spec.containers[0].volumeMounts[0].name")
    assert_unchanged(decide_pod(a_pod(volumes=[VOLUME])))


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("pod", [a_bound_pod(), a_pod()], ids=["managed", "without a demand"])
@pytest.mark.parametrize("mount", [MOUNT, {"name": NAME, "mountPath": "/x"}], ids=str)
def test_no_debugging_container_mounts_it(mount, pod, phase):
    decision = decide_debugging(pod, a_debugger(volumeMounts=[mount]), phase=phase)
    path = "spec.ephemeralContainers[0].volumeMounts[0].name"
    assert_denied(decision, "ReservedName", path)


# --- a user's mount at the gate's path


@pytest.mark.parametrize(
    ("path", "denied"),
    [
        *((path, True) for path in (PATH, f"{PATH}/", f"{PATH}/a", "/run/../run/vram-gate")),
        *((path, True) for path in ("run/vram-gate", "/var/run/vram-gate")),
        *((path, False) for path in ("/run", f"{PATH}-2", "/data/run/vram-gate", "/")),
    ],
)
def test_what_is_mounted_in_the_gates_place_is_denied_with_a_cure(path, denied):
    data = {"name": "data", "mountPath": path}
    pod = a_full_pod(EVERY, volumes=[{"name": "data", "emptyDir": {}}])
    merge_into_container(pod, "init", {"volumeMounts": [data]})
    decision = decide_pod(pod, SENTRY)
    assert (
        reasons_and_paths(decision)
        == [("ReservedName", "spec.initContainers[0].volumeMounts[0].mountPath")] * denied
    )
    assert ('mount "data" at another path' in decision.message) is denied
    other_rules = {way: rule for way, rule in RULES.items() if "init" not in GATED[way]}
    for rule in other_rules.values():
        assert decide_pod(pod, rule).outcome is Outcome.MUTATED


def test_in_a_container_without_vram_it_is_not():
    pod = a_full_pod(volumes=[{"name": "data", "emptyDir": {}}])
    merge_into_container(pod, "second", {"volumeMounts": [{"name": "data", "mountPath": PATH}]})
    assert decide_pod(pod, SENTRY).outcome is Outcome.MUTATED
