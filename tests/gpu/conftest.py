"""Fixtures for a real GPU; one skip message with the reason if there is none."""

import pytest

from tests.gpu import machine
from tests.support.measurement_table import answer
from webhook.adapters.node_nvml import NodeNvml


@pytest.fixture(scope="session", autouse=True)
def _gpu_there():
    if why := machine.missing():
        pytest.skip(why)


@pytest.fixture(scope="session")
def nvml():
    with NodeNvml() as opened:
        device = opened.devices()[0]
        answer("GPU", f"{device.product}, driver {opened.driver_version()}")
        yield opened


@pytest.fixture(scope="session")
def gpu(nvml):
    """Return the UUID of the first GPU."""
    return nvml.devices()[0].uuid


@pytest.fixture(scope="session")
def limits(nvml, gpu):
    """Return a function that sets a limit. Skip if this driver cannot limit cgroups."""
    if not machine.cgroup_root():
        pytest.skip("no cgroup of version 2 can be made here")
    with machine.cgroups("proof") as (proof,):
        if not nvml.set_limit(gpu, str(proof), 0, machine.MIB):
            answer("limits of cgroups", "this driver sets none")
            pytest.skip("this driver holds no cgroup to an amount; r615 or newer does")
        back_end = "dmem" if (proof / "dmem.max").exists() else "misc"
    answer("limits of cgroups", f"set, back end {back_end}")
    return back_end
