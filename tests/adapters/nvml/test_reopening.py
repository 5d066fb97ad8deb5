"""Opening and closing NVML, and drivers that go down and come back."""


def test_a_driver_that_goes_down_is_found_again_by_reopening(stub):
    def scenario(s):
        s.script("process 0 compute 7 70")
        nvml = s.open()
        s.file.unlink()
        down = s.outcome(nvml.processes, "GPU-a"), s.outcome(nvml.reopen), s.outcome(nvml.reopen)
        closed = s.outcome(nvml.processes, "GPU-a"), s.outcome(nvml.driver_version)
        s.script("driver 580.65.06\nprocess 0 compute 8 80")
        nvml.reopen()
        before = s.outcome(nvml.processes, "GPU-a")
        nvml.devices()
        return down, closed, before, s.listed(nvml), nvml.driver_version()

    down, closed, before, found, version = stub.run(scenario)
    assert [fault for fault, _, _ in down] == ["driver-down"] * 3
    assert down[1] == ["driver-down", "nvmlInitWithFlags", 9]
    assert [fault for fault, _, _ in closed] == ["driver-down"] * 2
    assert before == ["gpu-lost", "nvmlDeviceGetHandleByUUID", 28]
    assert (found, version) == ([[8, 80]], "580.65.06")


def test_a_library_that_was_shut_down_underneath_is_found_again_by_reopening(stub):
    def scenario(s):
        s.script("process 0 compute 7 70")
        nvml = s.open()
        s.nvml.pynvml.nvmlShutdown()
        down = s.outcome(nvml.processes, "GPU-a"), s.outcome(nvml.processes, "GPU-a")
        nvml.reopen()
        nvml.devices()
        return [fault for fault, _, _ in down], s.listed(nvml)

    faults, listed = stub.run(scenario)
    assert faults[0] in {"driver-down", "gpu-lost"}
    assert listed == [[7, 70]]


def test_a_driver_replaced_underneath_asks_for_a_new_container_on_every_call(stub):
    def scenario(s):
        s.script("")
        nvml = s.open()
        s.script("fail * 18")
        calls = nvml.devices, nvml.driver_version, nvml.reopen
        return [s.outcome(call)[0] for call in calls]

    assert stub.run(scenario) == ["driver-changed"] * 3


def test_opening_twice_is_opening_once(stub):
    def scenario(s):
        s.script("")
        with s.nvml.Nvml() as nvml:
            nvml.open()
        nvml.close()
        return s.calls()

    assert stub.run(scenario) == ["InitWithFlags", "Shutdown"]


def test_nothing_is_asked_before_opening_or_after_closing(stub):
    def scenario(s):
        s.script("")
        nvml = s.nvml.Nvml()
        before = s.outcome(nvml.devices), s.outcome(nvml.processes, "GPU-a")
        with nvml:
            nvml.devices()
        return before, s.outcome(nvml.device_used_bytes, "GPU-a"), s.outcome(nvml.driver_version)

    before, used, version = stub.run(scenario)
    assert [outcome[0] for outcome in (*before, used, version)] == ["driver-down"] * 4
    assert before[0][2] == 1


def test_every_call_is_answered_after_a_retryable_failure(stub):
    def scenario(s):
        s.script("process 0 compute 7 70\nfail nvmlDeviceGetComputeRunningProcesses_v3 10 until=1")
        nvml = s.open()
        return s.outcome(nvml.processes, "GPU-a"), s.listed(nvml)

    first, second = stub.run(scenario)
    assert first == ["stuck", "nvmlDeviceGetComputeRunningProcesses_v3", 10]
    assert second == [[7, 70]]
