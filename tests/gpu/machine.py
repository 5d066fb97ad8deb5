"""The GPU of this machine, programs on it, and cgroups."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

from webhook.adapters.nvml import Nvml, NvmlError

MIB = 2**20
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
CONTEXT_BYTES = 800 * MIB
"""CUDA's own memory per process, besides allocations, in bytes."""

ROUNDS = 50


def missing():
    """Return the reason why no GPU is available for tests, or "" if one is."""
    try:
        with Nvml() as nvml:
            if not nvml.devices():
                return "the NVIDIA driver shows no GPU"
        ctypes.CDLL("libcuda.so.1")
    except (NvmlError, OSError) as error:
        return f"no NVIDIA GPU to test with: {error}"
    ended = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return ended.stderr.strip() and f"no PID namespace can be made here: {ended.stderr.strip()}"


def median_us(call):
    """Return the median duration of some calls, in µs."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e6)
    return round(sorted(times)[ROUNDS // 2])


def mib(amount_bytes):
    """Return an amount as a table cell."""
    return "-" if amount_bytes is None else f"{amount_bytes / MIB:.0f}Mi"


def within(cgroup):
    """Return a command prefix that runs a command in a cgroup, or anywhere for None."""
    return ["sh", "-c", 'echo 0 > "$0/cgroup.procs"; exec "$@"', str(cgroup)] if cgroup else []


class Program:
    """A process on the first GPU; see program.py for its commands."""

    def __init__(self, *before, cgroup=None):
        command = [*within(cgroup), *before, sys.executable, str(HERE / "program.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes)
        self.pid = self.process.pid
        if self.process.stdout.readline() != "ok\n":
            self.end()
            raise AssertionError("the program ended at its start; its error stands above")

    def does(self, line):
        """Send a line and return the response."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@contextlib.contextmanager
def programs(count=1, *before, **where):
    """Run this number of programs until the block ends."""
    with contextlib.ExitStack() as ending:
        ending.callback(time.sleep, 0.3)  # until the driver no longer lists the programs
        made = [Program(*before, **where) for _ in range(count)]
        for item in made:
            ending.callback(item.end)
        yield made


def cgroup_root():
    """Return the folder for new cgroups of version 2, or None."""
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (root / "cgroup.controllers").exists() and os.access(root, os.W_OK):
            return root
    return None


@contextlib.contextmanager
def cgroups(*paths):
    """Create cgroups; remove them with all their processes."""
    own = cgroup_root() / f"vramwarden-gpu-{os.getpid()}-{time.monotonic_ns()}"
    try:
        for path in paths:
            (own / path).mkdir(parents=True)
        yield [own / path for path in paths]
    finally:
        for folder, _, _ in os.walk(own, topdown=False):
            for pid in Path(folder, "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), 9)
            deadline_s = time.monotonic() + 10
            while Path(folder).exists() and time.monotonic() < deadline_s:
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
