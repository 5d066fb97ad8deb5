from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given

from tests.support.pods import a_pod, a_policy, a_rule
from tests.support.strategies import asking_pods
from tests.tools.admit.runs import POD, run
from webhook.core.admission import workload_review
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Decision, Outcome, Phase
from webhook.core.admission.workload_review import create_request
from webhook.core.pod.findings import Finding, Reason
from webhook.core.pod.patch import apply_patch
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.model import Action, VisibleDevices
from webhook.tools.admit.verdicts.creation import as_sent
from webhook.tools.manifests.documents import find_objects
from webhook.tools.manifests.writing import dump_yaml

KINDS = {
    "Deployment": ("apps/v1", ("spec", "template")),
    "StatefulSet": ("apps/v1", ("spec", "template")),
    "DaemonSet": ("apps/v1", ("spec", "template")),
    "ReplicaSet": ("apps/v1", ("spec", "template")),
    "ReplicationController": ("v1", ("spec", "template")),
    "Job": ("batch/v1", ("spec", "template")),
    "CronJob": ("batch/v1", ("spec", "jobTemplate", "spec", "template")),
    "PodTemplate": ("v1", ("template",)),
}
ASKS = {"vramwarden.io/gpu-memory": "8Gi"}


def a_workload(kind: str, pod: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """Return a workload with the pod as template, without the pod's name and kind."""
    version, path = KINDS[kind]
    template = {"metadata": copy.deepcopy(pod["metadata"]), "spec": copy.deepcopy(pod["spec"])}
    for key in ("name", "namespace"):
        template["metadata"].pop(key, None)
    inner: Any = template
    for part in reversed(path):
        inner = {part: inner}
    name = {"name": "work", "namespace": "team-a"}
    return {"apiVersion": version, "kind": kind, "metadata": {**name, **metadata}, **inner}


def template_of(workload: dict[str, Any]) -> Any:
    for part in KINDS[workload["kind"]][1]:
        workload = workload[part]
    return workload


def patched(pod: dict[str, Any]) -> Any:
    """Apply the patch that the webhook would send."""
    (found,) = find_objects(pod)
    (target,) = found.targets()
    decision = decide(
        create_request(as_sent(target.pod), "team-a"), a_policy(), UNKNOWN_CLUSTER, Phase.MUTATE
    )
    return apply_patch(pod, list(decision.patch))


@pytest.mark.parametrize("kind", KINDS)
def test_the_template_of_every_kind_becomes_what_the_pod_becomes(kind):
    result = run(dump_yaml(a_workload(kind, a_pod("8Gi"))))
    assert result.code == 0
    assert result.err == f"{kind} team-a/work: translated by rule default (8Gi on 1 GPU)\n"
    template, pod = template_of(result.value), patched(a_pod("8Gi"))
    assert template["spec"] == pod["spec"]
    assert template["metadata"]["labels"] == {"vramwarden.io/managed": "true"}
    assert template["metadata"]["annotations"] == pod["metadata"]["annotations"]
    assert "generateName" not in template["metadata"]


@given(asking_pods())
def test_a_pod_becomes_what_the_webhooks_patch_makes_of_it(pod):
    assert run(dump_yaml(pod)).value == patched(pod)
    assert json.loads(run(json.dumps(pod), output="json").out) == patched(pod)


@given(asking_pods())
def test_admitting_twice_changes_nothing_more(pod):
    once = run(dump_yaml(pod))
    twice = run(once.out)
    assert twice.out == once.out
    assert "already translated by rule default (" in twice.err


@given(asking_pods())
def test_the_printed_patch_is_the_webhooks(pod):
    before, result = copy.deepcopy(pod), run(json.dumps(pod), output="patch")
    assert result.err.startswith("Pod team-a/train: translated")
    assert apply_patch(before, json.loads(result.out)) == patched(pod)
    assert result.out.count("\n") == 1


def test_patches_stand_one_per_line_and_are_empty_where_nothing_changes():
    pods = [a_pod("8Gi"), a_pod(), a_pod("8GB")]
    lines = run(*map(json.dumps, pods), output="patch").out.splitlines()
    assert [bool(json.loads(line)) for line in lines] == [True, False, False]


def test_a_list_is_gone_into_and_other_kinds_in_it_stay():
    config = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"}}
    items = [config, a_pod("8Gi"), a_workload("Job", a_pod("9Gi"))]
    result = run(dump_yaml({"apiVersion": "v1", "kind": "List", "items": items}))
    assert [line.partition(":")[0] for line in result.err.splitlines()] == [
        "Pod team-a/train",
        "Job team-a/work",
    ]
    assert result.value["items"][0] == config
    assert result.value["items"][1] == patched(a_pod("8Gi"))


def test_items_of_a_typed_list_need_no_kind():
    pod = a_pod("8Gi")
    del pod["kind"], pod["apiVersion"]
    result = run(dump_yaml({"apiVersion": "v1", "kind": "PodList", "items": [pod]}))
    assert result.err == "Pod team-a/train: translated by rule default (8Gi on 1 GPU)\n"
    assert result.value["items"][0]["spec"]["shareProcessNamespace"] is True


@pytest.mark.parametrize("version", ["batch.volcano.sh/v1alpha1", "example.com/v1"])
def test_a_kind_of_the_same_name_in_another_group_is_judged_by_its_shape(version):
    result = run(dump_yaml({**a_workload("Job", a_pod("8Gi")), "apiVersion": version}))
    assert (result.code, result.err) == (
        0,
        "Job team-a/work: translated by rule default (8Gi on 1 GPU)\n",
    )
    assert template_of(result.value)["spec"] == patched(a_pod("8Gi"))["spec"]
    shapeless = dump_yaml({"apiVersion": version, "kind": "Job", "spec": {"template": {}}})
    assert run(shapeless) == (0, shapeless, "")


def test_the_manifests_namespace_counts_before_the_options():
    policy = a_policy(a_rule(namespaces=("team-a",)))
    text = POD.replace("name: train", "name: train\n  namespace: team-a")
    assert "translated" in run(text, policy=policy, namespace="other").err
    assert run(POD, policy=policy, namespace="team-a").err.startswith("Pod team-a/train: transl")
    result = run(POD, policy=policy)
    assert result == (0, POD, "Pod default/train: left alone (NoRule)\n")


def test_a_rule_that_ignores_is_named():
    policy = a_policy(a_rule(action=Action.IGNORE))
    assert (
        run(POD, policy=policy).err == "Pod default/train: left alone (RuleIgnores: rule default)\n"
    )


def test_a_denied_object_is_printed_unchanged_beside_one_that_is_translated():
    bad = POD.replace("8Gi", "8GB")
    result = run(bad + "---\n" + POD)
    assert result.code == 1
    assert result.out.startswith(bad + "---\n")
    assert "vram-enforcer" in result.out
    first, second = result.err.splitlines()
    assert first.startswith("Pod default/train: denied: InvalidQuantity: metadata.annotations[")
    assert "use 8G or 8Gi" in first
    assert second == "Pod default/train: translated by rule default (8Gi on 1 GPU)"


@pytest.mark.parametrize(
    ("action", "word"), [("Warn", "warning: "), ("Audit", "left alone (audit")]
)
def test_findings_that_do_not_deny_are_shown(action, word):
    text = POD.replace("8Gi", "8GB")
    code, out, err = run(text, policy=a_policy(a_rule(action=Action(action))))
    assert (code, out) == (0, text)
    assert err.startswith(f"Pod default/train: {word}")
    assert "InvalidQuantity" in err


def test_a_pod_without_a_demand_may_have_its_gpus_hidden():
    text = POD.replace("  annotations:\n    vramwarden.io/gpu-memory: 8Gi\n", "")
    text += "    env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}] # mine\n"
    rule = a_rule(visible_devices=VisibleDevices.VOID)
    result = run(text, policy=a_policy(rule))
    assert result.out == text.replace("all", "void")
    assert result.err.endswith("by rule default (NVIDIA_VISIBLE_DEVICES set to void)\n")


@pytest.mark.parametrize("kind", KINDS)
def test_an_annotation_on_the_workload_itself_is_a_finding(kind):
    text = dump_yaml(a_workload(kind, a_pod(), annotations=ASKS))
    code, out, err = run(text)
    assert (code, out) == (1, text)
    place = ".".join(KINDS[kind][1])
    said = f"put it under {place}.metadata.annotations; nothing reads it here"
    assert err.splitlines() == [
        f"{kind} team-a/work: left alone (asks for no VRAM)",
        f"{kind} team-a/work: finding: metadata.annotations[vramwarden.io/gpu-memory]: {said}",
    ]


def test_nothing_is_found_where_the_template_has_the_annotation_as_well():
    assert "finding" not in run(dump_yaml(a_workload("Job", a_pod("8Gi"), annotations=ASKS))).err


@pytest.mark.parametrize("spec", [None, "x", [], {}, {"template": None}, {"template": []}])
def test_a_workload_without_a_template_is_left_alone(spec):
    text = dump_yaml({"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec})
    result = run(text)
    assert result == (0, text, "Deployment default/(no name): left alone (no pod template)\n")


@pytest.mark.parametrize("metadata", ["", "  metadata:\n", "  metadata: {}\n"])
def test_a_template_without_metadata_gets_some(metadata):
    spec = "    containers:\n    - name: a\n      resources: {limits: {vramwarden.io/vram: 8Gi}}\n"
    text = f"kind: PodTemplate\nmetadata: {{name: t}}\ntemplate:\n{metadata}  spec:\n{spec}"
    result = run(text)
    assert result.value["template"]["metadata"]["labels"] == {"vramwarden.io/managed": "true"}
    assert list(result.value["template"]["metadata"]) == ["labels", "annotations"]


@pytest.mark.parametrize("metadata", ["x", [], 1, {"annotations": []}, {"labels": {"a": 1}}])
def test_malformed_metadata_is_a_warning_and_never_a_traceback(metadata):
    workload = a_workload("Job", a_pod("8Gi"))
    workload["spec"]["template"]["metadata"] = metadata
    text = dump_yaml(workload)
    code, out, err = run(text)
    assert (code, out) == (0, text)
    left, warning = err.splitlines()
    assert left == "Job team-a/work: left alone (asks for no VRAM)"
    assert warning.startswith("Job team-a/work: warning: spec.template.metadata")
    assert warning.endswith("; Kubernetes rejects that")


def test_a_pod_that_validation_would_deny_is_denied_and_not_changed(monkeypatch):
    denial = Decision(
        outcome=Outcome.DENIED, findings=(Finding(Reason.UNMUTATED, "spec", "is not as it was"),)
    )

    def deny_in_validation(request, policy, cluster, phase):
        return denial if phase is Phase.VALIDATE else decide(request, policy, cluster, phase)

    monkeypatch.setattr(workload_review, "decide", deny_in_validation)
    denied = "Pod default/train: denied: Unmutated: spec: is not as it was\n"
    assert run(POD) == (1, POD, denied)
    assert run(POD, output="patch").out == "[]\n"


def test_the_report_cannot_steer_a_terminal():
    err = run(dump_yaml(a_pod("\x1b[2J\n8Gi"))).err
    assert "\x1b" not in err
    assert err.count("\n") == 1
