"""What the driver says of a GPU's hardware: its state when it is asked, and Xids as they come."""

import pytest

GPU = "gpu GPU-a total=1000 {}\ngpu GPU-b total=1000\n"


@pytest.mark.parametrize(
    ("state", "without", "expected"),
    [
        ("", (), [None, [False, False]]),
        ("recovery=0 remap=0", (), [0, [False, False]]),
        ("recovery=4 remap=1", (), [4, [True, False]]),
        ("remap=2", (), [None, [False, True]]),
        ("recovery=4 remap=3", ("HEALTH",), [None, [False, False]]),  # an older library
    ],
)
def test_what_a_driver_does_not_say_is_unknown(state, without, expected, stub):
    def scenario(s, gpu):
        s.script("", gpu=gpu)
        nvml = s.open()
        return nvml.recovery("GPU-a"), nvml.remaps("GPU-a")

    assert stub.run(scenario, GPU.format(state), without=without) == expected


def test_each_xid_since_the_watch_began_is_heard_once_with_its_gpu(stub):
    def scenario(s, gpu):
        s.script("", gpu=gpu)
        xids = s.file.with_name("xids")
        xids.write_text("GPU-a 48\n")
        nvml = s.open()
        nvml.register_xids()
        none = nvml.next_xid(0.0)
        with xids.open("a") as file:
            file.write("GPU-b 79\n? 48\n0 13\n")
        heard = [nvml.next_xid(0.0) for _ in range(4)]
        nvml.close()
        nvml.open().devices()
        nvml.register_xids()
        return none, heard, nvml.next_xid(0.0)

    heard = [["GPU-b", 79], None, ["GPU-a", 13], None]
    assert stub.run(scenario, GPU.format("")) == [None, heard, None]


@pytest.mark.parametrize(
    ("script", "without", "expected"),
    [
        ("", ("HEALTH",), ["library-too-old", "nvmlEventSetCreate", 13]),
        ("fail nvmlEventSetCreate 3", (), ["not-supported", "nvmlEventSetCreate", 3]),
        ("fail nvmlDeviceRegisterEvents 3", (), ["not-supported", "nvmlDeviceRegisterEvents", 3]),
        ("fail nvmlDeviceRegisterEvents 15 gpu=0", (), None),
        ("fail nvmlEventSetWait_v2 15", (), ["gpu-lost", "nvmlEventSetWait_v2", 15]),
        ("fail nvmlDeviceGetUUID 999 from=3", (), None),
    ],
)
def test_a_gpu_that_cannot_be_watched_leaves_the_others_watched(script, without, expected, stub):
    def scenario(s, gpu, script):
        s.script(script, gpu=gpu)
        nvml = s.open()
        failed = s.outcome(nvml.register_xids)
        s.file.with_name("xids").write_text("GPU-a 48\n")
        return failed or s.outcome(nvml.next_xid, 0.0)

    assert stub.run(scenario, GPU.format(""), script, without=without) == expected


def test_two_users_of_the_library_in_one_process_do_not_close_it_for_each_other(stub):
    def scenario(s, gpu):
        s.script("", gpu=gpu)
        watching = s.open()
        watching.register_xids()
        with s.nvml.Nvml() as scanning:
            scanning.devices()
        s.file.with_name("xids").write_text("GPU-b 95\n")
        return watching.next_xid(0.0), watching.recovery("GPU-a")

    assert stub.run(scenario, GPU.format("")) == [["GPU-b", 95], None]
