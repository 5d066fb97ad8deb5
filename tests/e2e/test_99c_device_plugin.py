"""With NVIDIA's device plugin, a card has one allocator, whatever happens to the plugin.

A pod always waits for VRAM, and a pod with a whole GPU sleeps on the node. No VRAM may be
assigned there before both plugin and pod are gone for good.
"""

from __future__ import annotations

import contextlib
import time

import pytest

from tests.e2e.agent import MERGE
from tests.e2e.asking import ask, diagnose
from tests.e2e.conftest import needs
from tests.e2e.node import NODE
from tests.e2e.pods import container, holding, pod
from tests.e2e.strangers import HEEDS, PLUGIN_IMAGE, DevicePlugin, discovered, plugin_image
from tests.e2e.team import Team
from tests.support.control_planes import ApiError
from tests.support.paths import POLICIES

DEPLOY, SHARE = "nvidia.com/gpu.deploy.device-plugin", "vramwarden.io/share"
PRESENT = "nvidia.com/gpu.present"
WHOLE = "nvidia.com/gpu"
LONGER_S = 40.0
"""Time longer than an earlier release waited for a removed plugin, in seconds."""


@pytest.fixture(scope="module")
def plugin(strange, tmp_path_factory):
    needs("NVIDIA_PLUGIN")
    strange.import_image(plugin_image(tmp_path_factory.mktemp("plugin")))
    made = DevicePlugin(Team(strange, "kube-system"), strange)
    made.install()
    made.wait_for(2, 2)
    yield made
    label(strange, {DEPLOY: None, SHARE: None})


@pytest.fixture(scope="module")
def own(plugin, system, agent, make_team):
    """Return a team with a pod that has a whole GPU and a pod that waits for VRAM."""
    system.wait("VRAM withdrawn", lambda: agent.advertised() is None)
    found = make_team()
    whole = container(["sleep", "100000"], resources={"limits": {WHOLE: 1}})
    found.create(pod("whole", None, [], containers=[whole]))
    found.wait_ready("whole")
    found.create(pod("waits", "8Gi", holding("forever")))
    return found


@pytest.fixture
def quiet_for(own, agent):
    """Return a function that checks for some seconds that no VRAM is assigned."""

    def watch(seconds=LONGER_S):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert agent.advertised() is None
            assert "nodeName" not in own.pod("waits")["spec"]
            time.sleep(0.5)

    return watch


def limits_of(found):
    return found["spec"]["containers"][0]["resources"]["limits"]


def label(node, labels):
    change = {"metadata": {"labels": labels}}
    node.api.request("PATCH", f"/api/v1/nodes/{NODE}", change, content_type=MERGE)


def forget(node, plugin):
    """Make the kubelet forget a removed plugin, immediately by a restart."""
    node.stop_kubelet()
    node.start_kubelet()
    plugin.wait_for(0, 0)


def told(system, agent, *words):
    """Wait for an Event about the node that contains all these words; print it."""

    def said():
        return [line for line in agent.events() if all(word in line for word in words)]

    print(*system.wait(f"an Event with {words}", said), sep="\n")


def test_where_it_offers_the_gpus_they_are_not_shared(own, system, agent, quiet_for):
    told(system, agent, "GPUsNotShared", DEPLOY)
    quiet_for(5)
    system.wait("top", lambda: "not shared" in ask(own.cluster.kubeconfig, "top"))
    print(ask(own.cluster.kubeconfig, "top"))


def test_an_upgrade_that_takes_long_frees_no_gpu(plugin, quiet_for):
    plugin.use_image("localhost/not-there-yet:2")
    plugin.wait_for(2, 0)  # for five minutes, or forever if the plugin declares all GPUs broken
    quiet_for()
    plugin.use_image(PLUGIN_IMAGE)
    plugin.wait_for(2, 2)


def test_nor_does_a_restart_of_the_kubelet_while_it_is_away(strange, plugin, quiet_for):
    plugin.use_image("localhost/not-there-yet:2")
    plugin.wait_for(2, 0)
    forget(strange, plugin)
    quiet_for(LONGER_S / 2)
    plugin.use_image(PLUGIN_IMAGE)
    plugin.wait_for(2, 2)


def test_where_it_does_not_heed_the_label_the_cure_is_another(
    strange, system, agent, plugin, quiet_for
):
    label(strange, {DEPLOY: "false"})
    told(system, agent, "GPUsNotShared", "affinity")
    plugin.change(affinity=HEEDS)
    plugin.wait_for(2, 0)
    told(system, agent, "GPUsNotShared", "the kubelet forgets it within five minutes")
    quiet_for(LONGER_S / 2)


def test_a_pod_with_a_whole_gpu_that_sleeps_is_waited_for(
    strange, own, system, agent, plugin, quiet_for
):
    forget(strange, plugin)
    told(system, agent, "drain the whole-GPU pods first", f"{own.namespace}/whole")
    quiet_for(LONGER_S / 2)
    own.delete_pod("whole")
    began = time.monotonic()
    own.wait_ready("waits")
    print(f"a pod has VRAM after the last with a whole GPU ended: {time.monotonic() - began:.1f} s")


def test_where_it_comes_back_nothing_new_is_promised_and_all_is_told(
    strange, own, system, agent, plugin
):
    label(strange, {DEPLOY: None})
    plugin.wait_for(2, 2)
    told(system, agent, "SharedBesidePlugin")
    own.wait("no more VRAM than is promised", lambda: agent.advertised() == "8Gi")
    own.create(pod("later", "8Gi", holding("forever")))
    print(*own.wait("it waits", lambda: [e for e in own.events("later") if "Failed" in e]))
    found = diagnose(strange.kubeconfig, "later", own.namespace)
    assert NODE in found
    own.wait_ready("waits")
    own.delete_pod("waits")
    own.wait("VRAM withdrawn", lambda: agent.advertised() is None)


def test_where_somebody_wants_that_the_node_is_shared_at_once(strange, own, plugin):
    plugin.uninstall()
    plugin.wait_for(2, 0)
    label(strange, {SHARE: "true"})
    began = time.monotonic()
    own.wait_ready("later")
    print(f"a pod has VRAM after the label: {time.monotonic() - began:.1f} s")
    own.delete_pod("later")


def test_check_leaves_time_slicing_with_a_cap_alone(
    strange, own, plugin, release, values, system, agent
):
    """See policies/examples/time-slicing.yaml: the label, and NVIDIA's replicas."""
    label(strange, {SHARE: "false"})
    own.wait("VRAM withdrawn", lambda: agent.advertised() is None)
    plugin.install(CONFIG_FILE="/sliced")
    plugin.wait_for(8, 8)
    features = discovered(strange)
    print(features)
    assert features["nvidia.com/gpu.sharing-strategy"] == "time-slicing"
    label(strange, features)
    policy = (POLICIES / "examples/time-slicing.yaml").read_text()
    release.install({**values, "policies": {"shipped": False, "files": {"default.yaml": policy}}})
    asks = pod("slice", "8Gi", holding("forever"))

    def translated():
        with contextlib.suppress(ApiError):  # while webhook and fence have policies of two releases
            return WHOLE in limits_of(own.create(asks, dry_run=True))

    own.wait("the policy in force", translated)
    own.create(asks)
    assert limits_of(own.wait_ready("slice"))[WHOLE] == "1"
    print(found := ask(strange.kubeconfig, "check"))
    assert "take `sharing` out" not in found
    own.delete_pod("slice")
    plugin.uninstall()
    plugin.wait_for(8, 0)
    forget(strange, plugin)
    label(strange, dict.fromkeys(features) | {PRESENT: "true", SHARE: None})
    release.install(values)
