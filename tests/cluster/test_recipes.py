"""Recipes for Kubernetes' own kinds, created as on their page."""

from __future__ import annotations

import pytest

from tests.support.control_planes import find_binary, wait_until
from tests.support.recipes import FOLDER, recipe, workload
from tests.support.webhook_on_cluster import container

AMOUNTS = {
    "job": "16Gi",
    "kueue-job": "16Gi",
    "notebook": "8Gi",
    "priority": "12Gi",
    "rolling-update": "12Gi",
    "two-gpus": "40Gi",
    "vllm": "24Gi",
}
NAMES = [
    path.stem
    for path in sorted(FOLDER.iterdir())
    if any(item.get("apiVersion") in {"apps/v1", "batch/v1"} for item in recipe(path.stem))
]


@pytest.fixture
def controllers(control_plane):
    if not find_binary("kube-controller-manager"):
        pytest.skip("needs kube-controller-manager")
    control_plane.start_controllers()


@pytest.mark.usefixtures("controllers")
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_created_without_a_warning_and_its_pods_have_their_amount(
    team, kubectl, request, name
):
    for thing in recipe(name):
        if thing["kind"] == "PriorityClass":
            request.addfinalizer(lambda thing=thing: team.api.delete(thing))
        else:
            thing["metadata"]["namespace"] = team.namespace
        done = kubectl("create", thing)
        assert (done.returncode, done.stderr) == (0, "")
    spec = workload(name)["spec"]
    wait_until("its pods", lambda: len(team.pods()) >= spec.get("replicas", 1))
    (main,) = spec["template"]["spec"]["containers"]
    for pod in team.pods():
        limits = container(pod, main["name"])["resources"]["limits"]
        assert limits == {"vramwarden.io/vram": AMOUNTS[name]}
        assert container(pod, "vram-enforcer")
