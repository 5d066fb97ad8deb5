"""Kubeconfigs with no cluster, several clusters, or `insecure-skip-tls-verify`."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from certs import issue_into_folder, load_into
from tests.support.api_server import ApiServer, write_kubeconfig
from tests.support.run_command import runner
from webhook.adapters.kube.connection import connect
from webhook.adapters.kube.errors import NoClusterError
from webhook.cli.main import main


@pytest.fixture(scope="module")
def unchecked(tmp_path_factory):
    """Yield a kubeconfig that does not verify the certificate of an empty cluster."""
    folder = tmp_path_factory.mktemp("unchecked")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_into(context, issue_into_folder(folder, ["localhost"], datetime.now(UTC)))
    with ApiServer(tls=context) as api:
        cluster = {"insecure-skip-tls-verify": True}
        yield write_kubeconfig(folder / "kubeconfig", api.url, cluster=cluster)


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [(["top"], False), (["certs", "status", "--secret=gpu/tls"], False), (["top"], True)],
    ids=["a tool", "another", "who asks for warnings"],
)
def test_warnings_of_libraries_are_for_who_asks_for_them(unchecked, arguments, shown):
    command = [sys.executable, *(["-W", "default"] if shown else []), "-m", "webhook.cli"]
    done = subprocess.run(
        [*command, *arguments, f"--kubeconfig={unchecked}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ("InsecureRequestWarning" in done.stderr) == shown
    assert "Traceback" not in done.stderr


FAILS = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}}
"""Kubeconfig whose credential plugin fails, which the library logs."""


def test_what_libraries_log_is_a_sentence_of_ours(tmp_path, capfd):
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1", **FAILS)
    with pytest.raises(SystemExit) as ended:
        main.main(["top", f"--kubeconfig={kubeconfig}"])
    said = f"Error: no API server is known from the kubeconfig {kubeconfig}: exec: process "
    assert (ended.value.code, capfd.readouterr().err) == (
        2, f"{said}returned 1; name another file with --kubeconfig\n",
    )  # fmt: skip


def test_of_several_kubeconfigs_the_first_current_context_counts(tmp_path, monkeypatch):
    urls = ["http://first.example", "http://second.example"]
    files = [write_kubeconfig(tmp_path / str(n), url) for n, url in enumerate(urls)]
    for number, file in enumerate(files):
        file.write_text(file.read_text().replace('"c"', f'"c{number}"'))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, [tmp_path / "none", *files])))
    assert connect().url == urls[0]
    assert connect(context="c1").url == urls[1]


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


COMMANDS = {
    "top": [], "explain": ["p"], "advise": [], "report": [], "check": [], "simulate": [],
    "certs status": ["--secret=gpu/tls"], "certs install": ["--secret=gpu/tls"],
    "certs rotate": ["--secret=gpu/tls"],
}  # fmt: skip
"""Commands that access a cluster, with their arguments."""


@pytest.mark.parametrize("content", [None, "", "{"], ids=["not there", "empty", "broken"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_kubeconfig_that_cannot_be_read_is_unreadable_input(tmp_path, name, content):
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    done = runner().invoke(main, [*name.split(), *COMMANDS[name], f"--kubeconfig={path}"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: no API server is known from the kubeconfig {path}: ")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_kubeconfig_at_all_is_no_answer(tmp_path, name):
    environment = {"KUBECONFIG": str(tmp_path / "none")}
    done = runner().invoke(main, [*name.split(), *COMMANDS[name]], env=environment)
    assert (done.exit_code, done.stdout) == (3, "")
    assert "there is no such file; name a file in KUBECONFIG\n" in done.stderr
