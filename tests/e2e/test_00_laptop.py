"""The commands of deploy/laptop.md, on a node whose GPUs nobody asks.

What is not tried: that kind and minikube load an image, and their nodes.
"""

from __future__ import annotations

import json
import shlex

import pytest

from tests.e2e.cluster import SYSTEM
from tests.e2e.images import PAUSE
from tests.e2e.node import NODE_MANIFEST
from tests.e2e.pods import is_ready
from tests.e2e.team import Team
from tests.e2e.test_00_bad_install import delete_namespace
from tests.support import charts
from tests.support.control_planes import wait_until
from tests.support.documents import commands
from tests.support.paths import ROOT
from webhook.core.node.sharing import SETTLE_S

PAGE = ROOT / "deploy" / "laptop.md"
COMMANDS = [*commands(PAGE, "helm upgrade"), *commands(PAGE, "kubectl run first")]
NODE = f"/api/v1/nodes/{NODE_MANIFEST['metadata']['name']}"
OURS = "vramwarden.io/"
MERGE = "application/merge-patch+json"


def words_of(beginning):
    """Return the words of the only command that begins so."""
    (line,) = (one for one in COMMANDS if one.startswith(beginning))
    return shlex.split(line)


@pytest.fixture(scope="module")
def installed(node, values, tmp_path_factory):
    """Install by the page's command, under the names that the images have here."""
    helm = charts.Helm(tmp_path_factory.mktemp("helm"), node.kubeconfig)
    _, *words = words_of("helm upgrade")
    words[words.index("deploy/chart/vramwarden")] = str(charts.CHART)
    words[words.index("deploy/laptop.yaml")] = str(ROOT / "deploy/laptop.yaml")
    images = {image: values[image] for image in ("image", "enforcer")}
    names = [f"{image}.{key}={one}" for image in images for key, one in images[image].items()]
    helm.run(*words, "--timeout=5m", *(f"--set={one}" for one in names))
    yield helm
    helm.run("uninstall", "vramwarden", "--namespace", SYSTEM)
    delete_namespace(Team(node, SYSTEM))
    forget(node.api)


def forget(api):
    """Take off the node what the agent wrote, as deploy/uninstall.md says."""
    found = api.request("GET", NODE)["metadata"]
    gone = {
        kind: {key: None for key in found.get(kind) or {} if key.startswith(OURS)}
        for kind in ("labels", "annotations")
    }
    api.request("PATCH", NODE, {"metadata": gone}, content_type=MERGE)
    nothing = {f"{OURS}vram": None}
    amounts = {"capacity": nothing, "allocatable": nothing}
    api.request("PATCH", f"{NODE}/status", {"status": amounts}, content_type=MERGE)


@pytest.fixture(scope="module")
def reader(node, installed):
    """Be who reads the page; what was created goes at the end."""
    team = Team(node, "default")
    yield team
    for found in team.pods():
        team.delete_pod(found["metadata"]["name"])


def run(reader, beginning):
    """Run the page's command that begins so; with an image that is here."""
    _, *words = words_of(beginning)
    return reader.cluster.kubectl(
        *(f"--image={PAUSE}" if word.startswith("--image=") else word for word in words)
    )


def waits_for_memory(reader, name):
    """Return what the scheduler says of a pod for which no node has VRAM enough."""
    return [one for one in reader.events(name) if "1 Insufficient vramwarden.io/vram" in one]


def test_each_node_says_that_it_has_what_the_values_say(node, installed):
    def says_so():
        status = node.api.get(NODE_MANIFEST)["status"]
        return status["allocatable"].get("vramwarden.io/vram") == "16Gi"

    # A young node is given a minute in which others may come who give its GPUs away.
    wait_until("the node says that it has 16Gi", says_so, timeout=SETTLE_S + 30)


def test_the_first_pod_runs_and_the_second_waits_until_it_is_gone(reader):
    assert run(reader, "kubectl run first").returncode == 0
    found = reader.wait_ready("first")
    assert [one["name"] for one in found["spec"]["containers"]] == ["first"]
    assert "initContainers" not in found["spec"]
    limits = found["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"vramwarden.io/vram": "10Gi"}

    assert run(reader, "kubectl run second").returncode == 0
    reader.wait("that it waits", lambda: waits_for_memory(reader, "second"))
    said = run(reader, "kubectl describe pod second").stdout
    assert "1 Insufficient vramwarden.io/vram" in said
    assert not is_ready(reader.pod("second")), json.dumps(reader.pod("second")["status"])

    assert run(reader, "kubectl delete pod first").returncode == 0
    reader.wait_ready("second")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("third", "InvalidQuantity: metadata.annotations[vramwarden.io/gpu-memory]: 10GB is"),
        ("fourth", "VisibleDevicesOverride: "),
    ],
)
def test_what_the_readme_says_is_denied_is(reader, name, said):
    denied = run(reader, f"kubectl run {name}")
    assert denied.returncode == 1
    assert said in denied.stderr


def test_helm_test_passes(installed):
    said = installed.run("test", "vramwarden", "--namespace", SYSTEM, "--timeout=3m")
    assert "Phase:          Succeeded" in said
