"""When process lists are read, and the owners of listed processes."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from tests.sentry.fakes import ID, MIB, OTHER, OTHER_ID, TRAINER, Driver, Node, a_scan, held, owner
from webhook.adapters import processes
from webhook.core.nvidia.drivers import Fault
from webhook.core.pod.gpus import EVERY_GPU
from webhook.sentry.scanner import GpuProcess, ProcessScanner

NEVER: dict[str, int] = {}
ALWAYS = {EVERY_GPU: -1}


def lists_read(driver):
    found = [call for call in driver.calls if call.startswith("list")]
    driver.calls.clear()
    return found


@pytest.mark.parametrize(
    ("thresholds", "used", "after_s", "reads"),
    [
        ({"GPU-a": 1000}, 1001, 1, True),
        ({"GPU-a": 1000}, None, 1, True),
        ({"GPU-a": 1000}, 1000, 10, True),
        (NEVER, 5000, 10, True),
        ({"GPU-b": 1000}, 5000, 9.9, False),
        ({"GPU-a": 1000}, 1000, 9.9, False),
        (NEVER, 5000, 9.9, False),
        (NEVER, None, 9.9, False),
        (ALWAYS, 0, 0.5, True),
        ({"GPU-a": 1000, EVERY_GPU: 900}, 901, 1, True),
        ({"GPU-a": 900, EVERY_GPU: 1000}, 901, 1, True),
    ],
)
def test_a_list_is_read_where_somebody_may_be_over_and_now_and_then(
    thresholds, used, after_s, reads
):
    driver = Driver("GPU-a")
    observer = ProcessScanner(driver, Node())
    observer.scan(100.0, NEVER)
    lists_read(driver)
    driver.used["GPU-a"] = used
    scan = observer.scan(100.0 + after_s, thresholds)
    assert (lists_read(driver), list(scan.lists)) == (
        (["list GPU-a"], ["GPU-a"]) if reads else ([], [])
    )


def test_the_driver_is_let_go_after_each_look():
    driver = Driver()
    ProcessScanner(driver, Node()).scan(0.0, NEVER)
    assert (driver.calls[0], driver.calls[-1]) == ("open", "close")


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("same", GpuProcess(50, owner(50), 500 * MIB)),
        ("gone", GpuProcess(50, owner(50), 500 * MIB, dead=True)),
        ("another of the pod", GpuProcess(50, owner(50, started=20), 500 * MIB)),
        ("another pod's", GpuProcess(50, owner(50), None, dead=True)),
        ("the node's", GpuProcess(50, owner(50), None, dead=True)),
    ],
)
def test_whose_a_pid_is_that_was_listed_before(now, expected):
    driver, node = Driver("GPU-a"), Node(owner(50))
    driver.lists["GPU-a"] = {50: 500 * MIB}
    observer = ProcessScanner(driver, node)
    observer.scan(0.0, ALWAYS, {TRAINER})
    node.alive = {
        "same": {50: owner(50)},
        "gone": {},
        "another of the pod": {50: owner(50, started=20)},
        "another pod's": {50: owner(50, OTHER, started=20), 51: owner(51)},
        "the node's": {50: owner(50, "", started=20), 51: owner(51)},
    }[now]
    for now_s in (1.0, 2.0):
        (found,) = observer.scan(now_s, ALWAYS, {TRAINER}).lists["GPU-a"]
        assert found == expected


def test_a_number_is_its_new_owners_once_nobody_of_the_old_pod_can_keep_its_memory():
    """Such processes are searched for every ten seconds, which reads each process of the node."""
    driver, node = Driver("GPU-a"), Node(owner(50), owner(51))
    observer = ProcessScanner(driver, node)
    unknown, theirs = (50, TRAINER, None), (50, OTHER, 70_000)
    for now_s, mib, left, expected in (
        (0.0, 500, [owner(50), owner(51)], (50, TRAINER, 500)),
        (1.0, 70_000, [owner(50, OTHER, started=20), owner(51)], unknown),
        (2.0, 70_000, [owner(50, OTHER, started=20)], unknown),
        (11.0, 70_000, [owner(50, OTHER, started=20)], theirs),
        (12.0, 70_000, [owner(50, OTHER, started=20), owner(51)], theirs),
    ):
        driver.lists["GPU-a"] = {50: mib * MIB}
        node.alive = {item.process.pid: item for item in left}
        (found,) = observer.scan(now_s, ALWAYS, {TRAINER}).lists["GPU-a"]
        used_mib = found.used_bytes and found.used_bytes // MIB
        assert (found.pid, found.owner.place.pod, used_mib) == expected


def test_who_ended_before_anybody_saw_whose_it_is_is_nobodys():
    driver = Driver("GPU-a")
    driver.lists["GPU-a"] = {50: 500 * MIB}
    scan = ProcessScanner(driver, Node()).scan(0.0, ALWAYS)
    assert scan.lists["GPU-a"] == (GpuProcess(50, None, 500 * MIB),)


@pytest.mark.parametrize(
    ("started_s", "whose"),
    [(99.0, OTHER), (100.0, OTHER), (100.01, None), (500.0, None)],
)
def test_who_started_after_a_number_was_listed_does_not_hold_its_memory(started_s, whose):
    """A tenant may free a PID over its cap so that a process of another pod gets it."""
    driver, node = Driver("GPU-a"), Node()
    driver.lists["GPU-a"] = {50: 5000 * MIB}
    observer = ProcessScanner(driver, node, boot_s=lambda: 100.0)
    observer.scan(0.0, ALWAYS)
    ticks = round(started_s * os.sysconf("SC_CLK_TCK"))
    node.alive[50] = owner(50, OTHER, started=ticks)
    for second in (1.0, 2.0):
        (found,) = observer.scan(second, ALWAYS).lists["GPU-a"]
        assert (found.owner and found.owner.place.pod, found.used_bytes) == (whose, 5000 * MIB)
    driver.lists["GPU-a"] = {}
    observer.scan(3.0, ALWAYS)
    driver.lists["GPU-a"] = {50: 5000 * MIB}
    (found,) = observer.scan(4.0, ALWAYS).lists["GPU-a"]
    assert found.owner.place.pod == OTHER


def test_a_start_is_told_on_the_clock_of_the_lists():
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    with subprocess.Popen(["sleep", "60"]) as child:
        started_s = processes.start_time_s(processes.identify(child.pid))
        child.kill()
    assert before_s - tick_s <= started_s <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_who_left_every_list_is_forgotten_so_a_number_begins_again():
    driver, node = Driver("GPU-a"), Node(owner(50))
    observer = ProcessScanner(driver, node)
    for now_s, listed, alive in (
        (0.0, {50: 1}, {50: owner(50)}),
        (1.0, {}, {}),
        (2.0, {50: 1}, {50: owner(50, OTHER, started=20)}),
    ):
        driver.lists["GPU-a"], node.alive = listed, alive
        scan = observer.scan(now_s, ALWAYS, {TRAINER})
    assert scan.lists["GPU-a"] == (GpuProcess(50, owner(50, OTHER, started=20), 1),)


def test_a_calm_pods_process_is_asked_whether_it_lives_only_now_and_then():
    driver, node = Driver("GPU-a"), Node(owner(50))
    driver.lists["GPU-a"] = {50: 500 * MIB}
    observer = ProcessScanner(driver, node)
    asked = []
    for second in range(21):
        node.asked.clear()
        observer.scan(float(second), ALWAYS)
        asked += [second] * len(node.asked)
    assert asked == [0, 10, 20]


def test_a_gpu_that_fails_does_not_hide_the_others():
    driver = Driver()
    driver.codes["list GPU-a"] = 999
    scan = ProcessScanner(driver, Node()).scan(0.0, ALWAYS)
    assert (list(scan.lists), scan.fault) == (["GPU-b"], None)
    assert scan.failed.startswith("GPU-a: ")
    assert scan.unread == {"GPU-a"}


def test_a_gpu_with_processes_is_asked_each_ten_seconds_who_ran_since_the_last_time():
    driver = Driver()
    driver.lists["GPU-a"], driver.samples["GPU-a"] = {50: 1}, {50: (1, True)}
    since_us = []
    driver.process_samples = lambda gpu, us: (
        since_us.append(us) or Driver.process_samples(driver, gpu, us)
    )
    scanner = ProcessScanner(driver, Node(owner(50)), wall_s=lambda: 1000.0)
    ran = [scanner.scan(at_s, NEVER).ran for at_s in (0.0, 1.0, 10.5, 30.5)]
    assert ran == [{"GPU-a": {50: (1, True)}}, {}, ran[0], ran[0]]
    assert since_us == [990_000_000, 989_500_000, 980_000_000]
    driver.codes["ran GPU-a"] = 999
    scan = scanner.scan(40.5, ALWAYS)
    assert (scan.ran, scan.failed, len(scan.lists)) == ({"GPU-a": None}, "", 2)
    driver.lists["GPU-a"] = {}
    scanner.scan(41.0, ALWAYS)
    assert scanner.scan(60.0, ALWAYS).ran == {}


def test_a_gpu_in_mig_mode_is_left_alone():
    driver = Driver()
    driver.mig = {"GPU-a"}
    assert list(ProcessScanner(driver, Node()).scan(0.0, ALWAYS).lists) == ["GPU-b"]


@pytest.mark.parametrize(("call", "code"), [("open", 9), ("devices", 9), ("open", 12)])
def test_a_driver_that_does_not_answer_is_a_fault_and_no_figure(call, code, tmp_path):
    driver = Driver()
    driver.codes[call] = code
    scan = ProcessScanner(driver, Node(), kernel_driver=str(tmp_path)).scan(0.0, ALWAYS)
    fault = Fault.DRIVER_DOWN if code == 9 else Fault.LIBRARY_MISSING
    assert (scan.gpus, dict(scan.lists), scan.fault, scan.driver_loaded) == ((), {}, fault, True)


@pytest.mark.parametrize(
    ("version", "outermost", "read"),
    [
        ("580.65.06", True, True),
        ("580.65.06", False, True),
        ("550.54.15", True, True),
        ("550.54.15", False, False),
        ("525.60.13", True, True),
        ("525.60.13", False, False),
        ("535.54.03", True, True),
        ("535.54.03", False, False),
    ],
)
def test_lists_are_read_where_they_mean_our_processes_and_their_memory(version, outermost, read):
    driver = Driver("GPU-a")
    driver.version = version
    scan = ProcessScanner(driver, Node(owner(50)), outermost=outermost).scan(0.0, ALWAYS)
    assert (bool(scan.gpus), bool(lists_read(driver)), scan.fault) == (read, read, None)
    assert (version in scan.failed) is not read


def test_containers_ids_are_kept():
    driver, node = Driver("GPU-a"), Node(owner(50))
    driver.lists["GPU-a"] = {50: 1}
    (found,) = ProcessScanner(driver, node).scan(0.0, ALWAYS).lists["GPU-a"]
    assert found.owner.process.container == ID


def test_what_containers_hold_is_summed_over_all_gpus():
    other = held(51, None, container=OTHER_ID)
    scan = a_scan(held(50, 200), other, held(60, 9, OTHER), held(70, 9, None), b=(held(50, 100),))
    assert scan.held_by_containers(TRAINER) == {ID: 300 * MIB, OTHER_ID: 0}
