# ruff: noqa: INP001 - a script: it is in no package and no wheel
"""Build a release into dist/release-VERSION: `make release`.

| file | what it is |
| --- | --- |
| vramwarden-VERSION-py3-none-any.whl, vramwarden-VERSION.tar.gz | the Python package, its source |
| image-NAME-VERSION-ARCHITECTURE.tar | each image, as an archive of an OCI layout |
| vramwarden-VERSION.tgz, chart/ | the chart, packed by Helm and as an OCI layout |
| install.yaml | the chart, rendered |
| vramwarden-VERSION.cdx.json | the bill of materials (CycloneDX) |
| SHA256SUMS | checksums of all files, for `sha256sum --check` |

A release is built from the commit, never from the working tree, and all files have the commit's
time: the same commit, base image and tools give the same bytes. Chart and install.yaml name the
images by digest. `make install.yaml` renders only that file, from the working tree. The settings of
deploy/images/build (BASE, PREFIX, BUILD_FLAGS) apply.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version as version_of
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import yaml

from deploy import oci, sbom

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGES: Final = {"image": "vramwarden", "enforcer": "enforcer"}
"""Image names, keyed by chart value."""
STAND_INS: Final = {"image": "WEBHOOK_IMAGE", "enforcer": "ENFORCER_IMAGE"}
"""Placeholders for image names in install.yaml if PREFIX is not set, keyed by chart value."""
_CHART: Final = Path("deploy/chart/vramwarden")
_NAMESPACE: Final = "vramwarden-system"
_OLDEST_KUBERNETES: Final = "1.31"
_LOCK: Final = Path("deploy/images/runtime.txt")
_VERSION: Final = re.compile(r'^__version__ = "(\d+\.\d+\.\d+)"$', re.MULTILINE)
_NO_HELM: Final = "this needs Helm, e.g. by `go install helm.sh/helm/v3/cmd/helm@latest`"
_NO_BUILDER: Final = (
    "images need buildah, which is not on PATH: install it, or leave them out by"
    " `make release WITHOUT_IMAGES=yes`"
)
# An alias that no anchor defines. kubectl stops reading there, and its error quotes the alias,
# which may contain no dot or slash. So applying the file before the image names are set changes
# nothing.
_UNNAMED: Final = "name-both-images-first_as-deploy-install-md-says"
_INSTALL_HEAD: Final = f"""\
# Name both images first: the command in deploy/install.md of the documentation replaces
# {" and ".join(STAND_INS.values())}, and removes the next line.
*{_UNNAMED}
"""
_WITHOUT: Final = """\
make release: WITHOUT IMAGES, as you asked. This is no whole release:
  - no image is in it, and the bill of materials says nothing of any
  - chart and install.yaml name images by tag, and not by digest
"""


class ReleaseError(Exception):
    """Raised if nothing can be released. The message states the cause and the fix."""


class Release(NamedTuple):
    """A version, and the commit from which it is built."""

    version: str
    commit: str
    epoch: int
    """Commit time as Unix time; also the time of all files."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the release. On failure, return 1 and leave no folder."""
    parser = argparse.ArgumentParser(prog="make release", description="Build a release.")
    parser.add_argument("--without-images", action="store_true", help="where nothing builds them")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--only-install-file", type=Path, help="render the chart into this file")
    options = parser.parse_args(arguments)
    try:
        if options.only_install_file:
            options.only_install_file.write_text(install_file(ROOT / _CHART), encoding="utf-8")
            return 0
        release = read_release(ROOT)
        if options.without_images:
            sys.stderr.write(_WITHOUT)
        folder = build(ROOT, release, options.output, with_images=not options.without_images)
    except (ReleaseError, oci.OCIError) as error:
        target = "install.yaml" if options.only_install_file else "release"
        sys.stderr.write(f"make {target}: {error}\n")
        return 1
    sums = (folder / "SHA256SUMS").read_text()
    sys.stdout.write(f"{folder}, of commit {release.commit}:\n{sums}")
    return 0


def read_release(root: Path) -> Release:
    """Return the release of a checkout.

    Raises ReleaseError if files differ from the commit or versions differ from each other.
    """
    changed = _run(["git", "status", "--porcelain"], root).splitlines()
    if changed:
        names = ", ".join(line[3:] for line in changed)
        raise ReleaseError(f"files differ from the commit: commit or remove {names}")
    found = _VERSION.search((root / "webhook" / "__init__.py").read_text(encoding="utf-8"))
    if found is None:
        raise ReleaseError('webhook/__init__.py has no line `__version__ = "MAJOR.MINOR.PATCH"`')
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(found[1])} - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        raise ReleaseError(
            f"CHANGELOG.md has no section for this version: give what is under Unreleased the head"
            f" `## {found[1]} - YYYY-MM-DD`, or set another version in webhook/__init__.py"
        )
    chart = yaml.safe_load((root / _CHART / "Chart.yaml").read_text(encoding="utf-8"))
    if not chart["version"] == chart["appVersion"] == found[1]:
        raise ReleaseError(
            f"Chart.yaml is of {chart['version']}, the package of {found[1]}: run `make generate`"
        )
    commit, epoch = _run(["git", "log", "-1", "--format=%H %ct"], root).split()
    return Release(found[1], commit, int(epoch))


def build(root: Path, release: Release, output: Path, *, with_images: bool) -> Path:
    """Build all files and return their folder, which replaces an older one when complete."""
    tools = _tools(with_images=with_images)
    target = output.resolve() / f"release-{release.version}"
    with TemporaryDirectory(prefix="vramwarden-release-") as scratch:
        source, made, layouts = (Path(scratch) / name for name in ("source", "made", "layouts"))
        made.mkdir()
        export(root, release.commit, source)
        times = {"SOURCE_DATE_EPOCH": str(release.epoch)}
        _run([sys.executable, "-m", "hatchling", "build", "-d", str(made)], source, times)
        images = container_images(source, release, layouts) if with_images else {}
        for name, layout in images.items():
            _pack_image(name, layout, release, made)
        name_images(source / _CHART / "values.yaml", images)
        chart(source / _CHART, release, made)
        (made / "install.yaml").write_text(install_file(source / _CHART), encoding="utf-8")
        bill = sbom.write(*release, (source / _LOCK).read_text(encoding="utf-8"), images, tools)
        (made / f"vramwarden-{release.version}.cdx.json").write_text(bill, encoding="utf-8")
        (made / "SHA256SUMS").write_text(checksums(made), encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    return target


def export(root: Path, commit: str, folder: Path) -> None:
    """Write the commit's files with modes that do not depend on the umask."""
    command = ["git", "-c", "tar.umask=0022", "archive", "--format=tar", commit]
    done = subprocess.run(command, cwd=root, capture_output=True, check=True)  # noqa: S603 - git
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)  # from 3.11.4 on
        archive.extractall(folder)  # noqa: S202 - git wrote it


def container_images(source: Path, release: Release, layouts: Path) -> dict[str, Path]:
    """Build both images and return their OCI layouts, keyed by image name."""
    layouts.mkdir()
    settings = {
        "ENGINE": "buildah",
        "VERSION": release.version,
        "REVISION": release.commit,
        "OCI": str(layouts),
        "BUILD_FLAGS": f"{os.environ.get('BUILD_FLAGS', '')} --timestamp {release.epoch}",
    }
    _run(["deploy/images/build"], source, settings)
    return {name: layouts / name for name in IMAGES.values()}


def name_images(values: Path, images: Mapping[str, Path]) -> None:
    """Write the images' digests into values.yaml, and their repositories if PREFIX is set."""
    text = values.read_text(encoding="utf-8")
    for value, name in IMAGES.items():
        if name in images:
            text = _set_value(text, value, "digest", oci.digest(images[name]))
        if _prefix():
            text = _set_value(text, value, "repository", _repository(name))
    values.write_text(text, encoding="utf-8")


def chart(folder: Path, release: Release, made: Path) -> None:
    """Pack the chart with Helm, repack it reproducibly, and also write it as an OCI layout."""
    packed = made / f"vramwarden-{release.version}.tgz"
    _run([_helm(), "package", str(folder), "--destination", str(made)], folder)
    with tarfile.open(packed) as archive:
        files = {entry.name: _read(archive, entry) for entry in archive if entry.isfile()}
    content = oci.compress(oci.pack(files, release.epoch))
    packed.write_bytes(content)
    about = yaml.safe_load(files["vramwarden/Chart.yaml"])
    notes = {
        "org.opencontainers.image.title": about["name"],
        "org.opencontainers.image.description": about["description"],
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.commit,
    }
    settings = json.dumps(about, sort_keys=True).encode()
    oci.write_artifact(
        made / "chart",
        release.version,
        (oci.CHART_CONFIG, settings),
        (oci.CHART_CONTENT, content),
        notes,
    )


def install_file(chart: Path) -> str:
    """Render the chart with its defaults and without Helm's hooks, for `kubectl apply`.

    Without PREFIX, image names are placeholders, and the file cannot be applied unedited.
    """
    names = {value: _repository(name) for value, name in IMAGES.items()} if _prefix() else STAND_INS
    options = ["--namespace", _NAMESPACE, "--set", "namespace.create=true", "--no-hooks"]
    options += [f"--set={value}.repository={name}" for value, name in names.items()]
    options += ["--kube-version", _OLDEST_KUBERNETES]
    rendered = _run([_helm(), "template", "vramwarden", str(chart), *options], ROOT)
    return f"{'' if _prefix() else _INSTALL_HEAD}{rendered}\n"


def checksums(folder: Path) -> str:
    """Return the checksums of a folder's files in the format of sha256sum."""
    return "".join(
        f"{hashlib.sha256(content).hexdigest()}  {path}\n"
        for path, content in oci.contents(folder).items()
    )


def _pack_image(name: str, layout: Path, release: Release, made: Path) -> None:
    about = oci.config(layout)
    archive = made / f"image-{name}-{release.version}-{about['os']}-{about['architecture']}.tar"
    archive.write_bytes(oci.pack(oci.contents(layout), release.epoch))


def _read(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(entry)
    return content.read() if content else b""


def _set_value(text: str, group: str, field: str, value: str) -> str:
    """Return values.yaml with one field of a group replaced; comments and order do not change."""
    line = re.compile(rf'^({group}:\n(?:  .*\n)*?  {field}: )""$', re.MULTILINE)
    changed, count = line.subn(rf"\g<1>{json.dumps(value)}", text)
    if count != 1:
        raise ReleaseError(f'values.yaml has no line `{field}: ""` under `{group}`')
    return changed


def _prefix() -> str:
    """Return the prefix of image names, as in deploy/images/build."""
    return os.environ.get("PREFIX", "")


def _repository(name: str) -> str:
    return f"{_prefix()}vramwarden/{name}"


def _tools(*, with_images: bool) -> dict[str, str]:
    """Return the build tools' versions, keyed by name. Raises ReleaseError if one is missing."""
    tools = {
        "hatchling": version_of("hatchling"),
        "helm": _run([_helm(), "version", "--template", "{{.Version}}"], ROOT),
        "python": sys.version.partition(" ")[0],
    }
    if with_images:
        if shutil.which("buildah") is None:
            raise ReleaseError(_NO_BUILDER)
        tools["buildah"] = _run(["buildah", "--version"], ROOT).split()[2]
    return tools


def _helm() -> str:
    helm = shutil.which("helm")
    if helm is None:
        raise ReleaseError(_NO_HELM)
    return helm


def _run(command: list[str], folder: Path, settings: Mapping[str, str] | None = None) -> str:
    """Run a program and return its output. On failure, raise ReleaseError with the end of it."""
    environment: Any = {**os.environ, **(settings or {})}
    done = subprocess.run(  # noqa: S603 - git, Helm, hatchling and our own script
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        output = f"{done.stdout}{done.stderr}".strip()[-2000:]
        raise ReleaseError(f"`{' '.join(command)}` failed:\n{output}")
    return done.stdout.rstrip("\n")


if __name__ == "__main__":
    sys.exit(main())
