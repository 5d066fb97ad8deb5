"""The project's own promises: reasons beside dependencies, what is installed, what is imported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from tests.support.paths import ROOT
from webhook.adapters.policy.files import shipped_policy_path
from webhook.names import ENFORCER_COMMAND
from webhook.server.reviews import PHASES
from webhook.server.router import ADVISED_AT


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


def test_a_wheel_holds_policy_reviews_and_types(tmp_path):
    pytest.importorskip("pip", reason="a wheel is built with pip, which `make test-min` has not")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("vramwarden-*.whl")
    listing = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True, check=True
    ).stdout
    for name in (
        "webhook/shipped/default.yaml",
        "webhook/cli/demo_reviews/annotated.json",
        "webhook/py.typed",
        "webhook/sidecar/__main__.py",
        "certs/__init__.py",
    ):
        assert name in listing
    assert "tests/" not in listing


def test_manifests_name_the_paths_that_the_server_serves():
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "local.yaml").read_text()))
    urls = [hook["clientConfig"]["url"] for one in documents for hook in one["webhooks"]]
    assert urls == [f"https://127.0.0.1:8443{path}" for path in (*PHASES, ADVISED_AT.decode())]
    assert ENFORCER_COMMAND[-1] == "webhook.sidecar"
