"""`admit --user --group --namespace-label`: who creates the pods of manifests, and where."""

from __future__ import annotations

import pytest

from tests.tools.admit.runs import POD

POLICY = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: test}
spec:
  rules:
  - {name: ada, match: {users: ["oidc:ada"]}}
  - {name: interns, match: {groups: ["oidc:interns", "oidc:guests"]}}
  - {name: controllers, match: {users: ["system:serviceaccount:kube-system:*"]}}
  - {name: named, match: {namespaceLabels: {kubernetes.io/metadata.name: team-a}}}
  - {name: labelled, match: {namespaceLabels: {tier: intern, zone: a}}}
  - {name: everybody}
"""
WORKLOAD = """\
apiVersion: %s
kind: %s
metadata: {name: train}
spec:
  template:
    metadata: {annotations: {vramwarden.io/gpu-memory: 8Gi}}
    spec: {containers: [{name: main, image: example}]}
"""
DEPLOYMENT = WORKLOAD % ("apps/v1", "Deployment")
PYTORCH_JOB = WORKLOAD % ("kubeflow.org/v1", "PyTorchJob")


def rule(invoke, tmp_path, text, *options):
    (tmp_path / "who.yaml").write_text(POLICY)
    result = invoke("-f", "-", "--policy", "who.yaml", *options, stdin=text)
    assert result.exit_code == 0, result.stderr
    return result.stderr.split("by rule ")[1].split(" ")[0]


INTERN = ("--user", "oidc:ida", "--group", "oidc:x", "--group", "oidc:interns")
LABELS = ("--namespace-label", "tier=intern", "--namespace-label", "zone=a")


@pytest.mark.parametrize(
    ("text", "options", "wanted"),
    [
        (POD, (), "everybody"),
        (POD, ("--user", "oidc:ada"), "ada"),
        (POD, INTERN, "interns"),
        (POD, LABELS, "labelled"),
        (POD, LABELS[:2], "everybody"),
        (POD, ("--namespace", "team-a"), "named"),
        (POD, (*INTERN, *LABELS), "interns"),
        (PYTORCH_JOB, INTERN, "interns"),
        (DEPLOYMENT, INTERN, "controllers"),
        (DEPLOYMENT, (), "controllers"),
    ],
)
def test_rules_are_chosen_by_what_is_given(invoke, tmp_path, text, options, wanted):
    assert rule(invoke, tmp_path, text, *options) == wanted


def test_of_a_workload_of_kubernetes_own_the_namespaces_labels_count(invoke, tmp_path):
    (tmp_path / "policy.yaml").write_text(POLICY.replace("serviceaccount:kube-system", "x"))
    result = invoke("-f", "-", "--policy", "policy.yaml", *LABELS, stdin=DEPLOYMENT)
    assert "translated by rule labelled " in result.stderr


@pytest.mark.parametrize("text", ["tier", "=a", ""])
def test_what_is_no_label_is_a_wrong_usage(invoke, text):
    result = invoke("-f", "-", "--namespace-label", text, stdin=POD)
    assert result.exit_code == 2
    assert f'"{text}" is no label; write key=value' in result.stderr
