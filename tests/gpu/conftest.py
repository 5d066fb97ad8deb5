"""A real GPU, or one line that says why these tests are skipped."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from webhook.adapters.nvml import Nvml, NvmlError

HERE = Path(__file__).parent
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _missing():
    try:
        with Nvml() as nvml:
            if not nvml.devices():
                return "the NVIDIA driver shows no GPU"
        ctypes.CDLL("libcuda.so.1")
    except (NvmlError, OSError) as error:
        return f"no NVIDIA GPU to test with: {error}"
    ended = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return ended.stderr.strip() and f"no PID namespace can be made here: {ended.stderr.strip()}"


@pytest.fixture(scope="session")
def seen():
    """Play the scene once, scan the GPU from the node's side meanwhile, and keep the figures.

    With GPU_FIGURES they are written to that file, for the table in README.md.
    """
    if why := _missing():
        pytest.skip(why)
    command = [*NAMESPACE, sys.executable, str(HERE / "scene.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as scene:
        first = scene.stdout.readline()
        assert first, "the scene ended before its end; its error stands above"
        gpu = json.loads(first)["gpu"]
        with Nvml() as nvml:
            nvml.devices()
            outside = nvml.processes(gpu)
        figures, _ = scene.communicate("go on\n", timeout=200)
    seen = {**json.loads(figures), "outside": outside}
    if name := os.environ.get("GPU_FIGURES"):
        Path(name).write_text(json.dumps(seen, indent=1), encoding="utf-8")
    return seen
