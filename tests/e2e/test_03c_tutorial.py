"""The commands of deploy/tutorial.md, as they stand there, one after the other.

A small program stands in for the notebook, and for what is run in it. What a whole release is
installed and uninstalled with is left to the stories named below.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.e2e.images import PAUSE
from tests.e2e.pods import GIB, HOLD, IMAGE
from tests.e2e.team import Team
from tests.support.control_planes import find_binary
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TUTORIAL = ROOT / "deploy" / "tutorial.md"
NOTEBOOK = "quay.io/jupyter/pytorch-notebook:cuda12-latest"
IDLE = "[sh, -c, while true; do sleep 1; done]"
HELD = 8 * GIB

ELSEWHERE = {
    "REGISTRY=": "images.py names the images",
    "make image": "images.py",
    "make demo": ".ci/run",
    ".venv/bin/vramwarden check --pre": "test_10b_seeing.py",
    "kubectl create namespace vramwarden-system": "conftest.py, release",
    "kubectl label namespace vramwarden-system": "conftest.py, release",
    "helm upgrade --install": "conftest.py, release",
    "helm uninstall": "test_99_farewell.py",
    "kubectl delete namespace vramwarden-system": "conftest.py, release",
}
"""Beginnings of commands that are run by others, and by whom."""

ENDS_WITH = {"exec notebook-0 -- python": {143}, "explain": {0, 1}, "check": {0, 1}}
"""Exit codes of commands that contain a text; all others end with 0."""


def commands():
    """Yield the commands of the tutorial, each with its continuation lines and here-document."""
    for block in re.findall(r"^```sh\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL):
        lines = iter(block.splitlines())
        for line in lines:
            command = [line]
            while command[-1].endswith("\\"):
                command.append(next(lines))
            if "<<EOF" in line:
                while command[-1] != "EOF":
                    command.append(next(lines))
            yield "\n".join(command)


def here(command):
    """Return a command with what is on this node in place of a notebook and of PyTorch."""
    takes = f"sh -c '{HOLD.replace('$$', '$')}hold {HELD}; forever'"
    command = re.sub(r"python -c '.+'$", lambda _: takes, command)
    runs = f"image: {IMAGE}\n        imagePullPolicy: IfNotPresent\n        command: {IDLE}"
    command = command.replace(f"image: {NOTEBOOK}", runs)
    return command.replace(f"--image={NOTEBOOK}", f"--image={PAUSE}")


@pytest.fixture(scope="module")
def reader(gpu_node, release, tmp_path_factory):
    """Return a shell in which a reader runs commands, with `kubectl` and `vramwarden`."""
    folder = tmp_path_factory.mktemp("reader")
    programs = folder / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(find_binary("kubectl"))
    command = programs / "vramwarden"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m webhook.cli "$@"\n')
    command.chmod(0o755)
    paths = [str(programs), os.environ["PATH"]]
    env = {
        **os.environ,
        "PATH": ":".join(paths),
        "PYTHONPATH": str(ROOT),
        "KUBECONFIG": str(gpu_node.kubeconfig),
        "COLUMNS": "100",
    }
    yield Reader(Team(gpu_node, "team-a"), folder, env)
    gone = ("delete", "namespace", "team-a", "--ignore-not-found", "--wait=false")
    gpu_node.kubectl(*gone)


class Reader:
    """Runs commands in a folder, and keeps what each said."""

    def __init__(self, team, folder, env):
        self.team = team
        self._folder: Path = folder
        self._env = env
        self.said: dict[str, str] = {}

    def run(self, command):
        """Run a command of the tutorial; it must end as the tutorial says."""
        done = subprocess.run(
            ["bash", "-c", here(command)],
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        print(f"$ {command}\n{done.stdout}{done.stderr}")
        ends = next((codes for text, codes in ENDS_WITH.items() if text in command), {0})
        assert done.returncode in ends, (done.returncode, done.stdout, done.stderr)
        self.said[command] = done.stdout + done.stderr

    def heard(self, text):
        """Return what the only command with a text said."""
        (found,) = [said for command, said in self.said.items() if text in command]
        return found


def test_who_follows_the_tutorial_gets_two_notebooks_on_one_card(reader):
    for command in commands():
        if not command.startswith(tuple(ELSEWHERE)):
            reader.run(command)
            if command.startswith("kubectl create namespace"):
                reader.team.wait("its service account", lambda: _accounts(reader.team))

    assert "translated by rule default (6Gi on 1 GPU)" in reader.heard("vramwarden admit")
    _, *rows = reader.heard("custom-columns='POD:").splitlines()
    assert [row.split()[0] for row in rows] == ["notebook-0", "notebook-1"]
    assert len({row.split()[1] for row in rows}) == 1, rows
    variables = reader.heard("exec notebook-0 -- env")
    assert "VRAMWARDEN_GPU_MEMORY_MIB=6144" in variables
    explained = reader.heard("explain -n team-a notebook-0")
    assert "8Gi" in explained
    assert "enough" in explained
    assert "500Gi" in reader.heard("explain -n team-a huge")
    assert "12Gi" in reader.heard("describe quota")


def test_every_command_that_is_left_to_others_stands_in_the_tutorial():
    found = list(commands())
    for beginning in ELSEWHERE:
        assert any(command.startswith(beginning) for command in found), beginning


def _accounts(team):
    return team.api.list(f"/api/v1/namespaces/{team.namespace}/serviceaccounts")
