"""An enforcer with a cap of 1Gi and two programs, one over the cap. Prints observations.

Arguments: the GPU's UUID, and optionally a cgroup for the enforcer. Runs in a PID namespace.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.gpu.machine import CONTEXT_BYTES, MIB, ROOT, Program, within

SMALL_BYTES, LARGE_BYTES, CAP_BYTES = 512 * MIB, 2048 * MIB, 1024 * MIB
WAIT_S = 60
QUIET_S = 10.0


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid):
    """Return anonymous and file-backed memory of a process, in KiB."""
    lines = dict(
        line.split(":")
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":" in line
    )
    return [int(lines[name].split()[0]) for name in ("RssAnon", "RssFile")]


def main(gpu, cgroup=""):
    with tempfile.TemporaryDirectory() as folder:
        verdict = Path(folder) / "verdict"
        verdict.touch()
        options = [f"--run-folder={folder}", f"--termination-log={verdict}"]
        enforcer = subprocess.Popen(
            [*within(cgroup), sys.executable, "-m", "webhook.sidecar", *options],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={
                **os.environ,
                "VRAM_CAP_BYTES": str(CAP_BYTES),
                "VRAM_TOLERANCE": str(CONTEXT_BYTES),
                "VRAM_GPUS": gpu,
            },
        )  # fmt: skip
        seen = {"self_test": json.loads(enforcer.stdout.readline())}
        seen["started_cpu_s"] = cpu_s(enforcer.pid)
        small, large = Program(), Program()
        small.does(f"alloc {SMALL_BYTES}")
        time.sleep(QUIET_S)
        used_s = cpu_s(enforcer.pid) - seen["started_cpu_s"]
        seen["cpu_per_minute_s"] = used_s * 60 / QUIET_S
        grown_s = time.monotonic()
        large.does(f"alloc {LARGE_BYTES}")
        try:
            seen["large_ended"] = large.process.wait(WAIT_S)
            seen["after_s"] = time.monotonic() - grown_s
            seen["events"] = [json.loads(enforcer.stdout.readline()) for _ in range(2)]
            seen["anon_kb"], seen["file_kb"] = resident(enforcer.pid)
        except subprocess.TimeoutExpired:
            seen["large_ended"] = None
        time.sleep(1)
        seen["small_ended"] = small.process.poll()
        seen["verdict"] = verdict.read_text()
        for process in (small.process, large.process, enforcer):
            process.terminate()
        seen["enforcer_ended"] = enforcer.wait(WAIT_S)
        print(json.dumps(seen))


main(*sys.argv[1:])
