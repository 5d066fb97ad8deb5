"""Processes on a GPU: lists joined, figures believed or not, lists that grow."""

import os
import subprocess
import sys
import time

import pytest


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", []),
        ("compute 7 70\ngraphics 8 80\nmps 9 90", [[7, 70], [8, 80], [9, 90]]),
        ("compute 7 70\ngraphics 7 50\nmps 7 60", [[7, 70]]),
        ("compute 7 50\ngraphics 7 60\nmps 7 70", [[7, 70]]),
        ("compute 7 70\ncompute 7 50\ncompute 7 60", [[7, 70]]),
        ("compute 7 0", [[7, None]]),
        ("compute 7 unavailable", [[7, None]]),
        ("compute 7 0\nmps 7 70", [[7, 70]]),
        ("compute 7 70\nmps 7 unavailable", [[7, 70]]),
        ("compute 7 unavailable\ngraphics 7 0", [[7, None]]),
        ("compute 7 18446744073709551614", [[7, 18446744073709551614]]),
        ("compute 0 70\ncompute 7 1", [[7, 1]]),
    ],
)
def test_a_process_counts_once_by_its_largest_figure_and_unknown_is_not_zero(stub, lines, expected):
    def scenario(s, lines):
        s.script(lines)
        return s.listed(s.open())

    lines = "\n".join(f"process 0 {line}" for line in lines.splitlines())
    assert stub.run(scenario, lines) == expected


def test_each_gpu_has_its_own_processes(stub):
    def scenario(s):
        s.script("process 0 compute 7 70\nprocess 1 compute 7 5", gpu="gpu GPU-a\ngpu GPU-b\n")
        nvml = s.open()
        return s.listed(nvml, "GPU-a"), s.listed(nvml, "GPU-b")

    assert stub.run(scenario) == [[[7, 70]], [[7, 5]]]


def test_a_scan_is_one_call_per_list(stub):
    def scenario(s):
        s.script("crowd 0 compute 100 120 5")
        nvml = s.open()
        s.calls()
        return len(nvml.processes("GPU-a")), s.calls()

    calls = [f"{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")]
    assert stub.run(scenario) == [120, calls]


@pytest.mark.parametrize("length", [128, 129, 256, 257, 513, 950, 951, 65_536])
def test_a_list_is_read_whole_however_long(stub, length):
    def scenario(s, length):
        s.script(f"crowd 0 compute 100 {length} 5\nprocess 0 mps 7 70")
        nvml = s.open()
        s.calls()
        listed, calls = s.listed(nvml), s.calls().count("ComputeRunningProcesses_v3")
        return len(listed), sum(used for _, used in listed), calls

    calls = 1 if length <= 128 else 2  # the driver said how many there are
    assert stub.run(scenario, length) == [length + 1, 5 * length + 70, calls]


def test_a_list_that_outgrows_its_buffer_between_two_calls_is_read_whole(stub):
    def scenario(s):
        lists = "crowd 0 compute 100 200 5\ncrowd 0 compute 500 200 5 from=2\n"
        s.script(lists + "crowd 0 compute 1000 200 5 from=3")
        nvml = s.open()
        s.calls()
        return len(nvml.processes("GPU-a")), s.calls().count("ComputeRunningProcesses_v3")

    assert stub.run(scenario) == [600, 4]


def test_a_list_that_never_fits_is_given_up_after_four_tries_and_read_when_it_does(stub):
    def scenario(s):
        s.script("crowd 0 compute 100 65537 5")
        nvml = s.open()
        s.calls()
        failed, tries = s.outcome(nvml.processes, "GPU-a"), len(s.calls())
        s.script("crowd 0 compute 100 950 5")
        return failed, tries, len(nvml.processes("GPU-a")), len(s.calls())

    failed = ["too-long", "nvmlDeviceGetComputeRunningProcesses_v3", 7]
    assert stub.run(scenario) == [failed, 4, 950, 3]


@pytest.mark.parametrize("kind", ["Compute", "Graphics", "MPSCompute"])
def test_a_scan_of_which_one_list_fails_is_no_scan(stub, kind):
    def scenario(s, kind):
        s.script(
            "process 0 compute 7 70\nprocess 0 graphics 8 80\nprocess 0 mps 9 90\n"
            f"fail nvmlDeviceGet{kind}RunningProcesses_v3 10"
        )
        return s.outcome(s.open().processes, "GPU-a")

    assert stub.run(scenario, kind) == ["stuck", f"nvmlDeviceGet{kind}RunningProcesses_v3", 10]


@pytest.mark.parametrize("without", [["V3"], ["V2"], ["V3", "MEMORY_V2"]])
def test_a_library_with_one_version_of_the_lists_is_enough(stub, without):
    def scenario(s):
        s.script("process 0 compute 7 70\nprocess 0 graphics 8 80\nprocess 0 mps 9 90")
        return s.listed(s.open())

    assert stub.run(scenario, without=without) == [[7, 70], [8, 80], [9, 90]]


def test_a_library_without_mps_lists_has_the_others(stub):
    def scenario(s):
        s.script("process 0 compute 7 70\nprocess 0 graphics 8 80")
        return s.listed(s.open())

    assert stub.run(scenario, without=["MPS"]) == [[7, 70], [8, 80]]


def test_a_library_without_a_list_that_we_know_is_rejected(stub):
    def scenario(s):
        s.script("")
        return s.outcome(s.open().processes, "GPU-a")

    failed = ["library-too-old", "nvmlDeviceGetComputeRunningProcesses_v2", 13]
    assert stub.run(scenario, without=["V3", "V2"]) == failed


def test_a_compute_list_that_is_not_supported_is_never_taken_for_an_empty_one(stub):
    def scenario(s):
        lists = [f"fail nvmlDeviceGet{one}RunningProcesses_v3 3" for one in ("Compute", "Graphics")]
        s.script("\n".join(lists))
        return s.outcome(s.open().processes, "GPU-a")

    failed = ["not-supported", "nvmlDeviceGetComputeRunningProcesses_v3", 3]
    assert stub.run(scenario) == failed


def test_a_real_process_is_listed_while_it_lives(stub):
    def scenario(s, pid):
        s.script("")
        nvml = s.open()
        s.live(pid, "GPU-a 70\n0 50 mps\n")
        here = s.listed(nvml), nvml.device_used_bytes("GPU-a")
        s.live(pid, "0 90\n")
        grown = s.listed(nvml)
        os.kill(pid, 9)
        until = time.monotonic() + 20
        while s.listed(nvml) and time.monotonic() < until:
            time.sleep(0.01)
        return here, grown, s.listed(nvml), nvml.device_used_bytes("GPU-a")

    sleeper = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    try:
        here, grown, gone, used = stub.run(scenario, sleeper.pid)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert here == [[[sleeper.pid, 70]], 130]
    assert (grown, gone, used) == ([[sleeper.pid, 90]], [], 10)
