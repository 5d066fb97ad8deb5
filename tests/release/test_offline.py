"""Commands of deploy/offline.md with a release, on a machine without network."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import venv

import pytest
import yaml

from deploy import oci
from tests.release.conftest import VERSION
from tests.support import charts
from tests.support.command_coverage import commands_of
from tests.support.paths import ROOT
from tests.support.registries import storing

pytestmark = pytest.mark.process


def asked(program):
    """Return the page's commands that run a program, adapted to this release."""
    lines = [item for _, item in commands_of(__file__) if item.startswith(f"{program} ")]
    assert lines
    return [shlex.split(line.replace("VERSION", VERSION)) for line in lines]


def test_the_checksums_are_those_of_the_files(made):
    (command,) = asked("sha256sum")
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with (made / f"vramwarden-{VERSION}.tgz").open("ab") as file:
        file.write(b"x")
    assert subprocess.run(command, cwd=made, capture_output=True, check=False).returncode == 1


def test_images_and_chart_keep_their_digests_in_a_registry(made, layouts):
    if not shutil.which("skopeo"):
        pytest.skip("needs skopeo")
    with storing() as (address, contents):
        for command in asked("skopeo"):
            here = [item.replace("registry.example", address) for item in command]
            subprocess.run([*here, "--dest-tls-verify=false"], cwd=made, check=True)
    pushed = {path: content for path, content in contents.items() if "/manifests/" in path}
    manifests = {
        path: f"sha256:{hashlib.sha256(content).hexdigest()}" for path, content in pushed.items()
    }
    assert manifests == {
        f"team/vramwarden/vramwarden/manifests/{VERSION}": oci.digest(layouts / "vramwarden"),
        f"team/vramwarden/enforcer/manifests/{VERSION}": oci.digest(layouts / "enforcer"),
        f"team/charts/vramwarden/manifests/{VERSION}": oci.digest(made / "chart"),
    }
    for content in pushed.values():
        manifest = json.loads(content)
        assert {layer["digest"] for layer in (manifest["config"], *manifest["layers"])} <= {
            *contents
        }


@pytest.mark.cluster
def test_the_chart_is_installed_from_its_file(control_plane, made, layouts, tmp_path):
    helm = charts.Helm(tmp_path, control_plane.kubeconfig, control_plane.api.version)
    ((_, *command),) = asked("helm")
    command.remove("--wait")  # no kubelet runs here
    names = [f"--set={image}.repository=registry.example/{image}" for image in charts.NAMES]
    chart = command.index(f"vramwarden-{VERSION}.tgz")
    command[chart] = str(made / command[chart])
    helm.run(*command, "--create-namespace", "--no-hooks", *names)
    path = f"/apis/apps/v1/namespaces/{charts.NAMESPACE}/deployments/vramwarden-webhook"
    template = control_plane.api.request("GET", path)["spec"]["template"]
    helm.run("uninstall", "vramwarden", "--namespace", charts.NAMESPACE, "--no-hooks")
    (container,) = template["spec"]["containers"]
    digests = {image: oci.digest(layouts / image) for image in ("vramwarden", "enforcer")}
    assert container["image"] == f"registry.example/image@{digests['vramwarden']}"
    assert f"--enforcer-image=registry.example/enforcer@{digests['enforcer']}" in container["args"]


def test_the_command_is_installed_from_a_folder(made, tmp_path):
    (pip, *command) = asked("pip")[0]
    venv.create(tmp_path / "environment", with_pip=False)
    (made / "wheels").mkdir()
    python = tmp_path / "environment/bin/python"
    run = [sys.executable, "-m", pip, "--python", python, *command, "--quiet", "--no-deps"]
    subprocess.run(run, cwd=made, check=True)
    listed = subprocess.run(
        [*run[:5], "list", "--format=json"], capture_output=True, text=True, check=True
    )
    assert {item["name"]: item["version"] for item in yaml.safe_load(listed.stdout)} == {
        "vramwarden": VERSION
    }


def test_what_commands_say_of_the_sidecars_image_is_quoted():
    recorded = ROOT / "tests/tools/situations/recorded"
    said = "".join(path.read_text() for path in sorted(recorded.glob("*.txt")))
    page = (ROOT / "deploy/offline.md").read_text()
    quoted = re.findall(r"\| `vramwarden \w+.*?` \| `(.+?)`", page)
    assert len(quoted) == 4
    for text in quoted:
        for part in text.replace("team-a/train: ", "...").split("..."):
            words = part.strip(" :").replace("vram-enforcer", "main")
            assert words in said or words == "401 Unauthorized", words


def test_nothing_but_the_adapter_of_the_api_server_connects():
    """The page states this. `vramwarden demo` connects to the server that it started."""
    clients = {"aiohttp", "http.client", "kubernetes", "requests", "urllib.request", "urllib3"}
    connecting = set()
    for path in (ROOT / "webhook").rglob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        names |= {
            name.name for node in nodes if isinstance(node, ast.Import) for name in node.names
        }
        if any(
            name == client or name.startswith(f"{client}.") for name in names for client in clients
        ):
            connecting.add(str(path.relative_to(ROOT / "webhook")))
    elsewhere = {item for item in connecting if not item.startswith("adapters/kube/")}
    assert elsewhere == {"cli/demo.py"}
    assert len(connecting) > 1
