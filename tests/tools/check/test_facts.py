"""How facts are read from objects of the API server."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.checked import IMAGE, a_node, a_stored_node
from webhook.tools.check.judge.facts import (
    SOUND,
    DryRun,
    Namespace,
    OurWebhook,
    OwnWorkload,
    changes_new_pods,
    judge_without_agent,
    minor,
    of_interest,
    read_dry_run,
    read_namespace,
    read_own_webhooks,
    read_workload,
)
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.pod import ClusterPod

BARE = {"nvidia.com/gpu.present": None}


@pytest.mark.parametrize(
    "labels",
    [
        {"cloud.google.com/gke-accelerator": "nvidia-l4"},
        {"nvidia.com/gpu.count": "8"},
        {"feature.node.kubernetes.io/pci-0302_10de.present": "true"},
        {"vramwarden.io/share": "false"},
    ],
    ids=lambda labels: next(iter(labels)),
)
def test_a_node_with_any_sign_of_a_gpu_is_kept(labels):
    assert a_node(labels=BARE | labels).name == "n1"


def test_a_node_without_one_is_not():
    other = {"feature.node.kubernetes.io/pci-0300_8086.present": "true"}
    bare = ClusterNode(a_stored_node(labels=BARE | other, allocatable={"cpu": "8"}))
    assert not bare.shows_gpus
    assert not ClusterNode({"metadata": {"name": "n"}}).shows_gpus


def test_amds_allocators_are_no_sign_of_an_nvidia_gpu():
    fields = {"metadata": {"annotations": {"hami.io/node-amd-register": "[]"}}}
    raw = a_stored_node(labels=BARE, allocatable={}, **fields)
    assert not ClusterNode(raw, claimed_by=("gpu.amd.com",)).shows_gpus
    assert ClusterNode(raw, claimed_by=("gpu.nvidia.com",)).shows_gpus
    assert ClusterNode(a_stored_node(**fields), claimed_by=("gpu.amd.com",)).shows_gpus
    verdict = judge_without_agent(raw, ("gpu.amd.com",), float("inf"))
    assert (verdict.code, "take AMD's driver off" in verdict.sentence) == ("NotShared", True)


def test_of_a_bare_node_with_a_label_nothing_is_claimed():
    found = ClusterNode({"metadata": {"name": "n", "labels": {"nvidia.com/gpu.present": "true"}}})
    assert found.handlers is None
    assert not found.ready


def test_our_webhooks_are_read_with_where_they_lead():
    service = {"service": {"namespace": "gpu", "name": "x", "path": "/mutate"}}
    configuration = {"metadata": {"name": "x"}, "webhooks": [
        {"name": "a", "failurePolicy": "Ignore", "clientConfig": service},
        {"name": "b",
         "clientConfig": {"url": "https://127.0.0.1:8443/validate", "caBundle": "YQ=="}},
        {"name": "c", "clientConfig": {"service": {"namespace": "gpu"}}},
    ]}  # fmt: skip
    of = partial(OurWebhook, kind="Kind", configuration="x", failure_policy="Fail")
    assert read_own_webhooks("Kind", configuration) == [
        of(name="a", failure_policy="Ignore", namespace="gpu", path="/mutate"),
        of(name="b", namespace="", path="https://127.0.0.1:8443/validate", ca_pem=b"a"),
        of(name="c", namespace="gpu", path=""),
    ]


PODS = {"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods"]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"apiGroups": ["*"], "operations": ["*"], "resources": ["*/*"]}, True),
        ({"resources": ["configmaps", "pods"]}, True),
        ({"resources": ["pods/binding"]}, False),
        ({"operations": ["UPDATE"]}, False),
        ({"apiGroups": ["apps"], "resources": ["*"]}, False),
    ],
)
def test_a_configuration_may_change_new_pods(change, expected):
    hooks = [{"name": "a", "rules": [{**PODS, **change}]}]
    assert changes_new_pods({"webhooks": hooks}) is expected


def a_workload_object(spec, status):
    container = {"args": ["serve", "--rollout=Observe", "--rollout=Enforce"]}
    ours, tls = ({"name": name, "secret": {"secretName": name}} for name in ("key", "tls"))
    pod = {"containers": [container], "volumes": [ours, tls]}
    metadata = {"namespace": "gpu", "labels": {"app.kubernetes.io/version": "0.1.0"}}
    return {"metadata": metadata, "spec": {**spec, "template": {"spec": pod}}, "status": status}


def test_a_deployment_and_a_daemon_set_are_counted_each_in_its_way():
    deployment = read_workload(
        a_workload_object({"replicas": 3}, {"replicas": 2, "readyReplicas": 1})
    )
    args = ("serve", "--rollout=Observe", "--rollout=Enforce")
    assert deployment == OwnWorkload(
        namespace="gpu",
        desired=3,
        ready=1,
        present=2,
        version="0.1.0",
        arguments=args,
        secret="tls",  # noqa: S106 - a name
    )
    assert deployment.option("rollout") == "Enforce"
    assert deployment.option("cert-secret") == ""
    status = {"desiredNumberScheduled": 5, "numberReady": 4, "currentNumberScheduled": 3}
    daemon_set = read_workload(a_workload_object({}, status))
    assert (daemon_set.desired, daemon_set.ready, daemon_set.present) == (5, 4, 3)
    fresh = read_workload(a_workload_object({}, {}))
    assert (fresh.desired, fresh.ready, fresh.present) == (0, 0, 0)


def an_own_pod(**status):
    labels = {"app.kubernetes.io/component": "agent"}
    return {
        "metadata": {"name": "a", "labels": labels},
        "spec": {"nodeName": "n"},
        "status": status,
    }


def test_pods_of_ours_that_are_not_ready_say_why():
    ready = [{"type": "Ready", "status": "True"}]
    unready = [{"type": "Ready", "status": "False", "message": "containers with unready status"}]
    waiting = [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]

    def why(**status):
        return ClusterPod(an_own_pod(**status)).not_ready

    assert why(conditions=ready) == ""
    assert why(phase="Succeeded") == ""
    assert why(conditions=unready, containerStatuses=waiting) == "ErrImagePull no such image"
    assert why(conditions=unready) == "containers with unready status"
    assert why() == "it is not ready"


def a_managed_pod(annotations=None, phase="Pending", **statuses):
    labels = {"vramwarden.io/managed": "true"}
    metadata = {"namespace": "team-a", "name": "p", "labels": labels}
    metadata["annotations"] = annotations or {}
    return ClusterPod({"metadata": metadata, "status": {"phase": phase, **statuses}})


def a_status(name, reason, message=""):
    waiting = {"reason": reason, "message": message}
    return {"name": name, "image": IMAGE, "state": {"waiting": waiting}}


RUNS = {"state": {"running": {"startedAt": "2027-01-15T08:00:00Z"}}}
WAITS = {"vramwarden.io/gpu-waits": "no GPU fits"}


def test_managed_pods_are_kept_where_sidecar_or_gpu_is_missing():
    pulls = [a_status("main", "PodInitializing"), a_status("vram-enforcer", "ErrImagePull", "no")]
    pulled = of_interest(a_managed_pod(initContainerStatuses=pulls))
    assert (pulled.path, pulled.pull_failure, pulled.waits) == ("team-a/p", (IMAGE, "no"), "")
    waits = of_interest(a_managed_pod(WAITS))
    assert (waits.path, waits.pull_failure) == ("team-a/p", None)
    assert waits.waits == "no GPU fits"
    for pod in (
        a_managed_pod(),
        a_managed_pod(WAITS, phase="Succeeded"),
        a_managed_pod(containerStatuses=[a_status("main", "ImagePullBackOff")]),
        a_managed_pod(containerStatuses=[a_status("vram-enforcer", "PodInitializing")]),
    ):
        assert of_interest(pod) is None
    for state in ("running", "terminated"):
        for name, expected in (("vram-enforcer", SOUND), ("main", None)):
            one = {"name": name, "state": {state: {"startedAt": "x"}}}
            assert of_interest(a_managed_pod(initContainerStatuses=[one])) == expected


@pytest.mark.parametrize(
    ("limit", "status", "since_s"),
    [
        ("Auto", RUNS, 1_800_000_000),
        ("Require", {"started": False, "state": {"running": {"startedAt": "x"}}}, None),
        ("Auto", {"started": True, **RUNS}, None),
        ("Auto", {"state": {"waiting": {"reason": "PodInitializing"}}}, None),
        ("", RUNS, None),
    ],
    ids=["waits", "no time", "started", "not created", "no limit"],
)
def test_a_pod_waits_for_the_drivers_limit_while_its_sidecar_has_not_started(
    limit, status, since_s
):
    notes = {"vramwarden.io/driver-limit": limit} if limit else {}
    pod = a_managed_pod(notes, initContainerStatuses=[{"name": "vram-enforcer", **status}])
    assert pod.waits_for_limit_s == since_s
    kept = of_interest(pod)
    assert getattr(kept, "waits_for_limit_s", None) == since_s


def test_a_dry_run_shows_what_admission_made_of_the_pod():
    pod = {
        "metadata": {"annotations": {"vramwarden.io/admitted": "v1 team 0123456789ab"}},
        "spec": {
            "initContainers": [{"name": "vram-enforcer", "restartPolicy": "Always"}],
            "containers": [{"name": "main"}],
        },
    }
    assert read_dry_run(pod) == DryRun(
        created=True,
        admitted=True,
        rule="team",
        digest="0123456789ab",
        has_sidecar=True,
    )
    plain = {"metadata": {}, "spec": {"initContainers": [{"name": "a"}], "containers": [{}]}}
    assert read_dry_run(plain) == DryRun(created=True)


def test_a_namespace_is_there_or_not_and_has_a_level_or_not():
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    assert read_namespace("a", None) == Namespace("a", exists=False)
    assert read_namespace("a", {"metadata": {}}) == Namespace("a")
    assert read_namespace("a", {"metadata": {"labels": labels}}) == Namespace("a", level="baseline")
    helm = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}}
    assert read_namespace("a", helm) == Namespace("a", helms=True)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("v1.36.2-gke.100", (1, 36)), ("1.9", (1, 9)), ("", (0, 0)), ("v1", (0, 0)), ("x1.2", (0, 0))],
)
def test_versions_are_read_as_far_as_they_matter(text, numbers):
    assert minor(text) == numbers
