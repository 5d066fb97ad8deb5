"""Fixtures for the in-memory API server and its client."""

import pytest


@pytest.fixture
def api_server(tmp_path):
    from tests.support.api_server import ApiServer  # noqa: PLC0415 - most tests need no cluster

    with ApiServer(tmp_path) as running:
        yield running


@pytest.fixture
def kube(api_server):
    from webhook.adapters.kube.connection import connect  # noqa: PLC0415 - as above

    return connect(api_server.kubeconfig, tries=1)
