"""The sidecar with a driver that may enforce the pod's cap, from r615 on."""

import pytest

from webhook.sidecar.driver_limit import INSTEAD

ASKED = "nvmlDeviceGetMemoryLimits_v1"
HELD, LATE, NOT = "held by the driver", "held by the driver, late", "not held by the driver"
MORE = "the driver's limit for this pod on GPU GPU-a is 1001Mi, more than the cap of 1000Mi"
NONE = "the driver has no limit for this pod on GPU GPU-a"


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
        ("dmem", 0, NONE),
        ("dmem enabled=1", 0, NONE),  # the driver reports that there is no limit
        ("misc", 1001, MORE),
    ],
)
def test_without_a_limit_that_is_enough_nothing_starts_and_the_startup_probe_says_why(
    back_end, mib, why, pod
):
    def incident(p, back_end, mib):
        p.has_limits(back_end)
        p.limits(mib)
        p.enforcer = p.start(VRAM_DRIVER_LIMIT="Auto", VRAM_GPUS="GPU-a")
        p.wait_for("waiting for the driver's limit")
        p.later(3600)
        waited = p.probe("startup"), p.heartbeat.exists(), p.messages
        p.has_limits()
        p.limits(1000)
        p.wait_for("held by the driver")
        p.wait_for_heartbeat()
        return waited

    waiting = "waiting for the driver's limit"
    said = pod.run(incident, back_end, mib)
    assert said[:2] == [[1, f"{waiting}: {why}"], False]
    assert said[2][:2] == ["self-test", waiting]


def test_a_limit_that_is_lost_or_comes_back_is_told_and_the_pod_goes_on(pod):
    def incident(p):
        p.has_limits(gpus="ab")
        p.limits(1000)
        p.limits(1000, "GPU-b")
        p.guard(VRAM_DRIVER_LIMIT="Auto", constants="driver_limit.QUERY_INTERVAL_S = 0.0")
        p.limits(0, "GPU-b")
        p.wait_for("not held by the driver")
        probes = [p.probe() for _ in range(3)]
        p.limits(1000, "GPU-b")
        p.wait_for("held by the driver, late")
        p.limits(0)
        p.wait_for("not held by the driver", 2)
        p.observations(3)
        return probes, p.messages

    probes, messages = pod.run(incident)
    lost = [1, f"{NOT}: {NONE.replace('GPU-a', 'GPU-b')}; {INSTEAD}"]
    assert probes == [[0, "guarding"], lost, [0, "guarding"]]
    assert messages[0] == "self-test"
    assert messages[-4:] == [HELD, NOT, LATE, NOT]


@pytest.mark.parametrize("mode", ["Auto", "Require"])
@pytest.mark.parametrize("gpus", ["GPU-a", "all"], ids=["of the binding", "all that are seen"])
def test_the_pod_waits_without_end_and_the_startup_probe_says_why(gpus, mode, pod):
    def incident(p, gpus, mode):
        p.has_limits()
        p.enforcer = p.start(VRAM_DRIVER_LIMIT=mode, VRAM_GPUS=gpus)
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

    probes, messages = pod.run(incident, gpus, mode)
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
        p.holds(hog, 1300)  # one context of it is not counted
        p.guard(VRAM_DRIVER_LIMIT="Auto", VRAM_GPUS="GPU-a")
        p.observations(1)  # finds the GPUs
        asked = len(p.calls(total))
        p.observations(5)
        spared, asked = hog.code, len(p.calls(total)) - asked
        p.holds(hog, 1700)  # exceeds the cap by more than one context
        p.wait_for("memory came back")
        return spared, asked, hog.wait(), p.events("stopping a process")[0]["sum_bytes"]

    assert pod.run(incident, "MemoryInfo") == [None, 0, -15, 1700 * 2**20]


@pytest.mark.parametrize(
    ("holds", "counted", "stops"),
    [
        ([1518], 1000, False),
        ([1480, 480], 1000, False),
        ([518] * 8, 0, True),
        ([4800, *[1] * 7], 0, True),
        ([5700, *[1] * 7], 1000, True),
    ],
    ids=["one context", "two contexts", "eight contexts", "one large", "the cap and one large"],
)
def test_what_the_driver_does_not_count_is_let_pass_as_far_as_contexts_explain_it(
    holds, counted, stops, pod
):
    def incident(p, holds, counted, stops):
        p.has_limits()
        p.limits(1000)
        p.counts(counted)
        for mib in holds:
            p.holds(p.process("plain"), mib)
        p.guard(VRAM_DRIVER_LIMIT="Auto", VRAM_GPUS="GPU-a")
        if stops:
            p.wait_for("stopping a process")
        p.observations(5)
        return len(p.events("stopping a process"))

    assert bool(pod.run(incident, holds, counted, stops)) is stops
