"""`vramwarden certs`: issue, status, and messages for missing certificates."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from tests.support.golden_files import assert_recorded
from tests.support.run_command import runner, vramwarden
from webhook.cli.main import main
from webhook.names import WEBHOOK_CONFIGURATION

RECORDED = Path(__file__).with_name("recorded")
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
CONFIGURATION = f"{HOOKS}/{WEBHOOK_CONFIGURATION}"


@pytest.fixture
def status(capsys):

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main.main(["certs", "status", *arguments])
        return ended.value.code, *capsys.readouterr()

    return run


def test_a_missing_folder_is_reported_in_one_sentence(status, tmp_path):
    folder = str(tmp_path / "no where")
    why = f"{folder} does not exist; run: vramwarden certs issue --cert-dir '{folder}'"
    assert status("--cert-dir", folder) == (1, "", f"problem: {why}\n")
    code, out, _ = status("--cert-dir", folder, "-o", "json")
    found = {"certificates": [], "ownIssuer": False, "problems": [why]}
    assert (code, json.loads(out)) == (1, found)


def test_a_folder_without_certificates_is_reported_in_one_sentence(status, tmp_path):
    why = f"{tmp_path} holds no certificates; run: vramwarden certs issue --cert-dir {tmp_path}"
    assert status("--cert-dir", str(tmp_path)) == (1, "", f"problem: {why}\n")


def test_a_folder_or_secret_is_required(status):
    code, out, err = status()
    assert (code, out) == (2, "")
    assert "name a folder by --cert-dir, or a Secret by --secret" in err


@pytest.mark.parametrize("exists", [False, True], ids=["no secret", "an empty secret"])
def test_a_secret_without_certificates_is_reported_in_one_sentence(status, api_server, exists):
    api_server.put(CONFIGURATION, {"webhooks": [{"name": "a", "clientConfig": {}}]})
    if exists:
        api_server.put("/api/v1/namespaces/gpu/secrets/tls", {"data": {}})
    what = "holds no certificates" if exists else "does not exist"
    why = f"the Secret gpu/tls {what}; run: vramwarden certs install --secret gpu/tls"
    found = status("--secret", "gpu/tls", "--kubeconfig", str(api_server.kubeconfig))
    assert found == (1, "", f"problem: {why}\n")


def test_a_certificate_without_key_and_ca_is_reported_in_full(status, tmp_path):
    (tmp_path / "tls.crt").write_text("half")
    code, out, err = status("--cert-dir", str(tmp_path))
    assert code == 1
    assert "renewal" in out
    assert "problem: tls.crt" in err


@pytest.mark.process
def test_certificates_are_issued_once_and_shown(tmp_path):
    folder = tmp_path / "certs"
    first = vramwarden("certs", "issue", "--cert-dir", folder, "--service", "vramwarden.system")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == f"{folder}: issued\n"
    assert stat.S_IMODE((folder / "tls.key").stat().st_mode) == 0o600
    again = vramwarden("certs", "issue", "--cert-dir", folder)
    assert (again.returncode, again.stdout) == (2, "")
    assert f"{folder}: holds tls.crt already; name another folder" in again.stderr

    shown = vramwarden("certs", "status", "--cert-dir", folder)
    assert shown.returncode == 0
    said = re.sub(r"\b\d{4}-\d\d-\d\d\b", "YYYY-MM-DD", shown.stdout)
    assert_recorded(RECORDED / "certs-status.txt", said.replace(str(folder), "certs"))
    found = json.loads(vramwarden("certs", "status", "--cert-dir", folder, "-o", "json").stdout)
    assert {certificate["role"] for certificate in found["certificates"]} == {"serving", "ca"}
    assert found["problems"] == []


@pytest.mark.parametrize("service", ["vramwarden", "a.b.c", ".b", "a."])
def test_a_service_is_name_and_namespace(tmp_path, service):
    issue = ["certs", "issue", "--cert-dir", str(tmp_path), "--service", service]
    done = runner().invoke(main, issue)
    assert done.exit_code == 2
    assert "NAME.NAMESPACE" in done.stderr
