"""Scans of the GPUs: failures are part of the result, and NVML is closed after each."""

import itertools
from dataclasses import replace

import pytest

from tests.support.scripted_nvml import ScriptedNvml, a_device
from webhook.adapters.nvml import NvmlError
from webhook.agent import scanner
from webhook.agent.scanner import scan, watch_gpus
from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import Fault

TWO = (a_device("a"), a_device("b", 2000, 1))


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "version").write_text("Linux version 6.8.0 (gcc) #1\n")
    return str(tmp_path)


def seen_by(nvml, proc):
    found = scan(nvml, proc=proc)
    assert not nvml.is_open
    return found


def test_all_that_answers_is_seen_with_the_reserve_taken_off(proc):
    devices = (*TWO, a_device("c", 5, 2, mig=True))
    nvml = ScriptedNvml(*devices)
    nvml.used = {"GPU-a": 7}
    assert seen_by(nvml, proc) == Scan(
        gpus=tuple(replace(device, used_bytes=nvml.used.get(device.uuid, 0)) for device in devices),
        driver_version="570.86.15",
    )


@pytest.mark.parametrize("method", ["open", "driver_version", "devices"])
@pytest.mark.parametrize("code", [1, 9, 12, 18, 999])
def test_a_driver_that_fails_as_a_whole_is_seen_as_that(method, code, proc, tmp_path):
    nvml = ScriptedNvml(*TWO)
    nvml.codes = {method: code}
    error = NvmlError(method, code)
    failed = Scan(failed=str(error), fault=error.fault)
    kernel_driver = tmp_path / "driver"
    assert scan(nvml, str(kernel_driver), proc=proc) == failed
    kernel_driver.write_text("")
    assert scan(nvml, str(kernel_driver), proc=proc) == replace(failed, driver_loaded=True)
    assert not nvml.is_open


@pytest.mark.parametrize(
    ("code", "unsure"), [(15, ()), (16, ()), (28, ()), (4, ("GPU-b",)), (999, ("GPU-b",))]
)
def test_a_gpu_that_is_lost_is_told_apart_from_one_that_only_fails(code, unsure, proc):
    nvml = ScriptedNvml(*TWO)
    nvml.codes = {"devices GPU-b": code}
    found = seen_by(nvml, proc)
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-a"]
    assert (found.unsure, found.failed) == (frozenset(unsure), "")


def test_the_loss_of_the_only_gpu_is_no_failure_of_the_driver(proc):
    nvml = ScriptedNvml(a_device())
    nvml.codes = {"devices GPU-a": 15}
    found = seen_by(nvml, proc)
    assert (found.gpus, found.unsure, found.failed) == ((), frozenset(), "")
    assert found.cannot_measure == "no GPU answers"


@pytest.mark.parametrize(
    ("version", "works"),
    [
        ("570.86.15", True),
        ("580.65.06", True),
        ("565.77", False),
        ("535.43.02", False),
        ("x", False),
    ],
)
def test_a_driver_that_is_too_old_never_measures(version, works, proc):
    found = seen_by(ScriptedNvml(*TWO, version=version), proc)
    assert (not found.cannot_measure, not found.never_measures) == (works, works)
    assert works or version in found.cannot_measure


def test_what_is_in_use_is_not_known_where_a_gpu_does_not_say(proc):
    nvml = ScriptedNvml(*TWO)
    nvml.codes = {"device_used_bytes GPU-b": 999}
    assert [gpu.used_bytes for gpu in seen_by(nvml, proc).gpus] == [0, None]


def test_the_driver_s_state_is_seen_where_it_is_said(proc):
    nvml = ScriptedNvml(*TWO, a_device("c"))
    nvml.asks = {"GPU-a": 4, "GPU-b": 1}
    nvml.remapped = {"GPU-a": (True, False), "GPU-b": (False, True), "GPU-c": (True, True)}
    nvml.codes = {"recovery GPU-b": 999, "remaps GPU-c": 15}
    state = [
        (gpu.recovery, gpu.remap_pending, gpu.remap_failed) for gpu in seen_by(nvml, proc).gpus
    ]
    assert state == [(4, True, False), (None, False, True), (None, False, False)]


def test_the_compute_mode_is_unknown_where_it_cannot_be_read(proc):
    nvml = ScriptedNvml(*TWO, a_device("c"))
    nvml.compute_modes = {"GPU-b": 3}
    nvml.codes = {"modes GPU-c": 999}
    assert [gpu.compute_mode for gpu in seen_by(nvml, proc).gpus] == [0, 3, None]


@pytest.mark.parametrize("banner", ["Linux version 4.4.0", "Linux version 5.15-microsoft (gcc)"])
def test_a_kernel_that_is_none_never_measures(banner, tmp_path):
    (tmp_path / "version").write_text(banner)
    found = seen_by(ScriptedNvml(*TWO), str(tmp_path))
    assert found.cannot_measure
    assert found.never_measures


@pytest.mark.parametrize("method", ["device_used_bytes", "processes"])
def test_a_gpu_without_figures_cannot_be_measured_for_the_moment(method, proc):
    nvml = ScriptedNvml(*TWO)
    nvml.codes = {f"{method} GPU-b": 999}
    found = seen_by(nvml, proc)
    assert "GPU-b" in found.cannot_measure
    assert not found.never_measures
    assert len(found.gpus) == 2


def test_a_gpu_in_mig_mode_is_not_asked_for_figures(proc):
    nvml = ScriptedNvml(a_device(), a_device("b", mig=True))
    nvml.codes = {"device_used_bytes GPU-b": 4, "processes GPU-b": 4}
    assert not seen_by(nvml, proc).cannot_measure


def test_what_a_fault_asks_for_is_kept(proc):
    nvml = ScriptedNvml()
    nvml.codes = {"open": 18}
    assert seen_by(nvml, proc).fault is Fault.DRIVER_CHANGED


class Enough(BaseException):
    """Stops a thread that runs forever."""


class Wanted:
    """A `threading.Event` that records wait times and does not wait."""

    def __init__(self):
        self.pauses = []
        self.cleared = 0

    def wait(self, pause_s):
        self.pauses.append(pause_s)

    def clear(self):
        self.cleared += 1


def test_gpus_are_scanned_with_a_pause_after_each_scan_or_at_once(monkeypatch):
    scanned = []
    monkeypatch.setattr(scanner, "scan", lambda *by: scanned.append(by) or Scan())
    numbers = itertools.count()
    wanted = Wanted()

    def send(_):
        if next(numbers) == 3:
            raise Enough

    with pytest.raises(Enough):
        watch_gpus("nvml", "file", 30.0, wanted, send)
    assert scanned == [("nvml", "file")] * 4
    assert wanted.pauses == [30.0] * 3
    assert wanted.cleared == 4  # before each scan: a request meanwhile leads to another scan
