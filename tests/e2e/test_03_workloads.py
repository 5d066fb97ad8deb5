"""A Deployment runs under its cap, and is stopped above it; a Job completes."""

from __future__ import annotations

import pytest

from tests.e2e.pods import GIB, deployment, holding, job, pod, statuses

GROWS = holding(f"env; hold {GIB}; echo holds; wait_for grow; hold {10 * GIB}; forever")


@pytest.fixture(scope="module")
def train(gpu_node, team):
    """Return the ready pod of a Deployment with 8Gi."""
    team.create(deployment("train", "8Gi", GROWS))
    return team.wait_ready(team.pod_of("train")["metadata"]["name"])


def test_the_sidecar_comes_first_and_starts_first(train):
    assert train["spec"]["initContainers"][0]["name"] == "vram-enforcer"
    found = statuses(train)
    sidecar, main = found["vram-enforcer"]["state"], found["main"]["state"]
    assert sidecar["running"]["startedAt"] <= main["running"]["startedAt"]
    assert found["vram-enforcer"]["restartCount"] == 0


def test_the_application_sees_its_variables(team, train):
    written = team.log(train["metadata"]["name"]).splitlines()
    gpu = train["metadata"]["annotations"]["vramwarden.io/gpu"]
    assert f"NVIDIA_VISIBLE_DEVICES={gpu}" in written
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in written


def test_growing_past_the_cap_it_is_stopped_and_everybody_can_read_why(team, train):
    name = train["metadata"]["name"]
    team.wait("the application running", lambda: "holds" in team.log(name))
    team.run(name, "touch", "/scene/grow")
    ended = team.wait_ended(name)
    assert ended["exitCode"] == 143
    log = team.log(name, "vram-enforcer")
    gpu = train["metadata"]["annotations"]["vramwarden.io/gpu"]
    assert f"over the VRAM cap on GPU {gpu}" in log
    assert "holds 10Gi, the cap is 8Gi" in log
    team.wait("it runs again", lambda: "running" in statuses(team.pod(name))["main"]["state"])
    said = f"Unhealthy: Liveness probe failed: stopping a process: over the VRAM cap on GPU {gpu}: "
    (event,) = team.wait(
        "an Event that says why",
        lambda: [event for event in team.events(name) if event.startswith(said)],
    )
    assert "holds 10Gi, the cap is 8Gi" in event
    print(*team.events(name), sep="\n")
    assert statuses(team.pod(name))["vram-enforcer"]["restartCount"] == 0


def test_the_termination_message_tells_why_once_the_pod_has_ended(gpu_node, team):
    team.create(pod("greedy", "2Gi", holding(f"hold {4 * GIB}; forever"), restartPolicy="Never"))
    assert team.wait_ended("greedy")["exitCode"] == 143
    team.wait("greedy failed", lambda: team.pod("greedy")["status"]["phase"] == "Failed")
    message = team.wait_ended("greedy", "vram-enforcer")["message"]
    assert "over the VRAM cap on GPU GPU-" in message
    assert "so write vramwarden.io/gpu-memory: 4.75Gi (the peak and 15 %)" in message


def test_a_job_finishes_although_it_has_the_sidecar(gpu_node, team):
    made = team.create(job("count", "2Gi", holding(f"hold {GIB}; sleep 2; echo done")))

    def status():
        return gpu_node.api.get(made)["status"]

    team.wait("the job complete", lambda: status().get("succeeded") == 1)
    (found,) = team.pods(labelSelector="job-name=count")
    assert statuses(found)["vram-enforcer"]["state"]["terminated"]["exitCode"] == 0
