"""The commands of deploy/laptop.md and deploy/uninstall.md, on a node without other allocators.

The loading of images by kind and minikube, and their nodes, are not tested.
"""

from __future__ import annotations

import json

import pytest

from tests.e2e import images
from tests.e2e.cluster import Release
from tests.e2e.node import NODE_MANIFEST
from tests.e2e.pods import is_ready
from tests.e2e.team import Team
from tests.support import charts
from tests.support.command_coverage import commands_of
from tests.support.control_planes import wait_until
from tests.support.page_reader import Reader
from webhook.core.node.other_allocators import SETTLE_S

IN_LAPTOP, IN_UNINSTALL = (
    [command for page, command in commands_of(__file__) if page == f"deploy/{name}.md"]
    for name in ("laptop", "uninstall")
)
ENDS_WITH = {"run third": [1], "run fourth": [1], "explain second": [0, 1]}
SAID = {
    "run third": "InvalidQuantity: metadata.annotations[vramwarden.io/gpu-memory]: 10GB is",
    "run fourth": "VisibleDevicesOverride: ",
    "describe pod second": "1 Insufficient vramwarden.io/vram",
    "explain second": "6Gi",
}


@pytest.fixture(scope="module")
def reader(node, values, tmp_path_factory):
    image = "{repository}:{tag}".format(**values["image"])
    here = {"registry.k8s.io/pause:3.10": images.PAUSE, "IMAGE": image}
    return Reader(tmp_path_factory.mktemp("reader"), node.kubeconfig, here)


def test_the_first_pod_runs_and_the_second_waits_until_it_is_gone(node, values, reader):
    team = Team(node, "default")

    def has_what_the_values_say():
        status = node.api.get(NODE_MANIFEST)["status"]
        return status["allocatable"].get("vramwarden.io/vram") == "16Gi"

    def waits_for_memory():
        return [event for event in team.events("second") if SAID["describe pod second"] in event]

    for command in IN_LAPTOP:
        helm = command.startswith("helm ")
        (codes,) = [ENDS_WITH[end] for end in ENDS_WITH if end in command] or [[0]]
        more = f" --timeout=5m {images.naming(values)}" if helm else ""
        said = reader.run(command + more, *codes)
        assert all(words in said for item, words in SAID.items() if item in command)
        if helm:
            # A new node waits for a minute in case other allocators of its GPUs appear.
            wait_until("its 16Gi", has_what_the_values_say, timeout=SETTLE_S + 30)
        elif "run first" in command:
            found = team.wait_ready("first")
            assert [container["name"] for container in found["spec"]["containers"]] == ["first"]
            assert "initContainers" not in found["spec"]
            limits = found["spec"]["containers"][0]["resources"]["limits"]
            assert limits == {"vramwarden.io/vram": "10Gi"}
        elif "run second" in command:
            team.wait("that it waits", waits_for_memory)
            assert not is_ready(team.pod("second")), json.dumps(team.pod("second")["status"])
    team.wait_ready("second")


def test_helm_test_passes(node, reader):
    release = Release(charts.Helm(reader.folder, node.kubeconfig))
    assert "Phase:          Succeeded" in release.test()


def test_nothing_is_left_after_what_the_page_asks_for(node, reader):
    team = Team(node, "default")
    for found in team.pods():
        team.delete_pod(found["metadata"]["name"])
    said = [reader.run(command) for command in IN_UNINSTALL]
    left = node.api.get(NODE_MANIFEST)
    metadata = left["metadata"]["labels"], left["metadata"]["annotations"]
    assert "vramwarden.io" not in json.dumps([*metadata, left["status"]])
    found, *_ = [line for line in said if "would remove" in line]
    assert f"node {left['metadata']['name']}: would remove " in found
    (by_image,) = [
        text
        for text, line in zip(said, IN_UNINSTALL, strict=True)
        if " run vramwarden-clean" in line
    ]
    assert "nothing of vramwarden is left" in by_image
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert node.api.list(definitions, labelSelector="app.kubernetes.io/name=vramwarden") == []
