"""Programs of other projects: their location, and how to get them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PROFILES", "STRANGERS", "find", "profile", "why_not"]

GITHUB = "https://github.com"


@dataclass(frozen=True, slots=True)
class Stranger:
    """Programs of another project, in the folder named by an environment variable."""

    what: str
    files: tuple[str, ...]
    repository: str


LIBRARY = "libnvidia-ml.so.1"
STRANGERS = {
    "NVIDIA_TOOLKIT": Stranger(
        "NVIDIA's container toolkit",
        ("nvidia-container-runtime", "nvidia-cdi-hook", "nvidia-ctk"),
        f"{GITHUB}/NVIDIA/nvidia-container-toolkit",
    ),
    "NVIDIA_MOCK": Stranger(
        "NVIDIA's mock of the driver's library",
        (LIBRARY, "configs"),
        f"{GITHUB}/NVIDIA/k8s-test-infra",
    ),
    "NVIDIA_PLUGIN": Stranger(
        "NVIDIA's device plugin",
        ("nvidia-device-plugin", "gpu-feature-discovery"),
        f"{GITHUB}/NVIDIA/k8s-device-plugin",
    ),
    "NVIDIA_DRA": Stranger(
        "NVIDIA's DRA driver",
        ("gpu-kubelet-plugin",),
        f"{GITHUB}/NVIDIA/k8s-dra-driver-gpu",
    ),
    "HAMI": Stranger("HAMi", ("scheduler",), f"{GITHUB}/Project-HAMi/HAMi"),
    "KUBE_STATE_METRICS": Stranger(
        "kube-state-metrics",
        ("kube-state-metrics",),
        f"{GITHUB}/kubernetes/kube-state-metrics",
    ),
}
"""Programs, keyed by the environment variable that names their folder."""

PROFILES = ("a100", "b200", "gb200", "gb300", "h100", "l40s", "t4")
"""Machines that NVIDIA's NVML mock can simulate."""


def why_not(variable: str) -> str:
    """Return the missing programs and how to get them, or "" if none is missing."""
    one = STRANGERS[variable]
    missing = ", ".join(name for name in one.files if not find(variable, name))
    get = f"build {one.repository} as tests/e2e/README.md says, and name the folder in {variable}"
    return f"{one.what} ({missing}): {get}" if missing else ""


def find(variable: str, name: str) -> str | None:
    """Return a file in the variable's folder, or a program on PATH, or None."""
    given = os.environ.get(variable)
    found = Path(given, name) if given else Path(shutil.which(name) or "")
    return str(found.resolve()) if found.name == name and found.exists() else None


def profile(name: str) -> Path:
    """Return the configuration of a machine that NVIDIA's mock simulates."""
    return Path(os.environ["NVIDIA_MOCK"], "configs", f"mock-nvml-config-{name}.yaml")
