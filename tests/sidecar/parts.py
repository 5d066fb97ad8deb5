"""A scripted NVML, a folder for the program, and its output there."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

import pytest

from tests.sidecar.incident_scene import NOT_PROBED, with_constants
from tests.support.fake_proc import ID, OTHER_ID, put, put_self, stat_line, status_lines
from tests.support.nvml_stub import build, compiler
from tests.support.policies import SHIPPED, load, load_spec
from tests.support.workload_processes import wait_until
from webhook.adapters.nvml import NvmlError
from webhook.core.nvidia.drivers import Fault, ScannedGpu

__all__ = [
    "BY_HAND", "CAP", "ENDS_SOON", "ID", "OTHER_ID", "PROGRAM", "SHIPPED", "Ended", "Ground",
    "ScriptedNvml", "a_ground", "events_of", "load", "load_spec", "put", "put_self", "stat_line",
    "status_lines", "wait_until",
]  # fmt: skip

PROGRAM = ("-I", "-m", "webhook.sidecar")
BY_HAND = ("-m", "webhook.cli", "enforce")
ENDS_SOON = ("-I", *with_constants(NOT_PROBED))
"""Program that does not wait for a startup probe after a failed self-test."""
CAP = {"VRAM_CAP_BYTES": "1000"}
GPU = "gpu GPU-a total=100000 name=NVIDIA_H200\n"


class ScriptedNvml:
    """Behaves like `webhook.adapters.nvml.Nvml`, and fails as `codes` specifies.

    A key of `codes` is a method, or a method and a GPU: `processes GPU-a`.
    """

    def __init__(self, **listed):
        self.listed = {f"GPU-{name}": used for name, used in listed.items()}
        self.total_bytes = 0
        self.codes = {}
        self.version = "570.86.15"
        self.mig = False
        self.unreachable = ()
        self.now_s = 0.0
        self.calls = []
        self._known = set()

    def open(self):
        self._meet("open")
        return self

    def reopen(self):
        self.close()
        self._meet("reopen")

    def close(self):
        self.calls.append((self.now_s, "close"))
        self._known.clear()

    def driver_version(self):
        self._meet("driver_version")
        return self.version

    def devices(self):
        self._known.clear()
        self._meet("devices")
        missed = [gpu for gpu in self.listed if f"devices {gpu}" in self.codes]
        self.unreachable = tuple(
            NvmlError("nvmlDeviceGetName", self.codes[f"devices {gpu}"], gpu=gpu) for gpu in missed
        )
        self._known.update(gpu for gpu in self.listed if gpu not in missed)
        if missed and not self._known:
            raise self.unreachable[0]
        return tuple(
            ScannedGpu(uuid=gpu, product="H200", index=0, usable_bytes=100, mig=self.mig)
            for gpu in sorted(self._known)
        )

    def device_used_bytes(self, gpu):
        self._about("device_used_bytes", gpu)
        return self.total_bytes

    def processes(self, gpu):
        self._about("processes", gpu)
        return dict(self.listed[gpu])

    def times(self, method):
        return [when_s for when_s, called in self.calls if called == method]

    def _about(self, method, gpu):
        if gpu not in self._known:
            raise NvmlError("nvmlDeviceGetHandleByUUID", 28, gpu=gpu)
        try:
            self._meet(method, gpu)
        except NvmlError as error:
            if error.fault is Fault.GPU_LOST:
                self._known.remove(gpu)
            raise

    def _meet(self, method, gpu=""):
        self.calls.append((self.now_s, method))
        for key in (method, f"{method} {gpu}"):
            if key in self.codes:
                raise NvmlError(method, self.codes[key], gpu=gpu)


@dataclass(frozen=True)
class Ended:
    """Result of a run of the program."""

    code: int
    events: list
    errors: str


class Ground:
    """Folders for an enforcer, and the stub's file."""

    def __init__(self, folder, library):
        self.run_folder = folder / "run"
        self.run_folder.mkdir()
        self.termination_log = folder / "termination-log"
        self.termination_log.touch()
        self.stub_file = folder / "stub.txt"
        self.environment = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(library),
            "NVML_STUB_FILE": str(self.stub_file),
        }
        self.options = [
            *("--run-folder", str(self.run_folder)),
            *("--termination-log", str(self.termination_log)),
        ]

    def script(self, text="", gpu=GPU):
        self.stub_file.write_text(gpu + text, encoding="ascii")

    def run(self, *arguments, command=PROGRAM, stdout=subprocess.PIPE, **environment):
        """Run the program to its end."""
        ended = subprocess.run(
            [sys.executable, *command, *self.options, *arguments],
            env=self.environment | environment,
            stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
        return Ended(ended.returncode, events_of(ended.stdout or ""), ended.stderr)


def events_of(text):
    return [json.loads(line) for line in text.splitlines()]


@cache
def _library(folder):
    if compiler() is None:
        pytest.skip("the stub of NVML needs a C compiler, and there is none here")
    return build(folder / "stub-of-the-parts")


def a_ground(folder, tmp_path_factory):
    """Return folders with the stub and one GPU."""
    made = Ground(folder, _library(tmp_path_factory.getbasetemp()))
    made.script()
    return made
