"""The sentry's reports in a real API server: what it stores, and what it rejects."""

from __future__ import annotations

import pytest

from webhook.adapters.journal import Journal
from webhook.adapters.kube.connection import connect
from webhook.core.node.events import EventReason
from webhook.node_programs.events import EventWriter
from webhook.sentry.actions import cap_report

SENTENCE = "over the VRAM cap on GPU GPU-a: " + "x" * 2000
OTHERS = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


@pytest.fixture
def pod(control_plane):
    api = control_plane.api
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {
            "nodeName": "n1",
            "automountServiceAccountToken": False,
            "containers": [{"name": "a", "image": "example"}],
        },
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount",
               "metadata": {"name": "default", "namespace": "default"}}  # fmt: skip
    api.apply(account)
    api.create(pod)
    path = "/api/v1/namespaces/default/pods/train/status"
    content_type = "application/strategic-merge-patch+json"
    api.request("PATCH", path, {"status": {"conditions": [OTHERS]}}, content_type=content_type)
    yield lambda: api.get(pod)
    api.delete(pod, gracePeriodSeconds="0")


def events(control_plane, reason):
    listed = control_plane.api.list("/api/v1/namespaces/default/events")
    return [event for event in listed if event["reason"] == reason]


def writer(control_plane, said):
    kube = connect(control_plane.kubeconfig)
    return EventWriter(
        kube, Journal(said.append), node="n1", reporter="vramwarden.io/sentry",
        instance="sentry-x", action="Audit",
    )  # fmt: skip


def test_condition_and_event_are_stored_beside_others(control_plane, pod):
    said = []
    events_of = writer(control_plane, said)
    uid = pod()["metadata"]["uid"]
    for sentence in (SENTENCE, "again", "again"):
        assert events_of.write(cap_report("default/train", uid, sentence, stopped=True)) is False
    conditions = {condition["type"]: condition for condition in pod()["status"]["conditions"]}
    assert conditions["PodScheduled"]["status"] == "True"
    held = conditions["vramwarden.io/CapHeld"]
    assert [held[key] for key in ("status", "reason", "message")] == [
        "False", "VRAMCapExceeded", "again",
    ]  # fmt: skip
    events_of.report_node(EventReason.UNMANAGED, "3Gi are held")
    assert events_of.write(events_of.waiting.get_nowait()) is False
    (node,) = events(control_plane, "VRAMUnmanaged")
    assert node["involvedObject"]["name"] == "n1"
    stored = events(control_plane, "VRAMCapExceeded")
    assert {event["involvedObject"]["uid"] for event in stored} == {uid}
    counts = {event["message"]: (event.get("series") or {}).get("count") for event in stored}
    assert (len(stored), counts) == (2, {SENTENCE[:1024]: None, "again": 2})
    reporters = {(event["reportingComponent"], event["reportingInstance"]) for event in stored}
    assert reporters == {("vramwarden.io/sentry", "sentry-x")}
    assert said == []


def test_another_pod_of_that_name_is_not_written_to(control_plane, pod):
    said = []
    events_of = writer(control_plane, said)
    gone = "00000000-aaaa-4bbb-8ccc-dddddddddddd"
    for name in ("train", "none"):
        report = cap_report(f"default/{name}", gone, "held too much", stopped=True)
        assert events_of.write(report) is False
    assert [condition["type"] for condition in pod()["status"]["conditions"]] == ["PodScheduled"]
    assert said == []
