"""Names of GPUs for the container runtime of a node."""

import pytest

from webhook.core.nvidia.variables import DeviceNames, format_visible_devices, read_device_names


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (DeviceNames.UUID, "GPU-1,GPU-2"),
        (DeviceNames.RUNTIME, "runtime.nvidia.com/gpu=GPU-1,runtime.nvidia.com/gpu=GPU-2"),
        (
            DeviceNames.DEVICE_PLUGIN,
            "k8s.device-plugin.nvidia.com/gpu=GPU-1,k8s.device-plugin.nvidia.com/gpu=GPU-2",
        ),
        (DeviceNames.SPECIFICATION, "nvidia.com/gpu=GPU-1,nvidia.com/gpu=GPU-2"),
    ],
)
def test_all_gpus_of_a_pod_are_spelled_alike(names, value):
    assert format_visible_devices(("GPU-1", "GPU-2"), names) == value


def test_a_node_that_resolves_no_name_gives_no_gpu():
    with pytest.raises(ValueError, match="resolves no name"):
        format_visible_devices(("GPU-1",), DeviceNames.NONE)


@pytest.mark.parametrize(
    ("label", "names"),
    [
        (None, DeviceNames.UUID),  # label missing: the agent's release supports only UUIDs
        ("uuid", DeviceNames.UUID),
        ("runtime.nvidia.com", DeviceNames.RUNTIME),
        ("none", DeviceNames.NONE),
        ("", None),
        ("example.com", None),
    ],
)
def test_the_label_says_which_names_are_resolved(label, names):
    assert read_device_names(label) is names
