"""Driver of a node: this machine's driver, or a stub that needs no GPU.

The stub is the library of tests/support/nvml_stub.c with device nodes in a folder, as the driver of
NVIDIA's GPU operator is in /run/nvidia/driver. After `play_mock` the library is NVIDIA's own mock,
for containers that are created from then on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import yaml

from tests.e2e.nvidia_runtime import (
    DRIVER,
    GPU_BYTES,
    LIBRARIES,
    LIBRARY,
    PRODUCT,
    R615,
    TREE,
    UUIDS,
    lines,
    play,
)
from tests.gpu.node.host import libraries
from tests.support import nvml_stub, other_programs
from tests.support.paths import ROOT

ON_HOST = os.environ.get("E2E_DRIVER") == "host"
"""True if the node uses this machine's driver and GPUs."""

# NVIDIA's device numbers. No driver serves them here, so opening such a device fails.
MAJOR = 195
MINORS = {**{f"nvidia{number}": number for number in range(len(UUIDS))}, "nvidiactl": 255}

# Functions that are called repeatedly. Programs keep allocating, which an unloaded driver would
# stop.
ASKED = (
    "nvmlInitWithFlags",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMemoryLimits_v1",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)
UNLOADED = [f"fail {function} 9" for function in ASKED]
SETS = """
import sys
from webhook.adapters.nvml import Nvml
nvml = Nvml().open()
nvml.devices()
assert nvml.set_limit(*sys.argv[1:3], 0, int(sys.argv[3]))
"""


class Card(NamedTuple):
    """A GPU and its driver version, as in `nvidia-smi`."""

    uuid: str
    total_mib: int
    product: str
    driver: str


class HostDriver:
    root = Path("/")
    environment: Mapping[str, str] = MappingProxyType({})
    prefix = "host-"
    """Prefix of roles in nvidia_runtime.py."""

    def __init__(self, state: Path, run: Callable[..., str]) -> None:
        """`run` runs a command on the node."""
        self._libraries = state / "libraries"
        self._cache = state / "ld.so.cache"
        self._run = run

    def install(self) -> None:
        """Make the node's loader find the libraries of the driver."""
        folder = libraries()
        assert folder is not None
        self._libraries.write_text(str(folder))
        self._run("ldconfig", "-C", str(self._cache), str(folder))
        self._run("mount", "--bind", str(self._cache), "/etc/ld.so.cache")

    def cards(self) -> list[Card]:
        query = "--query-gpu=uuid,memory.total,name,driver_version"
        listed = self._run("nvidia-smi", query, "--format=csv,noheader,nounits")
        rows = [line.split(", ") for line in listed.splitlines()]
        return [Card(uuid, int(total), *rest) for uuid, total, *rest in rows]


class Driver:
    """Stub driver of a node, in folders where container runtimes find it."""

    prefix = ""

    def __init__(self, state: Path) -> None:
        self.root = state / "driver"
        self._asked = state / "asked.txt"
        self.environment = {"NVML_STUB_FILE": str(self._asked)}
        self._away = state / "driver-to-come"
        self._kernel = state / "kernel"
        self._limits = state / "limits"
        self._version = state / "version"

    def install(self) -> None:
        """Create the driver, readable for containers of any user."""
        libraries = nvml_stub.build(self.root / LIBRARIES)
        versioned = libraries / LIBRARY.replace(".1", f".{DRIVER}")
        (libraries / LIBRARY).rename(versioned).chmod(0o755)
        (libraries / LIBRARY).symlink_to(versioned.name)
        devices = self.root / "dev"
        devices.mkdir()
        for name, minor in MINORS.items():
            os.mknod(devices / name, stat.S_IFCHR, os.makedev(MAJOR, minor))
            (devices / name).chmod(0o666)
        self._kernel.mkdir(mode=0o755)
        self._asked.write_text(play(DRIVER, lines(UUIDS)))
        self.play()

    def cards(self) -> list[Card]:
        """Return the GPUs that the library reports."""
        version = self._version.read_text()
        return [Card(uuid, GPU_BYTES >> 20, PRODUCT, version) for uuid in UUIDS]

    def remove(self) -> None:
        """Remove the driver from the node; containers that have it keep it."""
        self.root.rename(self._away)
        (self._kernel / "version").unlink()

    def restore(self) -> None:
        """Restore the driver for containers created from now on."""
        self._away.rename(self.root)
        self.play()

    def replace(self, limits: str) -> None:
        """Replace the driver by one of r615, for containers created from now on.

        `limits` is the driver's way of limiting cgroups, as in the stub's file.
        """
        self._limits.mkdir(exist_ok=True)
        self._limits.chmod(0o777)
        self.limit_by(limits)
        self.play(R615)

    def limit_by(self, limits: str) -> None:
        """Change the driver's way of limiting cgroups, or turn limits `off`."""
        (self._limits / "mode").write_text(limits)
        self.rewrite("^limits .*(?= cgroups=)", f"limits {limits}")

    def unload(self) -> None:
        """Unload the kernel driver: NVML calls in existing containers then fail."""
        (self._kernel / "version").unlink()
        self.rewrite("^live figures$", "\\n".join(["live figures", *UNLOADED]))

    def load(self) -> None:
        """Load the kernel driver again; it has lost all limits."""
        for limit in self._limits.glob("limit-*"):
            limit.unlink()
        self.rewrite("^fail .*\n", "")
        self.play(R615)

    def rewrite(self, pattern: str, text: str) -> None:
        """Change what the library reports in all pods."""
        for stub in (self._limits.parent / "scenes").glob("*/stub.txt"):
            changed = re.sub(pattern, text, stub.read_text(), flags=re.MULTILINE)
            stub.with_suffix(".new").write_text(changed)
            stub.with_suffix(".new").rename(stub)

    def set_limit(self, run: Callable[..., str], pid: int, gpu: str, limit_bytes: int) -> None:
        """Limit the cgroup of a process, as the toolkit's hook does on request."""
        stub = self._limits / "stub.txt"
        mode = (self._limits / "mode").read_text()
        stub.write_text(f"gpu {gpu}\nlimits {mode} cgroups={TREE} in={self._limits}\n")
        lines = run("cat", f"/proc/{pid}/cgroup").splitlines()
        (path,) = (line.removeprefix("0::") for line in lines if line.startswith("0::"))
        variables = {
            "NVML_STUB_FILE": stub,
            "LD_LIBRARY_PATH": self.root / LIBRARIES,
            "PYTHONPATH": ROOT,
        }
        named = [f"{name}={value}" for name, value in variables.items()]
        run("env", *named, sys.executable, "-c", SETS, gpu, f"{TREE}{path}", str(limit_bytes))

    def play_mock(self, name: str = "a100") -> None:
        """Replace the stub by NVIDIA's mock with all GPUs of one of its machines."""
        mock = Path(str(other_programs.find("NVIDIA_MOCK", LIBRARY)))
        libraries, version = self.root / LIBRARIES, mock.name.partition(".so.")[2]
        Path(shutil.copy(mock, libraries)).chmod(0o755)
        (libraries / LIBRARY).unlink()
        (libraries / LIBRARY).symlink_to(mock.name)
        machine = yaml.safe_load(other_programs.profile(name).read_text())
        machine["system"]["driver_version"] = version
        pairs = zip(machine["devices"], UUIDS, strict=False)
        machine["devices"] = [{**item, "uuid": uuid} for item, uuid in pairs]
        (self.root / "mock.json").write_text(json.dumps(machine))
        self.play(version)

    def play(self, version: str = DRIVER) -> None:
        """Change the version for containers created from now on."""
        self._version.write_text(version)
        (self._kernel / "version").write_text(f"NVRM version: NVIDIA Kernel Module  {version}\n")
