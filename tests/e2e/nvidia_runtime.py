"""Plays NVIDIA's container runtime: gives containers that ask for GPUs the driver's library.

Started by containerd in place of runc, as `nvidia_runtime.py FOLDER RUNC ARGUMENTS...`. The
driver's library is tests/support/nvml_stub.c, compiled into FOLDER/driver. What it plays for a pod
lies in FOLDER/scenes/SANDBOX, which the pod's containers find as /scene: a process that wants to
hold VRAM writes `0 BYTES` into /scene/pids/<its number>.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"
DRIVER = "565.57.01"
DRIVER_ANNOTATION = "stub.nvml/driver"  # on a pod: the driver's version, if not DRIVER
GPUS = 2
GPU_BYTES = 80 * 2**30


def main(folder: Path, runc: str, arguments: list[str]) -> None:
    """Change the bundle of a container that is created, then become runc."""
    if "create" in arguments and "--bundle" in arguments:
        bundle = Path(arguments[arguments.index("--bundle") + 1])
        equip(folder, bundle / "config.json")
    os.execv(runc, [runc, *arguments])  # noqa: S606 - it becomes runc


def equip(folder: Path, path: Path) -> None:
    """Give a container its GPUs if its environment asks for some."""
    config = json.loads(path.read_bytes())
    environment = config["process"].setdefault("env", [])
    variables = dict(entry.partition("=")[::2] for entry in environment)
    asked = variables.get("NVIDIA_VISIBLE_DEVICES", "")
    if asked in {"", "void", "none"}:
        return
    annotations = config.get("annotations", {})
    scene = folder / "scenes" / annotations["io.kubernetes.cri.sandbox-id"]
    set_up(scene, annotations.get(DRIVER_ANNOTATION, DRIVER), asked)
    libraries = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
    config["mounts"] += [
        mount(folder / "driver" / LIBRARY, f"{libraries}/{LIBRARY}", "ro"),
        mount(scene, "/scene", "rw"),
    ]
    environment.append("NVML_STUB_FILE=/scene/stub.txt")
    path.write_text(json.dumps(config), encoding="utf-8")


def set_up(scene: Path, driver: str, asked: str) -> None:
    """Write what the stub plays, once per pod: the GPUs asked for, by UUID or all of them."""
    if scene.exists():
        return
    pids = scene / "pids"
    pids.mkdir(parents=True)
    for folder in (scene, pids):
        folder.chmod(0o777)  # the pod's containers write as whoever they are
    uuids = [f"GPU-{number}" for number in range(GPUS)]
    gpus = [
        f"gpu {uuid} total={GPU_BYTES} reserved=0 mig=0 name=NVIDIA_H200"
        for uuid in uuids
        if asked == "all" or uuid in asked.split(",")
    ]
    text = "\n".join([f"driver {driver}", *gpus, "live figures", ""])
    (scene / "stub.txt").write_text(text, encoding="ascii")


def mount(source: Path, destination: str, mode: str) -> dict[str, object]:
    """Describe a bind mount."""
    options = ["rbind", mode]
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": options,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
