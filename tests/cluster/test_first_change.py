"""Steps of webhook/first-change.md: a real API server calls the server of a clone."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.command_coverage import commands_of
from tests.support.control_planes import find_binary, free_port
from tests.support.page_reader import Reader
from tests.support.server_process import Server


@pytest.fixture
def reader(control_plane, tmp_path):
    if not find_binary("kubectl"):
        pytest.skip("needs kubectl")
    found = Reader(tmp_path, control_plane.kubeconfig)
    yield found
    found.run("kubectl delete --ignore-not-found -f deploy/local.yaml")
    found.run("kubectl delete --ignore-not-found pod train")


def test_a_pod_is_translated_and_one_denied_by_the_server_of_a_clone(reader):
    serve, *rest = [command for _, command in commands_of(__file__)]
    ports = free_port(), free_port()
    reader.replaced["kubectl apply"] = f"sed s/:8443/:{ports[0]}/ | kubectl apply"
    serve += f" --port={ports[0]} --operations-port={ports[1]}"
    folder, log_file = reader.folder, reader.folder / "log"
    with (
        log_file.open("wb") as log,
        subprocess.Popen(
            ["bash", "-c", f"exec {serve}"], cwd=folder, env=reader.env, stdout=log, stderr=log
        ) as process,
    ):
        server = Server(process, *ports, folder, folder, log_file)
        try:
            server.wait_for("readiness", server.ready)
            said = [reader.run(item, *((1,) if "run wrong" in item else ())) for item in rest]
        finally:
            server.quit()
    assert "name: vram-enforcer" in said[-2]
    assert "use 8G or 8Gi" in said[-1]
