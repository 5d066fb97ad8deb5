"""Assemble vramwarden's images from this machine's Python and shell, without an image builder.

`python -m tests.gpu.node.images FOLDER PACKAGES` writes both archives for E2E_IMAGES. PACKAGES is
a folder with the packages of deploy/images/runtime.txt. Both images have one common layer; it has
all files that the Containerfiles install, and more.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.e2e.images import copy, copy_libraries, layer_of, product_names, write_image
from tests.support.paths import ROOT

HOME = "opt/vramwarden"
COMMANDS = ("sh", "cat", "env", "grep", "ls", "mkfifo", "sleep", "touch")
FRAMEWORKS_NEED = (
    *("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1"),
    *("libdl.so.2", "librt.so.1", "libpthread.so.0"),
)
"""Libraries that PyTorch and NVIDIA's driver load from an image."""
LEFT_OUT = (
    *("site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip", "lib2to3"),
    *("config-*", "turtledemo", "pydoc_data"),
)
COMMAND = f"""\
#!/{HOME}/bin/python3
from webhook.cli.main import main
main()
"""
ENTRYPOINTS = {
    "vramwarden": ["vramwarden"],
    "enforcer": ["python3", "-I", "-m", "webhook.sidecar"],
}


def main(folder: Path, packages: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        root.chmod(0o755)
        for name in ("bin", "lib", "lib64", "sbin"):
            (root / "usr" / name).mkdir(parents=True)
            (root / name).symlink_to(f"usr/{name}")
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        copy_python(root)
        copy_commands(root)
        install(root, packages)
        layer = layer_of(root)
        for name, image in zip(ENTRYPOINTS, product_names(), strict=True):
            config = {
                "Env": [f"PATH=/{HOME}/bin:/usr/bin:/bin", "PYTHONUNBUFFERED=1"],
                "User": "65532:65532",
                "WorkingDir": "/",
                "Entrypoint": ENTRYPOINTS[name],
            }
            write_image(layer, image, folder / f"{name}.tar", config)


def copy_python(root: Path) -> None:
    """Copy interpreter and standard library, each to the same path."""
    base = sys._base_executable
    for path in {base, str(Path(base).resolve())}:
        copy(path, root / Path(path).parent.relative_to("/"))
    copy_libraries(base, root)
    library = Path(sysconfig.get_path("stdlib"))
    target = root / library.relative_to("/")
    ignored = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(library, target, ignore=ignored, ignore_dangling_symlinks=True)
    for extension in library.rglob("*.so"):
        copy_libraries(str(extension), root)


def copy_commands(root: Path) -> None:
    """Copy a shell, its commands and the libraries in FRAMEWORKS_NEED."""
    for name in COMMANDS:
        found = str(shutil.which(name))
        copy(found, root / "usr/bin")
        copy_libraries(found, root)
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    for name in FRAMEWORKS_NEED:
        paths = [
            line.split()[-1] for line in listed.splitlines() if f"{name} (libc6,x86-64)" in line
        ]
        for path in paths[:1]:
            copy(path, root / Path(path).parent.relative_to("/"))


def install(root: Path, packages: Path) -> None:
    """Create the Containerfiles' virtual environment from packages and this checkout."""
    home = root / HOME
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (site,) = home.glob("lib/python3*/site-packages")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(packages, site, dirs_exist_ok=True, ignore=ignored)
    for package in ("webhook", "certs"):
        shutil.copytree(ROOT / package, site / package, ignore=ignored)
    (site / "webhook/shipped").mkdir()
    shutil.copy(ROOT / "policies/default.yaml", site / "webhook/shipped")
    for extension in packages.rglob("*.so"):
        copy_libraries(str(extension), root)
    (home / "bin/vramwarden").write_text(COMMAND)
    shutil.copy(ROOT / "webhook/sidecar/probe.sh", home / "bin/vram-enforcer-probe")
    for program in ("vramwarden", "vram-enforcer-probe"):
        (home / "bin" / program).chmod(0o755)
    compiles = ("-m", "compileall", "-q", "-j0", "--invalidation-mode=unchecked-hash")
    subprocess.run([sys.executable, *compiles, "-s", root, "-p", "/", site], check=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
