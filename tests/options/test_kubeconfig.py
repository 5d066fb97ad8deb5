"""Kubeconfigs that name no cluster, or one whose certificate is not to be checked."""

from __future__ import annotations

import ssl
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from certs import ensure, load_into
from tests.support.api_server import ApiServer, write_kubeconfig
from webhook.adapters.kube.client import NoClusterError, connect

READS = """
import sys, pathlib
from webhook.adapters.kube.client import KubeError, connect
kube = connect(pathlib.Path(sys.argv[1]))
for _ in range(3):
    try:
        kube.node("n")
    except KubeError:
        pass
"""


def command(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def unchecked(tmp_path_factory):
    """Yield a kubeconfig that leaves the certificate of an empty cluster unchecked."""
    folder = tmp_path_factory.mktemp("unchecked")
    ensure(folder, ["localhost"], datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_into(context, folder)
    with ApiServer(tls=context) as api:
        cluster = {"insecure-skip-tls-verify": True}
        yield write_kubeconfig(folder / "kubeconfig", api.url, cluster=cluster)


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [("-c", READS), ("-m", "webhook.cli", "certs", "status", "--secret=gpu/tls", "--kubeconfig")],
)
def test_that_a_certificate_is_not_checked_is_said_once(unchecked, arguments):
    done = command(*arguments, str(unchecked))
    assert done.stderr.count("InsecureRequestWarning:") == 1
    assert "Traceback" not in done.stderr


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path):
    nope = tmp_path / "nope"
    said = f"no API server is known from the kubeconfig {nope}: there is no such file; "
    with pytest.raises(NoClusterError, match=f"^{said}name another file with --kubeconfig$"):
        connect(nope)


def test_a_context_that_is_not_there_is_named(unchecked):
    with pytest.raises(NoClusterError, match=f"the kubeconfig {unchecked}: .* name other "):
        connect(unchecked, context="other")
    assert connect(unchecked, context="c").url.startswith("https://127.0.0.1:")


def test_the_kubeconfig_that_says_nothing_is_named(tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.write_text("")
    with pytest.raises(NoClusterError, match=f"the kubeconfig {empty}: .*; name another file"):
        connect(empty)
    monkeypatch.setenv("KUBECONFIG", str(empty))
    with pytest.raises(NoClusterError, match=f"KUBECONFIG={empty}: .*; name a file"):
        connect()


@pytest.mark.process
@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        pytest.param(None, 2, "File '{}' does not exist.", id="not there"),
        pytest.param("", 1, "Error: no API server is known from the kubeconfig {}: ", id="empty"),
    ],
)
def test_commands_about_certificates_name_it_too(tmp_path, content, code, said):
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    arguments = ("certs", "status", "--secret=gpu/tls", f"--kubeconfig={path}")
    done = command("-m", "webhook.cli", *arguments)
    assert done.returncode == code
    assert said.format(path) in done.stderr
