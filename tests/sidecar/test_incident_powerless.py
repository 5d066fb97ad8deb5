"""Signals are not delivered: no process is stopped, that is logged, and the pod must restart."""

import pytest

NOBODY = 1234


@pytest.mark.parametrize("user", [0, NOBODY])
def test_without_permission_nobody_is_signalled_and_the_pod_has_to_restart(pod, user):
    def incident(p, user, nobody):
        hog = p.process("stays", user=nobody + 1)
        p.holds(hog, 1200)
        p.guard(user=user)
        return p.end(), hog.code, hog.notes, p.events(), p.termination_message, hog.pid

    code, alive, notes, events, message, pid = pod.run(incident, user, NOBODY)
    assert (code, alive, notes) == (88, None, [])
    assert [event["msg"] for event in events] == [
        "self-test", "stopping a process", "a signal was rejected", "the pod must restart",
    ]  # fmt: skip
    first, _, rejected, end = events
    assert (first["level"], first["ability"]) == ("warning", "observe")
    why = (
        f"We are user {user} without CAP_KILL and process {pid} is user {NOBODY + 1}; "
        "run the sidecar as that user, or as root with KILL."
    )
    assert (first["why"], rejected["why"]) == (why, why)
    assert (rejected["pid"], rejected["level"]) == (pid, "error")
    assert message == f"the pod must restart: {end['why']}\n"
    assert end["why"].startswith("over the VRAM cap on GPU GPU-a: the pod holds 1.2Gi, the cap is")


def test_another_user_of_the_pod_that_can_be_signalled_is_stopped_in_its_place(pod):
    def incident(p, nobody):
        safe, mine = p.process("stays", user=nobody + 1), p.process("plain", user=nobody)
        p.holds(safe, 700)
        p.holds(mine, 600)
        p.guard(user=nobody)
        p.wait_for("memory came back")
        p.observations(3)
        stopped = [event["pid"] for event in p.events("stopping a process")]
        return safe.code, safe.notes, mine.wait(), stopped == [safe.pid, mine.pid]

    assert pod.run(incident, NOBODY) == [None, [], -15, True]


def test_a_pod_that_ends_takes_the_other_containers_processes_along(pod):
    def incident(p):
        p.contain(1, "f")
        obeys, ignores = (p.process(how, container="a") for how in ("plain", "stays"))
        unmeasured, mine = p.process("plain", container="b"), p.process("stays")
        p.holds(obeys, 100)
        p.guard(VRAM_WHEN_BLIND="Terminate", VRAM_GRACE="0.5s")
        p.script("fail nvmlDeviceGetMemoryInfo_v2 4")
        p.wait_for("the pod must restart")
        p.observations(3)  # heartbeats, in fact: the probe must not fail during a grace period
        code = p.end()
        fates = [item.wait() for item in (obeys, ignores, unmeasured)]
        return code, fates, ignores.notes, [mine.code, mine.notes], p.messages

    assert pod.run(incident) == [
        88, [-15, -9, -15], ["SIGTERM"], [None, []],
        ["self-test", "cannot measure", "the pod must restart"],
    ]  # fmt: skip
