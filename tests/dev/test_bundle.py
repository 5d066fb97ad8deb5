"""Archives of `make bundle`, and probe and images of host.py. No node is started."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile

import pytest

from tests.gpu.node import bundle, host, images
from tests.support.cluster_programs import find_binary

FINE = dict.fromkeys(host.FATAL, "yes") | {"overlayfs": "no: not here"}


def needs(*programs):
    if missing := [name for name in programs if not find_binary(name)]:
        pytest.skip(f"needs {' '.join(missing)}")


@pytest.mark.parametrize("fault", host.FATAL)
def test_a_host_without_what_a_node_needs_is_told_so(fault):
    with pytest.raises(SystemExit, match=f"no node can run here: {fault}$"):
        host.check(FINE | {fault: "no: because"})


def test_the_probe_asks_what_decides_and_a_host_without_overlayfs_will_do(capsys):
    found = host.probe()
    assert set(FINE) < set(found)
    host.check(FINE)
    assert "overlayfs: no: not here" in capsys.readouterr().out


def test_an_archive_is_unpacked_once(tmp_path, monkeypatch):
    needs("xz")
    monkeypatch.setattr(host, "BUNDLE", tmp_path / "bundle")
    monkeypatch.setattr(host, "NODE", tmp_path / "node")
    (tmp_path / "packed/bin").mkdir(parents=True)
    (tmp_path / "packed/bin/etcd").write_text("of the bundle")
    (tmp_path / "bundle").mkdir()
    bundle.pack(tmp_path / "packed", tmp_path / "bundle/control-plane.tar.xz")
    host.unpack()
    unpacked = tmp_path / "node/bin/etcd"
    assert unpacked.read_text() == "of the bundle"
    unpacked.write_text("of the host")
    host.unpack()
    assert unpacked.read_text() == "of the host"


def test_a_program_brings_the_libraries_that_a_host_may_lack(tmp_path):
    needs("ip", "strip")
    bundle.add_program(tmp_path, "ip")
    assert (tmp_path / "lib/ip").exists()
    assert not list(tmp_path.glob("lib/libc.so*"))
    done = subprocess.run([tmp_path / "bin/ip", "-V"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ip utility")
    for library in tmp_path.glob("lib/lib*"):
        library.write_text("")
    done = subprocess.run([tmp_path / "bin/ip", "-V"], capture_output=True, text=True, check=False)
    assert "file too short" in done.stderr  # it loads these libraries, not the machine's


@pytest.mark.process
def test_an_image_of_this_machines_python_runs_our_code(tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "brought.py").write_text("WORD = 'packages'")
    images.main(tmp_path / "images", packages)
    root = tmp_path / "root"
    with tarfile.open(tmp_path / "images/enforcer.tar") as tar:
        config, layer = (tar.extractfile(name).read() for name in ("config.json", "layer.tar"))
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        tar.extractall(root, filter="tar")
    settings = json.loads(config)["config"]
    assert settings["Entrypoint"] == ["python3", "-I", "-m", "webhook.sidecar"]
    if os.geteuid():
        pytest.skip("needs root, to enter the image")
    code = "import ssl, brought, webhook.core; print(brought.WORD, webhook.core.__file__)"
    script = f"mkfifo /tmp/bell && python3 -I -c '{code}'"
    done = subprocess.run(
        ["chroot", root, "/usr/bin/env", "-i", *settings["Env"], "sh", "-c", script],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("packages /opt/vramwarden/lib/python3")
