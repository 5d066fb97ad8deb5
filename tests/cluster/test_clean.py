"""`vramwarden clean` on a real API server removes what a release left."""

from __future__ import annotations

import json

import pytest

from tests.support.charts import one, rendered
from tests.support.control_planes import ApiError, wait_until
from tests.support.run_command import vramwarden

NODES = ("clean-1", "clean-2", "clean-3")
AMOUNTS = {"vramwarden.io/vram": "80Gi", "cpu": "8"}
CONDITION = {"type": "vramwarden.io/SentryActing", "status": "False", "reason": "x", "message": "x"}
OUTSIDE = (
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "rbac.authorization.k8s.io",
)
DENY = [
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "clean-2"},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["nodes", "nodes/status"],
                        "resourceNames": ["clean-2"],
                    }
                ]
            },
            "validations": [{"expression": "false", "message": "leave it"}],
        },
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "clean-2"},
        "spec": {"policyName": "clean-2", "validationActions": ["Deny"]},
    },
]


def path(name):
    return f"/api/v1/nodes/{name}"


def put_node(api, name):
    labels = {"vramwarden.io/gpu": "true", "vramwarden.io/share": "true", "a": "b"}
    notes = {"vramwarden.io/gpus": "[]", "vramwarden.io/sharing": "Shared: yes", "a": "b"}
    metadata = {"name": name, "labels": labels, "annotations": notes}
    api.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    conditions = [CONDITION, {**CONDITION, "type": "Ready"}]
    status = {"capacity": AMOUNTS, "allocatable": AMOUNTS, "conditions": conditions}
    kind = "application/strategic-merge-patch+json"
    api.request("PATCH", f"{path(name)}/status", {"status": status}, content_type=kind)


@pytest.fixture
def left(api):
    """Create a release's objects outside its namespaces, and nodes as their agents left them."""
    objects = [
        found
        for found in rendered()
        if found["apiVersion"].partition("/")[0] in OUTSIDE
        and found["metadata"].get("namespace") in {None, "default"}
    ]
    # Objects of a webhook that is not running, since it would deny or delay pods of other tests.
    objects = [{**found, "webhooks": []} if "webhooks" in found else found for found in objects]
    for name in NODES:
        put_node(api, name)
    for found in objects:
        api.apply(found)
    yield objects
    for found in objects:
        api.delete(found)
    for name in NODES:
        api.request("DELETE", path(name))


@pytest.fixture
def clean(control_plane):
    return lambda *options: vramwarden("clean", "--kubeconfig", control_plane.kubeconfig, *options)


def is_left(api, thing):
    try:
        return bool(api.get(thing))
    except ApiError as error:
        assert error.code == 404, error
        return False


def ours_on(api, name):
    """Return labels, annotations and resources of a node that have vramwarden's prefix."""
    node = api.request("GET", path(name))
    metadata, status = node["metadata"], node["status"]
    assert metadata["labels"]["a"] == metadata["annotations"]["a"] == "b"
    assert {status["capacity"]["cpu"], status["allocatable"]["cpu"]} == {"8"}
    assert "Ready" in [condition["type"] for condition in status["conditions"]]
    keys = (*metadata["labels"], *metadata["annotations"], *status["capacity"])
    conditions = (condition["type"] for condition in status["conditions"])
    every = (*keys, *status["allocatable"], *conditions)
    return {key for key in every if key.startswith("vramwarden.io/")}


def test_what_a_release_left_is_gone_and_a_second_time_there_is_nothing(api, clean, left):
    shown = clean("--dry-run")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert all(is_left(api, found) for found in left)
    assert "vramwarden.io/gpu" in ours_on(api, "clean-1")
    done = clean()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == shown.stdout.replace("would remove", "removed")
    assert (
        "node clean-1: removed 1 label, 2 annotations, resource vramwarden.io/vram, condition "
        "vramwarden.io/SentryActing\n"
    ) in done.stdout
    assert [ours_on(api, name) for name in NODES] == [{"vramwarden.io/share"}] * len(NODES)
    kept = {found["metadata"]["name"] for found in left if is_left(api, found)}
    assert kept == {"gpunodes.vramwarden.io", "vramhistories.vramwarden.io"}
    done = clean("--all")
    assert (done.returncode, done.stderr) == (0, "")
    # An API server deletes the objects of a kind before the kind's definition.
    wait_until("no kind is left", lambda: not any(is_left(api, found) for found in left))
    assert [ours_on(api, name) for name in NODES] == [set()] * len(NODES)
    assert clean("--all").stdout == "nothing of vramwarden is left\n"


@pytest.fixture
def denied(api, left):

    def is_denied():
        change = {"metadata": {"labels": {"b": None}}}
        kind = "application/merge-patch+json"
        try:
            return not api.request("PATCH", path("clean-2"), change, content_type=kind)
        except ApiError:
            return True

    for found in DENY:
        api.apply(found)
    wait_until("it is enforced", is_denied)
    yield
    for found in DENY:
        api.delete(found)
    wait_until("it is enforced no more", lambda: not is_denied())


@pytest.mark.usefixtures("denied")
def test_it_goes_on_past_a_node_that_a_policy_denies(api, clean):
    done = clean()
    assert done.returncode == 3
    assert done.stderr.startswith("node clean-2: not removed: ")
    assert "leave it" in done.stderr
    assert "vramwarden.io/gpu" in ours_on(api, "clean-2")
    assert ours_on(api, "clean-3") == {"vramwarden.io/share"}


def test_too_few_rights_are_named(control_plane, tmp_path, left, api):
    ann = control_plane.kubeconfig_of(tmp_path, "ann", "people")
    done = vramwarden("clean", "--kubeconfig", ann)
    assert (done.returncode, done.stdout) == (3, "")
    assert "needs the right to list deployments" in done.stderr
    assert "vramwarden.io/gpu" in json.dumps(api.request("GET", path("clean-1")))


def test_it_refuses_while_an_agent_is_installed(api, clean, left):
    agent = one(rendered(), "DaemonSet", "vramwarden-agent")
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vramwarden-system"}}
    api.apply(space)
    api.apply(agent)
    try:
        done = clean()
    finally:
        api.delete(agent)
    assert (done.returncode, done.stdout) == (1, "")
    assert "still installed (vramwarden-system/vramwarden-agent)" in done.stderr
    assert "helm uninstall vramwarden --namespace vramwarden-system" in done.stderr
    assert "vramwarden.io/gpu" in ours_on(api, "clean-1")
