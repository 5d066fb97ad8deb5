"""A pod within its cap is not stopped. A pod whose sidecar cannot measure never starts."""

from __future__ import annotations

from tests.e2e.nvidia_runtime import DRIVER_ANNOTATION
from tests.e2e.pods import holding, pod, statuses

OLD_DRIVER = "550.54.14"  # reports 0 bytes for a container's own processes


def test_a_pod_under_its_cap_runs(team, quiet):
    found = team.wait_ready(quiet)
    assert {status["restartCount"] for status in statuses(found).values()} == {0}


def test_a_pod_that_cannot_be_measured_does_not_start_and_says_why(gpu_node, team):
    blind = pod("blind", "2Gi", holding("echo started; forever"))
    blind["metadata"]["annotations"][DRIVER_ANNOTATION] = OLD_DRIVER
    team.create(blind)
    ended = team.wait_ended("blind", "vram-enforcer")
    assert ended["exitCode"] == 70
    assert OLD_DRIVER in ended["message"]
    print(f"self-test: {ended['message']}")

    def tried_again():
        return statuses(team.pod("blind"))["vram-enforcer"]["restartCount"] > 0

    team.wait("a second try", tried_again)
    main = statuses(team.pod("blind"))["main"]
    assert main["state"]["waiting"]["reason"] == "PodInitializing"
    assert not main["started"]

    def reported():  # by one attempt, since a container that ends early ends its probe
        words = ("Unhealthy: Startup probe failed: ", f"failed: Driver {OLD_DRIVER}")
        return [event for event in team.events("blind") if all(part in event for part in words)]

    team.wait("an Event that says why", reported)
    print(*team.events("blind"), sep="\n")
    team.delete_pod("blind")
