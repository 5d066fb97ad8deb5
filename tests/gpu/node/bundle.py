"""Pack programs and packages for a Kubernetes node on a GPU host without a network.

`make bundle` writes two archives, which host.py unpacks. tests/gpu/README.md describes how to build
each program.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.e2e.images import build_pause, linked
from tests.e2e.node import plugins
from tests.support import other_programs
from tests.support.cluster_programs import find_binary
from tests.support.paths import ROOT

KUBERNETES = "kubernetes"
ROLES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
ARCHIVES = {
    "control-plane": (KUBERNETES, "etcd", "helm"),
    "node": (
        *("containerd", "containerd-shim-runc-v2", "ctr", "runc"),
        *("ptp", "host-local", "loopback"),
        *other_programs.STRANGERS["NVIDIA_TOOLKIT"].files,
        *("ip", "busybox"),
    ),
}
GLIBC = ("ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "linux-vdso")
"""Prefixes of glibc's libraries, which NVIDIA's driver also needs."""
WRAPPER = """\
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
LD_LIBRARY_PATH=$here/lib exec "$here/lib/{name}" "$@"
"""
MOST_BYTES = 60 * 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="3.12", help="the version of the host's Python")
    parser.add_argument("--out", type=Path, default=ROOT / ".bundle", help="the folder")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    for name, programs in ARCHIVES.items():
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for program in programs:
                add_program(root, program)
            if name == "node":
                build_pause(root / "bin/pause")
                install_packages(root, options.python)
                (root / "python").write_text(options.python)
            else:
                for role in ROLES:
                    (root / "bin" / role).symlink_to(KUBERNETES)
            archive = pack(root, options.out / f"{name}.tar.xz")
        size = archive.stat().st_size
        print(f"{archive}: {size / 2**20:.1f} MiB")
        if size > MOST_BYTES:
            raise SystemExit(f"{archive} is larger than {MOST_BYTES >> 20} MiB")


def find(program: str) -> str:
    """Return the path of a program; exit with a message if it is missing."""
    found = (
        find_binary(program)
        or other_programs.find("NVIDIA_TOOLKIT", program)
        or shutil.which(program, path=plugins())
    )
    if not found:
        raise SystemExit(f"{program} is missing: tests/gpu/README.md says how to build it")
    return found


def add_program(root: Path, program: str) -> None:
    """Copy a program and the libraries that a host may lack."""
    found = find(program)
    libraries = [path for path in linked(found) if not Path(path).name.startswith(GLIBC)]
    if libraries and program == "runc":
        raise SystemExit(f"{found} needs {libraries}: runc starts itself again, link it statically")
    place = root / ("lib" if libraries else "bin")
    place.mkdir(exist_ok=True)
    subprocess.run(["strip", "-o", place / program, found], check=True)
    for path in libraries:
        shutil.copy(path, place)
    if libraries:
        (root / "bin").mkdir(exist_ok=True)
        (root / "bin" / program).write_text(WRAPPER.format(name=program))
        (root / "bin" / program).chmod(0o755)


def install_packages(root: Path, python: str) -> None:
    """Install the packages of images and tests for the host's version of Python."""
    wanted = {
        "site": ("--require-hashes", "--requirement", ROOT / "deploy/images/runtime.txt"),
        "site-tests": ("--group", f"{ROOT / 'pyproject.toml'}:test"),
    }
    for name, packages in wanted.items():
        subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "install", "--quiet"),
                *("--target", root / name, "--python-version", python),
                *("--python-platform", "x86_64-unknown-linux-gnu", "--only-binary=:all:"),
                *packages,
            ],
            check=True,
        )


def pack(root: Path, archive: Path) -> Path:
    listed = archive.with_suffix("")
    with tarfile.open(listed, "w") as tar:
        tar.add(root, arcname=".")
    subprocess.run(["xz", "--force", "--x86", "--lzma2=preset=9,dict=128MiB", listed], check=True)
    return archive


if __name__ == "__main__":
    main()
