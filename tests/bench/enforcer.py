"""Cost and reaction time of a running enforcer: the real program with the stub as driver.

The enforcer runs in a bare virtual environment with compiled bytecode, as in its image, in a PID
namespace with real processes. `enforcer_scene.py` runs in that namespace.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pynvml

from tests.bench.figures import children_s
from tests.support.nvml_stub import build, compiler
from tests.support.paths import ROOT
from webhook.sidecar.heartbeat import Heartbeat

INCIDENTS = 48
OF_A_SCENE = 3  # a fourth stop would end all processes of the container
AT_ONCE = 5
POLL_INTERVAL_S = 1.0  # the default
PROBES = 500
SECONDS = float(os.environ.get("BENCH_ENFORCER_SECONDS", "40"))
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def bench_enforcer():
    print()
    if reason := not_possible():
        print(f"the enforcer: skipped: {reason}")
        return
    with tempfile.TemporaryDirectory(prefix="vramwarden-bench-") as name:
        folder = Path(name)
        python = bare_environment(folder / "bare")
        build(folder / "library")
        print("the enforcer at its default interval of 1 s, 8 processes on 2 GPUs")
        for title, restless in (("use is still", "0"), ("use moves in each poll", "1")):
            cost = play(folder, python, "cost", str(SECONDS), restless)
            print(
                f"  {title:<26}{cost['rss_kb'] / 1000:6.1f} MB resident"
                f"{cost['cpu_percent']:8.3f} % of a core{cost['lists_per_s']:8.2f} list calls/s"
            )
        print(
            f"  from its start to its first heartbeat {cost['start_cpu_ms']:.0f} ms of CPU, "
            f"from SIGTERM to its end {cost['end_ms']:.1f} ms"
        )
        bench_probes(folder)
        bench_incidents(folder, python)


def bench_probes(folder):
    """Run the kubelet's probes, without the overhead of a container runtime."""
    Heartbeat(str(folder)).beat()
    environment = os.environ | {"VRAM_POLL_INTERVAL": "60s"}  # one heartbeat for all probes
    for kind in ("startup", "liveness"):
        command = ["/bin/sh", ROOT / "webhook/sidecar/probe.sh", kind, "0", folder]
        before_s = children_s()
        for _ in range(PROBES):
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
        cost_ms = (children_s() - before_s) / PROBES * 1000
        print(f"  a {kind} probe {cost_ms:.2f} ms of CPU")


def bench_incidents(folder, python):
    """Run incidents in several namespaces in parallel, each with its own enforcer."""
    scene = folder, python, "incidents", str(OF_A_SCENE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [pool.submit(play, *scene) for _ in range(INCIDENTS // OF_A_SCENE)]
        delays_s = sorted(delay_s for run in runs for delay_s in run.result()["delays_s"])
    print(f"  from excess to SIGTERM, {len(delays_s)} incidents: "
          f"median {statistics.median(delays_s):.2f} s, worst {delays_s[-1]:.2f} s "
          f"(bound: {2 * POLL_INTERVAL_S + 0.3:.1f} s)")  # fmt: skip


def not_possible():
    if compiler() is None:
        return "there is no C compiler for the stub of NVML"
    ended = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return ended.stderr.strip() and f"no PID namespace can be made here: {ended.stderr.strip()}"


def bare_environment(folder):
    """Create a virtual environment with pynvml and this package; return its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    shutil.copy(pynvml.__file__, site)
    package = ROOT / "webhook"
    shutil.copytree(package, site / "webhook", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(site, quiet=1)
    return folder / "bin" / "python3"


def play(folder, python, *arguments):
    with tempfile.TemporaryDirectory(dir=folder) as own:
        scene = [sys.executable, str(Path(__file__).with_name("enforcer_scene.py"))]
        ended = subprocess.run(
            [*NAMESPACE, *scene, own, str(python), *arguments],
            capture_output=True, text=True, check=False,
            env={**os.environ, "LD_LIBRARY_PATH": str(folder / "library")},
        )  # fmt: skip
    if ended.returncode:
        sys.exit(ended.stderr)
    return json.loads(ended.stdout)


if __name__ == "__main__":
    bench_enforcer()
