"""NVIDIA's container toolkit on the node, as containerd's runtime handler `nvidia`.

The toolkit runs in addition to the stand-in or instead of it. This module sets its configuration,
CDI specifications and driver folder. `nvidia-ctk` writes the specifications.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.e2e.nvidia_driver import Driver, HostDriver
from tests.support import other_programs

find = partial(other_programs.find, "NVIDIA_TOOLKIT")
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


@dataclass(frozen=True, slots=True)
class Mode:
    """A configuration of NVIDIA's runtime on a node."""

    mode: str
    default_kind: str
    specifications: dict[str, str]
    """Mode of `nvidia-ctk cdi generate` that writes the specification, keyed by CDI vendor."""
    unprivileged: bool = True
    """True if unprivileged containers can request GPUs by environment variable."""


OPERATORS = {"management.nvidia.com": "management", "k8s.device-plugin.nvidia.com": "nvml"}
MODES = {
    # Configuration by NVIDIA's GPU operator from 25.10 on.
    "management": Mode("cdi", "management.nvidia.com/gpu", OPERATORS),
    "cdi": Mode("cdi", "nvidia.com/gpu", {"nvidia.com": "nvml"}),
    # Configuration by the package: each specification is generated in memory.
    "auto": Mode("auto", "nvidia.com/gpu", {}),
    # Unprivileged containers must request GPUs by volume mounts.
    "hardened": Mode("cdi", "management.nvidia.com/gpu", OPERATORS, unprivileged=False),
}


class Toolkit:
    def __init__(
        self, state: Path, driver: Driver | HostDriver, beneath: Path, run: Callable[..., str]
    ) -> None:
        """`beneath` is the program that it starts as runc. `run` runs a command on the node."""
        self._driver = driver
        self._folder = state / "toolkit"
        self._beneath = beneath
        self._run = run
        self.runtime = self._folder / "nvidia-container-runtime"

    def install(self, mode: str) -> None:
        """Install the runtime for containerd in a mode."""
        self._folder.mkdir()
        configured = {"NVIDIA_CTK_CONFIG_FILE_PATH": str(self._folder / "config.toml")}
        variables = self._driver.environment | configured
        # The GPU operator's runtime is also such a script.
        self.runtime.write_text(
            "#!/bin/sh\n"
            + "".join(f"export {name}={value}\n" for name, value in variables.items())
            + f'exec {find("nvidia-container-runtime")} "$@"\n'
        )
        self.runtime.chmod(0o755)
        self.switch(mode)

    def switch(self, name: str) -> None:
        """Change the mode for containers created from now on."""
        mode = MODES[name]
        variables = [f"{name}={value}" for name, value in self._driver.environment.items()]
        specifications = self._folder / "cdi"
        shutil.rmtree(specifications, ignore_errors=True)
        specifications.mkdir()
        for vendor, how in mode.specifications.items():
            self._run(
                *("env", *variables, str(find("nvidia-ctk"))),
                *("--quiet", "cdi", "generate", f"--mode={how}", f"--vendor={vendor}"),
                *("--class=gpu", f"--driver-root={self._driver.root}"),
                f"--nvidia-cdi-hook-path={find('nvidia-cdi-hook')}",
                f"--output={specifications / f'{vendor}-gpu.yaml'}",
            )
        (self._folder / "config.toml").write_text(f"""\
accept-nvidia-visible-devices-envvar-when-unprivileged = {str(mode.unprivileged).lower()}
accept-nvidia-visible-devices-as-volume-mounts = true
[nvidia-container-cli]
root = "{self._driver.root}"
[nvidia-container-runtime]
debug = "{self._folder / "runtime.log"}"
mode = "{mode.mode}"
runtimes = ["{self._beneath}"]
[nvidia-container-runtime.modes.cdi]
default-kind = "{mode.default_kind}"
spec-dirs = ["{specifications}"]
[nvidia-ctk]
path = "{find("nvidia-ctk")}"
""")
