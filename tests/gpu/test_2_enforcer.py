"""The enforcer on a real GPU, in its own PID namespace, and its cost."""

import json
import subprocess
import sys

import pytest

from tests.gpu.machine import MIB, NAMESPACE, ROOT, cgroup_root, cgroups
from tests.support.measurement_table import answer


@pytest.fixture(scope="module")
def seen(gpu):
    """Run the scenario once; return its observations."""
    command = [*NAMESPACE, sys.executable, "-m", "tests.gpu.enforcing", gpu]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_the_program_over_the_cap_is_stopped_and_its_neighbour_is_not(seen):
    answer("excess of 2.6Gi to the program's end", f"{seen['after_s']:.2f} s")
    assert seen["large_ended"] in {-15, -9}
    assert seen["small_ended"] is None


def test_the_enforcer_says_why_and_that_the_memory_came_back(seen):
    stop, freed = seen["events"]
    assert stop["msg"] == "stopping a process"
    assert "over the VRAM cap" in seen["verdict"]
    assert stop["used_bytes"] >= 2048 * MIB
    assert freed["msg"] == "memory came back"
    answer("signal to memory given back", f"{freed['after_s']} s")
    assert seen["enforcer_ended"] == 0


def test_the_self_test_passes(seen):
    assert seen["self_test"]["ability"] == "full"


def test_it_fits_into_its_memory_limit(gpu):
    """The kernel kills a sidecar that needs more than its 64Mi."""
    root = cgroup_root()
    if not root or "memory" not in (root / "cgroup.controllers").read_text():
        pytest.skip("no cgroup with a memory limit can be made here")
    (root / "cgroup.subtree_control").write_text("+memory")
    with cgroups("own") as (own,):
        (own.parent / "cgroup.subtree_control").write_text("+memory")
        (own / "memory.max").write_text(str(64 * MIB))
        command = [*NAMESPACE, sys.executable, "-m", "tests.gpu.enforcing", gpu, str(own)]
        ended = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
        )
        assert ended.returncode == 0, ended.stderr
        seen = json.loads(ended.stdout.splitlines()[-1])
        peak_bytes = int((own / "memory.peak").read_text())
        events = dict(line.split() for line in (own / "memory.events").read_text().splitlines())
    answer(
        "enforcer: anonymous, of files, peak of its cgroup",
        f"{seen['anon_kb'] // 1024}Mi, {seen['file_kb'] // 1024}Mi, {peak_bytes / MIB:.0f}Mi",
    )
    answer(
        "enforcer: CPU until it guards, then per minute",
        f"{seen['started_cpu_s'] * 1e3:.0f} ms, {seen['cpu_per_minute_s'] * 1e3:.0f} ms",
    )
    assert events["oom_kill"] == "0"
    assert seen["large_ended"] in {-15, -9}
