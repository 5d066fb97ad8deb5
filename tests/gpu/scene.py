"""What happens in a PID namespace of its own beside a real GPU; prints what was seen as JSON.

Two programs allocate memory: one stays at 512 MiB, one grows to 2 GiB. First NVML is asked about
both without an enforcer, from inside; then an enforcer holds them to 1 GiB.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MIB = 2**20
SMALL_BYTES, LARGE_BYTES, CAP_BYTES = 512 * MIB, 2048 * MIB, 1024 * MIB
CONTEXT_BYTES = 800 * MIB
"""What CUDA itself may take per process, beside what a program allocates."""

ROUNDS = 50
WAIT_S = 60

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from webhook.adapters.nvml import Nvml


class Program:
    """A process with memory on the first GPU."""

    def __init__(self):
        command = [sys.executable, str(Path(__file__).with_name("cuda_program.py"))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes)
        self.pid = self.process.pid
        assert self.process.stdout.readline() == "0\n"

    def allocate(self, amount_bytes):
        self.process.stdin.write(f"{amount_bytes}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline()


def figures(nvml, gpu):
    return nvml.processes(gpu)


def median_us(call):
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e6)
    return sorted(times)[ROUNDS // 2]


def measure(nvml, gpu, small, large):
    """Compare what NVML says with what was allocated."""
    contexts = figures(nvml, gpu)
    small.allocate(SMALL_BYTES)
    large.allocate(LARGE_BYTES)
    allocated = figures(nvml, gpu)
    return {
        "context_bytes": {name: contexts.get(one.pid) for name, one in both(small, large)},
        "used_bytes": {name: allocated.get(one.pid) for name, one in both(small, large)},
        "pids": {name: one.pid for name, one in both(small, large)},
        "listed": sorted(allocated),
        "list_us": median_us(lambda: nvml.processes(gpu)),
        "device_us": median_us(lambda: nvml.device_used_bytes(gpu)),
    }


def both(small, large):
    return [("small", small), ("large", large)]


def enforce(gpu):
    """Let one program grow past the cap under a running enforcer."""
    with tempfile.TemporaryDirectory() as folder:
        verdict = Path(folder) / "verdict"
        verdict.touch()
        options = [f"--run-folder={folder}", f"--termination-log={verdict}"]
        enforcer = subprocess.Popen(
            [sys.executable, "-m", "webhook.sidecar", *options],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "VRAM_CAP_BYTES": str(CAP_BYTES),
                "VRAM_TOLERANCE": str(CONTEXT_BYTES),
                "NVIDIA_VISIBLE_DEVICES": gpu,
            },
        )
        self_test = json.loads(enforcer.stdout.readline())
        small, large = Program(), Program()
        small.allocate(SMALL_BYTES)
        grown_s = time.monotonic()
        large.allocate(LARGE_BYTES)
        seen = {"self_test": self_test}
        try:
            seen["large_ended"] = large.process.wait(WAIT_S)
            seen["after_s"] = time.monotonic() - grown_s
            seen["events"] = [json.loads(enforcer.stdout.readline()) for _ in range(2)]
            rss = Path(f"/proc/{enforcer.pid}/status").read_text().split("VmRSS:")[1].split()[0]
            seen["rss_kb"] = int(rss)
        except subprocess.TimeoutExpired:
            seen["large_ended"] = None
        time.sleep(3)
        seen["small_ended"] = small.process.poll()
        seen["verdict"] = verdict.read_text()
        for one in (small.process, large.process, enforcer):
            one.terminate()
        seen["enforcer_ended"] = enforcer.wait(WAIT_S)
        return seen


def main():
    with Nvml() as nvml:
        gpu = nvml.devices()[0].uuid
        small, large = Program(), Program()
        seen = {"gpu": gpu, "driver": nvml.driver_version(), "name": nvml.devices()[0].product}
        seen["measured"] = measure(nvml, gpu, small, large)
        print(json.dumps({"gpu": gpu}), flush=True)
        sys.stdin.readline()  # the node's side scans now
        for one in (small, large):
            one.process.kill()
            one.process.wait()
    seen["enforced"] = enforce(gpu)
    print(json.dumps(seen))


main()
