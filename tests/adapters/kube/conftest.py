"""An API server of our own, and the client that speaks to it."""

import pytest

from tests.support.agents import ApiServer
from webhook.adapters.kube.client import connect


@pytest.fixture
def api_server(tmp_path):
    with ApiServer(tmp_path) as running:
        yield running


@pytest.fixture
def kube(api_server):
    return connect(api_server.kubeconfig, tries=1)
