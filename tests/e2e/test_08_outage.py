"""With no replica left, pods that ask for VRAM are denied by name, and all others are created."""

from __future__ import annotations

import pytest

from tests.e2e.cluster import SYSTEM
from tests.e2e.pods import is_ready, pod

SCALE = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/vramwarden-webhook/scale"
WEBHOOK = {"labelSelector": "app.kubernetes.io/component=webhook"}


def scale(system, replicas):
    change = {"spec": {"replicas": replicas}}
    system.api.request("PATCH", SCALE, change, content_type="application/merge-patch+json")

    def done():
        found = system.pods(**WEBHOOK)
        return len(found) == replicas and all(map(is_ready, found))

    system.wait(f"{replicas} replicas", done)


@pytest.fixture
def outage(system):
    """Have no replica for the length of a story."""
    scale(system, 0)
    yield
    scale(system, 2)


def test_pods_with_a_demand_are_refused_in_our_name_and_others_created(team, outage):
    message = team.denial(pod("asks", "1Gi", ["true"]))
    print(message)
    assert 'failed calling webhook "mutate.vramwarden.io"' in message
    assert team.create(pod("plain", None, ["true"]))["metadata"]["uid"]
    team.delete_pod("plain")


def test_afterwards_they_are_translated_again(team):
    made = team.create(pod("asks-again", "1Gi", ["true"], schedulerName="nobody"))
    assert made["spec"]["initContainers"][0]["name"] == "vram-enforcer"
    team.delete_pod("asks-again")
