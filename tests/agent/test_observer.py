"""One scan of the GPUs: what fails is part of what is seen, and NVML is closed after it."""

from dataclasses import replace

import pytest

from tests.support.agents import ScriptedNvml, a_device
from webhook.adapters.nvml import NvmlError
from webhook.agent.observer import scan
from webhook.core.node.inventory import Scan, SeenGpu
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
    nvml = ScriptedNvml(*TWO, a_device("c", 5, 2, mig=True))
    nvml.used = {"GPU-a": 7}
    assert seen_by(nvml, proc) == Scan(
        (
            SeenGpu("GPU-a", "NVIDIA H200", 0, 1000 * 2**20, False, 1100 * 2**20, used_bytes=7),
            SeenGpu("GPU-b", "NVIDIA H200", 1, 2000 * 2**20, False, 2100 * 2**20, used_bytes=0),
            SeenGpu("GPU-c", "NVIDIA H200", 2, 5 * 2**20, True, 105 * 2**20, used_bytes=0),
        ),
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
    [("565.57.01", True), ("580.65.06", True), ("560.35.03", False), ("535.104.12", False),
     ("535.43.02", False), ("what", False)],
)  # fmt: skip
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
