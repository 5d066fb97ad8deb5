"""Another webhook, before or after vramwarden's, cannot move VRAM; denials mention it.

The tests use everything that the chart installs on a real API server.
"""

from __future__ import annotations

import copy

import pytest

from tests.cluster.attacked import attacked
from tests.support import charts
from tests.support.control_planes import ApiError
from tests.support.other_webhooks import (
    ADDED,
    CHANGES,
    ORDERS,
    changed,
    every_container,
    golden_pods,
    holders,
    is_denied,
    names_another_webhook,
)
from tests.support.pods import a_pod
from tests.support.webhook_configurations import OtherWebhook
from tests.support.webhook_on_cluster import container, variables
from webhook.core.pod.findings import Reason
from webhook.names import ENFORCER_CONTAINER, GPU_MEMORY_ANNOTATION
from webhook.tools.problems.creation import parse_denial

CHOICE = "change"
"""Label that selects the other webhook's change to a pod."""
SIDECAR, SENTRY = "team-a", "sentry-a"
"""Namespaces by the enforcement mode of their pods."""
PODS = golden_pods()


@pytest.fixture(scope="module")
def tenant(control_plane, tmp_path_factory):
    if not charts.available():
        pytest.skip(charts.MISSING)
    helm = charts.Helm(tmp_path_factory.mktemp("helm"))
    folder = tmp_path_factory.mktemp("server")
    with attacked(control_plane, helm, folder, void=False) as found:
        yield found


@pytest.fixture(scope="module")
def plain(tenant):
    """Return each pod as created without another webhook."""
    return {
        (case, namespace): tenant.create(pod, namespace)
        for case, pod in PODS.items()
        for namespace in (SIDECAR, SENTRY)
    }


def shown(pod):
    """Return amount and visible GPUs of each user container."""
    names = ("NVIDIA_VISIBLE_DEVICES", "VRAMWARDEN_GPU_MEMORY_MIB")
    return {
        found["name"]: (holders(pod).get(found["name"]), *map(variables(found).get, names))
        for found in every_container(pod)
        if found["name"] not in {ENFORCER_CONTAINER, ADDED}
    }


def problem(pod, usual, name):
    """Return the defect of a pod that was created despite a change, or "" without one."""
    if shown(pod) != shown(usual):
        return f"{shown(pod)} in place of {shown(usual)}"
    added = [found for found in every_container(pod) if found["name"] == ADDED]
    if any(variables(found)["NVIDIA_VISIBLE_DEVICES"] != "void" for found in added):
        return f"{ADDED} sees GPUs"
    images = [
        container(item, ENFORCER_CONTAINER)["image"] for item in (pod, usual) if guarded(item)
    ]
    if len({*images}) > 1:
        return f"the sidecar has the image {images[0]}"
    users = copy.deepcopy(pod)
    for field in ("containers", "initContainers"):
        found = users["spec"].get(field, ())
        users["spec"][field] = [item for item in found if item["name"] != ENFORCER_CONTAINER]
    return "" if changed(users, name) == users else "the change is gone"


def guarded(pod):
    return any(found["name"] == ENFORCER_CONTAINER for found in every_container(pod))


def tried(tenant, case, namespace, name, usual, *, is_right):
    """Create a pod that another webhook changes; return its defect, or ""."""
    pod = PODS[case]
    labels = {**pod["metadata"].get("labels", {}), CHOICE: name}
    marked = {**pod, "metadata": {**pod["metadata"], "labels": labels}}
    try:
        created = tenant.create(marked, namespace)
    except ApiError as error:
        said = error.message.partition("denied the request: ")[2]
        return error.message if is_right or not names_another_webhook(said) else ""
    return problem(created, usual, name) if is_right else "it was created"


@pytest.mark.parametrize(("sorts", "again"), ORDERS, ids=map("-".join, ORDERS))
def test_the_same_container_keeps_the_vram_or_the_denial_names_another_webhook(
    tenant, plain, sorts, again
):
    with OtherWebhook(
        tenant.admin,
        lambda pod: changed(pod, pod["metadata"]["labels"][CHOICE]),
        sorts=sorts,
        reinvocation_policy=again,
        selected_by=CHOICE,
    ):
        problems = {
            (case, namespace, name): tried(
                *(tenant, case, namespace, name, usual),
                is_right=not is_denied(name, sorts, again, has_sidecar=namespace == SIDECAR),
            )
            for (case, namespace), usual in plain.items()
            for name in CHANGES
        }
    assert {at: wrong for at, wrong in problems.items() if wrong} == {}


@pytest.mark.parametrize(("sorts", "again"), ORDERS, ids=map("-".join, ORDERS))
def test_a_demand_that_another_webhook_adds_is_translated_if_it_comes_first(tenant, sorts, again):
    def ask(pod):
        pod["metadata"].setdefault("annotations", {})[GPU_MEMORY_ANNOTATION] = "8Gi"
        return pod

    pod = a_pod(labels={CHOICE: "ask"})
    with OtherWebhook(
        tenant.admin, ask, sorts=sorts, reinvocation_policy=again, selected_by=CHOICE
    ):
        if sorts == "before":
            assert holders(tenant.create(pod)) == {"main": "8Gi"}
            return
        with pytest.raises(ApiError) as denied:
            tenant.create(pod)
    (problem,) = parse_denial(denied.value.message)
    assert problem.code is Reason.UNMUTATED
    assert problem.fix.endswith(
        "another webhook added the demand after it: webhook.configurationName must sort last"
    )
