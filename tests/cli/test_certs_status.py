"""`vramwarden certs status` where there is nothing to show: one sentence, with the command."""

from __future__ import annotations

import json

import pytest

from certs import Bundle, Configuration, StoredBundle
from webhook.cli.certs import command as certs_command
from webhook.cli.main import main


@pytest.fixture
def status(capsys):
    """Run the command and return its exit code and both streams."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main.main(["certs", "status", *arguments])
        return ended.value.code, *capsys.readouterr()

    return run


def test_a_folder_that_is_not_there_is_one_sentence(status, tmp_path):
    folder = str(tmp_path / "no where")
    why = f"{folder} does not exist; run: vramwarden certs issue --cert-dir '{folder}'"
    assert status("--cert-dir", folder) == (1, "", f"problem: {why}\n")
    code, out, _ = status("--cert-dir", folder, "-o", "json")
    found = {"certificates": [], "ownIssuer": False, "problems": [why]}
    assert (code, json.loads(out)) == (1, found)


def test_a_folder_without_certificates_is_one_sentence(status, tmp_path):
    why = f"{tmp_path} holds no certificates; run: vramwarden certs issue --cert-dir {tmp_path}"
    assert status("--cert-dir", str(tmp_path)) == (1, "", f"problem: {why}\n")


def test_the_usual_folder_needs_no_option(status, tmp_path, monkeypatch):
    folder = tmp_path / "none"
    monkeypatch.setattr(certs_command, "default_certificate_folder", lambda: folder)
    why = f"{folder} does not exist; run: vramwarden certs issue"
    assert status() == (1, "", f"problem: {why}\n")


@pytest.mark.parametrize(
    ("version", "what"), [("", "does not exist"), ("7", "holds no certificates")]
)
def test_a_secret_without_certificates_is_one_sentence(status, monkeypatch, version, what):
    class Cluster:
        def secret(self):
            return StoredBundle(Bundle(), version)

        def configurations(self):
            return (Configuration("Mutating", "ours", "1", (("a", b""),)),)

    monkeypatch.setattr(certs_command, "cluster_of", lambda *_: Cluster())
    why = f"the Secret gpu/tls {what}; run: vramwarden certs install --secret gpu/tls"
    assert status("--secret", "gpu/tls") == (1, "", f"problem: {why}\n")


def test_a_certificate_without_the_rest_is_told_in_full(status, tmp_path):
    (tmp_path / "tls.crt").write_text("half")
    code, out, err = status("--cert-dir", str(tmp_path))
    assert code == 1
    assert "renewal" in out
    assert "problem: tls.crt" in err
