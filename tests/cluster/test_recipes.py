"""The recipes for Kubernetes' own kinds, created as their readers do."""

from __future__ import annotations

import pytest

from tests.support.control_planes import find_binary, wait_until
from tests.support.our_server import container
from tests.support.recipes import recipe, workload

RECIPES = ["job", "kueue-job", "notebook", "priority", "rolling-update", "vllm"]
MEMORY, VRAM = "vramwarden.io/gpu-memory", "vramwarden.io/vram"


@pytest.fixture
def controllers(control_plane):
    if not find_binary("kube-controller-manager"):
        pytest.skip("needs kube-controller-manager")
    control_plane.start_controllers()


@pytest.mark.usefixtures("controllers")
@pytest.mark.parametrize("name", RECIPES)
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
    template = spec["template"]
    (main,) = template["spec"]["containers"]
    limits = main.get("resources", {}).get("limits", {})
    amount = template.get("metadata", {}).get("annotations", {}).get(MEMORY) or limits[VRAM]
    for pod in team.pods():
        assert container(pod, main["name"])["resources"]["limits"] == {VRAM: amount}
        assert container(pod, "vram-enforcer")
