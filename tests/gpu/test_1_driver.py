"""The driver's reports on processes and their memory, on which vramwarden depends."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gpu.machine import CONTEXT_BYTES, MIB, NAMESPACE, ROOT, median_us, mib, programs
from tests.support.measurement_table import answer

INSIDE = (sys.executable, "-m", "tests.gpu.inside")


def test_a_context_takes_what_a_share_has_to_leave_for_it(nvml, gpu):
    before = nvml.device_used_bytes(gpu)
    with programs() as (one,):
        context_bytes = nvml.processes(gpu)[one.pid]
        answer("a CUDA context, by the list", mib(context_bytes))
        answer("a CUDA context, by the GPU's use", mib(nvml.device_used_bytes(gpu) - before))
        assert 0 < context_bytes <= CONTEXT_BYTES


@pytest.mark.parametrize(
    ("kind", "is_listed", "is_used"),
    [
        ("alloc", True, True),
        ("pool", True, True),
        ("managed", False, True),
        ("pinned", False, False),
    ],
)
def test_which_memory_the_list_knows(kind, is_listed, is_used, nvml, gpu):
    with programs() as (one,):
        listed, used = nvml.processes(gpu)[one.pid], nvml.device_used_bytes(gpu)
        if one.does(f"{kind} {512 * MIB}") == "unknown":
            pytest.skip(f"this libcuda.so.1 has no {kind} memory")
        listed = nvml.processes(gpu)[one.pid] - listed
        used = nvml.device_used_bytes(gpu) - used
    answer(f"512Mi of kind {kind}: list, use", f"{mib(listed)}, {mib(used)}")
    assert ((listed >= 512 * MIB), (used >= 512 * MIB)) == (is_listed, is_used)


def test_imported_memory_is_its_creators_until_that_ends(nvml, gpu):
    with programs(2) as (creator, importer):
        context_bytes = nvml.processes(gpu)[importer.pid]
        creator.does(f"alloc {512 * MIB}")
        if len(handle := creator.does("export")) != 128:
            pytest.skip(f"no memory can be exported here: {handle}")
        assert importer.does(f"import {handle}") == "ok"
        imported_bytes = nvml.processes(gpu)[importer.pid]
        creator.end()
        time.sleep(0.5)
        left_bytes = nvml.processes(gpu)[importer.pid]
    grown = [mib(item - context_bytes) for item in (imported_bytes, left_bytes)]
    answer("512Mi imported: its creator lives, has ended", ", ".join(grown))
    assert left_bytes >= context_bytes + 512 * MIB


@pytest.mark.parametrize("more", [(), ("--user", "--map-root-user")], ids=["pid", "user"])
def test_a_process_in_a_namespace_of_its_own_is_listed_with_our_number(more, nvml, gpu):
    with programs(1, NAMESPACE[0], *more, *NAMESPACE[1:]) as (outer,):
        outer.does(f"alloc {64 * MIB}")
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text()
        assert nvml.processes(gpu)[int(children)] >= 64 * MIB


def test_inside_a_namespace_its_numbers_and_figures_are_those_of_outside(nvml, gpu):
    command = [*NAMESPACE, *INSIDE, "start"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as scene:
        seen = json.loads(scene.stdout.readline())
        outside = nvml.processes(gpu)
        scene.communicate("go on\n", timeout=60)
    assert sorted(map(int, seen["listed"])) == sorted(seen["pids"])
    assert sorted(seen["listed"].values()) == sorted(outside.values())
    assert max(seen["pids"]) < 50  # these PIDs belong to the PID namespace


def test_memory_whose_creator_has_ended_is_listed_nowhere_else(nvml, gpu):
    """The driver's client belongs to the process that opened it. A child still has it open."""
    with programs(1, *NAMESPACE, "sh", "-c", '"$0" "$@"; sleep 60') as (one,):
        one.does(f"alloc {512 * MIB}")
        first = Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().strip()
        enter = ("nsenter", f"--target={first}", "--pid", "--mount")
        assert one.does("leave") == "ok"
        time.sleep(0.5)
        used = mib(nvml.device_used_bytes(gpu))
        lists = [nvml.processes(gpu)]
        for before in (enter, NAMESPACE):
            said = subprocess.run(
                [*before, *INSIDE], capture_output=True, text=True, cwd=ROOT, check=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},  # nsenter changes the directory
            )  # fmt: skip
            lists.append(json.loads(said.stdout)["listed"])
    seen = [{pid: mib(held) for pid, held in item.items()} for item in lists]
    answer(
        "creator ended, a child has it open: use; outside, in its namespace, in another",
        [used, *seen],
    )
    assert lists[2] == {}


@pytest.mark.parametrize("count", [1, 8, 32])
def test_what_lists_and_totals_cost(count, nvml, gpu):
    with programs(count):
        lists_us = median_us(lambda: nvml.processes(gpu))
        total_us = median_us(lambda: nvml.device_used_bytes(gpu))
        ran_us = median_us(lambda: nvml.process_samples(gpu, 0))
    answer(f"{count} processes: all lists, total, samples", f"{lists_us}, {total_us}, {ran_us} us")
    assert total_us < lists_us


def test_who_ran_is_sampled_and_who_only_holds_memory_is_not(nvml, gpu):
    with programs(2) as (busy, idle):
        for item in (busy, idle):
            item.does(f"alloc {300 * MIB}")
        time.sleep(1)
        mark_us = int(time.time() * 1e6)
        busy.does("write 2 s")
        time.sleep(0.5)
        found = nvml.process_samples(gpu, mark_us) or {}
        seen = [found.get(item.pid, (0, "no sample"))[1] for item in (busy, idle)]
        answer("2 s long one ran, one did not: ran", seen)
        assert found[busy.pid][1]
        assert not found.get(idle.pid, (0, False))[1]
        sleeping_us = int(time.time() * 1e6)
        time.sleep(3)
        found = nvml.process_samples(gpu, sleeping_us) or {}
        answer("who ran last, 3 s later", found.get(busy.pid, (0, "no sample"))[1])
        assert not any(ran for _, ran in found.values())


@pytest.mark.parametrize("size", [4096, MIB, 64 * MIB])
def test_which_short_kernels_leave_a_trace(size, nvml, gpu):
    """A short kernel may cause no utilization, but the last process that ran is still sampled."""
    with programs(2) as (first, second):
        for item in (first, second):
            item.does(f"alloc {300 * MIB}")
            time.sleep(0.5)
        time.sleep(1)
        mark_us = int(time.time() * 1e6)
        first.does(f"write {size}")
        time.sleep(1)
        found = nvml.process_samples(gpu, mark_us) or {}
    seen = {True: "some percent", False: "sampled, 0 percent", None: "no sample"}
    answer(
        f"one write of {size} bytes after another process", seen[found.get(first.pid, (0, None))[1]]
    )


def test_the_lists_forget_who_has_ended(nvml, gpu):
    with programs(4) as made:
        assert {item.pid for item in made} <= nvml.processes(gpu).keys()
    assert not {item.pid for item in made} & nvml.processes(gpu).keys()
