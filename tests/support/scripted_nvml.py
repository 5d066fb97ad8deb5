"""Scripted NVML, and the agent as a process."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from tests.support.cluster_programs import wait_until
from tests.support.nvml_stub import build, compiler
from webhook.adapters.host_environment import check_kernel
from webhook.adapters.nvml import NvmlError
from webhook.core.nvidia.drivers import ScannedGpu

VRAM = "vramwarden.io/vram"
MEASURED = "none" if check_kernel().holds is False else "sidecar"
"""Expected enforcement label; some kernels, such as WSL's, report no driver."""
PROGRAM = (sys.executable, "-m", "webhook.cli", "agent")


class ScriptedNvml:
    """Implementation of `webhook.adapters.nvml.Nvml` that fails as `codes` states.

    A key of `codes` is a method, optionally with a GPU: `processes GPU-a`.
    """

    def __init__(self, *devices, version="570.86.15"):
        self.listed = devices
        self.version = version
        self.codes = {}
        self.used = {}
        self.asks = {}
        self.remapped = {}
        self.compute_modes = {}
        self.unreachable = ()
        self.is_open = False
        self.opened = 0

    def __enter__(self):
        self._meet("open")
        self.is_open = True
        self.opened += 1
        return self

    def __exit__(self, *_):
        self.is_open = False

    def driver_version(self):
        self._meet("driver_version")
        return self.version

    def devices(self):
        self.unreachable = ()
        self._meet("devices")
        missed = [item for item in self.listed if f"devices {item.uuid}" in self.codes]
        self.unreachable = tuple(
            NvmlError("nvmlDeviceGetName", self.codes[f"devices {item.uuid}"], gpu=item.uuid)
            for item in missed
        )
        found = tuple(item for item in self.listed if item not in missed)
        if missed and not found:
            raise self.unreachable[0]
        return found

    def device_used_bytes(self, uuid):
        self._meet("device_used_bytes", uuid)
        return self.used.get(uuid, 0)

    def recovery_action(self, uuid):
        self._meet("recovery", uuid)
        return self.asks.get(uuid)

    def row_remapping(self, uuid):
        self._meet("remaps", uuid)
        return self.remapped.get(uuid, (False, False))

    def modes(self, uuid):
        self._meet("modes", uuid)
        return self.compute_modes.get(uuid, 0), 0

    def processes(self, uuid):
        self._meet("processes", uuid)
        return ()

    def _meet(self, method, gpu=""):
        assert self.is_open or method == "open", f"{method} while NVML is closed"
        for key in (method, f"{method} {gpu}"):
            if key in self.codes:
                raise NvmlError(method, self.codes[key], gpu=gpu)


def a_device(name="a", mib=1000, index=0, *, mig=False):
    usable_bytes = None if mib is None else mib * 2**20
    total_bytes = None if mib is None else (mib + 100) * 2**20
    return ScannedGpu(
        uuid=f"GPU-{name}",
        product="NVIDIA H200",
        index=index,
        usable_bytes=usable_bytes,
        mig=mig,
        total_bytes=total_bytes,
    )


@cache
def _library(folder):
    return build(folder / "stub-of-the-agent")


def stub_library(tmp_path_factory):
    """Return the folder of the compiled stub."""
    if compiler() is None:
        pytest.skip("the stub of NVML needs a C compiler, and there is none here")
    return _library(tmp_path_factory.getbasetemp())


class AgentProcess:
    """`vramwarden agent` as a process with the stub as driver, until the block ends.

    The file `VRAMWARDEN_KERNEL_DRIVER` has the kernel's information about a driver. At first it
    does not exist.
    """

    program = PROGRAM

    def __init__(self, folder, library, *options, **environment):
        self.stub_file = folder / "stub.txt"
        self.run_folder = folder / "run"
        self.run_folder.mkdir(exist_ok=True)
        self._log = folder / "agent.log"
        self.options = options
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LD_LIBRARY_PATH": str(library or folder),
            "NVML_STUB_FILE": str(self.stub_file),
            "NVIDIA_VISIBLE_DEVICES": "all",
            "VRAMWARDEN_KERNEL_DRIVER": str(folder / "kernel-driver"),
            **environment,
        }
        self.process = None

    def script(self, text):
        beside = self.stub_file.with_suffix(".new")
        beside.write_text(text, encoding="ascii")
        beside.replace(self.stub_file)

    def run(self, *options, **environment):
        """Run the agent until it ends."""
        return subprocess.run(
            [*self.program, *self.options, *options],
            env=self.environment | environment,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def __enter__(self):
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self.program, *self.options, "--run-folder", str(self.run_folder)],
                env=self.environment, stdout=log, stderr=log,
            )  # fmt: skip
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        return self.process.wait(60)

    def events(self, message=None):
        """Return the events logged so far. Fail if a line is not an event."""
        text = self._log.read_text()
        events = [json.loads(line) for line in text.splitlines(keepends=True) if line[-1:] == "\n"]
        return [event for event in events if message in (None, event["msg"])]

    def wait_for(self, message, count=1):
        """Wait until an event was logged this many times; return the newest one."""
        return wait_until(message, lambda: self.events(message)[count - 1 :], timeout=60)[-1]
