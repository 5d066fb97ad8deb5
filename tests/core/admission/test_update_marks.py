"""Updates of a stored pod may not change its demand, label and annotations."""

from __future__ import annotations

import copy

import pytest

from tests.core.admission.decisions import (
    VISIBLE,
    VRAM,
    a_bound_pod,
    assert_immutable,
    assert_unchanged,
    decide_pod,
    decide_update,
    find_container,
    stored_pod,
)
from tests.support.pods import RULE, a_container, a_pod, a_policy, a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.model import Action

ANNOTATIONS = (
    *("gpu-memory", "gpu-class", "gpu-count", "admitted"),
    *("gpu", "visible-devices", "gpu-memory-fraction", "gpu-waits"),
)
MARKS = [
    *(("annotations", f"vramwarden.io/{name}") for name in ANNOTATIONS),
    ("labels", "vramwarden.io/managed"),
]


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
    decision = decide_update(old, new, subresource=subresource, phase=phase)
    assert_immutable(decision, f"metadata.{kind}[{key}]")
    assert ("removed" if value is None else "change") in decision.message
    assert f'"{old["metadata"][kind][key]}"' in decision.message


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(("kind", "key"), MARKS)
@pytest.mark.parametrize("value", ["true", ""])
def test_a_mark_cannot_come_later(value, kind, key, phase):
    old, new = a_pod(), a_pod()
    new["metadata"][kind] = {key: value}
    decision = decide_update(old, new, phase=phase)
    assert_immutable(decision, f"metadata.{kind}[{key}]")
    assert "added" in decision.message
    assert "create it again" in decision.message


def test_a_mark_that_comes_late_to_a_pod_with_vram_is_left_away():
    old, new = stored_pod(), stored_pod()
    new["metadata"]["annotations"]["vramwarden.io/gpu"] = "GPU-1"
    decision = decide_update(old, new)
    assert_immutable(decision, "metadata.annotations[vramwarden.io/gpu]")
    assert ": leave it as it was, for only vramwarden writes it; it cannot be" in decision.message


def test_all_marks_at_once_are_all_reported():
    old, new = a_bound_pod(), a_bound_pod()
    del new["metadata"]["annotations"], new["metadata"]["labels"]
    decision = decide_update(old, new)
    assert_immutable(decision, *(f"metadata.{kind}[{key}]" for kind, key in MARKS))


def amounts_with(memory):
    """Return the sidecar's resources after a resize in either direction."""
    ours = copy.deepcopy(find_container(stored_pod(), "vram-enforcer")["resources"])
    return {kind: amounts | {"memory": memory} for kind, amounts in ours.items()}


@pytest.mark.parametrize("subresource", ["", "resize"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image", "vramwarden/enforcer:2"),
        ("image", "example"),
        ("resources", {"limits": {"cpu": "1m", "memory": "1Mi"}}),
        ("resources", {"limits": {"cpu": "10m", "memory": "64Mi"}}),
        *(("resources", amounts_with(memory)) for memory in ("32Mi", "128Mi")),
        ("resources", {}),
        ("resources", None),
    ],
)
def test_the_sidecar_keeps_its_image_and_resources(field, value, subresource):
    old = stored_pod()
    new = copy.deepcopy(old)
    find_container(new, "vram-enforcer")[field] = value
    decision = decide_update(old, new, subresource=subresource)
    assert_immutable(decision, f"spec.initContainers[0].{field}")


@pytest.mark.parametrize("name", ["main", "second", "init"])
@pytest.mark.parametrize("phase", Phase)
def test_other_containers_may_be_resized(name, phase):
    old = stored_pod()
    new = copy.deepcopy(old)
    find_container(new, name).setdefault("resources", {}).setdefault("limits", {})["cpu"] = "2"
    assert_unchanged(decide_update(old, new, subresource="resize", phase=phase))


@pytest.mark.parametrize("subresource", ["", "resize"])
@pytest.mark.parametrize("amount", ["4Gi", "16Gi", None])
def test_a_demand_written_as_a_resource_cannot_change(amount, subresource):
    resources = {"resources": {"limits": {VRAM: "8Gi"}}}
    old = stored_pod(pod=a_pod(containers=[a_container(**resources)]))
    new = copy.deepcopy(old)
    for kind in ("requests", "limits"):
        if amount is None:
            del find_container(new, "main")["resources"][kind][VRAM]
        else:
            find_container(new, "main")["resources"][kind][VRAM] = amount
    decision = decide_update(old, new, subresource=subresource)
    assert decision.outcome is Outcome.DENIED
    assert decision.reasons == ("Immutable",)


@pytest.mark.parametrize("subresource", ["", "resize"])
def test_a_demand_may_be_written_in_another_way(subresource):
    resources = {"resources": {"limits": {VRAM: "8e9"}}}
    old = stored_pod(pod=a_pod(containers=[a_container(**resources)]))
    new = copy.deepcopy(old)
    for kind in ("requests", "limits"):
        find_container(new, "main")["resources"][kind][VRAM] = "8G"
    assert_unchanged(decide_update(old, new, subresource=subresource))


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
    assert_unchanged(decide_update(old, new, phase=phase))


def test_a_pod_from_before_the_webhook_is_not_judged_when_it_changes():
    old = a_pod(hostPID=True, nodeName="node-1")
    old["spec"]["containers"][0]["env"] = [{"name": VISIBLE, "value": "all"}]
    new = copy.deepcopy(old)
    new["metadata"]["labels"] = {"app": "x"}
    for phase in Phase:
        assert_unchanged(decide_update(old, new, phase=phase))


LENIENT = a_rule(name="lenient", pod_labels={"tier": "free"}, action=Action.IGNORE)


@pytest.mark.parametrize("strict", [RULE, a_rule(name="strict", pod_labels={"tier": "paid"})])
def test_new_labels_do_not_choose_another_rule(strict):
    policy = a_policy(LENIENT, strict)
    old = a_bound_pod()
    old["metadata"]["labels"]["tier"] = "paid"
    new = copy.deepcopy(old)
    new["metadata"]["labels"]["tier"] = "free"
    new["metadata"]["annotations"]["vramwarden.io/gpu-memory"] = "1Mi"
    decision = decide_update(old, new, policy=policy)
    assert_immutable(decision, "metadata.annotations[vramwarden.io/gpu-memory]")
    assert decision.rule == strict.name


def test_the_old_labels_choose_the_rule():
    old, new = a_bound_pod(), a_bound_pod()
    old["metadata"]["labels"]["tier"] = "free"
    new["metadata"]["labels"] = {}
    decision = decide_update(old, new, policy=a_policy(LENIENT, RULE))
    assert (decision.reasons, decision.rule) == (("RuleIgnores",), "lenient")


@pytest.mark.parametrize(
    ("action", "outcome"), [(Action.WARN, Outcome.WARNED), (Action.AUDIT, Outcome.AUDITED)]
)
def test_a_rule_that_does_not_enforce_only_reports_a_change(action, outcome):
    old, new = a_bound_pod(), a_bound_pod()
    del new["metadata"]["annotations"]["vramwarden.io/gpu"]
    decision = decide_update(old, new, policy=a_policy(a_rule(action=action)))
    assert (decision.outcome, decision.reasons) == (outcome, ("Immutable",))


# --- requests that are not judged


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
    decision = decide_pod(malformed, phase=phase, **fields)
    assert (decision.outcome, decision.reasons) == (Outcome.SKIPPED, (reason,))
    assert (decision.allowed, decision.patch, decision.message) == (True, (), "")


def test_the_default_container_stays_where_an_annotation_gave_it_the_vram():
    pod = a_pod("8Gi", containers=[a_container("main"), a_container("second")])
    old = stored_pod(pod=pod)
    new = copy.deepcopy(old)
    key = "kubectl.kubernetes.io/default-container"
    new["metadata"]["annotations"][key] = "second"
    decision = decide_update(old, new)
    assert_immutable(decision, f"metadata.annotations[{key}]")
    assert 'cannot be added ("second")' in decision.message
    new["metadata"]["annotations"][key] = "main"
    assert_unchanged(decide_update(old, new))
