"""Container images as archives for containerd: vramwarden's, and small ones."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

from tests.support.cluster_programs import find_binary
from tests.support.nvml_stub import compiler
from tests.support.paths import ROOT

PAUSE = "localhost/pause:1"
BUSYBOX = "localhost/busybox:1"
NAMES = ("vramwarden", "enforcer")
APPLETS = (
    "sh",
    "sleep",
    "env",
    "cat",
    "ls",
    "ps",
    "kill",
    "id",
    "echo",
    "true",
    "touch",
    "mv",
    "rm",
)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def engine() -> str | None:
    """Return the program that builds images here, chosen as by deploy/images/build."""
    chosen = os.environ.get("ENGINE")
    return chosen or next(filter(shutil.which, ("buildah", "podman", "docker")), None)


def build_product(folder: Path) -> list[Path]:
    """Build both images and return them as archives."""
    done = subprocess.run(
        [ROOT / "deploy/images/build"],
        env={**os.environ, "ENGINE": str(engine())},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"deploy/images/build failed:\n{done.stdout}{done.stderr}"[-4000:])
    pairs = zip(product_names(), NAMES, strict=True)
    return [save(image, folder / f"{name}.tar") for image, name in pairs]


def product_archives(folder: Path) -> list[Path]:
    """Return both images as archives, from E2E_IMAGES or newly built."""
    if given := os.environ.get("E2E_IMAGES"):
        return [Path(given) / f"{name}.tar" for name in NAMES]
    began = time.monotonic()
    archives = build_product(folder)
    print(f"images built: {time.monotonic() - began:.1f} s")
    return archives


def product_values() -> dict[str, dict[str, str]]:
    """Return the chart values that name both images."""
    if given := os.environ.get("E2E_IMAGES"):
        names = [name_of(Path(given) / f"{name}.tar") for name in NAMES]
    else:
        names = product_names()
    split = [name.rpartition(":") for name in names]
    image, enforcer = ({"repository": name, "tag": tag} for name, _, tag in split)
    return {"image": image, "enforcer": enforcer}


def naming(values: dict[str, dict[str, str]]) -> str:
    """Return the options for a page's command to install images with other names."""
    names = {image: values[image] for image in ("image", "enforcer")}
    return " ".join(
        f"--set={image}.{key}={item}" for image in names for key, item in names[image].items()
    )


def product_names() -> list[str]:
    """Return the names that deploy/images/build gives to both images."""
    prefix, version = os.environ.get("PREFIX", ""), os.environ.get("VERSION") or release()
    return [f"{prefix}vramwarden/{name}:{version}" for name in NAMES]


def release() -> str:
    """Return the version of this release, which is the tag of its images."""
    text = (ROOT / "webhook/__init__.py").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("__version__ = "))
    return line.split('"')[1]


def save(image: str, archive: Path) -> Path:
    """Write an image of the local store to an archive."""
    program = str(engine())
    if Path(program).name == "buildah":
        command = [program, "push", "--quiet", image, f"docker-archive:{archive}:{image}"]
    else:
        command = [program, "save", "--output", str(archive), image]
    subprocess.run(command, capture_output=True, check=True)
    return archive


def name_of(archive: Path) -> str:
    with tarfile.open(archive) as tar:
        content = tar.extractfile("manifest.json")
        assert content is not None
        (entry,) = json.load(content)
    return str(entry["RepoTags"][0])


def pause_image(folder: Path) -> Path:
    """Build the image for pod sandboxes, which has one process like Kubernetes' image."""
    root = folder / "pause"
    root.mkdir()
    build_pause(root / "pause")
    return pack(root, PAUSE, folder / "pause.tar", {"Entrypoint": ["/pause"]})


def build_pause(program: Path) -> None:
    """Compile the program of the pause image, or copy it from PATH."""
    if found := find_binary("pause"):
        shutil.copy2(found, program)
        return
    source = Path(__file__).with_name("pause.c")
    command = [str(compiler()), "-static", "-Os", str(source), "-o", str(program)]
    subprocess.run(command, check=True)


def busybox_image(folder: Path, name: str = BUSYBOX, **scripts: str) -> Path:
    """Build the workload image: a shell, a few commands and optional scripts."""
    root = busybox_root(folder, **scripts)
    return pack(root, name, folder / "busybox.tar", {"Cmd": ["/bin/sh"]})


def busybox_root(folder: Path, **scripts: str) -> Path:
    """Write the files of the workload image."""
    programs = folder / "busybox" / "bin"
    programs.mkdir(parents=True)
    shutil.copy2(str(shutil.which("busybox")), programs / "busybox")
    for applet in APPLETS:
        (programs / applet).symlink_to("busybox")
    for script, text in scripts.items():
        (programs / script).write_text(text)
        (programs / script).chmod(0o755)
    return programs.parent


def programs_image(folder: Path, name: str, *programs: str, **files: str) -> Path:
    """Build an image of programs on this machine, and of their linked libraries."""
    root = folder / "programs"
    root.mkdir()
    for file, text in files.items():
        (root / file).write_text(text)
    for program in programs:
        copy(program, root / "bin")
        copy_libraries(program, root)
    return pack(root, name, folder / "programs.tar", {})


def linked(program: str) -> list[str]:
    """Return the paths of the libraries to which a program or library is linked."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return re.findall(r"/\S+(?= \(0x)", listed.stdout)


def copy_libraries(program: str, root: Path) -> None:
    """Copy the libraries to which a program is linked, each to the same path below `root`."""
    for library in linked(program):
        copy(library, root / Path(library).parent.relative_to("/"))


def copy(file: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, folder)


def pack(root: Path, name: str, archive: Path, config: dict[str, Any]) -> Path:
    """Pack a folder into an image with one layer."""
    return write_image(layer_of(root), name, archive, config)


def layer_of(root: Path) -> bytes:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(root, arcname=".")
    return layer.getvalue()


def write_image(layer: bytes, name: str, archive: Path, config: dict[str, Any]) -> Path:
    """Write the archive of an image with one layer."""
    digest = hashlib.sha256(layer).hexdigest()
    machine = platform.machine()
    image = {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], **config},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    contents = {
        "config.json": json.dumps(image).encode(),
        "layer.tar": layer,
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(archive, "w") as tar:
        for path, content in contents.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive
