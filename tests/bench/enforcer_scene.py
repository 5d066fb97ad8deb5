"""A PID namespace for the bench, with an enforcer and real processes. Prints JSON."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

GIB = 2**30
CAP_BYTES = 8 * GIB
# Other pods use most of each GPU. If the total were below the cap, no process list would be read.
GPUS = "".join(
    f"gpu GPU-{name} total={80 * GIB} reserved={GIB} used={40 * GIB} mig=0 name=bench\n"
    for name in "ab"
)


class Scene:
    """Folder of the stub, and the enforcer that uses it."""

    def __init__(self, folder, python):
        self.folder = folder
        (folder / "pids").mkdir()
        (folder / "stub.txt").write_text(f"driver 580.65.06\n{GPUS}live figures\n")
        self.enforcer = subprocess.Popen(
            [python, "-I", "-m", "webhook.sidecar", f"--run-folder={folder}"],
            stdout=(folder / "events").open("wb"),
            env={
                **os.environ,
                "NVML_STUB_FILE": str(folder / "stub.txt"),
                "NVML_STUB_LOG": str(folder / "calls"),
                "VRAM_CAP_BYTES": str(CAP_BYTES),
            },
        )

    def holds(self, pid, gpu, amount_bytes):
        """Make a process use this much memory from now on."""
        beside = self.folder / "pids" / f"{pid}.new"
        beside.write_text(f"{gpu} {amount_bytes}\n")
        beside.replace(self.folder / "pids" / str(pid))

    def wait_until_guarding(self):
        while not (self.folder / "heartbeat").exists():
            if self.enforcer.poll() is not None:
                sys.exit((self.folder / "events").read_text())
            time.sleep(0.02)


def sleeper():
    """Return the PID of a sleeping child, and a pipe on which the child reports SIGTERM."""
    near, far = os.pipe()
    if pid := os.fork():
        os.close(far)
        return pid, near

    def leave(_number, _frame):
        os.write(far, f"{time.monotonic()}".encode())
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    while True:
        signal.pause()


def cost(scene, seconds, restless):
    """Enforce a cap that is not exceeded; print memory, CPU time and number of lists read."""
    pids = [sleeper()[0] for _ in range(8)]
    for number, pid in enumerate(pids):
        scene.holds(pid, number % 2, GIB)
    scene.wait_until_guarding()
    start_ns = cpu_ns(scene.enforcer.pid)
    time.sleep(3)
    before_ns, calls = cpu_ns(scene.enforcer.pid), list_calls(scene)
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        time.sleep(0.5)
        if restless:
            for gpu, pid in enumerate(pids[:2]):
                scene.holds(pid, gpu, random.randint(8, 30) * GIB // 8)
    elapsed_s = time.monotonic() - started
    return {
        "start_cpu_ms": start_ns / 1e6,
        "rss_kb": rss_kb(scene.enforcer.pid),
        "cpu_percent": (cpu_ns(scene.enforcer.pid) - before_ns) / elapsed_s / 1e7,
        "lists_per_s": (list_calls(scene) - calls) / elapsed_s,
        "end_ms": end_ms(scene.enforcer),
    }


def end_ms(enforcer):
    asked_s = time.monotonic()
    enforcer.terminate()
    enforcer.wait()
    return (time.monotonic() - asked_s) * 1000


def incidents(scene, count):
    """Exceed the cap at random times; print the time until each SIGTERM."""
    neighbour = sleeper()[0]
    scene.holds(neighbour, 0, GIB)
    scene.wait_until_guarding()
    delays_s = []
    for _ in range(count):
        pid, pipe = sleeper()
        scene.holds(pid, 0, GIB)
        time.sleep(random.uniform(1.5, 3.5))
        grown_s = time.monotonic()
        scene.holds(pid, 0, 12 * GIB)
        delays_s.append(float(os.read(pipe, 64)) - grown_s)
        os.waitpid(pid, 0)
    return {"delays_s": delays_s}


def cpu_ns(pid):
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def rss_kb(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def list_calls(scene):
    return (scene.folder / "calls").read_text().count("RunningProcesses")


def main(folder, python, kind, *arguments):
    scene = Scene(Path(folder), python)
    if kind == "cost":
        figures = cost(scene, float(arguments[0]), arguments[1] == "1")
    else:
        figures = incidents(scene, int(arguments[0]))
    print(json.dumps(figures))


main(*sys.argv[1:])
