"""The driver fails while the enforcer runs: it stops no process, reports it, and continues."""

import time

import pytest

COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
TOTAL = "nvmlDeviceGetMemoryInfo_v2"
OF_ALL = {
    "not loaded": ("fail * 9", "the NVIDIA driver is not loaded"),
    "revoked": ("fail * 999", "may have revoked the container's access"),
}
OF_LISTS = {
    "too old": (f"missing {COMPUTE}_v3\nmissing {COMPUTE}_v2", "lacks this function"),
    "stuck": (f"fail {COMPUTE}_v3 10\ndelay {COMPUTE}_v3 150", "did not answer in time"),
}
GONE = "the GPU is gone, was reset, or has not been looked up"
STOP = ["stopping a process", "memory came back"]


@pytest.mark.parametrize("name", OF_ALL)
def test_a_driver_that_fails_stops_nobody_and_the_cap_holds_when_it_is_back(pod, name):
    def incident(p, lines):
        hog = p.process("plain")
        p.holds(hog, 500)
        p.guard()
        p.script(lines)
        p.holds(hog, 1200)
        blind = p.wait_for("cannot measure")
        p.observations(3)
        during = [hog.code, p.probe(), p.messages]
        p.script()
        p.later(1)  # then a driver that was down is queried again
        p.wait_for("memory came back")
        return blind, during, hog.wait(), p.messages[2:]

    lines, words = OF_ALL[name]
    blind, during, code, after = pod.run(incident, lines)
    assert (words in blind["why"], blind["level"]) == (True, "error")
    assert during == [None, [0, "guarding"], ["self-test", "cannot measure"]]
    assert (code, after) == (-15, ["measuring again", *STOP])


@pytest.mark.parametrize("name", OF_LISTS)
def test_lists_that_fail_stop_nobody_nor_end_a_grace_before_they_are_back(pod, name):
    def incident(p, lines):
        # A victim with a long grace period makes the enforcer keep reading lists.
        hog, victim = p.process("plain"), p.process("stays")
        p.holds(hog, 500)
        p.holds(victim, 1200)
        p.guard(VRAM_GRACE="1h")
        p.wait_for("stopping a process")
        p.script(lines)
        p.holds(hog, 1200)
        blind = p.wait_for("cannot measure")
        p.observations(3)
        p.later(3600)
        p.observations(3)
        during = [hog.code, victim.code, victim.notes, p.probe(), p.messages[2:]]
        victim.started.kill()
        victim.wait()
        p.script()
        p.wait_for("memory came back", 2)
        return blind["why"], during, hog.wait(), p.messages[3:]

    lines, words = OF_LISTS[name]
    why, during, code, after = pod.run(incident, lines)
    assert words in why
    assert during == [None, None, ["SIGTERM"], [0, "guarding"], ["cannot measure"]]
    assert (code, after) == (-15, ["measuring again", "memory came back", *STOP])


def test_a_grace_that_ends_while_the_driver_fails_is_followed_by_a_kill_when_it_is_back(pod):
    def incident(p, lists):
        hog = p.process("stays")
        p.holds(hog, 1200)
        p.guard(VRAM_GRACE="1m", VRAM_BLIND_AFTER="1h")
        p.wait_for("stopping a process")
        p.script(f"fail {lists} 10")
        p.later(61)
        p.observations(2)
        before, started_s = len(p.calls(lists)), time.monotonic()
        p.observations(10)
        most = (time.monotonic() - started_s) / 0.02 + 3
        in_step = len(p.calls(lists)) - before <= most
        during = [hog.code, p.messages]
        p.script()
        p.wait_for("memory came back")
        return in_step, during, hog.wait(), p.messages

    in_step, during, code, messages = pod.run(incident, f"{COMPUTE}_v3")
    stop = ["self-test", "stopping a process"]
    assert in_step, "it observed more often than the poll interval allows"
    assert during == [None, stop]
    assert (code, messages) == (-9, [*stop, "killing a process", "memory came back"])


@pytest.mark.parametrize(
    ("lost", "lines"),
    [
        ("a", f"fail {COMPUTE}_v3 16 gpu=0"),
        ("b", f"fail {TOTAL} 15 gpu=1"),
        ("b", ""),
    ],
)
def test_a_lost_gpu_stops_nobody_and_the_other_one_is_held_to_the_cap(pod, lost, lines):
    def incident(p, lost, lines):
        p.script(gpus="ab")
        on_lost, on_other, other = p.process("stays"), p.process("plain"), "ab".strip(lost)
        p.holds(on_lost, 1200, gpu=f"GPU-{lost}")
        p.holds(on_other, 500, gpu=f"GPU-{other}")
        p.guard(VRAM_GRACE="1h")
        p.wait_for("stopping a process")
        p.script(lines, gpus="ab" if lines else other)
        blind = p.wait_for("cannot measure")
        p.holds(on_other, 1200, gpu=f"GPU-{other}")
        p.wait_for("memory came back")
        p.observations(3)
        ended = p.events("memory came back")[0]["pid"] == on_other.pid
        alive = [on_lost.code, on_lost.notes, p.probe()]
        return blind["why"], ended, on_other.wait(), alive, p.messages[2:]

    why, ended, code, alive, messages = pod.run(incident, lost, lines)
    assert why.startswith(f"GPU-{lost}: {GONE}")
    assert (ended, code, alive) == (True, -15, [None, ["SIGTERM"], [0, "guarding"]])
    assert messages == ["cannot measure", *STOP]


def test_a_driver_that_was_replaced_ends_the_program(pod):
    def incident(p):
        hog = p.process("stays")
        p.holds(hog, 1200)
        p.script("live off")
        p.guard()
        p.script("fail * 18")
        code, event = p.end(), p.events("the driver changed")[-1]
        last = p.messages[-1], event["level"], p.probe()[0]
        return code, hog.code, hog.notes, last, p.termination_message

    code, alive, notes, last, message = pod.run(incident)
    assert (code, alive, notes, last) == (75, None, [], ["the driver changed", "error", 1])
    assert message.startswith("the driver changed: ")
    assert "the node's driver was replaced and does not fit the library mounted here" in message
    assert "only a new container gets the new one" in message


def test_a_driver_that_does_not_do_keeps_the_workload_from_starting_and_stops_nobody(pod):
    def incident(p):
        mine = p.process("stays")
        p.holds(mine, 1200)
        p.script("driver 550.163.01")
        p.guard()
        return p.end(), p.probe(), mine.code, mine.notes, p.messages

    blind = "is too old for a sidecar; 570 or newer is needed."
    before = f"the one before failed: Driver 550.163.01 {blind}"
    why = f"not guarding yet: the self-test has not finished; {before}"
    assert pod.run(incident) == [70, [1, why], None, [], ["self-test"]]
