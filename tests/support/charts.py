"""Render, install and uninstall the chart with Helm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from tests.support.paths import DEPLOY

Json = dict[str, Any]

CHART = DEPLOY / "chart" / "vramwarden"
NAMESPACE = "vramwarden-system"
KUBE_VERSION = "1.36"
NAMES: Json = {
    "image": {"repository": "vramwarden/vramwarden"},
    "enforcer": {"repository": "vramwarden/enforcer"},
}
"""Image names, which the chart requires."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""C loader: Helm renders in 0.2 s, and the Python loader would take 0.5 s more."""
MISSING = "chart tests need helm, e.g. by `go install helm.sh/helm/v3/cmd/helm@latest`"


def available() -> bool:
    return shutil.which("helm") is not None


def rendered(values: Json | None = None) -> list[Json]:
    """Return the objects of the rendered chart. Skip the test without Helm."""
    if not available():
        pytest.skip(MISSING)
    with TemporaryDirectory() as folder:
        values = {"namespace": {"create": True}, **(values or {})}
        return Helm(Path(folder)).render(values, "--no-hooks")


class HelmError(Exception):
    """Raised if Helm fails; has Helm's output."""


class Helm:
    """Helm without repositories and user settings."""

    def __init__(
        self, folder: Path, kubeconfig: Path | None = None, version: str = KUBE_VERSION
    ) -> None:
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "KUBECONFIG": str(kubeconfig or folder / "none"),
        }
        self._folder = folder
        self._version = version

    def run(self, *arguments: str) -> str:
        """Run a command and return its standard output. Raises HelmError."""
        command = ["helm", *arguments]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HelmError(done.stderr)
        return done.stdout

    def text(self, values: Json | None = None, *options: str) -> str:
        """Render the chart for a Kubernetes version, by default the one given last."""
        return self.run(
            "template",
            "vramwarden",
            str(CHART),
            "--namespace",
            NAMESPACE,
            "--kube-version",
            self._version,
            *self.values(values),
            *options,
        )

    def render(self, values: Json | None = None, *options: str) -> list[Json]:
        return [item for item in yaml.load_all(self.text(values, *options), LOADER) if item]

    def values(self, values: Json | None) -> tuple[str, ...]:
        """Return the options for values. Images get names unless the values set them."""
        given = {**NAMES, **(values or {})}
        for key, names in NAMES.items():
            given[key] = {**names, **given[key]}
        path = self._folder / "values.yaml"
        path.write_text(yaml.safe_dump(given))
        return ("--values", str(path))


class Release:
    def __init__(self, helm: Helm) -> None:
        self.helm = helm

    def install(self, values: Json | None = None) -> str:
        """Install the release, or upgrade it to exactly these values, without waiting for Jobs."""
        return self.helm.run(*self.installing(values), "--no-hooks")

    def installing(self, values: Json | None = None) -> tuple[str, ...]:
        """Return the command that `install` runs."""
        # Without --reset-values, a release keeps old values that are not set again.
        options = ("--namespace", NAMESPACE, "--create-namespace", "--reset-values")
        given = self.helm.values(values)
        return ("upgrade", "--install", "vramwarden", str(CHART), *options, *given)

    def uninstall(self, *options: str) -> str:
        return self.helm.run("uninstall", "vramwarden", "--namespace", NAMESPACE, *options)


def a_namespace(name: str, labels: Json | None = None) -> Json:
    """Return a namespace that Helm treats as part of the release.

    No test deletes namespaces, so later tests use those that the first test created.
    """
    of = {"meta.helm.sh/release-name": "vramwarden", "meta.helm.sh/release-namespace": NAMESPACE}
    marks = {"app.kubernetes.io/managed-by": "Helm", **(labels or {})}
    metadata = {"name": name, "labels": marks, "annotations": of}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def one(objects: list[Json], kind: str, name: str = "") -> Json:
    """Return the only object of a kind, optionally with a name."""
    found = [
        thing
        for thing in objects
        if thing["kind"] == kind and name in ("", thing["metadata"]["name"])
    ]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def hooks(thing: Json) -> str:
    """Return the Helm hook of an object, or "" if the object is part of the release."""
    return str((thing["metadata"].get("annotations") or {}).get("helm.sh/hook", ""))


def webhook(objects: list[Json], kind: str) -> Json:
    """Return vramwarden's webhook for pods in the configuration of a kind."""
    return dict(one(objects, kind)["webhooks"][0])


def binding_webhook(objects: list[Json]) -> Json:
    """Return vramwarden's webhook for bindings."""
    return dict(one(objects, "MutatingWebhookConfiguration")["webhooks"][-1])


def pod_templates(objects: list[Json]) -> list[Json]:
    """Return all pod templates of the objects."""
    found = []
    for thing in objects:
        if thing["kind"] in {"Deployment", "DaemonSet", "Job"}:
            template = thing["spec"]["template"]
            metadata = {
                **template["metadata"],
                "name": thing["metadata"]["name"],
                "namespace": thing["metadata"]["namespace"],
            }
            found.append({"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata})
        elif thing["kind"] == "Pod":
            found.append(thing)
    return found
