"""Every NVML error of every function leads to one `Fault`."""

import re
from dataclasses import asdict
from pathlib import Path

import pynvml
import pytest

from webhook.core.nvidia.drivers import Fault, ScannedGpu, classify_error, explain_fault

FAULTS = {
    1: "driver-down", 2: "gpu-lost", 3: "not-supported", 4: "no-permission", 6: "gpu-lost",
    7: "too-long", 9: "driver-down", 10: "stuck", 12: "library-missing", 13: "library-too-old",
    15: "gpu-lost", 16: "gpu-lost", 17: "unknown", 18: "driver-changed", 20: "unknown",
    25: "library-too-old", 28: "gpu-lost", 31: "unknown", 999: "unknown", 123456: "unknown",
}  # fmt: skip

OPERATIONS = {
    "nvmlInitWithFlags": "open",
    "nvmlSystemGetDriverVersion": "driver_version",
    "nvmlDeviceGetCount_v2": "devices",
    "nvmlDeviceGetHandleByIndex_v2": "devices",
    "nvmlDeviceGetUUID": "devices",
    "nvmlDeviceGetName": "devices",
    "nvmlDeviceGetMigMode": "devices",
    "nvmlDeviceGetMemoryInfo_v2": "device_used_bytes",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
    "nvmlDeviceGetGraphicsRunningProcesses_v3": "processes",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": "processes",
}

NO_MIG = [
    asdict(
        ScannedGpu(uuid="GPU-a", product="NVIDIA H200", index=0, usable_bytes=900, total_bytes=1000)
    )
]
BOTH = {"7": 70, "8": 80}
WITHOUT = {
    **{("nvmlDeviceGetMigMode", code): NO_MIG for code in (3, 13, 25)},
    **{("nvmlDeviceGetMemoryInfo_v2", code): 110 for code in (3, 13, 25)},
    **{
        (f"nvmlDeviceGet{kind}RunningProcesses_v3", code): BOTH
        for kind in ("Compute", "Graphics", "MPSCompute")
        for code in (13, 25)
    },
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", 3): {"7": 70},
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3", 3): BOTH,
}
"""Results of calls that do not fail: an older function is used, or a list counts as empty."""


@pytest.fixture(scope="module", params=OPERATIONS)
def failed(request, make_stub, tmp_path_factory):
    """Make one function fail with each code; return its name and the outcomes by code."""

    def outcomes(s, function, operation, codes):
        lists = "process 0 compute 7 70\nprocess 0 graphics 8 80\n"
        found = {}
        for code in codes:
            s.script(lists)
            nvml = s.nvml.Nvml() if operation == "open" else s.open()
            s.script(f"{lists}fail {function} {code}")
            about = ["GPU-a"] if operation in {"device_used_bytes", "processes"} else []
            result = s.outcome(getattr(nvml, operation), *about)
            s.script("")
            nvml.close()
            found[code] = result if operation != "open" or isinstance(result, list) else "opened"
        return found

    made = make_stub(tmp_path_factory.mktemp("failed"))
    function = request.param
    return function, made.run(outcomes, function, OPERATIONS[function], list(FAULTS))


@pytest.mark.parametrize("code", FAULTS)
def test_a_failure_asks_for_one_thing_or_an_older_function_steps_in(failed, code):
    function, outcomes = failed
    expected = WITHOUT.get((function, code), [FAULTS[code], function, code])
    assert outcomes[str(code)] == expected


def test_every_error_that_the_vendor_names_asks_for_something():
    named = {name: value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert {code for code in FAULTS if FAULTS[code] != "unknown"} <= set(named.values())
    for code in named.values():
        assert classify_error(code).value == FAULTS.get(code, "unknown")


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_has_a_sentence_for_a_person(fault):
    assert re.fullmatch(r"[a-z].{20,}[^.]", explain_fault(fault))


def test_a_failure_names_function_code_gpu_and_sentence(stub):
    def scenario(s):
        s.script("")
        nvml = s.open()
        s.script("fail nvmlDeviceGetMemoryInfo_v2 16")
        try:
            nvml.device_used_bytes("GPU-a")
        except s.nvml.NvmlError as error:
            return [str(error), error.gpu]

    text, gpu = stub.run(scenario)
    assert gpu == "GPU-a"
    assert text == (
        f"GPU-a: {explain_fault(Fault.GPU_LOST)} (nvmlDeviceGetMemoryInfo_v2 returned 16)"
    )


def test_a_missing_library_fails_with_the_loaders_words_until_it_exists(stub, tmp_path):
    def scenario(s, folder, built):
        s.script("")
        nvml = s.nvml.Nvml()
        try:
            nvml.open()
        except s.nvml.NvmlError as error:
            first = [error.fault.value, error.code, str(error)]
        Path(built).replace(f"{folder}/libnvidia-ml.so.1")
        return first, len(nvml.open().devices())

    (tmp_path / "libnvidia-ml.so.1").touch()  # even the node's library cannot replace it
    beside = tmp_path / "beside"
    beside.write_bytes((stub.built(()) / "libnvidia-ml.so.1").read_bytes())
    first, devices = stub.run(scenario, str(tmp_path), str(beside), library=tmp_path)
    assert first[:2] == ["library-missing", 12]
    assert "libnvidia-ml.so.1: file too short" in first[2]
    assert devices == 1


def test_the_bindings_own_exceptions_are_turned_into_ours(stub):
    def scenario(s):
        s.script("")
        nvml = s.open()

        def mismatched(_):
            raise s.nvml.pynvml.NVMLLibraryMismatchError

        s.nvml.pynvml.nvmlDeviceGetName = mismatched
        first = s.outcome(nvml.devices)
        s.nvml.pynvml.nvmlDeviceGetName = lambda _: b"\xff".decode()
        return first, s.outcome(nvml.devices)

    assert stub.run(scenario) == [
        ["library-too-old", "nvmlDeviceGetName", 13],
        ["unknown", "nvmlDeviceGetName", 999],
    ]


@pytest.mark.parametrize("code", [1, 9, 18, 999])
def test_closing_never_fails(stub, code):
    def scenario(s, code):
        s.script("")
        with s.open() as nvml:
            s.script(f"fail nvmlShutdown {code}")
        nvml.close()
        return "closed"

    assert stub.run(scenario, code) == "closed"
