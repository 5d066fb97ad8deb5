"""The NVML stub, and interpreters with the modules that the limiter loads."""

import os
import sysconfig

import pytest

from tests.adapters.nvml.conftest import _built, _packages, make_stub
from tests.limiter.scene import Scripted

__all__ = ["_built", "_packages", "make_stub"]


@pytest.fixture
def play(make_stub, tmp_path):
    """Return a function that plays a scenario on a `LimitedNode` made of its second argument."""
    if os.geteuid() != 0:
        pytest.skip("only root can set the driver's limits")
    stub = make_stub(tmp_path)
    stub.folders.append(sysconfig.get_path("purelib"))

    def played(scenario, *arguments, **made):
        return Scripted(stub, scenario).run(*arguments, **made)

    return played
