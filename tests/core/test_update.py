"""What may happen to a pod after its creation, and what must stand in it when it is stored."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from builders import RULE, a_container, a_pod, a_policy, a_request, a_rule
from jsonpatch import JsonPatchException, JsonPointerException

from webhook.core.admission import Outcome, Phase, decide
from webhook.core.patch import apply_patch
from webhook.core.policy import Action, Bounds, EnforceBy, Placement, Style

VRAM = "vramwarden.io/vram"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
ANNOTATIONS = ("gpu-memory", "gpu-class", "gpu-count", "admitted", "gpu")
MARKS = [
    *(("annotations", f"vramwarden.io/{name}") for name in ANNOTATIONS),
    ("labels", "vramwarden.io/managed"),
]
WITHOUT_SIDECAR = a_rule(enforcement={"by": EnforceBy.NONE})


def a_plain_pod():
    return a_pod(
        "main=8Gi",
        containers=[a_container("main"), a_container("second")],
        initContainers=[a_container("init")],
    )


def stored_pod(rule=RULE, pod=None):
    """Return a pod as it is after its creation."""
    decision = decide(a_request(pod or a_plain_pod()), a_policy(rule), Phase.MUTATE)
    assert decision.outcome is Outcome.MUTATED, decision.message
    return copy.deepcopy(decision.obj)


def a_bound_pod():
    """Return a stored pod that runs on a GPU, with every mark of ours."""
    pod = stored_pod()
    notes = pod["metadata"]["annotations"]
    notes.update({"vramwarden.io/gpu": "GPU-1", "vramwarden.io/gpu-count": "1"})
    notes["vramwarden.io/gpu-class"] = "a100"
    pod["spec"]["nodeName"] = "node-1"
    return pod


def updated(old, new, *, policy=None, phase=Phase.VALIDATE, **fields: Any):
    request = a_request(new, operation="UPDATE", old=old, **fields)
    return decide(request, policy or a_policy(), phase)


def found_in(decision):
    return [(finding.reason.value, finding.path) for finding in decision.findings]


def assert_immutable(decision, *paths: str) -> None:
    assert found_in(decision) == [("Immutable", path) for path in paths]
    assert decision.outcome is Outcome.DENIED
    assert decision.patch == ()
    assert decision.message == "; ".join(
        f"Immutable: {finding.path}: {finding.detail}" for finding in decision.findings
    )
    assert all("; " in finding.detail for finding in decision.findings)


def container_of(pod, name: str):
    return next(
        container
        for field in ("containers", "initContainers", "ephemeralContainers")
        for container in pod["spec"].get(field, [])
        if container["name"] == name
    )


# --- UPDATE


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("subresource", ["", "resize"])
@pytest.mark.parametrize(("kind", "key"), MARKS)
@pytest.mark.parametrize("value", ["other", "", None])
def test_a_mark_can_neither_change_nor_go(value, kind, key, subresource, phase):
    old, new = a_bound_pod(), a_bound_pod()
    if value is None:
        del new["metadata"][kind][key]
    else:
        new["metadata"][kind][key] = value
    decision = updated(old, new, subresource=subresource, phase=phase)
    assert_immutable(decision, f"metadata.{kind}[{key}]")
    assert ("removed" if value is None else "change") in decision.message
    assert f'"{old["metadata"][kind][key]}"' in decision.message


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(("kind", "key"), MARKS)
@pytest.mark.parametrize("value", ["true", ""])
def test_a_mark_cannot_come_later(value, kind, key, phase):
    old, new = a_pod(), a_pod()
    new["metadata"][kind] = {key: value}
    decision = updated(old, new, phase=phase)
    assert_immutable(decision, f"metadata.{kind}[{key}]")
    assert "added" in decision.message
    assert "create it again" in decision.message


def test_all_marks_at_once_are_all_reported():
    old, new = a_bound_pod(), a_bound_pod()
    del new["metadata"]["annotations"], new["metadata"]["labels"]
    decision = updated(old, new)
    assert_immutable(decision, *(f"metadata.{kind}[{key}]" for kind, key in MARKS))


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize("subresource", ["", "resize"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image", "vramwarden/enforcer:2"),
        ("image", "example"),
        ("resources", {"limits": {"cpu": "1m", "memory": "1Mi"}}),
        ("resources", {"limits": {"cpu": "10m", "memory": "64Mi"}}),
        ("resources", {}),
        ("resources", None),
    ],
)
def test_the_sidecar_keeps_its_image_and_resources(field, value, subresource, style):
    old = stored_pod(a_rule(enforcement={"style": style}))
    new = copy.deepcopy(old)
    container_of(new, "vram-enforcer")[field] = value
    place = "initContainers[0]" if style is Style.NATIVE else "containers[2]"
    assert_immutable(updated(old, new, subresource=subresource), f"spec.{place}.{field}")


def test_a_resize_of_the_sidecar_in_either_direction_is_refused():
    for memory in ("32Mi", "128Mi"):
        old = stored_pod()
        new = copy.deepcopy(old)
        for kind in ("requests", "limits"):
            container_of(new, "vram-enforcer")["resources"][kind]["memory"] = memory
        decision = updated(old, new, subresource="resize")
        assert_immutable(decision, "spec.initContainers[0].resources")


@pytest.mark.parametrize("name", ["main", "second", "init"])
@pytest.mark.parametrize("phase", Phase)
def test_other_containers_may_be_resized(name, phase):
    old = stored_pod()
    new = copy.deepcopy(old)
    container_of(new, name).setdefault("resources", {}).setdefault("limits", {})["cpu"] = "2"
    decision = updated(old, new, subresource="resize", phase=phase)
    assert (decision.outcome, decision.patch) == (Outcome.ALLOWED, ())


@pytest.mark.parametrize("subresource", ["", "resize"])
@pytest.mark.parametrize("amount", ["4Gi", "16Gi", None])
def test_a_demand_written_as_a_resource_cannot_change(amount, subresource):
    resources = {"resources": {"limits": {VRAM: "8Gi"}}}
    old = stored_pod(pod=a_pod(containers=[a_container(**resources)]))
    new = copy.deepcopy(old)
    for kind in ("requests", "limits"):
        if amount is None:
            del container_of(new, "main")["resources"][kind][VRAM]
        else:
            container_of(new, "main")["resources"][kind][VRAM] = amount
    decision = updated(old, new, subresource=subresource)
    assert decision.outcome is Outcome.DENIED
    assert decision.reasons == ("Immutable",)


@pytest.mark.parametrize("make", [stored_pod, a_bound_pod, a_pod])
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "change",
    [
        lambda pod: pod["spec"]["containers"][0].update(image="example:2"),
        lambda pod: pod["metadata"].setdefault("labels", {}).update(app="x"),
        lambda pod: pod["metadata"].setdefault("annotations", {}).update({"team": "a"}),
        lambda pod: pod["metadata"].update(finalizers=["x"]),
        lambda pod: pod["spec"].update(activeDeadlineSeconds=5),
        lambda pod: pod["spec"].setdefault("tolerations", []).append({"operator": "Exists"}),
        lambda pod: pod["spec"].update(terminationGracePeriodSeconds=1),
        dict,
    ],
    ids=["image", "label", "annotation", "finalizer", "deadline", "toleration", "grace", "nothing"],
)
def test_what_is_not_ours_may_change(change, phase, make):
    old, new = make(), make()
    change(new)
    decision = updated(old, new, phase=phase)
    assert (decision.outcome, decision.findings, decision.patch) == (Outcome.ALLOWED, (), ())


def test_a_pod_from_before_the_webhook_is_not_judged_when_it_changes():
    old = a_pod(hostPID=True, nodeName="node-1")
    old["spec"]["containers"][0]["env"] = [{"name": VISIBLE, "value": "all"}]
    new = copy.deepcopy(old)
    new["metadata"]["labels"] = {"app": "x"}
    for phase in Phase:
        assert updated(old, new, phase=phase).outcome is Outcome.ALLOWED


LENIENT = a_rule(name="lenient", pod_labels={"tier": "free"}, action=Action.IGNORE)


@pytest.mark.parametrize("strict", [RULE, a_rule(name="strict", pod_labels={"tier": "paid"})])
def test_new_labels_do_not_choose_another_rule(strict):
    policy = a_policy(LENIENT, strict)
    old = a_bound_pod()
    old["metadata"]["labels"]["tier"] = "paid"
    new = copy.deepcopy(old)
    new["metadata"]["labels"]["tier"] = "free"
    new["metadata"]["annotations"]["vramwarden.io/gpu-memory"] = "1Mi"
    decision = updated(old, new, policy=policy)
    assert_immutable(decision, "metadata.annotations[vramwarden.io/gpu-memory]")
    assert decision.rule == strict.name


def test_the_old_labels_choose_the_rule():
    old, new = a_bound_pod(), a_bound_pod()
    old["metadata"]["labels"]["tier"] = "free"
    new["metadata"]["labels"] = {}
    decision = updated(old, new, policy=a_policy(LENIENT, RULE))
    assert (decision.reasons, decision.rule) == (("RuleIgnores",), "lenient")


@pytest.mark.parametrize(
    ("action", "outcome"), [(Action.WARN, Outcome.WARNED), (Action.AUDIT, Outcome.AUDITED)]
)
def test_a_rule_that_does_not_enforce_only_tells_of_a_change(action, outcome):
    old, new = a_bound_pod(), a_bound_pod()
    del new["metadata"]["annotations"]["vramwarden.io/gpu"]
    decision = updated(old, new, policy=a_policy(a_rule(action=action)))
    assert (decision.outcome, decision.reasons) == (outcome, ("Immutable",))


# --- ephemeral containers


def with_debuggers(pod, *debuggers):
    new = copy.deepcopy(pod)
    new["spec"].setdefault("ephemeralContainers", []).extend(copy.deepcopy(debuggers))
    return new


def a_debugger(name: str = "debug", **fields: Any):
    return a_container(name, **fields)


def debugged(old, *debuggers, phase=Phase.VALIDATE, **fields: Any):
    new = with_debuggers(old, *debuggers)
    return updated(old, new, subresource="ephemeralcontainers", phase=phase, **fields)


def env(name: str, value: str | None = None, **source: Any):
    return {"env": [{"name": name, "value": value} if not source else {"name": name, **source}]}


FROM_MAP = {"valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}
DEBUGGER_FAULTS = [
    *((env(VISIBLE, value), "env[0]") for value in ("all", "0", "GPU-1")),
    (env(VISIBLE, **FROM_MAP), "env[0]"),
    (env("NVIDIA_GPU_MEMORY_LIMIT", "1"), "env[0]"),
    (env("CUDA_MPS_PIPE_DIRECTORY", "/mps"), "env[0]"),
    (env("CUDA_MPS_PIPE_DIRECTORY", **FROM_MAP), "env[0]"),
    ({"securityContext": {"privileged": True}}, "securityContext.privileged"),
    *(
        (
            {"securityContext": {"capabilities": {"add": ["NET_ADMIN", name]}}},
            "securityContext.capabilities.add[1]",
        )
        for name in ("SYS_PTRACE", "SYS_ADMIN", "ALL", "CAP_KILL", "sys_rawio")
    ),
    ({"targetContainerName": "vram-enforcer"}, "targetContainerName"),
]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("fields", "path"), DEBUGGER_FAULTS, ids=str)
def test_a_debugging_container_that_defeats_the_cap_is_refused(fields, path, index, phase):
    debuggers = [a_debugger("harmless")] * index + [a_debugger(**fields)]
    decision = debugged(a_bound_pod(), *debuggers, phase=phase)
    assert found_in(decision) == [
        ("EphemeralContainer", f"spec.ephemeralContainers[{index}].{path}")
    ]
    assert decision.outcome is Outcome.DENIED
    (finding,) = decision.findings
    assert decision.message == f"EphemeralContainer: {finding.path}: {finding.detail}"


def test_all_faults_of_a_debugging_container_are_reported_at_once():
    debugger = a_debugger(
        **env(VISIBLE, "all"),
        securityContext={"privileged": True, "capabilities": {"add": ["SYS_PTRACE"]}},
        targetContainerName="vram-enforcer",
    )
    assert len(debugged(a_bound_pod(), debugger).findings) == 4


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"command": ["sh"], "stdin": True, "tty": True},
        {"targetContainerName": "main"},
        env(VISIBLE, "void"),
        env(VISIBLE, "none"),
        env(VISIBLE, ""),
        env("CUDA_VISIBLE_DEVICES", "0"),
        {"securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}},
        {"securityContext": {"runAsUser": 1000, "privileged": False}},
    ],
    ids=str,
)
def test_a_harmless_debugging_container_is_allowed(fields, phase):
    old = a_bound_pod()
    decision = debugged(old, a_debugger(**fields), phase=phase)
    assert (decision.allowed, decision.findings) == (True, ())
    expected = a_debugger(**fields)
    if phase is Phase.MUTATE:
        names = [entry["name"] for entry in expected.setdefault("env", [])]
        if VISIBLE not in names:
            expected["env"] = [*expected["env"], {"name": VISIBLE, "value": "void"}]
    assert decision.obj == with_debuggers(old, expected)


@pytest.mark.parametrize(("fields", "path"), DEBUGGER_FAULTS, ids=str)
def test_a_debugging_container_that_exists_is_not_judged_again(fields, path):
    old = with_debuggers(a_bound_pod(), a_debugger("old", **fields))
    assert debugged(old, a_debugger("new")).outcome is Outcome.ALLOWED
    decision = debugged(old, a_debugger("new", **fields))
    assert found_in(decision) == [("EphemeralContainer", f"spec.ephemeralContainers[1].{path}")]


@pytest.mark.parametrize("label", [None, "false", ""])
@pytest.mark.parametrize(("fields", "path"), DEBUGGER_FAULTS, ids=str)
def test_a_debugging_container_of_a_pod_without_a_demand_is_left_alone(fields, path, label):
    pod = a_pod(labels={} if label is None else {"vramwarden.io/managed": label})
    assert debugged(pod, a_debugger(**fields)).outcome is Outcome.ALLOWED


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("8Gi"),
        a_pod("8GB"),
        a_pod(containers=[a_container(resources={"limits": {VRAM: "8Gi"}})]),
        a_pod(labels={"vramwarden.io/managed": "true"}),
    ],
    ids=["asks", "asks unreadably", "asks by resource", "is marked"],
)
def test_a_pod_that_asks_for_vram_is_guarded_though_it_lacks_a_mark(pod):
    decision = debugged(pod, a_debugger(**env(VISIBLE, "all")))
    assert decision.reasons == ("EphemeralContainer",)


def test_a_debugging_container_is_judged_by_the_rule_of_its_pod():
    policy = a_policy(a_rule(action=Action.WARN))
    decision = debugged(a_bound_pod(), a_debugger(**env(VISIBLE, "all")), policy=policy)
    assert decision.outcome is Outcome.WARNED


# --- what is not looked at


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"operation": "DELETE", "obj": {}}, "Operation"),
        ({"operation": "CONNECT", "subresource": "exec"}, "Operation"),
        ({"operation": "CONNECT"}, "Operation"),
        ({"operation": "PATCH"}, "Operation"),
        ({"operation": ""}, "Operation"),
        ({"subresource": "status", "operation": "UPDATE"}, "Subresource"),
        ({"subresource": "eviction"}, "Subresource"),
        ({"subresource": "of-the-future", "operation": "UPDATE"}, "Subresource"),
        ({"subresource": "ephemeralcontainers"}, "Subresource"),
        ({"subresource": "resize"}, "Subresource"),
        ({"kind": "apps/Deployment"}, "NotAPod"),
        ({"kind": "Service"}, "NotAPod"),
        ({"kind": "metrics.k8s.io/Pod"}, "NotAPod"),
        ({"kind": ""}, "NotAPod"),
    ],
    ids=str,
)
def test_a_request_that_is_not_ours_is_allowed_unread(fields, reason, phase):
    malformed = {"metadata": {"annotations": 1}, "spec": [], "kind": "Pod"}
    decision = decide(a_request(malformed, **fields), a_policy(), phase)
    assert (decision.outcome, decision.reasons) == (Outcome.SKIPPED, (reason,))
    assert (decision.allowed, decision.patch, decision.message) == (True, (), "")


# --- what must stand in a pod when it is stored


RICH_RULE = a_rule(
    tolerations=({"key": "gpu", "operator": "Exists"},),
    runtime_class_name="nvidia",
    env=({"name": "XLA_PYTHON_CLIENT_PREALLOCATE", "value": "false"},),
    default_class="a100",
)


def undoings():
    """Yield each operation of the translation undone alone, with the pod that is left."""
    before = a_plain_pod()
    decision = decide(a_request(before), a_policy(RICH_RULE), Phase.MUTATE)
    for index, operation in enumerate(decision.patch):
        rest = [other for at, other in enumerate(decision.patch) if at != index]
        try:
            pod = apply_patch(before, rest)
        except (JsonPatchException, JsonPointerException):  # a later operation stands on this one
            continue
        yield pytest.param(pod, id=operation["path"])


def added(old, new, path=()):
    """Yield the path of each member and item that stands in one JSON value only."""
    if isinstance(new, dict):
        old = old if isinstance(old, dict) else {}
        for key, value in new.items():
            if key not in old:
                yield (*path, key)
            yield from added(old.get(key), value, (*path, key))
    elif isinstance(new, list):
        old = {item["name"]: item for item in old or [] if "name" in item}
        for index, value in enumerate(new):
            known = old.get(value.get("name")) if isinstance(value, dict) else None
            if known is None:
                yield (*path, index)
            yield from added(known, value, (*path, index))


# A name is no part; AlwaysPullImages sets the policy; without expressions a term fits no node; a
# variable that is there and empty is the user's.
NO_PART = (
    ".name",
    ".imagePullPolicy",
    ".nodeSelectorTerms.0.matchExpressions",
    "spec.containers.0.env.1.value",
    "spec.containers.0.env.2.value",
)
# Of these the reason is a better one than that something is missing.
BETTER_REASONS = {
    "spec.initContainers.0.image": "ReservedName",
    "spec.initContainers.0.command": "ReservedName",
    "spec.volumes.0.emptyDir": "ReservedName",
    "spec.volumes.1.emptyDir": "ReservedName",
    "spec.containers.0.resources.limits": "RequestsLimitsMismatch",
    "spec.containers.0.env.0.valueFrom.fieldRef.": "VisibleDevicesOverride",
}


def path_of(keys):
    return ".".join(map(str, keys))


def parts():
    """Yield each of them, taken away alone from the stored pod; the sidecar's parts as well."""
    before, after = a_plain_pod(), stored_pod(RICH_RULE)
    for path in added(before, after):
        if any(map(path_of(path).endswith, NO_PART)):
            continue
        pod = copy.deepcopy(after)
        holder: Any = pod
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]
        yield pytest.param(pod, path, id=path_of(path))


def test_the_pod_as_translation_leaves_it_is_stored():
    for rule in (RULE, RICH_RULE, WITHOUT_SIDECAR):
        request = a_request(stored_pod(rule))
        decision = decide(request, a_policy(rule), Phase.VALIDATE)
        assert (decision.outcome, decision.findings) == (Outcome.ALLOWED, ())


@pytest.mark.parametrize("pod", list(undoings()))
def test_an_operation_of_the_patch_that_is_missing_is_noticed(pod):
    decision = decide(a_request(pod), a_policy(RICH_RULE), Phase.VALIDATE)
    assert decision.outcome is Outcome.DENIED
    assert decision.reasons == ("Unmutated",)


def test_every_step_of_the_translation_is_undone_once():
    undone = " ".join(case.id for case in parts())
    for part in (
        "resources.requests",
        "nodeSelector.vramwarden.io/gpu",
        "nodeSelector.nvidia.com/gpu.product",
        "matchExpressions.0",
        "matchExpressions.1",
        "tolerations.0",
        "tolerations.1",
        "runtimeClassName",
        "containers.0.env.2",
        "containers.1.env",
        "initContainers.0",
        "shareProcessNamespace",
        "volumes.0",
        "volumes.1",
        "vramwarden.io/managed",
        "vramwarden.io/admitted",
    ):
        assert part in undone


@pytest.mark.parametrize(("pod", "path"), list(parts()))
def test_each_thing_that_translation_adds_is_missed_and_named(pod, path):
    decision = decide(a_request(pod), a_policy(RICH_RULE), Phase.VALIDATE)
    assert decision.outcome is Outcome.DENIED
    better = [r for start, r in BETTER_REASONS.items() if path_of(path).startswith(start)]
    if better:
        assert decision.reasons[0] == better[0]
        return
    (finding,) = decision.findings
    assert finding.reason.value == "Unmutated"
    assert decision.message == f"Unmutated: {finding.path}: {finding.detail}"
    assert finding.path.startswith(".".join(path[:2]))


@pytest.mark.parametrize(
    ("break_", "path"),
    [
        (
            lambda pod: container_of(pod, "main")["resources"]["limits"].pop(VRAM),
            "spec.containers[0].resources",
        ),
        (lambda pod: container_of(pod, "second").pop("env"), "spec.containers[1].env"),
        (lambda pod: pod["spec"].pop("nodeSelector"), "spec.nodeSelector"),
        (lambda pod: pod["spec"].pop("affinity"), "spec.affinity"),
        (lambda pod: pod["spec"].pop("shareProcessNamespace"), "spec.shareProcessNamespace"),
        (lambda pod: pod["spec"]["initContainers"].pop(0), "spec.initContainers[0]"),
        (lambda pod: pod["spec"]["volumes"].pop(1), "spec.volumes[1]"),
        (
            lambda pod: pod["metadata"]["labels"].pop("vramwarden.io/managed"),
            "metadata.labels[vramwarden.io/managed]",
        ),
        (
            lambda pod: pod["metadata"]["annotations"].pop("vramwarden.io/admitted"),
            "metadata.annotations[vramwarden.io/admitted]",
        ),
        (lambda pod: pod["metadata"].pop("labels"), "metadata.labels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_missing_part_is_named_by_its_path(break_, path):
    pod = stored_pod()
    # resources taken from limits alone would be a mismatch of requests and limits
    if "resources" in path:
        del container_of(pod, "main")["resources"]["requests"]
    break_(pod)
    decision = decide(a_request(pod), a_policy(), Phase.VALIDATE)
    assert decision.reasons == ("Unmutated",)
    (finding,) = decision.findings
    assert finding.path.startswith(path)
    assert finding.path in finding.detail


def test_a_pod_that_was_never_translated_is_refused_with_few_words():
    decision = decide(a_request(a_plain_pod()), a_policy(RICH_RULE), Phase.VALIDATE)
    assert decision.reasons == ("Unmutated",)
    assert len(decision.findings) == 1
    assert "more" in decision.message
    assert "mutating webhook" in decision.message
    assert len(decision.message) < 700


# --- translated under another policy


OTHER = a_policy(a_rule(memory=Bounds(max_bytes=2**40)), digest="fedcba9876543210")


def stored_under_another_policy(pod):
    return decide(a_request(pod), OTHER, Phase.VALIDATE)


def test_a_pod_bears_the_digest_of_the_policy_that_translated_it():
    notes = stored_pod()["metadata"]["annotations"]
    assert notes["vramwarden.io/admitted"] == "v1 default 0123456789ab"


@pytest.mark.parametrize("rule", [RULE, RICH_RULE], ids=["plain", "rich"])
def test_a_pod_of_another_policy_is_stored(rule):
    assert stored_under_another_policy(stored_pod(rule)).outcome is Outcome.ALLOWED


def test_a_pod_with_a_sidecar_of_another_release_and_settings_is_stored():
    changes = {"image": "vramwarden/enforcer:2", "grace": "0s", "tolerance": "5%"}
    pod = stored_pod(a_rule(enforcement=changes))
    assert stored_under_another_policy(pod).outcome is Outcome.ALLOWED


@pytest.mark.parametrize(
    "break_",
    [
        lambda pod: pod["spec"].pop("nodeSelector"),
        lambda pod: pod["spec"].pop("tolerations"),
        lambda pod: pod["spec"].pop("runtimeClassName"),
        lambda pod: container_of(pod, "main")["env"].pop(1),
        lambda pod: container_of(pod, "vram-enforcer").pop("startupProbe"),
    ],
    ids=["selector", "tolerations", "runtime class", "env of the rule", "probe"],
)
def test_what_a_policy_decides_is_not_missed_under_another_one(break_):
    pod = stored_pod(RICH_RULE)
    break_(pod)
    assert stored_under_another_policy(pod).outcome is Outcome.ALLOWED


def without_amount(kind):
    def break_(pod):
        for each in ("requests", "limits"):
            if kind in (each, "both"):
                del container_of(pod, "main")["resources"][each][VRAM]

    return break_


def second_cap(pod):
    more = {"name": "VRAM_CAP_BYTES", "value": str(2**50)}
    container_of(pod, "vram-enforcer")["env"].append(more)


def other_cap(pod):
    container_of(pod, "vram-enforcer")["env"][0]["value"] = str(2**50)


ESSENTIALS = [
    (without_amount("requests"), "spec.containers[0].resources.requests"),
    (without_amount("both"), "spec.containers[0].resources.requests"),
    (
        lambda pod: container_of(pod, "main")["env"].pop(0),
        "spec.containers[0].env",
    ),
    (
        lambda pod: pod["metadata"]["labels"].pop("vramwarden.io/managed"),
        "metadata.labels[vramwarden.io/managed]",
    ),
    (lambda pod: pod["spec"].pop("shareProcessNamespace"), "spec.shareProcessNamespace"),
    (lambda pod: pod["spec"]["initContainers"].pop(0), "spec.initContainers"),
    (other_cap, "spec.initContainers"),
    (second_cap, "spec.initContainers"),
]


@pytest.mark.parametrize(
    ("break_", "path"),
    ESSENTIALS,
    ids=["requests", "amounts", "GPU", "label", "namespace", "sidecar", "cap", "second cap"],
)
def test_what_no_policy_changes_is_missed_under_every_one(break_, path):
    pod = stored_pod()
    break_(pod)
    decision = stored_under_another_policy(pod)
    assert decision.reasons == ("Unmutated",)
    assert decision.findings[0].path == path


@pytest.mark.parametrize(
    "entries",
    [
        [{"name": "LD_PRELOAD", "value": "/x.so"}],
        [{"name": "PYTHONPATH", "value": "/x"}],
    ],
    ids=str,
)
def test_no_policy_lets_others_steer_the_sidecar(entries):
    pod = stored_pod()
    container_of(pod, "vram-enforcer")["env"].extend(entries)
    assert stored_under_another_policy(pod).reasons == ("Unmutated",)


@pytest.mark.parametrize(
    ("field", "item"),
    [
        ("env", {"name": VISIBLE, "value": "void"}),
        ("env", {"name": "VRAM_TOLERANCE", "value": "9Ti"}),
        ("envFrom", {"configMapRef": {"name": "m"}}),
        ("volumeMounts", {"name": "v", "mountPath": "/usr"}),
    ],
    ids=["blind", "second tolerance", "variables from a map", "mount over /usr"],
)
def test_no_policy_lets_others_blind_or_replace_the_sidecar(field, item):
    pod = stored_pod()
    container_of(pod, "vram-enforcer").setdefault(field, []).append(item)
    assert stored_under_another_policy(pod).reasons == ("Unmutated",)


def test_containers_without_vram_see_no_gpu_under_any_policy_that_denies():
    pod = stored_pod()
    del container_of(pod, "second")["env"]
    assert stored_under_another_policy(pod).reasons == ("Unmutated",)


def test_a_mark_written_by_hand_does_not_replace_translation():
    pod = a_plain_pod()
    pod["metadata"]["annotations"]["vramwarden.io/admitted"] = "v1 default fedcba987654"
    for policy in (a_policy(), OTHER):
        decision = decide(a_request(pod), policy, Phase.VALIDATE)
        assert decision.reasons == ("Unmutated",)


def test_a_mark_written_by_hand_is_overwritten():
    pod = a_plain_pod()
    pod["metadata"]["annotations"]["vramwarden.io/admitted"] = "v1 mine ffffffffffff"
    assert stored_pod(pod=pod) == stored_pod()


def test_without_a_sidecar_the_amounts_and_marks_are_still_essential():
    rule = a_rule(enforcement={"by": EnforceBy.NONE}, placement=Placement.NONE)
    other = a_policy(rule, digest="fedcba9876543210")
    pod = stored_pod(rule)
    assert decide(a_request(pod), other, Phase.VALIDATE).outcome is Outcome.ALLOWED
    pod["metadata"]["labels"].clear()
    assert decide(a_request(pod), other, Phase.VALIDATE).reasons == ("Unmutated",)


# --- for the test that every reason is reached


def refused_after_creation():
    """Return a decision for each reason that cannot be met at creation, before translation."""
    changed = a_bound_pod()
    del changed["metadata"]["labels"]
    return [
        updated(a_bound_pod(), changed),
        debugged(a_bound_pod(), a_debugger(**DEBUGGER_FAULTS[0][0])),
        decide(a_request(a_plain_pod()), a_policy(), Phase.VALIDATE),
    ]


# --- debugging containers and what cannot be seen at admission


def debugged_with(phase, **fields):
    old = stored_pod()
    new = copy.deepcopy(old)
    new["spec"]["ephemeralContainers"] = [a_container("debugger", **fields)]
    return updated(old, new, subresource="ephemeralcontainers", phase=phase)


def test_a_debugging_container_gets_no_view_of_gpus_whatever_its_image_says():
    decision = debugged_with(Phase.MUTATE)
    assert decision.outcome is Outcome.MUTATED
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    assert decision.obj["spec"]["ephemeralContainers"][0]["env"] == [void]
    again = updated(stored_pod(), decision.obj, subresource="ephemeralcontainers")
    assert again.patch == ()


def test_variables_from_elsewhere_are_overridden_or_else_refused():
    elsewhere = [{"configMapRef": {"name": "x"}}]
    assert debugged_with(Phase.MUTATE, envFrom=elsewhere).outcome is Outcome.MUTATED
    refused = debugged_with(Phase.VALIDATE, envFrom=elsewhere)
    assert refused.reasons == ("EphemeralContainer",)
    assert refused.findings[0].path == "spec.ephemeralContainers[0].envFrom"
    void = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert debugged_with(Phase.VALIDATE, envFrom=elsewhere, env=void).outcome is Outcome.ALLOWED
