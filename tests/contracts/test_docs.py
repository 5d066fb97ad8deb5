"""The documentation is tested: what it names exists, and what exists is named."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest

from tests.support.paths import ROOT
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from webhook import names
from webhook.cli.main import main
from webhook.core.admission.decide import Phase, decide
from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV
from webhook.core.pod.findings import Reason
from webhook.core.policy.values import Bounds

README = (ROOT / "README.md").read_text()
DOCUMENTS = [
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith((".venv", ".git")) for part in path.relative_to(ROOT).parts)
]


def commands(group, path=()):
    """Yield the path of every command and group."""
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_in_the_readme_with_what_to_do(reason):
    assert re.search(rf"^\| `{reason}` \| `.+` \| .+ \|$", README, re.MULTILINE)


@pytest.mark.parametrize(
    "name",
    [
        names.GPU_MEMORY_ANNOTATION,
        names.GPU_CLASS_ANNOTATION,
        names.GPU_COUNT_ANNOTATION,
        names.ADMITTED_ANNOTATION,
        names.GPU_ANNOTATION,
        names.MANAGED_LABEL,
        names.VRAM_RESOURCE,
        names.ENFORCER_CONTAINER,
    ],
)
def test_every_name_that_users_meet_is_in_the_readme(name):
    assert f"`{name}" in README


RULE = a_rule(name="team", memory=Bounds(max_bytes=40 * 2**30), max_gpu_count=8)
EXAMPLES = {
    "InvalidQuantity": a_pod("8GB"),
    "TooSmall": a_pod("8192"),
    "TooLarge": a_pod("80Gi"),
    "UnknownContainer": a_pod("trainr=8Gi", containers=[a_container("trainer")]),
    "InvalidCount": a_pod("8Gi", annotations={names.GPU_COUNT_ANNOTATION: "two"}),
    "RequestsLimitsMismatch": a_pod(
        containers=[
            a_container(
                resources={"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "1"}}
            )
        ]
    ),
    "FractionalWholeGPU": a_pod(
        containers=[a_container(resources={"limits": {"nvidia.com/gpu": "500m"}})]
    ),
    "WholeGPUAndShare": a_pod(
        "8Gi", containers=[a_container(resources={"limits": {"nvidia.com/gpu": "1"}})]
    ),
    "ConflictingAmounts": a_pod(
        "8Gi", containers=[a_container(resources={"limits": {names.VRAM_RESOURCE: "4Gi"}})]
    ),
    "NodeSelectorConflict": a_pod("8Gi", nodeSelector={names.NODE_GPU_LABEL: "false"}),
    "HostPID": a_pod("8Gi", hostPID=True),
    "ProcessNamespaceNotShared": a_pod("8Gi", shareProcessNamespace=False),
    "NodeNamePreset": a_pod("8Gi", nodeName="node1"),
    "PrivilegedContainer": a_pod(
        "8Gi", containers=[a_container(securityContext={"privileged": True})]
    ),
    "VisibleDevicesOverride": a_pod(
        containers=[a_container(env=[{"name": VISIBLE_DEVICES_ENV, "value": "all"}])]
    ),
    "ReservedName": a_pod(containers=[a_container(names.ENFORCER_CONTAINER)]),
    "UnsupportedOS": a_pod("8Gi", os={"name": "windows"}),
}


@pytest.mark.parametrize("reason", EXAMPLES)
def test_the_texts_in_the_readme_are_the_real_ones(reason):
    decision = decide(a_request(EXAMPLES[reason]), a_policy(RULE), Phase.MUTATE)
    details = [finding.detail for finding in decision.findings if finding.reason == reason]
    (shown,) = re.findall(rf"^\| `{reason}` \| `(.+?)` \|", README, re.MULTILINE)
    assert any(detail.startswith(shown.removesuffix(" ...")) for detail in details), details


@pytest.mark.parametrize("path", list(commands(main)), ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h", "--version"])
def test_every_level_of_the_command_has_help_and_version(path, option):
    done = subprocess.run(
        [sys.executable, "-m", "webhook.cli", *path, option],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("Usage:", "vramwarden, version"))


def test_every_command_and_option_has_help():
    def check(command, path):
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help or parameter.name == "output", (path, parameter.name)
        for name, sub in getattr(command, "commands", {}).items():
            check(sub, (*path, name))

    check(main, ())


def blocks(text):
    """Return the lines of the sh blocks."""
    found = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in found for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_documents_exist(document):
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {" ".join(path) for path in commands(main)}
    for line in blocks(document.read_text()):
        words = line.split("#")[0].split()
        if words[:1] == ["make"]:
            assert words[1] in targets, line
        elif words and words[0].endswith("vramwarden"):
            subcommand = [word for word in words[1:3] if re.fullmatch("[a-z]+", word)]
            while subcommand and " ".join(subcommand) not in known:
                subcommand.pop()
            assert subcommand, line


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not target.startswith("https://"):
            assert (document.parent / target).exists(), target


def test_the_readme_says_what_it_cannot_do_on_the_first_screen():
    assert README.index("## What it cannot do") < 1000
    assert "565.57.01" in README
