"""Workloads: warnings for authors about pods that would be denied, and the pods.

Warnings about templates are tested in tests/core/admission/test_workload_review.py.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.cluster.test_pods_created import GPU, WHOLE_GPU_SAID
from tests.support.control_planes import find_binary, free_port, wait_until
from tests.support.follow_advice import followed
from tests.support.pods import a_container, a_pod
from tests.support.webhook_configurations import installed
from tests.support.webhook_on_cluster import container

MEMORY = "vramwarden.io/gpu-memory"
TEMPLATE = "spec.template"
KINDS = {
    "Deployment": TEMPLATE,
    "StatefulSet": TEMPLATE,
    "DaemonSet": TEMPLATE,
    "Job": TEMPLATE,
    "CronJob": "spec.jobTemplate.spec.template",
}


def denied(place: str = TEMPLATE) -> str:
    """Return the warning for a template that requests 8GB."""
    return (
        f"Warning: its pods would be denied: InvalidQuantity: {place}.metadata.annotations"
        f"[{MEMORY}]: 8GB is not a Kubernetes quantity; use 8G or 8Gi\n"
    )


def a_workload(
    kind: str, namespace: str, pod: dict[str, Any], *, of_itself: Any = None, **spec: Any
) -> dict[str, Any]:
    """Return a workload with these pods; keyword arguments are fields of its spec."""
    labels = {"app": "train"}
    template = {"metadata": {**pod["metadata"], "labels": labels}, "spec": pod["spec"]}
    del template["metadata"]["name"], template["metadata"]["namespace"]
    if kind in {"Job", "CronJob"}:
        template["spec"]["restartPolicy"] = "Never"
        made = {"template": template, **spec}
    else:
        made = {"selector": {"matchLabels": labels}, "template": template, **spec}
    if kind == "CronJob":
        made = {"schedule": "0 0 * * *", "jobTemplate": {"spec": made}}
    return {
        "apiVersion": "batch/v1" if "Job" in kind else "apps/v1",
        "kind": kind,
        "metadata": {"name": "train", "namespace": namespace, "annotations": of_itself or {}},
        "spec": made,
    }


def replace(kubectl: Any, manifest: dict[str, Any]) -> Any:
    """Replace an object; retry if its controller wrote to it in between."""

    def replaced() -> Any:
        done = kubectl("replace", manifest)
        return None if "Error from server (Conflict)" in done.stderr else done

    return wait_until("a replacement", replaced)


# --- feedback for the author


@pytest.mark.parametrize("kind", KINDS)
def test_kubectl_warns_of_what_the_pods_would_be_denied_for(make_team, kubectl, kind):
    team = make_team()
    done = kubectl("create", a_workload(kind, team.namespace, a_pod("8GB")))
    assert (done.stderr, "created" in done.stdout) == (denied(KINDS[kind]), True)
    if kind == "CronJob":
        assert team.calls() == []  # a CronJob is no pod, so the webhook is not called


OTHERS = {
    "HAMi": ({GPU: 1, "nvidia.com/gpumem": 3000}, "3000Mi"),
    "Volcano": ({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 10000}, "10000Mi"),
    "gpushare": ({"aliyun.com/gpu-mem": 2000}, "2000Mi"),
}


@pytest.mark.parametrize("kind", ["Pod", "Deployment"])
@pytest.mark.parametrize(("limits", "memory"), OTHERS.values(), ids=OTHERS)
def test_the_line_that_kubectl_shows_for_another_product_is_admitted(
    team, kubectl, kind, limits, memory
):
    """The API server changes the amount 3000 to 3k before the review."""
    whole = a_pod(containers=[a_container(resources={"limits": limits})])
    make = {"Pod": team.pod}.get(kind, lambda pod: a_workload(kind, team.namespace, pod))
    done = kubectl("create", make(whole))
    assert done.returncode == 0
    (warning,) = done.stderr.splitlines()
    path, detail = warning.removeprefix("Warning: ").split(": ", 1)
    assert path.startswith("spec.template.") is (kind == "Deployment")
    (after,) = followed(whole, path.removeprefix("spec.template."), detail)
    assert after["metadata"]["annotations"] == {MEMORY: memory}
    done = kubectl("create", make(after)) if kind == "Pod" else replace(kubectl, make(after))
    assert (done.returncode, done.stderr) == (0, "")
    pod = team.accepts(after)
    assert container(pod, "main")["resources"]["limits"].keys() == {"vramwarden.io/vram"}


def test_a_change_is_warned_of_as_well(team, kubectl):
    fine, wrong = (a_workload("Deployment", team.namespace, a_pod(m)) for m in ("8Gi", "8GB"))
    assert kubectl("create", fine).stderr == ""
    done = replace(kubectl, wrong)
    assert (done.stderr, "replaced" in done.stdout) == (denied(), True)


@pytest.mark.parametrize(
    ("rule", "pod", "of_itself", "warning"),
    [
        pytest.param(
            "team",
            a_pod(),
            {MEMORY: "8Gi"},
            f"metadata.annotations[{MEMORY}]: put it under spec.template.metadata.annotations; "
            "nothing reads it here",
            id="an annotation at the wrong level",
        ),
        pytest.param(
            "shared",
            a_pod(containers=[a_container(resources={"limits": {GPU: 1}})]),
            None,
            f"spec.template.{WHOLE_GPU_SAID}",
            id="a whole GPU that becomes a share",
        ),
    ],
)
def test_kubectl_shows_what_else_is_said(make_team, kubectl, rule, pod, of_itself, warning):
    manifest = a_workload("Deployment", make_team(rule).namespace, pod, of_itself=of_itself)
    assert kubectl("create", manifest).stderr == f"Warning: {warning}\n"


def test_without_us_a_workload_is_created_in_silence(control_plane, ours, make_namespace, kubectl):
    away = copy.deepcopy(ours.validating)
    away["metadata"]["name"] = "vramwarden-away"
    away["webhooks"] = [hook for hook in away["webhooks"] if hook["name"].startswith("advise-")]
    (hook,) = away["webhooks"]
    assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Ignore", 2)
    hook["clientConfig"]["url"] = f"https://127.0.0.1:{free_port()}/advise"
    namespace = make_namespace()
    with ours.without(control_plane.api, ours.validating), installed(control_plane.api, away):
        done = kubectl("create", a_workload("Deployment", namespace, a_pod("8GB")))
    assert (done.stderr, "created" in done.stdout) == ("", True)


# --- pods of the workload


@pytest.fixture
def controllers(control_plane):
    if not find_binary("kube-controller-manager"):
        pytest.skip("needs kube-controller-manager")
    control_plane.start_controllers()


def events(team, kind: str) -> list[str]:
    path = f"/api/v1/namespaces/{team.namespace}/events"
    found = team.api.list(path, fieldSelector="reason=FailedCreate")
    return [event["message"] for event in found if event["involvedObject"]["kind"] == kind]


@pytest.mark.usefixtures("controllers")
@pytest.mark.parametrize(
    ("kind", "owner", "spec"),
    [
        ("Deployment", "ReplicaSet/train-", {"replicas": 3}),
        (
            "StatefulSet",
            "StatefulSet/train",
            {"replicas": 3, "serviceName": "train", "podManagementPolicy": "Parallel"},
        ),
        ("Job", "Job/train", {"completions": 3, "parallelism": 3}),
    ],
)
def test_the_pods_of_a_workload_are_translated_and_logged_as_its_own(team, kind, owner, spec):
    team.api.create(a_workload(kind, team.namespace, a_pod("8Gi"), **spec))
    wait_until(f"pods of the {kind}", lambda: len(team.pods()) == 3)
    for pod in team.pods():
        assert pod["spec"]["initContainers"][0]["name"] == "vram-enforcer"
        limits = container(pod, "main")["resources"]["limits"]
        assert limits == {"vramwarden.io/vram": "8Gi"}
        assert pod["metadata"]["labels"]["vramwarden.io/managed"] == "true"
    assert team.ours.reviews(team.namespace)[0]["owner"].startswith(owner)


@pytest.mark.usefixtures("controllers")
@pytest.mark.parametrize(
    ("kind", "owner"),
    [("Deployment", "ReplicaSet"), ("StatefulSet", "StatefulSet"), ("Job", "Job")],
)
def test_a_denial_reaches_the_events_of_a_workload_reason_and_cure_first(team, kind, owner):
    team.api.create(a_workload(kind, team.namespace, a_pod("8GB")))
    message = wait_until(f"an event of the {owner}", lambda: events(team, owner))[0]
    said = message.partition('"mutate.vramwarden.io" denied the request: ')[2]
    assert said.startswith(f"InvalidQuantity: metadata.annotations[{MEMORY}]: ")
    assert "use 8G or 8Gi" in said[:200]
    assert team.pods() == []


def wait_for_failure(api, deployment):
    """Return the condition of a Deployment that cannot create pods."""

    def failure():
        conditions = api.get(deployment).get("status", {}).get("conditions", [])
        return next(
            (condition for condition in conditions if condition["type"] == "ReplicaFailure"), None
        )

    return wait_until("the condition ReplicaFailure", failure)


@pytest.mark.usefixtures("controllers")
def test_a_denial_reaches_the_status_of_a_deployment_which_recovers_once_corrected(team):
    manifest = a_workload("Deployment", team.namespace, a_pod("8GB"))
    team.api.create(manifest)
    condition = wait_for_failure(team.api, manifest)
    assert condition["reason"] == "FailedCreate"
    assert "InvalidQuantity: " in condition["message"]
    team.api.apply(a_workload("Deployment", team.namespace, a_pod("8Gi")))
    (pod,) = wait_until("the pod", team.pods)
    assert container(pod, "vram-enforcer")
