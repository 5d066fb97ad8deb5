"""Who applies a workload reads in kubectl what its pods would be denied for; it is created."""

from __future__ import annotations

import copy
import time

import pytest

from tests.support.control_planes import free_port
from tests.support.pods import a_pod
from tests.support.webhook_configurations import installed

MEMORY = "vramwarden.io/gpu-memory"
DENIED = (
    "Warning: its pods would be denied: InvalidQuantity: "
    "{}.metadata.annotations[vramwarden.io/gpu-memory]: 8GB is not a Kubernetes quantity; "
    "use 8G or 8Gi"
)
LABELS = {"app": "infer"}


def a_template(memory, **spec):
    annotations = {MEMORY: memory} if memory else {}
    pod = a_pod()
    return {
        "metadata": {"annotations": annotations, "labels": LABELS},
        "spec": {**pod["spec"], **spec},
    }


def a_workload(kind, namespace, memory, **metadata):
    selected = {"selector": {"matchLabels": LABELS}}
    job = {"template": a_template(memory, restartPolicy="Never")}
    specs = {
        "Deployment": {**selected, "template": a_template(memory)},
        "StatefulSet": {**selected, "serviceName": "infer", "template": a_template(memory)},
        "DaemonSet": {**selected, "template": a_template(memory)},
        "Job": job,
        "CronJob": {"schedule": "0 0 * * *", "jobTemplate": {"spec": job}},
    }
    return {
        "apiVersion": "batch/v1" if "Job" in kind else "apps/v1",
        "kind": kind,
        "metadata": {"name": "infer", "namespace": namespace, **metadata},
        "spec": specs[kind],
    }


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_kubectl_warns_of_what_the_pods_would_be_denied_for(team, kubectl, kind):
    done = kubectl("create", a_workload(kind, team.namespace, "8GB"))
    place = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"
    assert done.stderr == f"{DENIED.format(place)}\n"
    assert "created" in done.stdout


def test_a_change_is_warned_of_as_well(team, kubectl):
    assert kubectl("create", a_workload("Deployment", team.namespace, "8Gi")).stderr == ""
    done = kubectl("replace", a_workload("Deployment", team.namespace, "8GB"))
    assert done.stderr == f"{DENIED.format('spec.template')}\n"
    assert "replaced" in done.stdout


def test_kubectl_warns_of_an_annotation_at_the_wrong_level(team, kubectl):
    manifest = a_workload("Deployment", team.namespace, "", annotations={MEMORY: "8Gi"})
    assert kubectl("create", manifest).stderr == (
        f"Warning: {MEMORY} on the Deployment itself has no effect; "
        "put it under spec.template.metadata.annotations\n"
    )


def test_without_us_a_workload_is_created_in_silence(control_plane, ours, make_namespace, kubectl):
    away = copy.deepcopy(ours.validating)
    away["metadata"]["name"] = "vramwarden-away"
    away["webhooks"] = [hook for hook in away["webhooks"] if hook["name"].startswith("advise-")]
    (hook,) = away["webhooks"]
    assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Ignore", 2)
    hook["clientConfig"]["url"] = f"https://127.0.0.1:{free_port()}/advise"
    namespace = make_namespace()
    with ours.without(control_plane.api, ours.validating), installed(control_plane.api, away):
        began_s = time.monotonic()
        done = kubectl("create", a_workload("Deployment", namespace, "8GB"))
        assert time.monotonic() - began_s < 20  # 2 s, and a machine that is busy
    assert (done.stderr, "created" in done.stdout) == ("", True)
