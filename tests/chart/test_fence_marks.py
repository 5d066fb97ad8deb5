"""Nobody but us changes which GPUs a pod has, by whatever way."""

from __future__ import annotations

import pytest

from tests.chart.admission_policies import is_denied_by
from tests.chart.fenced import MERGE, Fenced, granted
from tests.chart.recorded_reviews import denial
from tests.support.charts import NAMESPACE
from tests.support.pods import a_pod, a_policy

US = f"system:serviceaccount:{NAMESPACE}:vramwarden-webhook"
KEYS = ("gpu", "visible-devices", "gpu-memory-fraction", "gpu-waits")
OURS = {f"vramwarden.io/{key}": "1" for key in KEYS}
LABEL = {"vramwarden.io/managed": "true"}
HELD = {
    "vramwarden-sidecar": [("marked", ""), ("marked", "/status")],
    "vramwarden-second-line": [("bare", "")],
    "vramwarden-accounts": [("bare", "/status"), ("marked", "/status")],
}
"""Which policy holds them on which pod, with our label or without, and by what part of it."""


@pytest.fixture(scope="module", params=HELD)
def cluster(request, control_plane, helm):
    """Be a cluster in which one policy holds our marks."""
    found = Fenced(control_plane, helm, request.param)
    bare = found.create(a_pod(), dry_run=False)
    marked = found.create(a_pod(annotations=OURS, labels=LABEL), dry_run=False)
    pods = {"bare": bare, "marked": marked}
    found.held = [(pods[kind], part) for kind, part in HELD[request.param]]
    yield found.under(a_policy() if request.param == "vramwarden-second-line" else None)
    found.close()


@pytest.fixture(scope="module")
def name(cluster):
    return cluster.line.name


def annotation(key, value):
    return {"metadata": {"annotations": {f"vramwarden.io/{key}": value}}}


def label(value):
    return {"metadata": {"labels": {"vramwarden.io/managed": value}}}


CHANGES = [*(annotation(key, "2") for key in KEYS), label("x")]
REMOVALS = [*(annotation(key, None) for key in KEYS), label(None)]


@pytest.mark.parametrize("change", [*CHANGES, *REMOVALS], ids=str)
def test_a_tenant_adds_changes_and_removes_none_of_our_marks(cluster, name, change):
    for pod, part in cluster.held:
        if change in REMOVALS and pod["metadata"].get("labels") != LABEL:
            continue  # there is nothing to remove
        why = cluster.rejects(pod, change, part)
        assert is_denied_by(why, name)
        assert "are changed by vramwarden alone" in why


@pytest.mark.parametrize("change", [CHANGES[0], CHANGES[-1]], ids=str)
def test_neither_does_an_administrator_or_a_kubelet(cluster, name, change):
    masters = cluster.api.acting_as("system:node:n", "system:masters", "system:authenticated")
    for pod, part in cluster.held:
        for who in (cluster.api, masters):
            assert is_denied_by(cluster.rejects(pod, change, part, who), name)


def test_we_write_them_on_pods_of_ours_that_wait_and_nowhere_else(cluster, name):
    """What together, and on which, test_fences.py says; these wait for none."""
    rule = {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["patch"]}
    us = cluster.api.acting_as(US, "system:authenticated")
    with granted(cluster.api, US, rule):
        for pod, part in cluster.held:
            for change in CHANGES:
                why = denial(lambda p=pod, t=part, c=change: cluster.patch(p, c, t, us, MERGE))
                assert is_denied_by(why, name) is (name != "vramwarden-sidecar"), why


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"annotations": {"example.com/a": "1"}, "labels": {"app": "web"}}},
        {"metadata": {"annotations": {"vramwarden.io/gpu-memory": "1"}}},
        {"metadata": {"labels": {"vramwarden.io/workload": "a"}}},
        {"status": {"phase": "Running"}},
    ],
    ids=str,
)
def test_all_else_goes_on(cluster, change):
    for pod, part in cluster.held:
        assert cluster.rejects(pod, change, part) == ""


def test_exempt_namespaces_are_left_alone(cluster):
    cluster.namespace("labelled-marks", {"vramwarden.io/webhook": "disabled"})
    for namespace in ("labelled-marks", "nvidia-marks", "kube-system"):
        for labels in ({}, LABEL):
            pod = cluster.create(a_pod(labels=labels), namespace, dry_run=False)
            for part in {part for _, part in cluster.held}:
                for change in CHANGES:
                    assert cluster.rejects(pod, change, part) == ""
