"""Properties of the stub that tests with real processes rely on."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import isolated_interpreter


@pytest.mark.parametrize(
    ("how", "figure"), [("figures", 70), ("zeros", None), ("unavailable", None)]
)
def test_it_can_be_as_blind_as_a_driver_and_still_count_what_is_in_use(stub, how, figure):
    def scenario(s, how):
        s.script(f"live {how}\nprocess 0 compute 7 5")
        s.live(os.getpid(), "0 70")
        nvml = s.open()
        listed = dict(s.listed(nvml))
        return listed[7], listed[os.getpid()], nvml.device_used_bytes("GPU-a")

    assert stub.run(scenario, how) == [5, figure, 80]


def test_it_lists_no_process_that_is_over_and_no_file_that_is_being_written(stub):
    def scenario(s, gone):
        s.script("")
        s.live(gone, "0 70")
        s.live("1.new", "0 70")
        child = os.fork() or os._exit(0)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # stays a zombie
        s.live(child, "0 70")
        nvml = s.open()
        return s.listed(nvml), nvml.device_used_bytes("GPU-a")

    ended = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    ended.wait()
    assert stub.run(scenario, ended.pid) == [[], 10]


HIDES = """
import os, time
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write("54320")
if os.fork() == 0:
    print(flush=True)
time.sleep(60)
"""


def test_a_whole_node_is_seen_with_ones_own_numbers_of_each_pods_processes(stub):
    def scenario(s, cgroup, outer):
        pods = s.file.parent / "pods"
        for name, pod in (("a", cgroup), ("b", "another's")):
            (pods / name / "pids").mkdir(parents=True)
            (pods / name / "pod").write_text(pod)
            (pods / name / "pids" / "54321").write_text("GPU-a 70\n")
        s.script(f"live figures\npods {pods}\n")
        nvml = s.open()
        hidden = outer
        for _ in range(2):  # child of unshare, then the first process in its namespace
            children = type(s.file)(f"/proc/{hidden}/task/{hidden}/children")
            (hidden,) = children.read_text().split()
        return s.listed(nvml) == [[int(hidden), 70]], nvml.device_used_bytes("GPU-a")

    if reason := isolated_interpreter.missing():
        pytest.skip(reason)
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-I", "-S", "-c"]
    cgroup = Path("/proc/self/cgroup").read_text().splitlines()[-1]
    with subprocess.Popen([*command, HIDES], stdout=subprocess.PIPE) as outer:
        try:
            assert outer.stdout.readline() == b"\n"
            assert stub.run(scenario, cgroup, outer.pid) == [True, 80]
        finally:
            outer.kill()


def test_a_failure_lasts_from_one_call_to_another_and_counts_from_zero_with_a_new_file(stub):
    def scenario(s):
        limited = "fail nvmlDeviceGetMemoryInfo_v2 15 from=3 until=3"
        s.script(limited)
        nvml = s.open()
        first = [isinstance(s.outcome(nvml.device_used_bytes, "GPU-a"), int) for _ in range(2)]
        nvml.devices()
        s.script(limited)
        again = [isinstance(s.outcome(nvml.device_used_bytes, "GPU-a"), int) for _ in range(3)]
        return first, again

    assert stub.run(scenario) == [[True, False], [True, True, False]]


def test_a_delay_holds_a_call_up(stub):
    def scenario(s):
        s.script("")
        nvml = s.open()
        s.script("delay nvmlDeviceGetMemoryInfo_v2 50")
        before = time.monotonic()
        nvml.device_used_bytes("GPU-a")
        return time.monotonic() - before >= 0.05

    assert stub.run(scenario)


@pytest.mark.parametrize(
    "line",
    ["gpus GPU-b", "gpu GPU-b big=1", "process 0 compute 7", "process 0 neither 7 1", "fail"],
)
def test_a_line_that_it_cannot_read_ends_the_process(stub, line):
    def scenario(s, line):
        s.script(line)
        s.open()

    with pytest.raises(AssertionError, match="nvml stub: "):
        stub.run(scenario, line)


def test_the_bindings_own_wrappers_work_on_it(stub):
    def scenario(s):
        s.script("process 0 compute 7 70")
        s.open()
        vendor = s.nvml.pynvml
        handle = vendor.nvmlDeviceGetHandleByUUID("GPU-a")
        listed = vendor.nvmlDeviceGetComputeRunningProcesses(handle)
        nobody = vendor.nvmlDeviceGetGraphicsRunningProcesses(handle)
        migs = vendor.nvmlDeviceGetMaxMigDeviceCount(handle)
        return [[process.pid, process.usedGpuMemory] for process in listed], nobody, migs

    assert stub.run(scenario) == [[[7, 70]], [], 0]
