"""Time from the start of a sidecar to that of its application, on an idle and a busy node."""

from __future__ import annotations

import contextlib
import statistics
from datetime import datetime

import pytest

from tests.e2e.pods import container, pod

PODS = {"idle": 20, "busy": 10}  # a busy node takes several times as long
PATIENCE_S = 60  # only detects failures; the measured time is printed
SPIN = ["sh", "-c", "while :; do :; done"]


@contextlib.contextmanager
def busy(team):
    """Keep two cores busy with far more CPU weight than a sidecar has."""
    for name in ("spin-1", "spin-2"):
        spinning = container(SPIN, resources={"requests": {"cpu": "500m"}})
        team.create(pod(name, None, SPIN, containers=[spinning]))
    for name in ("spin-1", "spin-2"):
        team.wait_ready(name)
    yield
    for name in ("spin-1", "spin-2"):
        team.delete_pod(name)


def play(node, team, name):
    """Run a pod to its end; return seconds until its application started, and the statuses."""
    team.create(pod(name, "1Gi", ["sh", "-c", "echo began"], restartPolicy="Never"))
    team.wait(f"{name} over", lambda: team.pod(name)["status"]["phase"] == "Succeeded")
    # Time at which the line reached containerd, since the API has whole seconds.
    log = team.cluster.kubectl("--namespace", team.namespace, "logs", name, "-c", "main",
                               "--timestamps").stdout  # fmt: skip
    began_s = datetime.fromisoformat(log.split()[0]).timestamp()
    ended = team.wait_ended(name, "vram-enforcer")
    created_s = node.created_s(ended["containerID"])
    team.delete_pod(name)
    return began_s - created_s, ended


@pytest.mark.parametrize("load", ["idle", "busy"])
def test_the_application_starts_soon_after_its_sidecar_was_created(load, gpu_node, make_team):
    team = make_team()
    with busy(team) if load == "busy" else contextlib.nullcontext():
        played = [play(gpu_node, team, f"quick-{number}") for number in range(PODS[load])]
    delays_s = sorted(delay_s for delay_s, _ in played)
    print(
        f"from the sidecar's container to the application's first line, {load} node, "
        f"{PODS[load]} pods: median {statistics.median(delays_s):.2f} s, worst {delays_s[-1]:.2f} s"
    )
    print(" ".join(f"{delay_s:.2f}" for delay_s in delays_s))
    assert delays_s[-1] < PATIENCE_S
    # The sidecar gets SIGTERM once the application has ended. A sidecar that is too slow is killed,
    # with exit code 137.
    assert [ended["exitCode"] for _, ended in played] == [0] * PODS[load]
