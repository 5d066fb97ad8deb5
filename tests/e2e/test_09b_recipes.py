"""Updates of the recipes' workloads while no GPU has free memory for another of their pods."""

from __future__ import annotations

import contextlib

import pytest

from tests.e2e.asking import diagnose
from tests.e2e.pods import container, holding, is_ready, pod
from tests.e2e.test_09_placement import free_gib
from tests.support.api_client import ApiError
from tests.support.recipes import workload

RUNS = holding("forever")
PATCH = "application/merge-patch+json"


@pytest.fixture
def crew(gpu_node, make_team, team, quiet):
    """Return a team whose pods and memory are gone when the test ends."""
    team.wait_ready(quiet)  # the pod is bound and has an assignment
    made = make_team()
    before = free_gib(made.cluster)
    yield made
    for kind in ("deployments", "statefulsets"):
        path = f"/apis/apps/v1/namespaces/{made.namespace}/{kind}"
        for item in made.api.list(path):
            made.api.request("DELETE", f"{path}/{item['metadata']['name']}")
    for found_pod in made.pods():
        with contextlib.suppress(ApiError):  # the garbage collector may be faster
            made.delete_pod(found_pod["metadata"]["name"])
    made.wait("no pods", lambda: not made.pods())

    def is_given_back():
        free = free_gib(made.cluster)
        return all(free[gpu] >= before[gpu] for gpu in before)

    made.wait("the memory of its pods", is_given_back)


@pytest.fixture
def size(crew):
    """Return an amount of which one fits on each GPU, but not two."""
    free = free_gib(crew.cluster)
    size = int(max(free.values()) / 2) + 1
    assert size <= min(free.values()), free
    return f"{size}Gi"


def here(name, size):
    """Return a recipe's workload with the tests' program, an amount, and local volumes only."""
    made = workload(name)
    template = made["spec"]["template"]
    template["metadata"]["annotations"] = {"vramwarden.io/gpu-memory": size}
    template["spec"] = {
        "terminationGracePeriodSeconds": 5,
        "dnsPolicy": "Default",
        "containers": [container(RUNS)],
    }
    made["spec"].pop("volumeClaimTemplates", None)
    return made


def path_of(crew, made):
    kind = made["kind"].lower() + "s"
    return f"/apis/apps/v1/namespaces/{crew.namespace}/{kind}/{made['metadata']['name']}"


def change(crew, made, **spec):
    crew.api.request("PATCH", path_of(crew, made), {"spec": spec}, content_type=PATCH)


def update(crew, made, release):
    """Change the pod template, as a new image would."""
    change(crew, made, template={"metadata": {"labels": {"release": release}}})


def of_release(crew, made, release, *, ready=True):
    """Return the pods of a workload with a release, by default only ready ones."""
    labels = made["spec"]["selector"]["matchLabels"] | ({"release": release} if release else {})
    selector = ",".join("=".join(item) for item in labels.items())
    return [
        found_pod
        for found_pod in crew.pods(labelSelector=selector)
        if is_ready(found_pod) or not ready
    ]


def wait_for(crew, made, release=""):
    """Wait until all pods of a workload are ready and have a release."""
    count = made["spec"].get("replicas", 1)
    name = made["metadata"]["name"]

    def done():
        ready = of_release(crew, made, release)
        return len(ready) == count == len(of_release(crew, made, "", ready=False))

    crew.wait(f"{count} pods of {name}, release {release}", done)


def test_an_update_by_the_default_strategy_waits_until_it_has_that_of_the_recipe(crew, size):
    made = here("rolling-update", size)
    strategy = made["spec"].pop("strategy")
    crew.create(made)
    wait_for(crew, made)
    update(crew, made, "two")

    def waits():
        new = of_release(crew, made, "two", ready=False)
        said = [line for item in new for line in crew.events(item["metadata"]["name"])]
        return any("bind.vramwarden.io" in line for line in said)

    crew.wait("a new pod that waits", waits)
    assert len(of_release(crew, made, "", ready=True)) == 2

    def has_cure():  # node figures may be older than the pods
        said = diagnose(crew.cluster.kubeconfig, "deployment/infer", crew.namespace)
        return "maxSurge: 0" in " ".join(said.split())

    crew.wait("maxSurge: 0", has_cure)
    change(crew, made, strategy=strategy)
    wait_for(crew, made, "two")
    update(crew, made, "three")
    wait_for(crew, made, "three")


@pytest.mark.parametrize("name", ["vllm", "notebook"])
def test_an_update_of_one_pod_ends_although_the_gpus_are_full(crew, size, name):
    crew.create(pod("other", size, RUNS))
    crew.wait_ready("other")
    made = here(name, size)
    crew.create(made)
    wait_for(crew, made)
    update(crew, made, "two")
    wait_for(crew, made, "two")
