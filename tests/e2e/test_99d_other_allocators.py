"""NVIDIA's DRA driver on one node and HAMi on another: each card has one allocator."""

from __future__ import annotations

import time

import pytest

from tests.e2e.agent import MERGE
from tests.e2e.asking import ask
from tests.e2e.conftest import needs
from tests.e2e.node import NODE, NODE_MANIFEST
from tests.e2e.nvidia_runtime import UUIDS
from tests.e2e.pods import container, holding, pod
from tests.e2e.strangers import Hami, dra_driver
from tests.support.control_planes import ApiError
from tests.support.other_programs import why_not
from webhook.core.kinds.nodes import read_time
from webhook.core.node.other_allocators import DEPLOY_PLUGIN_LABEL, YOUNG_S

RESOURCES = "/apis/resource.k8s.io/v1"


@pytest.fixture(scope="module")
def own(strange, system, agent, make_team):
    agent.replace()  # an agent writes only ten Events about its node
    system.wait("VRAM advertised", agent.advertised)
    yield make_team()
    share(strange, None)


def share(node, value):
    label(node, "vramwarden.io/share", value)


def label(node, key, value):
    change = {"metadata": {"labels": {key: value}}}
    node.api.request("PATCH", f"/api/v1/nodes/{NODE}", change, content_type=MERGE)


@pytest.fixture
def slices(strange, system):
    """Create a ResourceSlice for the node's GPUs, by NVIDIA's driver or in its format."""
    try:
        strange.api.list(f"{RESOURCES}/resourceslices")
    except ApiError:
        pytest.skip("needs an API server with ResourceSlices in resource.k8s.io/v1, from 1.34 on")
    if why_not("NVIDIA_DRA"):
        made = posted_slice()
        strange.api.create(made)
        yield made
        strange.api.delete(made)
        return

    def of_its_gpus():
        found = strange.api.list(f"{RESOURCES}/resourceslices")
        return [item for item in found if item["spec"].get("devices")]

    with dra_driver(strange):
        (made,) = system.wait("its ResourceSlice", of_its_gpus)
        yield made
    for gpu in of_its_gpus():  # as the kubelet does with those of a removed driver
        strange.api.delete({**gpu, "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"})


def posted_slice():
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}},
            "capacity": {"memory": {"value": "40Gi"}},
        }
        for number, uuid in enumerate(UUIDS)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{NODE}-gpu"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def test_a_young_node_waits_for_the_plugin_that_the_operator_is_to_bring(
    own, strange, system, agent
):
    created = strange.api.get(NODE_MANIFEST)["metadata"]["creationTimestamp"]
    if time.time() - read_time(created) > YOUNG_S - 120:
        pytest.skip("needs a node younger than ten minutes: run this file alone")
    label(strange, DEPLOY_PLUGIN_LABEL, "true")
    system.wait("VRAM withdrawn", lambda: agent.advertised() is None)
    system.wait("an Event", lambda: any("is to bring" in line for line in agent.events()))
    label(strange, DEPLOY_PLUGIN_LABEL, None)
    system.wait("VRAM advertised", agent.advertised)


def test_a_node_whose_gpus_a_dra_driver_gives_away_is_not_shared(own, slices, system, agent):
    assert {device["attributes"]["uuid"]["string"] for device in slices["spec"]["devices"]} == set(
        UUIDS
    )
    system.wait("VRAM withdrawn", lambda: agent.advertised() is None)

    def told():
        return [line for line in agent.events() if "GPUsNotShared" in line and "DRA" in line]

    print(*system.wait("an Event", told), sep="\n")
    own.create(pod("waits", "8Gi", holding("forever")))
    said = own.wait("it waits", lambda: [e for e in own.events("waits") if "FailedSched" in e])
    print(*said)
    print(ask(own.cluster.kubeconfig, "check"))


def test_without_it_the_node_is_shared_again_where_somebody_wants_that_at_once(strange, own):
    """Otherwise after five minutes: the kubelet deletes a restarting driver's slices."""
    share(strange, "true")
    own.wait_ready("waits")
    own.delete_pod("waits")


@pytest.fixture(scope="module")
def hami(strange, own):
    needs("HAMI")
    share(strange, "true")
    found = Hami(strange)
    with found.running():
        yield found


@pytest.mark.parametrize("name", ["hami-webhook", "zz-hami-webhook"])
def test_hami_and_we_serve_a_pod_each_whose_webhook_ever_is_first(strange, own, hami, name):
    webhook = hami.webhook(name)
    own.wait("HAMi's webhook", lambda: answers(strange, webhook, own))
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}
    wants = container(["sleep", "1000"], resources={"limits": limits})
    anywhere = [{"operator": "Exists"}]
    began = time.monotonic()
    own.create(pod("theirs", None, [], containers=[wants], tolerations=anywhere))
    own.create(pod("ours", "8Gi", holding("forever")))
    ours = own.wait_ready("ours")
    theirs = own.wait("theirs bound", lambda: bound(own.pod("theirs")))
    print(f"both have their GPU: {time.monotonic() - began:.1f} s")
    assert ours["spec"]["nodeName"] == NODE
    assert ours["metadata"]["annotations"]["vramwarden.io/gpu"] in UUIDS
    assert [found_container["name"] for found_container in ours["spec"]["initContainers"]] == [
        "vram-enforcer"
    ]
    assert theirs["spec"]["nodeName"] == hami.NODE
    assert theirs["spec"]["schedulerName"] == hami.SCHEDULER
    given = theirs["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]
    assert any(gpu in given for gpu in hami.GPUS)
    assert not [key for key in theirs["metadata"]["annotations"] if "vramwarden.io" in key]
    assert "initContainers" not in theirs["spec"]
    strange.api.delete(webhook)
    for item in ("theirs", "ours"):
        own.delete_pod(item)
    own.wait("both gone", lambda: not own.pods())


def bound(found):
    return found if "nodeName" in found["spec"] else None


def answers(strange, webhook, own):
    """Register the webhook when it responds; before, it would deny pods."""
    strange.api.apply(webhook)
    try:
        return own.create(pod("asks", None, ["true"]), dry_run=True)
    except ApiError:
        return False
