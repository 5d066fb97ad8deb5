"""First argument of a scenario; runs in a fresh interpreter without site-packages."""

import dataclasses
import enum
import json
import os
import sys
import time
import types
from pathlib import Path

from webhook.adapters import node_nvml, nvml

GPU = "gpu GPU-a total=1000 reserved=100 used=10 mig=0 name=NVIDIA_H200\n"


class Scene:
    """The stub's input file, and NVML as the programs use it."""

    def __init__(self):
        self.nvml = nvml
        self.file = Path(os.environ["NVML_STUB_FILE"])
        self.log = Path(os.environ["NVML_STUB_LOG"])

    def script(self, text, gpu=GPU):
        """Replace the content of the stub's file, by default for GPU-a."""
        write(self.file, gpu + text)

    def live(self, pid, text):
        """Let a real process use memory; each line of `text` has a GPU and bytes."""
        (self.file.parent / "pids").mkdir(exist_ok=True)
        write(self.file.parent / "pids" / str(pid), text)

    def open(self, only=None):
        """Return NVML, opened and with handles of its GPUs."""
        opened = node_nvml.NodeNvml(only).open()
        opened.devices()
        return opened

    def listed(self, opened, gpu="GPU-a"):
        """Return the processes as sorted pairs of PID and bytes."""
        return sorted(map(list, opened.processes(gpu).items()))

    def outcome(self, call, *arguments):
        """Return the result of a call, or fault, function and code of its error."""
        try:
            return call(*arguments)
        except self.nvml.NvmlError as error:
            return [error.fault.value, error.function, error.code]

    def calls(self):
        """Return the abbreviated names of NVML calls since the previous call of this method."""
        calls = self.log.read_text(encoding="ascii").split() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [call.removeprefix("nvml").removeprefix("DeviceGet") for call in calls]


def write(path, text):
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def plain(value):
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return dataclasses.asdict(value)
    raise TypeError(value)


def report(source, name, arguments):
    """Run the scenario and print what it returns; it finds Path, os, sys and time."""
    module = types.ModuleType("scenario")
    module.__dict__.update(Path=Path, os=os, sys=sys, time=time)
    exec(compile(source, "scenario", "exec"), module.__dict__)  # noqa: S102  # the test's own text
    print(json.dumps(module.__dict__[name](Scene(), *arguments), default=plain), flush=True)
