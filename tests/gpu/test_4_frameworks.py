"""Memory of programs that get their cap by environment variables, until allocation fails."""

import os
import subprocess
import sys

import pytest

from tests.gpu.machine import MIB, mib
from tests.support.measurement_table import answer
from webhook.core.enforcement.parameters import parse_tolerance
from webhook.core.nvidia.programs import PROGRAM_VARIABLES, Program
from webhook.core.placement.gpu_annotations import memory_fraction

CAP_BYTES = 8192 * MIB
# Each program computes, so that it loads its kernels and libraries. It allocates until that fails,
# prints `full` and waits.
PYTORCH = """
import torch
x = torch.randn(2048, 2048, device="cuda")
(x @ x).sum(), (x.bfloat16() @ x.bfloat16()).sum()
images = torch.randn(8, 64, 128, 128, device="cuda")
torch.nn.Conv2d(64, 128, 3, device="cuda")(images).sum().backward()
small = x[:256, :256]
torch.fft.fft(x), torch.linalg.svd(small), torch.linalg.solve(small, small)
x.sort(), x.topk(5), x.softmax(0)
layer = torch.nn.TransformerEncoderLayer(512, 8, device="cuda", batch_first=True)
layer(torch.randn(8, 128, 512, device="cuda")).sum().backward()
held = []
try:
    while True: held.append(torch.ones(64 * 2**20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError: pass
"""
JAX = """
import jax, jax.numpy as jnp
x = jnp.ones((2048, 2048))
(x @ x), jnp.linalg.svd(x[:256, :256]), jnp.fft.fft(x), jnp.sort(x)
held = []
try:
    while len(held) < 2000: held.append(jnp.ones(64 * 2**20, dtype=jnp.uint8).block_until_ready())
except Exception as error:
    assert "RESOURCE_EXHAUSTED" in str(error), error
"""
GROWS = """
import jax, jax.numpy as jnp
held = [jnp.ones(64 * 2**20, dtype=jnp.uint8).block_until_ready() for _ in range(8)]
"""
CUPY = """
import cupy
held = []
try:
    while True: held.append(cupy.ones(64 * 2**20, dtype=cupy.uint8))
except cupy.cuda.memory.OutOfMemoryError: pass
"""
END = "\nprint('full', flush=True)\ninput()\n"


@pytest.mark.parametrize(
    ("program", "module", "script"),
    [
        (Program.PYTORCH, "torch", PYTORCH),
        (Program.JAX_FRACTION, "jax", JAX),
        (Program.JAX, "jax", GROWS),
        (Program.CUPY, "cupy", CUPY),
    ],
)
def test_a_program_with_its_variables_is_not_stopped(program, module, script, nvml, gpu):
    pytest.importorskip(module)
    device = nvml.devices()[0]
    fraction = memory_fraction(CAP_BYTES, [device.total_bytes])
    settings = [setting.entry(CAP_BYTES) for setting in PROGRAM_VARIABLES[program]]
    values = {
        setting["name"]: setting["value"].replace("$(VRAMWARDEN_GPU_MEMORY_FRACTION)", fraction)
        for setting in settings
    }
    with subprocess.Popen(
        [sys.executable, "-c", script + END], env={**os.environ, **values},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        said = running.stdout.readline()
        held_bytes = nvml.processes(gpu).get(running.pid)
        running.stdin.close()
        assert said == "full\n", running.stderr.read()[-2000:]
    answer(f"{program}, cap 8Gi: holds when no more is allocated", mib(held_bytes))
    assert held_bytes <= CAP_BYTES + parse_tolerance("", CAP_BYTES)
