"""Reasons of dependencies, contents of the package, and its imports."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile

import pytest
import yaml

from tests.support.command_coverage import commands_of
from tests.support.paths import ROOT
from webhook import __version__
from webhook.adapters.policy.files import shipped_policy_path
from webhook.names import ENFORCER_COMMAND
from webhook.server.reviews import PHASES
from webhook.server.router import ADVISE_PATH


def test_every_dependency_has_its_reason_beside_it():
    text = (ROOT / "pyproject.toml").read_text()
    dependencies = tomllib.loads(text)["project"]["dependencies"]
    for dependency in dependencies:
        assert ">=" in dependency
        assert re.search(rf'"{re.escape(dependency)}",\s+# \S', text), dependency


def test_importing_the_package_and_the_core_loads_nothing_heavy():
    code = "import sys, json, webhook.core.admission.decide; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert not loaded & {"flask", "gunicorn", "kubernetes", "pydantic", "yaml", "ruamel", "click"}
    assert "jsonpatch" in loaded


def test_the_shipped_policy_is_found():
    assert yaml.safe_load(shipped_policy_path().read_text())["kind"] == "VRAMPolicy"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel as a release does."""
    pytest.importorskip("hatchling", reason="`make test-min` has not what builds a wheel")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("vramwarden-*.whl")
    return wheel


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):
    """Install the wheel with its dependencies as on the page, without a checkout."""
    pytest.importorskip("pip", reason="`make test-min` has not what installs a wheel")
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    ((_, command),) = commands_of(__file__)
    pip, install, address = shlex.split(command.replace("VERSION", __version__))
    pip = [sys.executable, "-m", pip, "--python", folder / "bin" / "python"]
    local = address.replace("https://files.example", wheel.parent.as_uri())
    subprocess.run([*pip, install, "--quiet", "--no-deps", "--no-index", local], check=True)
    (package,) = folder.glob("lib/python*/site-packages/webhook")
    (package.parent / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def test_a_wheel_holds_types_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {"webhook/py.typed", "webhook/sidecar/__main__.py", "certs/__init__.py"} <= {*names}
    assert "webhook/tools/top/page.html.jinja" in names
    assert not [name for name in names if name.startswith("tests/")]


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train, annotations: {vramwarden.io/gpu-memory: 8Gi}}
spec: {containers: [{name: main, image: example}]}
"""
VERDICT = "Pod default/train: translated by rule default (8Gi on 1 GPU)"


@pytest.mark.parametrize(
    ("command", "stdin", "said"),
    [
        (
            "python -c print(__import__('webhook').__file__)",
            "",
            "/site-packages/webhook/__init__.py",
        ),
        ("vramwarden admit pod.yaml", "", f"pod.yaml:1: {VERDICT}"),
        ("vramwarden admit", POD, f"standard input:1: {VERDICT}"),
        ("kubectl-vramwarden admit pod.yaml -o summary", "", f"pod.yaml:1: {VERDICT}"),
        ("vramwarden policy check policy.yaml", "", "policy.yaml: "),
        ("vramwarden policy schema", "", '"$schema": '),
        ("vramwarden explain --help", "", "Usage: vramwarden explain "),
        ("vramwarden demo", "", "vramwarden.io/gpu-memory: 8GB"),
    ],
)
def test_the_installed_wheel_needs_no_checkout(programs, tmp_path, command, stdin, said):
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "policy.yaml").write_text(shipped_policy_path().read_text())
    program, *arguments = command.split()
    done = subprocess.run(
        [programs / program, *arguments],
        cwd=tmp_path, input=stdin, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said in done.stdout + done.stderr


def test_manifests_name_the_paths_that_the_server_serves():
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "local.yaml").read_text()))
    urls = [hook["clientConfig"]["url"] for document in documents for hook in document["webhooks"]]
    assert urls == [f"https://127.0.0.1:8443{path}" for path in (*PHASES, ADVISE_PATH.decode())]
    assert ENFORCER_COMMAND[-1] == "webhook.sidecar"
