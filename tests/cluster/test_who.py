"""Rules for ServiceAccounts and namespace labels, on a real API server."""

from __future__ import annotations

import pytest

from tests.support.control_planes import ApiError, wait_until
from tests.support.pods import a_pod
from tests.support.webhook_on_cluster import knowing

RULES = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: who}
spec:
  rules:
  - {name: labelled, match: {namespaceLabels: {tier: intern}}}
  - {name: trainers, match: {serviceAccounts: [trainer]}}
"""
EVERYBODY = "default"


@pytest.fixture(scope="module")
def ours(control_plane, tmp_path_factory):
    """Run a server with access to the cluster, with additional rules before the shipped ones."""
    with knowing(control_plane, tmp_path_factory.mktemp("who"), RULES) as found:
        yield found


def rule_of(pod):
    return pod["metadata"]["annotations"]["vramwarden.io/admitted"].split(" ")[1]


def test_a_pod_is_governed_by_its_service_account(team):
    metadata = {"name": "trainer", "namespace": team.namespace}
    team.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    assert rule_of(team.accepts(a_pod("8Gi", serviceAccountName="trainer"))) == "trainers"
    assert rule_of(team.accepts(a_pod("8Gi"))) == EVERYBODY


def test_a_namespaces_labels_count_as_soon_as_it_is_there(team, make_namespace):
    for labels, rule in (({"tier": "intern"}, "labelled"), ({"tier": "staff"}, EVERYBODY)):
        for _ in range(3):  # the labels may be unknown at first: the API server retries
            team.namespace = make_namespace(labels)
            assert rule_of(team.accepts(a_pod("8Gi"))) == rule


def test_a_change_of_a_namespaces_labels_counts(team):
    for tier, rule in (("intern", "labelled"), ("staff", EVERYBODY), ("intern", "labelled")):
        metadata = {"name": team.namespace, "labels": {"tier": tier}}
        team.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        wait_until(f"it counts as {tier}", lambda rule=rule: is_governed(team, rule))


def is_governed(team, rule):
    """Return True if the rule applies to a new pod, which new labels may cause to be denied."""
    try:
        return rule_of(team.accepts(a_pod("8Gi"))) == rule
    except ApiError as error:
        assert "Unmutated: " in error.message, error.message
        return False
