"""Under Pod Security, the sidecar works without more permissions than its namespace allows."""

from __future__ import annotations

import pytest

from tests.e2e.pods import GIB, container, holding, pod

GROWS = holding(f"hold {GIB}; echo holds; wait_for grow; hold {4 * GIB}; forever")
KILL = 1 << 5  # CAP_KILL
USER = 1234
RESTRICTED_POD = {
    "runAsUser": USER,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture
def team_at(make_team):
    """Return a function that creates a team whose namespace enforces a level."""
    return lambda level: make_team(**{"pod-security.kubernetes.io/enforce": level})


def status_of_sidecar(team, name):
    """Return user and effective capabilities of the sidecar's process."""
    lines = team.run(name, "cat", "/proc/self/status", container="vram-enforcer").splitlines()
    found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return int(found["Uid"].split("\t")[0]), int(found["CapEff"], 16)


def is_stopped_when_it_grows(team, name):
    team.wait("it holds", lambda: "holds" in team.log(name))
    team.run(name, "touch", "/scene/grow")
    return team.wait_ended(name)["exitCode"] == 143


def test_in_baseline_it_is_root_with_nothing_but_kill(gpu_node, team_at):
    team = team_at("baseline")
    # Workload and sidecar have different users: without KILL, the workload could not be stopped.
    users = container(GROWS, securityContext={"runAsUser": USER})
    team.create(pod("grows", "2Gi", [], containers=[users]))
    team.wait_ready("grows")
    print(f"baseline: user and capabilities {status_of_sidecar(team, 'grows')}")
    assert status_of_sidecar(team, "grows") == (0, KILL)
    assert is_stopped_when_it_grows(team, "grows")


def test_in_restricted_it_is_the_workloads_user_without_any_capability(gpu_node, team_at):
    team = team_at("restricted")
    hardened = container(GROWS, securityContext=RESTRICTED_CONTAINER)
    team.create(pod("grows", "2Gi", [], containers=[hardened], securityContext=RESTRICTED_POD))
    team.wait_ready("grows")
    assert status_of_sidecar(team, "grows") == (USER, 0)
    assert is_stopped_when_it_grows(team, "grows")
