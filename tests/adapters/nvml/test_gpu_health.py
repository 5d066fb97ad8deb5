"""The state of a GPU's hardware, as the driver reports it."""

import pytest

GPU = "gpu GPU-a total=1000 {}\n"


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
        return nvml.recovery_action("GPU-a"), nvml.row_remapping("GPU-a")

    assert stub.run(scenario, GPU.format(state), without=without) == expected
