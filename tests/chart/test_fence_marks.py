"""Only vramwarden can change the GPUs of a pod, through any subresource."""

from __future__ import annotations

import pytest

from tests.chart.admission_policies import is_denied_by
from tests.chart.fenced import MERGE, Fenced, granted
from tests.chart.recorded_reviews import denial
from tests.support.charts import NAMESPACE
from tests.support.pods import a_pod, a_policy
from webhook.names import ADMITTED_ANNOTATION, BINDING_ANNOTATIONS

US = f"system:serviceaccount:{NAMESPACE}:vramwarden-webhook"
OURS = dict.fromkeys((*BINDING_ANNOTATIONS, ADMITTED_ANNOTATION), "1")
LABEL = {"vramwarden.io/managed": "true"}
HELD = {
    "vramwarden-sidecar": [("marked", ""), ("marked", "/status")],
    "vramwarden-second-line": [("bare", "")],
    "vramwarden-accounts": [("bare", "/status"), ("marked", "/status")],
}
"""Policies that protect marks, by pod with or without vramwarden's label, and by subresource."""


@pytest.fixture(scope="module", params=HELD)
def cluster(request, control_plane, helm):
    """Return a cluster in which one policy protects vramwarden's marks."""
    found = Fenced(control_plane, helm, request.param)
    bare = found.create(a_pod(), dry_run=False)
    marked = found.create(a_pod(annotations=OURS, labels=LABEL), dry_run=False)
    pods = {"bare": bare, "marked": marked}
    found.held = [(pods[kind], part) for kind, part in HELD[request.param]]
    found.who = {
        "a tenant": found.alice,
        "an administrator": found.api,
        "a kubelet": found.api.acting_as("system:node:n", "system:masters", "system:authenticated"),
        "we": found.api.acting_as(US, "system:authenticated"),
    }
    rule = {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["patch"]}
    with granted(found.api, US, rule):
        yield found.under(a_policy() if request.param == "vramwarden-second-line" else None)
        found.close()


def annotation(key, value):
    return {"metadata": {"annotations": {key: value}}}


def label(value):
    return {"metadata": {"labels": {"vramwarden.io/managed": value}}}


CHANGES = [*(annotation(key, "2") for key in OURS), label("x")]
REMOVALS = [*(annotation(key, None) for key in OURS), label(None)]
OTHERS = [
    {"metadata": {"annotations": {"example.com/a": "1"}, "labels": {"app": "web"}}},
    {"metadata": {"annotations": {"vramwarden.io/gpu-memory": "1"}}},
    {"metadata": {"labels": {"vramwarden.io/workload": "a"}}},
    {"status": {"phase": "Running"}},
]
MARKS = "are changed by vramwarden alone"
ONLY_WAITING = "vramwarden's webhook may "
"""Denial of other changes by the webhook; test_fences.py has the allowed changes."""
ROWS = [
    *(("a tenant", change, MARKS) for change in (*CHANGES, *REMOVALS)),
    *(
        (who, item, MARKS)
        for who in ("an administrator", "a kubelet")
        for item in (CHANGES[0], CHANGES[-1])
    ),
    *(("we", change, ONLY_WAITING) for change in CHANGES),
    *(("a tenant", change, "") for change in OTHERS),
]


@pytest.mark.parametrize(("who", "change", "said"), ROWS, ids=str)
def test_nobody_but_us_changes_our_marks_and_all_else_goes_on(cluster, who, change, said):
    name, api = cluster.line.name, cluster.who[who]
    if who == "we" and name == "vramwarden-sidecar":
        said = ""
    elif who == "we" and name == "vramwarden-second-line":
        said = MARKS
    for pod, part in cluster.held:
        if change in REMOVALS and pod["metadata"].get("labels") != LABEL:
            continue  # nothing to remove
        why = denial(lambda p=pod, t=part: cluster.patch(p, change, t, api, MERGE))
        assert said in why
        assert is_denied_by(why, name) if said else not why, why


def test_exempt_namespaces_are_left_alone(cluster):
    cluster.namespace("labelled-marks", {"vramwarden.io/webhook": "disabled"})
    for namespace in ("labelled-marks", "nvidia-marks", "kube-system"):
        for labels in ({}, LABEL):
            pod = cluster.create(a_pod(labels=labels), namespace, dry_run=False)
            for part in {part for _, part in cluster.held}:
                for change in CHANGES:
                    assert cluster.rejects(pod, change, part) == ""
