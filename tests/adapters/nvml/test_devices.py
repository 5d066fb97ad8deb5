"""GPUs: what they report, which are visible, and how they are lost and found."""

from dataclasses import asdict

import pytest

from webhook.core.nvidia.drivers import ScannedGpu

TWO = (
    "gpu GPU-a total=1000 reserved=100 used=10 mig=0 name=NVIDIA_H200\n"
    "gpu GPU-b total=500 reserved=50 used=5 mig=1 name=NVIDIA_A100\n"
)


def test_a_gpu_reports_its_size_its_reserve_and_whether_it_is_in_mig_mode(stub):
    def scenario(s, two):
        s.script("", gpu=two)
        return s.nvml.Nvml().open().devices()

    assert stub.run(scenario, TWO) == [
        asdict(
            ScannedGpu(
                uuid="GPU-a",
                product="NVIDIA H200",
                index=0,
                usable_bytes=900,
                mig=False,
                total_bytes=1000,
            )
        ),
        asdict(
            ScannedGpu(
                uuid="GPU-b",
                product="NVIDIA A100",
                index=1,
                usable_bytes=450,
                mig=True,
                total_bytes=500,
            )
        ),
    ]


def test_the_drivers_version_is_passed_on(stub):
    def scenario(s):
        s.script("driver 615.12")
        return s.open().driver_version()

    assert stub.run(scenario) == "615.12"


def test_an_older_library_has_no_reserve_apart_and_counts_it_as_used(stub):
    def scenario(s, two):
        s.script("", gpu=two)
        nvml = s.nvml.Nvml().open()
        device, _ = nvml.devices()
        return device.total_bytes, device.usable_bytes, nvml.device_used_bytes("GPU-a")

    assert stub.run(scenario, TWO, without=["MEMORY_V2"]) == [1000, 1000, 110]


def test_a_gpu_without_memory_of_its_own_has_no_figures_but_is_seen(stub):
    def scenario(s):
        unified = "fail nvmlDeviceGetMemoryInfo 3\nfail nvmlDeviceGetMemoryInfo_v2 3\n"
        s.script(f"{unified}process 0 compute 7 70")
        nvml = s.nvml.Nvml().open()
        (device,) = nvml.devices()
        figures = [device.total_bytes, device.usable_bytes]
        return figures, nvml.device_used_bytes("GPU-a"), s.listed(nvml)

    assert stub.run(scenario) == [[None, None], None, [[7, 70]]]


def test_a_total_of_nothing_is_no_figure(stub):
    def scenario(s):
        s.script("", gpu="gpu GPU-a total=0 reserved=0 used=0\n")
        (device,) = s.open().devices()
        return device.usable_bytes

    assert stub.run(scenario) is None


def test_memory_in_use_is_one_call(stub):
    def scenario(s):
        s.script("")
        nvml = s.open()
        s.calls()
        return nvml.device_used_bytes("GPU-a"), s.calls()

    assert stub.run(scenario) == [10, ["MemoryInfo_v2"]]


def test_only_the_wanted_gpus_are_described(stub):
    def scenario(s, two):
        s.script("", gpu=two)
        nvml = s.nvml.Nvml(["GPU-b"]).open()
        seen = [gpu.uuid for gpu in nvml.devices()]
        return seen, s.outcome(nvml.device_used_bytes, "GPU-a"), len(nvml.unreachable)

    lost = ["gpu-lost", "nvmlDeviceGetHandleByUUID", 28]
    assert stub.run(scenario, TWO) == [["GPU-b"], lost, 0]


def test_a_wanted_gpu_that_does_not_exist_is_reported(stub):
    def scenario(s, two):
        s.script("", gpu=two)
        nvml = s.nvml.Nvml(["GPU-b", "GPU-z"]).open()
        seen = [gpu.uuid for gpu in nvml.devices()]
        alone = s.nvml.Nvml(["GPU-z"]).open()
        return seen, [error.gpu for error in nvml.unreachable], s.outcome(alone.devices)

    lost = ["gpu-lost", "nvmlDeviceGetHandleByUUID", 28]
    assert stub.run(scenario, TWO) == [["GPU-b"], ["GPU-z"], lost]


@pytest.mark.parametrize("code", [2, 4, 10, 15, 16, 28, 999])
@pytest.mark.parametrize("function", ["HandleByIndex_v2", "UUID", "Name"])
def test_one_gpu_that_fails_hides_no_other(stub, function, code):
    def scenario(s, two, function, code):
        s.script(f"fail nvmlDeviceGet{function} {code} gpu=0", gpu=two)
        nvml = s.nvml.Nvml().open()
        of_all = [[gpu.uuid for gpu in nvml.devices()], [error.code for error in nvml.unreachable]]
        other = s.nvml.Nvml(["GPU-b"]).open()
        return of_all, [gpu.uuid for gpu in other.devices()], len(other.unreachable)

    assert stub.run(scenario, TWO, function, code) == [[["GPU-b"], [code]], ["GPU-b"], 0]


@pytest.mark.parametrize(("code", "fault"), [(9, "driver-down"), (18, "driver-changed")])
def test_a_driver_that_fails_as_a_whole_is_no_lost_gpu(stub, code, fault):
    def scenario(s, two, code):
        s.script(f"fail nvmlDeviceGetName {code} gpu=1", gpu=two)
        return s.outcome(s.nvml.Nvml().open().devices)

    assert stub.run(scenario, TWO, code) == [fault, "nvmlDeviceGetName", code]


def test_no_gpu_at_all_is_nothing_rather_than_a_failure(stub):
    def scenario(s):
        s.script("", gpu="")
        return s.nvml.Nvml().open().devices()

    assert stub.run(scenario) == []


@pytest.mark.parametrize("code", [2, 15, 16, 28])
def test_a_lost_gpu_is_asked_no_more_until_all_are_looked_up_again(stub, code):
    def scenario(s, two, code):
        s.script("process 1 compute 7 70", gpu=two)
        nvml = s.open()
        s.script(f"fail nvmlDeviceGetComputeRunningProcesses_v3 {code} gpu=0", gpu=two)
        lost = s.outcome(nvml.processes, "GPU-a")
        s.script("process 0 compute 8 80\nprocess 1 compute 7 70", gpu=two)
        s.calls()
        still = s.outcome(nvml.processes, "GPU-a"), s.outcome(nvml.device_used_bytes, "GPU-a")
        asked, other = s.calls(), s.listed(nvml, "GPU-b")
        nvml.devices()
        return lost, still, asked, other, s.listed(nvml)

    lost, still, asked, other, found = stub.run(scenario, TWO, code)
    assert lost == ["gpu-lost", "nvmlDeviceGetComputeRunningProcesses_v3", code]
    assert still == [["gpu-lost", "nvmlDeviceGetHandleByUUID", 28]] * 2
    assert (asked, other, found) == ([], [[7, 70]], [[8, 80]])


@pytest.mark.parametrize("code", [3, 4, 7, 9, 10, 18, 999])
def test_other_failures_keep_the_gpu(stub, code):
    def scenario(s, code):
        s.script("process 0 compute 7 70")
        nvml = s.open()
        s.script(
            f"process 0 compute 7 70\nfail nvmlDeviceGetComputeRunningProcesses_v3 {code} until=4"
        )
        failed = s.outcome(nvml.processes, "GPU-a")[2]
        s.script("process 0 compute 7 70")
        return failed, s.listed(nvml)

    assert stub.run(scenario, code) == [code, [[7, 70]]]


def test_a_gpu_that_only_the_last_scan_found_is_not_asked(stub):
    def scenario(s, two):
        s.script("", gpu=two)
        nvml = s.open()
        s.script("", gpu=two.splitlines()[0] + "\n")
        nvml.devices()
        return s.outcome(nvml.device_used_bytes, "GPU-b")

    assert stub.run(scenario, TWO) == ["gpu-lost", "nvmlDeviceGetHandleByUUID", 28]


def test_a_gpu_that_comes_back_at_another_place_is_the_same_gpu(stub):
    def scenario(s, two):
        first, second = two.splitlines(keepends=True)
        s.script("", gpu=two)
        nvml = s.open()
        s.script("", gpu=second)
        lost = s.outcome(nvml.device_used_bytes, "GPU-a"), nvml.device_used_bytes("GPU-b")
        s.script("", gpu=second + first)
        devices = nvml.devices()
        return lost, [[gpu.uuid, gpu.index] for gpu in devices], nvml.device_used_bytes("GPU-a")

    lost, places, used = stub.run(scenario, TWO)
    assert lost == [["gpu-lost", "nvmlDeviceGetMemoryInfo_v2", 15], 5]
    assert places == [["GPU-b", 0], ["GPU-a", 1]]
    assert used == 10


@pytest.mark.parametrize(
    ("gpu", "modes"), [("", [0, 0]), ("compute=3", [3, 0]), ("virtual=2", [0, 2])]
)
def test_modes_are_as_usual_where_a_gpu_has_none(gpu, modes, stub):
    def scenario(s, gpu):
        s.script("", gpu=f"gpu GPU-a total=1000 {gpu}\n")
        return s.open().modes("GPU-a")

    assert stub.run(scenario, gpu) == modes
