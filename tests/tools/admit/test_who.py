"""`admit --namespace --namespace-label`: the namespace of the pods of manifests."""

from __future__ import annotations

import pytest

from tests.tools.admit.runs import POD

POLICY = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: test}
spec:
  rules:
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


def rule(invoke, tmp_path, text, *options):
    (tmp_path / "who.yaml").write_text(POLICY)
    result = invoke("-f", "-", "--policy", "who.yaml", *options, stdin=text)
    assert result.exit_code == 0, result.stderr
    return result.stderr.split("by rule ")[1].split(" ")[0]


LABELS = ("--namespace-label", "tier=intern", "--namespace-label", "zone=a")


@pytest.mark.parametrize(
    ("text", "options", "wanted"),
    [
        (POD, (), "everybody"),
        (POD, LABELS, "labelled"),
        (POD, LABELS[:2], "everybody"),
        (POD, ("--namespace", "team-a"), "named"),
        (DEPLOYMENT, LABELS, "labelled"),
        (DEPLOYMENT, (), "everybody"),
    ],
)
def test_rules_are_chosen_by_what_is_given(invoke, tmp_path, text, options, wanted):
    assert rule(invoke, tmp_path, text, *options) == wanted


@pytest.mark.parametrize("text", ["tier", "=a", ""])
def test_what_is_no_label_is_a_wrong_usage(invoke, text):
    result = invoke("-f", "-", "--namespace-label", text, stdin=POD)
    assert result.exit_code == 2
    assert f'"{text}" is no label; write key=value' in result.stderr
