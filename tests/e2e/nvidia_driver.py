"""A node's driver, without a GPU: the library of tests/support/nvml_stub.c, and device nodes.

It lies in a folder of its own, as that of NVIDIA's GPU operator lies in /run/nvidia/driver. From
`play_mock` on its library is NVIDIA's own mock, for containers that are created then.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import yaml

from tests.e2e.nvidia_runtime import DRIVER, LIBRARIES, LIBRARY, R615, UUIDS
from tests.support import nvml_stub, strangers

# NVIDIA's numbers. No driver answers to them here: who opens such a node gets an error.
MAJOR = 195
MINORS = {**{f"nvidia{number}": number for number in range(len(UUIDS))}, "nvidiactl": 255}


class Driver:
    """The driver of a node, in folders where its container runtimes find it."""

    def __init__(self, state: Path) -> None:
        self._root = state / "driver"
        self._away = state / "driver-to-come"
        self._kernel = state / "kernel"
        self._limits = state / "limits"

    def install(self) -> None:
        """Make it, readable for containers whatever their user."""
        libraries = nvml_stub.build(self._root / LIBRARIES)
        versioned = libraries / LIBRARY.replace(".1", f".{DRIVER}")
        (libraries / LIBRARY).rename(versioned).chmod(0o755)
        (libraries / LIBRARY).symlink_to(versioned.name)
        devices = self._root / "dev"
        devices.mkdir()
        for name, minor in MINORS.items():
            os.mknod(devices / name, stat.S_IFCHR, os.makedev(MAJOR, minor))
            (devices / name).chmod(0o666)
        self._kernel.mkdir(mode=0o755)
        self._load()

    def remove(self) -> None:
        """Take it from the node; containers that have it keep it."""
        self._root.rename(self._away)
        (self._kernel / "version").unlink()

    def restore(self) -> None:
        """Bring it back, for containers that are created from now on."""
        self._away.rename(self._root)
        self._load()

    def replace(self, limits: str) -> None:
        """Have one of r615 in its place, for containers that are created from now on.

        `limits` says how it holds cgroups, as in the line of that name of the stub's file.
        """
        self._limits.mkdir(exist_ok=True)
        self._limits.chmod(0o777)
        (self._limits / "mode").write_text(limits)
        self._load(R615)

    def play_mock(self, name: str = "a100") -> None:
        """Have NVIDIA's mock in the stub's place, with as many GPUs of one of its machines."""
        mock = Path(str(strangers.find("NVIDIA_MOCK", LIBRARY)))
        libraries, version = self._root / LIBRARIES, mock.name.partition(".so.")[2]
        Path(shutil.copy(mock, libraries)).chmod(0o755)
        (libraries / LIBRARY).unlink()
        (libraries / LIBRARY).symlink_to(mock.name)
        machine = yaml.safe_load(strangers.profile(name).read_text())
        machine["system"]["driver_version"] = version
        pairs = zip(machine["devices"], UUIDS, strict=False)
        machine["devices"] = [{**one, "uuid": uuid} for one, uuid in pairs]
        (self._root / "mock.json").write_text(json.dumps(machine))
        self._load(version)

    def _load(self, version: str = DRIVER) -> None:
        (self._kernel / "version").write_text(f"NVRM version: NVIDIA Kernel Module  {version}\n")
