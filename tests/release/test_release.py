from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

from deploy import generate, oci, release, sbom
from tests.release.conftest import EPOCH, VERSION, git, released, set_version
from tests.support import charts
from tests.support.page_commands import commands
from tests.support.paths import ROOT
from tests.support.registries import serving

pytestmark = pytest.mark.process
needs_helm = pytest.mark.skipif(not charts.available(), reason=charts.MISSING)


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of files, keyed by path."""
    return {
        path: hashlib.sha256(content).hexdigest() for path, content in oci.contents(folder).items()
    }


def test_what_is_released_is_a_commit_and_its_time(checkout):
    commit = git(checkout, "rev-parse", "HEAD").strip()
    assert release.read_release(checkout) == release.Release(VERSION, commit, EPOCH)


def test_a_changed_checkout_is_rejected(checkout):
    (checkout / "README.md").write_text("x")
    (checkout / "new.txt").write_text("x")
    with pytest.raises(release.ReleaseError) as caught:
        release.read_release(checkout)
    assert str(caught.value) == (
        "files differ from the commit: commit or remove README.md, new.txt"
    )


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (("package", "chart"), "CHANGELOG.md has no section for this version: give what is under"),
        (("package", "changelog"), f"Chart.yaml is of {VERSION}, the package of 9.9.9: run `make"),
    ],
)
def test_a_version_that_is_not_written_everywhere_is_rejected(checkout, places, said):
    set_version(checkout, "9.9.9", *places)
    git(checkout, "commit", "--quiet", "--all", "--message", "Almost")
    with pytest.raises(release.ReleaseError, match=re.escape(said)):
        release.read_release(checkout)


def test_a_version_that_is_no_release_is_rejected(checkout):
    set_version(checkout, "9.9", "package", "chart", "changelog")
    git(checkout, "commit", "--quiet", "--all", "--message", "Almost")
    with pytest.raises(release.ReleaseError, match=r"__init__.py has no line `__version__ = "):
        release.read_release(checkout)


@needs_helm
def test_the_same_commit_gives_the_same_bytes(checkout, original, builder, tmp_path, monkeypatch):
    first = digests(released(checkout, tmp_path / "first"))
    elsewhere = tmp_path / "another" / "place"
    git(tmp_path, "clone", "--quiet", str(original), str(elsewhere))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before = os.umask(0o077)
    try:
        again = digests(released(elsewhere, tmp_path / "second"))
    finally:
        os.umask(before)
    assert again == first
    assert set(first) == {
        "SHA256SUMS",
        f"image-enforcer-{VERSION}-linux-amd64.tar",
        f"image-vramwarden-{VERSION}-linux-amd64.tar",
        "install.yaml",
        f"vramwarden-{VERSION}-py3-none-any.whl",
        f"vramwarden-{VERSION}.cdx.json",
        f"vramwarden-{VERSION}.tar.gz",
        f"vramwarden-{VERSION}.tgz",
        "chart/index.json",
        "chart/oci-layout",
    } | {path for path in first if re.fullmatch(r"chart/blobs/sha256/[0-9a-f]{64}", path)}
    assert len(first) == 13


def test_no_setting_of_git_and_no_umask_changes_the_modes_of_what_is_built(checkout, tmp_path):
    git(checkout, "config", "tar.umask", "user")
    before = os.umask(0o077)
    try:
        release.export(checkout, "HEAD", tmp_path / "source")
    finally:
        os.umask(before)
    for name, mode in (("README.md", 0o644), ("deploy/images/build", 0o755), ("deploy", 0o755)):
        assert (tmp_path / "source" / name).stat().st_mode & 0o777 == mode


def test_all_files_have_their_checksum(made):
    listed = dict(
        reversed(line.split("  ")) for line in (made / "SHA256SUMS").read_text().splitlines()
    )
    assert listed == {
        path: digest for path, digest in digests(made).items() if path != "SHA256SUMS"
    }


def test_images_are_built_of_the_commit_at_its_time(made, builder, checkout):
    commit = git(checkout, "rev-parse", "HEAD").strip()
    asked = builder.read_text().splitlines()
    assert len(asked) == 2
    for line, name in zip(asked, ("vramwarden", "enforcer"), strict=True):
        assert f"--build-arg VERSION={VERSION} --build-arg REVISION={commit}" in line
        assert f"--timestamp {EPOCH} " in line
        assert f"--tag vramwarden/{name}:{VERSION} " in line


def test_an_images_archive_is_its_layout(made, layouts, tmp_path):
    for name in ("vramwarden", "enforcer"):
        with tarfile.open(made / f"image-{name}-{VERSION}-linux-amd64.tar") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
            archive.extractall(tmp_path / name)  # noqa: S202 - made above
        assert digests(tmp_path / name) == digests(layouts / name)


@pytest.mark.parametrize("prefix", ["", "registry.example/team/"])
def test_chart_and_install_file_name_the_images_by_digest(
    checkout, builder, layouts, tmp_path, monkeypatch, prefix
):
    if not charts.available():
        pytest.skip(charts.MISSING)
    monkeypatch.setenv("PREFIX", prefix)
    made = released(checkout, tmp_path / "out")
    webhook, enforcer = (oci.digest(layouts / name) for name in ("vramwarden", "enforcer"))
    with tarfile.open(made / f"vramwarden-{VERSION}.tgz") as archive:
        values = yaml.safe_load(archive.extractfile("vramwarden/values.yaml"))
    before = generate.values()
    repositories = (
        [f"{prefix}vramwarden/vramwarden", f"{prefix}vramwarden/enforcer"] if prefix else ["", ""]
    )
    before["image"] |= {"digest": webhook, "repository": repositories[0]}
    before["enforcer"] |= {"digest": enforcer, "repository": repositories[1]}
    assert values == before
    text = (made / "install.yaml").read_text()
    names = repositories if prefix else list(release.STAND_INS.values())
    assert set(re.findall(r'image: "(.*)"', text)) == {f"{names[0]}@{webhook}"}
    assert re.findall(r"--enforcer-image=(.*)", text) == [f"{names[1]}@{enforcer}"]
    # A file with placeholders for names cannot be applied unedited.
    assert text.startswith("---") == bool(prefix)
    assert ("\n*name-both-images-first" in text) == (not prefix)


def test_the_chart_is_pulled_from_a_registry(made, tmp_path):
    with serving(made / "chart") as address:
        reference = f"oci://{address}/charts/vramwarden"
        charts.Helm(tmp_path).run(
            "pull", reference, "--version", VERSION, "--plain-http", "--destination", str(tmp_path)
        )
    name = f"vramwarden-{VERSION}.tgz"
    assert (tmp_path / name).read_bytes() == (made / name).read_bytes()


def test_the_chart_is_that_of_the_commit_with_its_images(made, checkout):
    folder = checkout / "deploy/chart"
    with tarfile.open(made / f"vramwarden-{VERSION}.tgz") as archive:
        entries = archive.getmembers()
        packed = {entry.name: archive.extractfile(entry).read() for entry in entries}
    assert {entry.mtime for entry in entries} == {EPOCH}
    there = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".helmignore"
    }
    assert set(packed) == set(there)
    # Helm changes the order of the chart's own file.
    changed = {"vramwarden/Chart.yaml", "vramwarden/values.yaml"}
    assert {name for name in packed if packed[name] != there[name]} == changed
    chart = [yaml.safe_load(item["vramwarden/Chart.yaml"]) for item in (packed, there)]
    assert chart[0] == chart[1]


def test_wheel_and_source_are_of_the_version(made):
    with zipfile.ZipFile(made / f"vramwarden-{VERSION}-py3-none-any.whl") as wheel:
        assert (
            f"\nVersion: {VERSION}\n"
            in wheel.read(f"vramwarden-{VERSION}.dist-info/METADATA").decode()
        )
        assert {item.date_time for item in wheel.infolist()} == {(2026, 11, 1, 10, 0, 0)}
        assert f'__version__ = "{VERSION}"' in wheel.read("webhook/__init__.py").decode()
    with tarfile.open(made / f"vramwarden-{VERSION}.tar.gz") as source:
        assert f"vramwarden-{VERSION}/deploy/release.py" in source.getnames()


def test_the_bill_of_materials_is_valid_and_says_what_is_in_each_image(made, checkout, layouts):
    text = (made / f"vramwarden-{VERSION}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    about = bill["metadata"]["component"]
    assert (about["name"], about["version"]) == ("vramwarden", VERSION)
    commit = git(checkout, "rev-parse", "HEAD").strip()
    assert about["properties"] == [{"name": "vramwarden:commit", "value": commit}]
    assert bill["metadata"]["timestamp"] == "2026-11-01T10:00:00+00:00"
    tools = {
        component["name"]: component["version"]
        for component in bill["metadata"]["tools"]["components"]
    }
    assert set(tools) >= {"buildah", "hatchling", "helm", "python"}
    assert tools["buildah"] == "1.40.0"
    images = {
        component["name"]: component
        for component in bill["components"]
        if component["type"] == "container"
    }
    for name in ("vramwarden", "enforcer"):
        image = images[f"vramwarden/{name}"]
        assert image["purl"] == f"pkg:oci/{name}@{oci.digest(layouts / name)}"
        assert sorted(component["purl"] for component in image["components"]) == [
            "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12",
            "pkg:generic/python@3.11.9",
            "pkg:pypi/flask@3.1.3",
        ]
    lock = (ROOT / "deploy/images/runtime.txt").read_text()
    packages = {
        component["purl"] for component in bill["components"] if component["type"] == "library"
    }
    assert packages == {item.to_string() for item in sbom.locked(lock)}


@needs_helm
def test_without_images_it_says_loudly_what_is_missing(checkout, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(release, "ROOT", checkout)
    monkeypatch.delenv("PREFIX", raising=False)
    output = tmp_path / "out"
    assert release.main(["--without-images", "--output", str(output)]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("make release: WITHOUT IMAGES, as you asked. This is no whole ")
    made = output / f"release-{VERSION}"
    assert said.out.startswith(f"{made}, of commit ")
    assert not list(made.glob("image-*"))
    assert f'image: "WEBHOOK_IMAGE:{VERSION}"' in (made / "install.yaml").read_text()
    bill = json.loads((made / f"vramwarden-{VERSION}.cdx.json").read_text())
    assert {component["type"] for component in bill["components"]} == {"library"}


def test_where_nothing_builds_images_it_says_what_to_do_and_leaves_nothing(
    checkout, tmp_path, monkeypatch, capsys
):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("git", "helm"):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    if not charts.available():
        pytest.skip(charts.MISSING)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(release, "ROOT", checkout)
    assert release.main(["--output", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == (
        "make release: images need buildah, which is not on PATH: install it, or leave them out by"
        " `make release WITHOUT_IMAGES=yes`\n"
    )
    assert not (tmp_path / "out").exists()


def test_without_helm_it_says_what_to_do(checkout, tmp_path, monkeypatch, capsys):
    (tmp_path / "git").symlink_to(shutil.which("git"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(release, "ROOT", checkout)
    needs = "this needs Helm, e.g. by `go install helm.sh/helm/v3/cmd/helm@latest`\n"
    assert release.main([]) == 1
    assert capsys.readouterr().err == f"make release: {needs}"
    assert release.main(["--only-install-file", str(tmp_path / "install.yaml")]) == 1
    assert capsys.readouterr().err == f"make install.yaml: {needs}"


@needs_helm
def test_a_release_takes_the_place_of_an_older_one(checkout, tmp_path):
    older = tmp_path / f"release-{VERSION}" / "older"
    older.mkdir(parents=True)
    made = released(checkout, tmp_path, with_images=False)
    assert made == older.parent
    assert (made / "SHA256SUMS").exists()
    assert not older.exists()


@needs_helm
def test_a_build_that_fails_says_so_and_leaves_the_older_release(
    checkout, builder, tmp_path, monkeypatch, capsys
):
    older = tmp_path / "out" / f"release-{VERSION}" / "older"
    older.mkdir(parents=True)
    monkeypatch.setattr(release, "ROOT", checkout)
    monkeypatch.setenv("LAYOUTS", str(tmp_path / "none"))
    assert release.main(["--output", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("make release: `deploy/images/build` failed:\n")
    assert older.exists()


def test_both_images_take_the_build_arguments_of_the_page(builder, tmp_path):
    page = ROOT / "deploy/offline.md"
    (command,) = commands(page, "--build-arg PIP_INDEX_URL")
    settings = dict(item.split("=", 1) for item in shlex.split(command) if "=" in item)
    subprocess.run(
        [ROOT / "deploy/images/build"],
        env={**os.environ, **settings, "OCI": str(tmp_path)}, check=True, capture_output=True,
    )  # fmt: skip
    named = {*re.findall(r"--build-arg (\w+)=", page.read_text())} - {"HTTPS_PROXY"}
    assert "PIP_CERT" in named
    for line in builder.read_text().splitlines():
        given = {*re.findall(r"--build-arg (\w+)=", line)}
        assert {"BASE", "PIP_INDEX_URL"} <= given
        file = re.search(r"--file (\S+)", line)[1]
        declared = re.findall(r"^ARG (\w+)", (ROOT / file).read_text(), re.MULTILINE)
        assert given | named <= {*declared}


@pytest.mark.parametrize("name", ["build", "runtime"])
def test_the_lock_has_what_is_asked_for_by_version_and_hash(name):
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {
        "build": asked["build-system"]["requires"],
        "runtime": asked["project"]["dependencies"],
    }[name]
    text = (ROOT / f"deploy/images/{name}.txt").read_text()
    found = {item.name: item.version for item in sbom.locked(text)}
    for requirement in map(Requirement, wanted):
        version = found[requirement.name.lower().replace(".", "-")]
        assert requirement.specifier.contains(version), f"{requirement}: run make lock"
    entries = re.split(r"\n(?=[a-z])", text)[1:]
    assert len(entries) == len(found)
    assert all("--hash=sha256:" in entry for entry in entries)


def test_it_runs_as_the_makefile_runs_it():
    done = subprocess.run(
        [sys.executable, "-m", "deploy.release", "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("usage: make release ")
