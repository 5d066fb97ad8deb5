"""What the sidecar does where the driver itself may hold the pod to its cap, from r615 on."""

import pytest

from webhook.sidecar.limit import INSTEAD

ASKED = "nvmlDeviceGetMemoryLimits_v1"
HELD, LATE, NOT = "held by the driver", "held by the driver, late", "not held by the driver"
MORE = "the driver's limit for this pod on GPU GPU-a is 1001Mi, more than the cap of 1000Mi"
NONE = "the driver has no limit for this pod on GPU GPU-a"
STOPPED_INSTEAD = f"; {INSTEAD}"


@pytest.mark.parametrize("asks", [None, "", " "], ids=["absent", "empty", "blank"])
def test_where_nobody_asked_for_a_limit_no_call_is_made_and_nothing_waits(asks, pod):
    def incident(p, asked, environment):
        p.has_limits()
        p.limits(1000)
        p.guard(**environment)
        p.observations(5)
        return p.calls(asked), p.messages

    environment = {} if asks is None else {"VRAM_DRIVER_LIMIT": asks}
    assert pod.run(incident, ASKED, environment) == [[], ["self-test"]]


@pytest.mark.parametrize("mode", ["Auto", "Require"])
def test_a_pod_that_is_held_starts_before_the_first_observation(mode, pod):
    def incident(p, mode):
        p.has_limits(gpus="ab")
        p.limits(1000)
        p.limits(900, "GPU-b")
        never = "guard.Observer.observe = lambda *_: time.sleep(3600)"
        p.guard(VRAM_DRIVER_LIMIT=mode, VRAM_GPUS="GPU-a,GPU-b", constants=never)
        return p.probe("startup"), p.messages

    assert pod.run(incident, mode) == [[0, "guarding"], ["self-test", HELD]]


@pytest.mark.parametrize(
    ("back_end", "mib", "why"),
    [
        ("missing", 0, NONE),
        ("off", 0, NONE),
        ("misc", 0, NONE),
        ("dmem", 0, NONE),
        ("dmem enabled=1", 0, NONE),  # it answers that there is none
        ("misc", 1001, MORE),
    ],
)
def test_under_auto_the_pod_starts_without_a_limit_after_a_while_and_it_is_told(
    back_end, mib, why, pod
):
    def incident(p, back_end, mib):
        p.has_limits(back_end)
        p.limits(mib)
        p.guard(VRAM_DRIVER_LIMIT="Auto", VRAM_GPUS="GPU-a", constants="limit.WAIT_S = 0.3")
        return [p.probe() for _ in range(3)], p.messages

    probes, messages = pod.run(incident, back_end, mib)
    assert messages == ["self-test", NOT]
    assert probes == [[0, "guarding"], [1, f"{NOT}: {why}{STOPPED_INSTEAD}"], [0, "guarding"]]


def test_under_auto_it_waits_for_a_limit_and_tells_one_that_comes_late_or_goes(pod):
    def incident(p):
        p.has_limits(gpus="ab")
        p.enforcer = p.start(VRAM_DRIVER_LIMIT="Auto", constants="limit.ASK_EVERY_S = 0.0")
        p.wait_until(lambda: len(p.calls("GetMemoryLimits")) > 4)
        waited = p.heartbeat.exists()
        p.later(2)
        p.wait_for("not held by the driver")
        p.limits(1000)
        p.observations(3)
        half = p.messages
        p.limits(1000, "GPU-b")
        p.wait_for("held by the driver, late")
        p.limits(0)
        p.wait_for("not held by the driver", 2)
        p.observations(3)
        return waited, half, p.messages, p.probe()[0]

    told = ["self-test", NOT]
    assert pod.run(incident) == [False, told, [*told, LATE, NOT], 0]


@pytest.mark.parametrize("gpus", ["GPU-a", "all"], ids=["of the binding", "all that are seen"])
def test_under_require_the_pod_waits_without_end_and_the_startup_probe_says_why(gpus, pod):
    def incident(p, gpus):
        p.has_limits()
        p.enforcer = p.start(VRAM_DRIVER_LIMIT="Require", VRAM_GPUS=gpus)
        p.wait_for("waiting for the driver's limit")
        p.later(3600)
        asked = len(p.calls("GetMemoryLimits"))
        p.wait_until(lambda: len(p.calls("GetMemoryLimits")) > asked + 3)
        probes = [p.probe("startup")]
        p.script("fail * 9")
        p.wait_for("cannot measure")
        p.has_limits()
        p.wait_for("measuring again")
        answer = p.waiting_probe()
        p.limits(1000)
        return [*probes, answer(), p.probe("startup")], p.messages

    probes, messages = pod.run(incident, gpus)
    waits = f"waiting for the driver's limit: {NONE}"
    assert probes[0] == [1, waits]
    assert probes[1][1].endswith("; then: guarding")
    assert (probes[1][0], probes[2]) == (0, [0, "guarding"])
    assert messages[0] == "self-test"
    assert messages[-1] == HELD


def test_what_a_limit_leaves_to_the_sidecar_is_judged_less_what_the_driver_counts(pod):
    def incident(p, total):
        p.has_limits()
        p.limits(1000)
        p.counts(700)
        hog = p.process("plain")
        p.holds(hog, 1300)  # a context's worth of it is not counted
        p.guard(VRAM_DRIVER_LIMIT="Auto", VRAM_GPUS="GPU-a")
        p.observations(1)  # which finds the GPUs
        asked = len(p.calls(total))
        p.observations(5)
        spared, asked = hog.code, len(p.calls(total)) - asked
        p.holds(hog, 1700)  # more than that
        p.wait_for("memory came back")
        return spared, asked, hog.wait(), p.events("stopping a process")[0]["sum_bytes"]

    assert pod.run(incident, "MemoryInfo") == [None, 0, -15, 1700 * 2**20]
