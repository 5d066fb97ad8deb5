"""With NVIDIA's container runtime, in each of its modes, a pod gets exactly its GPU."""

from __future__ import annotations

import pytest

from tests.e2e.nvidia_runtime import UUIDS
from tests.e2e.pods import GIB, container, holding, pod, statuses
from tests.e2e.test_09_placement import free_gib

GROWS = holding(f"hold {GIB}; wait_for grow; hold {{too_much}}; forever")
DEVICES = ("python3", "-c", "import os; print(*os.listdir('/dev'))")
# Effect of a bare UUID in each mode. The qualified name works in every mode.
BARE_STARTS = {"management": False, "cdi": True, "auto": True}


@pytest.fixture(scope="module", params=BARE_STARTS)
def mode(request, toolkit, at_home, agent):
    """Switch NVIDIA's runtime to a mode and restart the agent without earlier knowledge."""
    toolkit.switch(request.param)
    agent.replace()
    at_home.wait("VRAM advertised", agent.advertised)
    return request.param


@pytest.fixture(scope="module")
def placed(mode, at_home):
    """Create a pod on each GPU; return the UUIDs, keyed by pod name."""
    free = free_gib(at_home.cluster)
    size_gib = int(max(free.values()) / 2) + 1  # one fits on each GPU, but not two
    assert size_gib <= min(free.values()), free
    grows = [word.replace("{too_much}", str((size_gib + 1) * GIB)) for word in GROWS]
    names = [f"{mode}-{number}" for number in range(len(UUIDS))]
    for name in names:
        at_home.create(pod(name, f"{size_gib}Gi", grows))
    found = {name: at_home.wait_ready(name)["metadata"]["annotations"] for name in names}
    yield {name: annotations["vramwarden.io/gpu"] for name, annotations in found.items()}
    for name in names:
        at_home.delete_pod(name)


@pytest.fixture(scope="module")
def exempt(at_home, make_team):
    """Return a team whose pods vramwarden does not change."""
    return make_team(**{"vramwarden.io/webhook": "disabled"})


def nvidia(names):
    """Return NVIDIA's device nodes among the names."""
    return {name for name in names.split() if name.startswith("nvidia")}


def nodes_of(uuid):
    return {f"nvidia{UUIDS.index(uuid)}", "nvidiactl"}


def test_the_agent_says_which_names_the_runtime_resolves(mode, agent):
    assert agent.ready()["spec"]["runtimeClassName"] == "nvidia"
    assert agent.labels()["vramwarden.io/device-names"] == "runtime.nvidia.com"
    assert agent.advertised() == "160Gi"


def test_each_pod_sees_its_gpu_and_no_other(at_home, placed):
    assert set(placed.values()) == set(UUIDS)
    for name, uuid in placed.items():
        found = at_home.pod(name)
        assert found["spec"]["runtimeClassName"] == "nvidia"
        annotations = found["metadata"]["annotations"]
        assert annotations["vramwarden.io/visible-devices"] == f"runtime.nvidia.com/gpu={uuid}"
        assert nvidia(at_home.run(name, "ls", "/dev")) == nodes_of(uuid)
        assert nvidia(at_home.run(name, *DEVICES, container="vram-enforcer")) == nodes_of(uuid)


def test_each_is_stopped_over_its_cap_on_that_gpu(at_home, placed):
    for name in placed:
        at_home.run(name, "touch", "/scene/grow")
    for name, uuid in placed.items():
        assert at_home.wait_ended(name)["exitCode"] == 143
        assert f"over the VRAM cap on GPU {uuid}" in at_home.log(name, "vram-enforcer")


def test_what_the_runtime_makes_of_names_by_hand(mode, exempt):
    values = {
        "bare": UUIDS[1],
        "qualified": f"runtime.nvidia.com/gpu={UUIDS[1]}",
        "void": "void",
    }
    variable = "NVIDIA_VISIBLE_DEVICES"
    containers = [
        {**container(["ls", "/dev"], env=[{"name": variable, "value": value}]), "name": name}
        for name, value in values.items()
    ]
    spec = {"containers": containers, "restartPolicy": "Never", "runtimeClassName": "nvidia"}
    exempt.create(pod(mode, None, [], **spec))
    exempt.wait("it ended", lambda: exempt.pod(mode)["status"]["phase"] in {"Failed", "Succeeded"})
    assert nvidia(exempt.log(mode, "qualified")) == nodes_of(UUIDS[1])
    assert nvidia(exempt.log(mode, "void")) == set()
    if BARE_STARTS[mode]:
        assert nvidia(exempt.log(mode, "bare")) == nodes_of(UUIDS[1])
    else:
        ended = statuses(exempt.pod(mode))["bare"]["state"]["terminated"]
        print(ended["message"])
        assert ended["reason"] == "StartError"
        said = f"unresolvable CDI devices management.nvidia.com/gpu={UUIDS[1]}"
        assert said in ended["message"]
