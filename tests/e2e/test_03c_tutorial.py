"""The commands of deploy/tutorial.md, literally and in order.

A small program replaces the notebook and PyTorch. Commands that install and uninstall the whole
release are tested elsewhere, see tests/support/command_coverage.py.
"""

from __future__ import annotations

import re

import pytest

from tests.e2e.images import PAUSE
from tests.e2e.pods import GIB, HOLD, IMAGE
from tests.e2e.team import Team
from tests.support.command_coverage import commands_of
from tests.support.page_reader import Reader

NOTEBOOK = "quay.io/jupyter/pytorch-notebook:cuda12-latest"
IDLE = "[sh, -c, while true; do sleep 1; done]"
HELD = 8 * GIB

ACCOUNTS = "/api/v1/namespaces/team-a/serviceaccounts"
ENDS_WITH = {"exec notebook-0 -- python": [143], "explain": [0, 1], "check": [0, 1]}
"""Exit codes of commands that contain a text; all others end with 0."""


def here(command):
    """Return a command for this node's program instead of a notebook and PyTorch."""
    takes = f"sh -c '{HOLD.replace('$$', '$')}hold {HELD}; forever'"
    command = re.sub(r"python -c \\\n  '.+'$", lambda _: takes, command)
    runs = f"image: {IMAGE}\n        imagePullPolicy: IfNotPresent\n        command: {IDLE}"
    command = command.replace(f"image: {NOTEBOOK}", runs)
    return command.replace(f"--image={NOTEBOOK}", f"--image={PAUSE}")


@pytest.fixture
def reader(gpu_node, release, tmp_path):
    yield Reader(tmp_path, gpu_node.kubeconfig)
    gpu_node.kubectl("delete", "namespace", "team-a", "--ignore-not-found", "--wait=false")


def test_who_follows_the_tutorial_gets_two_notebooks_on_one_card(gpu_node, reader):
    team, said = Team(gpu_node, "team-a"), {}
    for _, command in commands_of(__file__):
        codes = next((codes for text, codes in ENDS_WITH.items() if text in command), ())
        said[command] = reader.run(here(command), *codes)
        if command.startswith("kubectl create namespace"):
            team.wait("its service account", lambda: team.api.list(ACCOUNTS))

    def heard(text):
        """Return the output of the only command that contains a text."""
        (found,) = [line for command, line in said.items() if text in command]
        return found

    assert "translated by rule default (6Gi on 1 GPU)" in heard("vramwarden admit")
    _, *rows = heard("custom-columns='POD:").splitlines()
    assert [row.split()[0] for row in rows] == ["notebook-0", "notebook-1"]
    assert len({row.split()[1] for row in rows}) == 1, rows
    variables = heard("exec notebook-0 -- env")
    assert "VRAMWARDEN_GPU_MEMORY_MIB=6144" in variables
    explained = heard("explain -n team-a notebook-0")
    assert "8Gi" in explained
    assert "→ vramwarden.io/gpu-memory: " in explained
    assert "500Gi" in heard("explain -n team-a huge")
    assert "12Gi" in heard("describe quota")
