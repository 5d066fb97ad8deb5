"""Commands of the pages that need a node: logs, programs in pods, images."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex

from deploy import oci
from tests.e2e.images import ARCHITECTURES, busybox_root, layer_of, release
from tests.e2e.node import NODE
from tests.e2e.pods import IMAGE, container, holding, pod
from tests.support.command_coverage import commands_of
from tests.support.page_reader import Reader

IMPORT = ["ctr", "--namespace", "k8s.io", "images", "import"]
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"


def test_the_commands_run(gpu_node, agent, team, tmp_path):
    team.create(pod("held", "1Gi", holding("forever")))
    team.wait_ready("held")
    here = {
        "AGENT": agent.ready()["metadata"]["name"],
        "NODE": NODE,
        "POD": f"held -n {team.namespace}",
        "busybox": IMAGE,
    }
    reader = Reader(tmp_path, gpu_node.kubeconfig, here)
    lines = [command for _, command in commands_of(__file__) if not command.startswith("ctr ")]
    said = {command: reader.run(command) for command in lines}
    (tags,) = [line for command, line in said.items() if "-o tags" in command]
    assert "k8s.io/cluster-autoscaler/node-template/" in tags
    team.delete_pod("held")


def test_an_image_that_a_node_imported_starts_by_its_digest(node, team, tmp_path):
    digest, archive = archive_of_a_release(tmp_path)
    lines = [command for _, command in commands_of(__file__) if command.startswith("ctr ")]
    names = []
    for *program, digests, base, name, file in map(shlex.split, lines):
        assert (program, file) == (IMPORT, f"image-{name.split('/')[-1]}-VERSION-linux-amd64.tar")
        node.import_image(archive, digests, base, name)
        names.append(name)
    containers = [
        container(["sh", "-c", "sleep 1000"], name=f"from-{i}", image=f"{name}@{digest}")
        for i, name in enumerate(names)
    ]
    assert len(containers) == 2
    team.create(pod("imported", None, [], containers=containers))
    team.wait_ready("imported")
    team.delete_pod("imported")


def archive_of_a_release(folder):
    """Write the workload image as a release writes its images; return digest and file."""
    layer = layer_of(busybox_root(folder))
    image = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    settings = (CONFIG, json.dumps(image).encode())
    layout = folder / "layout"
    digest = oci.write_artifact(layout, release(), settings, (LAYER, layer), {})
    archive = folder / "image.tar"
    archive.write_bytes(oci.pack(oci.contents(layout), 0))
    return digest, archive
