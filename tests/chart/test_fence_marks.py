"""Nobody but us changes which GPUs a pod has, by whatever way."""

from __future__ import annotations

import pytest

from tests.chart.admission_policies import is_denied_by
from tests.chart.fenced import MERGE, Fenced, granted
from tests.chart.recorded_reviews import denial
from tests.support.charts import NAMESPACE
from tests.support.pods import a_pod

NAME = "vramwarden-marks"
US = f"system:serviceaccount:{NAMESPACE}:vramwarden-webhook"
KEYS = ("gpu", "visible-devices", "gpu-memory-fraction", "gpu-waits")
OURS = {f"vramwarden.io/{key}": "1" for key in KEYS}
LABEL = {"vramwarden.io/managed": "true"}


@pytest.fixture(scope="module")
def cluster(control_plane, helm):
    """Be a cluster in which only our marks are held."""
    found = Fenced(control_plane, helm, NAME)
    yield found.under()
    found.close()


@pytest.fixture(scope="module")
def bare(cluster):
    return cluster.create(a_pod(), dry_run=False)


@pytest.fixture(scope="module")
def marked(cluster):
    return cluster.create(a_pod(annotations=OURS, labels=LABEL), dry_run=False)


def annotation(key, value):
    return {"metadata": {"annotations": {f"vramwarden.io/{key}": value}}}


def label(value):
    return {"metadata": {"labels": {"vramwarden.io/managed": value}}}


PARTS = pytest.mark.parametrize("part", ["", "/status"])
CHANGES = [*(annotation(key, "2") for key in KEYS), label("x")]
REMOVALS = [*(annotation(key, None) for key in KEYS), label(None)]


@PARTS
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_tenant_adds_none_of_our_marks(cluster, bare, part, change):
    why = cluster.rejects(bare, change, part)
    assert is_denied_by(why, NAME)
    assert "are changed by vramwarden alone" in why


@PARTS
@pytest.mark.parametrize("change", [*CHANGES, *REMOVALS], ids=str)
def test_a_tenant_changes_and_removes_none_of_them(cluster, marked, part, change):
    assert is_denied_by(cluster.rejects(marked, change, part), NAME)


@PARTS
@pytest.mark.parametrize("change", [CHANGES[0], REMOVALS[-1]], ids=str)
def test_neither_does_an_administrator_or_a_kubelet(cluster, marked, part, change):
    assert is_denied_by(cluster.rejects(marked, change, part, cluster.api), NAME)
    masters = cluster.api.acting_as("system:node:n", "system:masters", "system:authenticated")
    assert is_denied_by(cluster.rejects(marked, change, part, masters), NAME)


@PARTS
@pytest.mark.parametrize("change", [*CHANGES, *REMOVALS], ids=str)
def test_we_do(cluster, marked, part, change):
    rule = {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["patch"]}
    us = cluster.api.acting_as(US, "system:authenticated")
    with granted(cluster.api, US, rule):
        assert denial(lambda: cluster.patch(marked, change, part, us, MERGE)) == ""


@PARTS
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
def test_all_else_goes_on(cluster, bare, marked, part, change):
    assert cluster.rejects(bare, change, part) == ""
    assert cluster.rejects(marked, change, part) == ""


@PARTS
def test_exempt_namespaces_are_left_alone(cluster, part):
    cluster.namespace("labelled-marks", {"vramwarden.io/webhook": "disabled"})
    for namespace in ("labelled-marks", "nvidia-marks", "kube-system"):
        pod = cluster.create(a_pod(), namespace, dry_run=False)
        for change in CHANGES:
            assert cluster.rejects(pod, change, part) == ""
