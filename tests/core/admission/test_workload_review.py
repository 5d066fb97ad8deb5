"""Warnings on workloads about their templates' pods. No workload is denied."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from tests.core.admission.test_review_cost import MOST_CALLS, calls
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from webhook.core.admission import workload_review
from webhook.core.admission.decision import Outcome
from webhook.core.admission.workload_review import WorkloadAdvice, advise
from webhook.core.policy.cluster import UNKNOWN_CLUSTER, Cluster
from webhook.core.policy.match import NamespaceUnknownError
from webhook.core.policy.model import Action, MemoryBounds, Rollout

MEMORY = "vramwarden.io/gpu-memory"
PATHS = {
    "apps/Deployment": ("spec", "template"),
    "apps/StatefulSet": ("spec", "template"),
    "apps/DaemonSet": ("spec", "template"),
    "batch/Job": ("spec", "template"),
    "batch/CronJob": ("spec", "jobTemplate", "spec", "template"),
}


def a_review(pod, kind="apps/Deployment", operation="CREATE", **metadata):
    template = {key: pod[key] for key in ("metadata", "spec")}
    for part in reversed(PATHS[kind]):
        template = {part: template}
    obj = {"kind": kind.rpartition("/")[2], "metadata": {"name": "infer", **metadata}, **template}
    return replace(a_request(obj), kind=kind, operation=operation, name="infer")


def advised(pod, rule=None, **review):
    return advise(a_review(pod, **review), a_policy(rule or a_rule()), UNKNOWN_CLUSTER)


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_what_the_pods_would_be_denied_for_is_said_with_the_workloads_path(kind, operation):
    advice = advised(a_pod("8GB"), kind=kind, operation=operation)
    place = f"{'.'.join(PATHS[kind])}.metadata.annotations[{MEMORY}]"
    what = "8GB is not a Kubernetes quantity; use 8G or 8Gi"
    assert advice.warnings == (f"its pods would be denied: InvalidQuantity: {place}: {what}",)
    assert (advice.allowed, advice.patch, advice.outcome) == (True, (), Outcome.WARNED)
    assert (advice.reasons, advice.rule) == (("InvalidQuantity",), "default")


def test_what_the_api_server_alone_would_reject_is_called_no_denial():
    advice = advised(a_pod("8Gi", containers=[{"image": "example"}]))
    said = "the API server would reject its pods: spec.template.spec.containers[0].name: must be a"
    (warning,) = advice.warnings
    assert warning.startswith(said)


def test_a_workload_whose_pods_are_fine_brings_no_warning():
    advice = advised(a_pod("8Gi"))
    assert (advice.warnings, advice.outcome) == ((), Outcome.ALLOWED)


def test_every_finding_is_said():
    pod = a_pod("8GB", hostPID=True)
    said = advised(pod).warnings
    assert [one.split(": ")[1] for one in said] == ["InvalidQuantity", "HostPID"]


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (Action.ENFORCE, "its pods would be denied: TooLarge: spec.template.metadata.annotations["),
        (Action.WARN, "its pods bring a warning: TooLarge: spec.template.metadata.annotations["),
        (Action.AUDIT, None),
    ],
)
def test_the_rules_action_decides_what_is_said(action, said):
    rule = a_rule(action=action, memory=MemoryBounds(max_bytes=2**30))
    warnings = advised(a_pod("8Gi"), rule).warnings
    assert len(warnings) == (said is not None)
    assert all(one.startswith(said) for one in warnings)


def test_audit_is_silent_about_annotations_at_the_wrong_level_as_well():
    request = a_review(a_pod("8GB"), annotations={MEMORY: "8Gi"})
    advice = advise(
        request, a_policy(a_rule(action=Action.AUDIT)), UNKNOWN_CLUSTER, lambda *_: "more"
    )
    assert (advice.warnings, advice.outcome) == ((), Outcome.AUDITED)
    assert (advice.reasons, advice.rule) == (("InvalidQuantity",), "default")


def test_while_a_rollout_observes_pods_without_a_demand_bring_warnings():
    seeing = a_container("main", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    request = a_review(a_pod(containers=[seeing]))
    (note,) = advise(request, a_policy(), Cluster(Rollout.OBSERVE)).warnings
    assert note.startswith("its pods bring a warning: VisibleDevicesOverride: ")


@pytest.mark.parametrize("rule", [a_rule(action=Action.IGNORE), a_rule(namespaces=("other",))])
def test_where_no_rule_judges_nothing_is_said(rule):
    asked = []
    request = a_review(a_pod("8GB"), annotations={MEMORY: "8Gi"})
    advice = advise(
        request, a_policy(rule), UNKNOWN_CLUSTER, lambda *about: asked.append(about) or "more"
    )
    assert (advice.warnings, advice.outcome, asked) == ((), Outcome.SKIPPED, [])


WORKLOAD = "vramwarden.io/workload"
LABELS = "spec.template.metadata.labels"
TEMPLATE = "spec.template.metadata.annotations"


@pytest.mark.parametrize(
    ("place", "key", "said"),
    [
        ("annotations", MEMORY, f"put it under {TEMPLATE}; nothing reads it here"),
        ("labels", MEMORY, f"write {MEMORY}: 8Gi under {TEMPLATE}; nothing reads this key"),
        (
            "annotations",
            "gpu-memory",
            f"write {MEMORY}: 8Gi under {TEMPLATE}; nothing reads this key",
        ),
        (
            "annotations",
            "vramwarden.io/gpu-mem",
            f"write {MEMORY}: 8Gi under {TEMPLATE}; nothing reads this key",
        ),
        ("annotations", "vramwarden.io/team", "remove it; nothing reads it here"),
        ("labels", "vramwarden.io/share", "remove it; nothing reads it here"),
        ("labels", WORKLOAD, f"put it under {LABELS}; nothing reads it here"),
        ("annotations", WORKLOAD, f"put it under {LABELS}; nothing reads it here"),
    ],
)
def test_a_key_at_the_wrong_level_is_said(place, key, said):
    shown = f"metadata.{place}[{key}]"
    assert advised(a_pod(), **{place: {key: "8Gi"}}).warnings == (f"{shown}: {said}",)


def test_a_key_of_the_workload_that_its_pods_have_too_is_fine():
    assert advised(a_pod("8Gi"), annotations={MEMORY: "8Gi"}).warnings == ()
    (warning,) = advised(a_pod("8Gi"), annotations={MEMORY: "4Gi"}).warnings
    assert warning == f"metadata.annotations[{MEMORY}]: remove it; nothing reads it here"
    pod = a_pod("8Gi", labels={"vramwarden.io/workload": "a"})
    assert advised(pod, labels={"vramwarden.io/workload": "a"}).warnings == ()


def test_what_is_wrong_once_a_key_is_moved_is_said_at_once():
    whole = a_container("main", resources={"limits": {"nvidia.com/gpu": "1"}})
    request = a_review(a_pod(containers=[whole]), annotations={MEMORY: "8"})
    moved, beside = advise(request, a_policy(), UNKNOWN_CLUSTER).warnings
    assert moved.startswith(f"metadata.annotations[{MEMORY}]: put it under {TEMPLATE}; ")
    assert moved.endswith("; 8 is 8 bytes; for MiB write 8Mi, for GiB 8Gi")
    where = "spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]"
    assert beside.startswith(f"{where}: beside that, WholeGPUAndShare: ")


def test_hints_about_the_pods_are_said():
    resources = {"limits": {"nvidia.com/gpumem": "3000"}}
    pod = a_pod(containers=[a_container("main", resources=resources)])
    (note,) = advised(pod).warnings
    assert note == (
        "spec.template.spec.containers[0].resources.limits[nvidia.com/gpumem]: remove it, and "
        f"write the annotation {MEMORY}: 3000Mi; HAMi reads it, vramwarden does not"
    )


def test_more_advice_has_the_path_and_knows_the_review_and_what_is_asked():
    asked = []

    def more(request, pod, requested_bytes):
        asked.append((request.namespace, request.kind, pod["labels"], requested_bytes))
        return "asks for 8Gi; 1Gi would do"

    request = a_review(a_pod("8Gi", labels={"app": "x"}))
    advice = advise(request, a_policy(), UNKNOWN_CLUSTER, more)
    path = f"spec.template.metadata.annotations[{MEMORY}]"
    assert advice.warnings == (f"{path}: asks for 8Gi; 1Gi would do",)
    assert asked == [("team-a", request.kind, {"app": "x"}, 8 * 2**30)]


def test_no_more_advice_if_pods_would_be_denied_or_ask_for_nothing():
    for pod in (a_pod("8GB"), a_pod()):
        advice = advise(a_review(pod), a_policy(), UNKNOWN_CLUSTER, lambda *_: "more")
        assert "more" not in advice.warnings


@pytest.mark.parametrize("change", [{"operation": "DELETE"}, {"subresource": "scale"}])
def test_what_creates_no_pods_is_silent(change):
    assert advise(
        replace(a_review(a_pod("8GB")), **change), a_policy(), UNKNOWN_CLUSTER
    ) == WorkloadAdvice(outcome=Outcome.SKIPPED, policy=a_policy().short_digest)


def test_other_kinds_are_silent_and_not_searched(monkeypatch):
    monkeypatch.setattr(workload_review, "find_templates", None)
    for kind in ("kubeflow.org/PyTorchJob", "batch.volcano.sh/Job", "ConfigMap"):
        request = replace(a_review(a_pod("8GB")), kind=kind)
        assert advise(request, a_policy(), UNKNOWN_CLUSTER).outcome is Outcome.SKIPPED


@pytest.mark.process
@pytest.mark.parametrize("key", ["vramwarde.{}/gpu", "example.com/{}", "gpu-{}"])
def test_the_largest_workload_costs_no_more_than_the_largest_pod(key):
    room = {key.format(n): "" for n in range(100_000)}
    limits = {f"vramwardn.{n}/gpu": "1" for n in range(32)}
    containers = [a_container(f"c{n}", resources={"limits": limits}) for n in range(256)]
    few = dict(islice(room.items(), 1024))
    pod = a_pod(annotations=few, labels=few, containers=containers)
    request = a_review(pod, annotations=room, labels=room)
    assert calls(lambda: advise(request, a_policy(), UNKNOWN_CLUSTER)) < MOST_CALLS / 4


@pytest.mark.parametrize("spec", [None, "x", [], {}, {"template": None}, {"template": {}}])
def test_a_workload_without_a_template_is_silent(spec):
    request = replace(a_review(a_pod()), obj={"kind": "Deployment", "spec": spec})
    assert advise(request, a_policy(), UNKNOWN_CLUSTER).warnings == ()


def test_a_workload_is_judged_by_the_labels_of_its_namespace():
    labelled = a_rule(name="labelled", namespace_labels={"tier": "intern"})
    policy = a_policy(labelled, a_rule(name="everybody"))
    review = a_review(a_pod("8Gi"))
    for labels, rule in (({"tier": "intern"}, "labelled"), ({}, "everybody")):
        assert advise(review, policy, Cluster(namespaces={"team-a": labels})).rule == rule
    with pytest.raises(NamespaceUnknownError):
        advise(review, policy, UNKNOWN_CLUSTER)
