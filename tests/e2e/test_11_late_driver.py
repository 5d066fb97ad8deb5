"""The agent starts on a node before the driver, as on nodes added by an autoscaler."""

from __future__ import annotations

import time

from tests.e2e.pods import statuses

LATER_S = 60.0
NEW_CONTAINER = 75


def test_a_driver_that_comes_later_is_found_without_anybodys_hand(gpu_node, system, agent):
    gpu_node.driver.remove()
    try:
        name = agent.replace()["metadata"]["name"]
        began = time.monotonic()

        def told():
            return [line for line in system.events(name) if "kernel has no NVIDIA driver" in line]

        print(*system.wait("what is missing", told), sep="\n")
        while time.monotonic() - began < LATER_S:
            time.sleep(1)
        assert agent.advertised() is None
        assert not agent.is_ready()
    finally:
        gpu_node.driver.restore()
    began = time.monotonic()
    system.wait("VRAM advertised", agent.advertised)
    print(f"advertised after the driver came: {time.monotonic() - began:.1f} s")
    status = statuses(agent.ready())["agent"]
    assert status["lastState"]["terminated"]["exitCode"] == NEW_CONTAINER
    assert status["restartCount"] == 1
