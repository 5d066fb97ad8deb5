"""The NVML stub for scenarios on isolated nodes; skips if a node cannot be isolated."""

import pytest

from tests.sentry import nodes
from tests.support.nvml_stub import build


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    if why := nodes.missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("library")
    folder.chmod(0o755)
    return build(folder)
