"""Processes on a GPU: merged lists, valid and invalid amounts, and growing lists."""

import os
import subprocess
import sys
import time

import pytest


@pytest.fixture
def read(stub):
    """Return the processes of GPU 0, given lists and further lines of the stub's file."""

    def scenario(s, lines):
        s.script(lines)
        return s.outcome(lambda: s.listed(s.open()))

    def run(lists, *more, **options):
        lines = [f"process 0 {line}" for line in lists.splitlines()]
        return stub.run(scenario, "\n".join([*lines, *more]), **options)

    return run


EACH = "compute 7 70\ngraphics 8 80\nmps 9 90"
LISTED = [[7, 70], [8, 80], [9, 90]]
LIST = "nvmlDeviceGet{}RunningProcesses_v{}"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", []),
        (EACH, LISTED),
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
def test_a_process_counts_once_by_its_largest_figure_and_unknown_is_not_zero(read, lines, expected):
    assert read(lines) == expected


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        (["V3"], LISTED),  # one version of the lists is enough
        (["V2"], LISTED),
        (["V3", "MEMORY_V2"], LISTED),
        (["MPS"], LISTED[:2]),
        (["V3", "V2"], ["library-too-old", LIST.format("Compute", 2), 13]),
    ],
    ids=str,
)
def test_a_library_may_lack_lists_or_versions_of_them_but_not_all(read, without, expected):
    assert read(EACH, without=without) == expected


@pytest.mark.parametrize(
    "version", ["535.42.01", "535.54.03", "535.86.10", "535.87.01", "550.54.14"]
)
def test_drivers_from_535_are_read_whatever_the_layout_of_their_entries(read, version):
    crowd = "crowd 0 compute 100 300 5"
    found = read(EACH, crowd, f"driver {version}")
    assert found == [*LISTED, *([pid, 5] for pid in range(100, 400))]


@pytest.mark.parametrize(
    ("kinds", "code", "fault"),
    [
        (["Compute"], 10, "stuck"),
        (["Graphics"], 10, "stuck"),
        (["MPSCompute"], 10, "stuck"),
        (["Compute", "Graphics"], 3, "not-supported"),  # never treated as an empty list
    ],
    ids=str,
)
def test_a_scan_of_which_one_list_fails_is_no_scan(read, kinds, code, fault):
    lists = [LIST.format(kind, 3) for kind in kinds]
    assert read(EACH, *(f"fail {name} {code}" for name in lists)) == [fault, lists[0], code]


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

    calls = 1 if length <= 128 else 2  # the driver returned the number of processes
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


def test_a_real_process_is_listed_while_it_lives(stub):
    def scenario(s, pid):
        s.script("")
        nvml = s.open()
        s.live(pid, "GPU-a 70\n0 50 mps\n")
        here = s.listed(nvml), nvml.device_used_bytes("GPU-a")
        s.live(pid, "0 90\n")
        grown = s.listed(nvml)
        os.kill(pid, 9)
        until = time.monotonic() + 60
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
