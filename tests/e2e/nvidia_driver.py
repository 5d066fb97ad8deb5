"""A node's driver, without a GPU: the library of tests/support/nvml_stub.c, and device nodes.

It lies in a folder of its own, as that of NVIDIA's GPU operator lies in /run/nvidia/driver.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from tests.e2e.nvidia_runtime import DRIVER, LIBRARIES, LIBRARY, UUIDS
from tests.support import nvml_stub

if TYPE_CHECKING:
    from pathlib import Path

# NVIDIA's numbers. No driver answers to them here: who opens such a node gets an error.
MAJOR = 195
MINORS = {**{f"nvidia{number}": number for number in range(len(UUIDS))}, "nvidiactl": 255}


class Driver:
    """The driver of a node, in folders where its container runtimes look for it."""

    def __init__(self, state: Path) -> None:
        self._root = state / "driver"
        self._away = state / "driver-to-come"
        self._kernel = state / "kernel"

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

    def _load(self) -> None:
        (self._kernel / "version").write_text(f"NVRM version: NVIDIA Kernel Module  {DRIVER}\n")
