"""Fixtures: a checkout for a release, and an image builder that needs no base image."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from deploy import oci, release
from tests.support import charts
from tests.support.paths import ROOT

COMMITTED = "2026-11-01T10:00:00+00:00"
EPOCH = 1793527200
PARTS = ("certs", "deploy", "policies", "webhook")
TEXTS = ("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", ".gitignore")
VERSION = "7.8.9"

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 Status: this is text

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
HELD = {
    "var/lib/dpkg/status": STATUS,
    "usr/lib/os-release": 'ID=debian\nVERSION_ID="12"\n',
    "opt/vramwarden/lib/python3.11/site-packages/flask-3.1.dist-info/METADATA": (
        "Metadata-Version: 2.4\nName: Flask\nVersion: 3.1.3\n\nName: text\n"
    ),
}

BUILDER = """\
#!/bin/sh -e
# Stands for buildah: "builds" a layout that is there already.
case $1 in
  --version) echo "buildah version 1.40.0 (image-spec 1.1.0)";;
  images) ;;
  build)
    echo "$@" >> "$LAYOUTS/asked.txt"
    while [ "$1" != --iidfile ]; do shift; done
    echo "sha256:$(basename "$2" .id)" > "$2";;
  push) to=${4#oci:}; cp -R "$LAYOUTS/$3" "${to%:*}";;
esac
"""


def git(folder: Path, *arguments: str) -> str:
    env = {
        "PATH": str(shutil.which("git")).removesuffix("/git"),
        "HOME": str(folder),
        "GIT_COMMITTER_DATE": COMMITTED,
    }
    who = ["-c", "user.name=a", "-c", "user.email=a@example"]
    command = ["git", *who, *arguments]
    done = subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True)
    return done.stdout


def set_version(checkout: Path, version: str, *places: str) -> None:
    """Write a version to the files of the checkout that contain one."""
    chart = checkout / "deploy/chart/vramwarden/Chart.yaml"
    for name, path, begin, end in (
        ("package", checkout / "webhook/__init__.py", '__version__ = "', '"'),
        ("chart", chart, "version: ", ""),
        ("chart", chart, "appVersion: ", ""),
    ):
        if name in places:
            lines = path.read_text().splitlines()
            made = [f"{begin}{version}{end}" if line.startswith(begin) else line for line in lines]
            path.write_text("\n".join(made) + "\n")
    if "changelog" in places:
        log = checkout / "CHANGELOG.md"
        log.write_text(f"# Changelog\n\n## {version} - 2026-11-01\n\n{log.read_text()}")


@pytest.fixture(scope="package")
def original(tmp_path_factory):
    """Return a committed checkout in which all versions agree."""
    folder = tmp_path_factory.mktemp("original")
    ignored = shutil.ignore_patterns("__pycache__", "*.key")
    for name in PARTS:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in TEXTS:
        shutil.copy(ROOT / name, folder)
    set_version(folder, VERSION, "package", "chart", "changelog")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "All")
    return folder


@pytest.fixture
def checkout(original, tmp_path):
    """Return a clone of the original checkout."""
    git(tmp_path, "clone", "--quiet", str(original), "checkout")
    return tmp_path / "checkout"


@pytest.fixture(scope="package")
def layouts(tmp_path_factory):
    """Return a folder with a layout of each image, as a builder would write them."""
    folder = tmp_path_factory.mktemp("layouts")
    for name in ("vramwarden", "enforcer"):
        content = {path: text.encode() for path, text in HELD.items()}
        layer = oci.compress(oci.pack({**content, "etc/name": name.encode()}, 0))
        settings = (
            b'{"os":"linux","architecture":"amd64","config":{"Env":["PYTHON_VERSION=3.11.9"]}}'
        )
        kinds = (
            "application/vnd.oci.image.config.v1+json",
            "application/vnd.oci.image.layer.v1.tar+gzip",
        )
        oci.write_artifact(folder / name, VERSION, (kinds[0], settings), (kinds[1], layer), {})
    return folder


@pytest.fixture
def builder(layouts, tmp_path, monkeypatch):
    """Put a fake builder on PATH and return the file with its arguments."""
    program = tmp_path / "bin" / "buildah"
    program.parent.mkdir()
    program.write_text(BUILDER)
    program.chmod(0o755)
    (layouts / "asked.txt").unlink(missing_ok=True)
    monkeypatch.setenv("LAYOUTS", str(layouts))
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    for name in ("PREFIX", "BASE", "BUILD_FLAGS", "ENGINE", "VERSION", "OCI"):
        monkeypatch.delenv(name, raising=False)
    return layouts / "asked.txt"


def released(checkout, output, *, with_images=True):
    """Build a release of a checkout; return its folder."""
    return release.build(checkout, release.read_release(checkout), output, with_images=with_images)


@pytest.fixture
def made(checkout, builder, tmp_path):
    """Return the folder of a release."""
    if not charts.available():
        pytest.skip(charts.MISSING)
    return released(checkout, tmp_path / "out")
