"""Fixtures for the chart: Helm, and Helm as administrator of the shared control plane."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.chart.admission_policies import keep_parameters_followed
from tests.support import charts


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    """Run Helm without a cluster."""
    if not charts.available():
        pytest.skip(charts.MISSING)
    return charts.Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def control_plane(helm, control_plane):  # in this order: what is missing first is said
    keep_parameters_followed(control_plane.api)
    return control_plane


@pytest.fixture
def api(control_plane):
    return control_plane.api


@pytest.fixture(scope="session")
def live_helm(control_plane, tmp_path_factory):
    """Run Helm as administrator of the cluster."""
    return charts.Helm(tmp_path_factory.mktemp("live-helm"), control_plane.kubeconfig)


@pytest.fixture(scope="session")
def promtool(tmp_path_factory):
    """Run Prometheus' own tool on files that hold these texts."""
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("tests of PromQL need promtool, e.g. of Debian's package prometheus")

    def run(*arguments, files=None, given=None):
        folder = tmp_path_factory.mktemp("promtool")
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        done = subprocess.run(
            [path, *arguments], cwd=folder, input=given, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run
