"""The enforcer itself is stopped, deprived of CPU, or signalled to end."""

import signal

import pytest


def test_a_pause_fails_the_probe_and_is_told_and_then_the_cap_holds_again(pod):
    def incident(p):
        hog = p.process("plain")
        p.holds(hog, 500)
        p.guard()
        before = p.probe()
        p.pause()
        p.forge(p.enforcer.pid)  # a tenant can do this
        p.holds(hog, 1200)
        stuck = p.probe()
        p.later(6)
        alive = hog.code
        p.go_on()
        p.wait_for("memory came back")
        gap = p.events("no observation for a while")[0]
        stuck[1] = stuck[1].replace(str(p.enforcer.pid), "PID")
        return before, stuck, alive, gap, hog.wait(), p.probe(), p.messages[1:]

    before, stuck, alive, gap, code, after, messages = pod.run(incident)
    assert before == after == [0, "guarding"]
    assert stuck == [1, "process PID, which guarded, is stopped (state T)"]
    why = "we were stopped, starved of CPU, or kept waiting by the driver"
    assert (gap["level"], gap["why"]) == ("warning", why)
    assert (alive, code) == (None, -15)
    assert messages == ["stopping a process", "memory came back"]


def test_it_ends_when_told_and_the_probe_says_so(pod):
    def incident(p):
        hog = p.process("stays")
        p.holds(hog, 1200)
        p.guard(VRAM_GRACE="1h")
        p.wait_for("stopping a process")
        p.enforcer.send_signal(signal.SIGTERM)
        pid = p.enforcer.pid
        return p.end(), p.messages[-1], p.probe(), pid, hog.notes

    code, last, (failed, why), pid, notes = pod.run(incident)
    assert (code, last, failed, notes) == (0, "stopped", 1, ["SIGTERM"])
    assert why.startswith(f"process {pid}, which guarded, is over")


def test_one_that_is_killed_and_restarted_takes_over(pod):
    def incident(p):
        hog = p.process("plain")
        p.holds(hog, 500)
        p.guard()
        p.enforcer.kill()
        p.end()
        over = p.probe()
        p.holds(hog, 1200)
        p.guard()
        p.wait_for("memory came back")
        return over[0], p.probe(), hog.wait()

    assert pod.run(incident) == [1, [0, "guarding"], -15]


def test_told_to_end_it_guards_on_while_a_container_that_held_memory_runs_anything(pod):
    """A SIGTERM may come from the workload; the kubelet ends a native sidecar after the others."""

    def incident(p):
        p.contain(1, "f")
        hog, rest = p.process("stays", container="a"), p.process("plain", container="a")
        idle = p.process("stays", container="b")
        p.holds(hog, 500)
        p.guard(VRAM_GRACE="0.2s")
        p.enforcer.send_signal(signal.SIGTERM)
        p.wait_for("guarding on")
        p.holds(hog, 1200)
        p.wait_for("memory came back")
        p.observations(3)
        ours = p.probe(), p.enforcer.poll()
        rest.started.kill()
        return ours, hog.wait(), rest.wait(), p.end(), idle.code, p.messages[1:]

    assert pod.run(incident) == [
        [[0, "guarding"], None], -9, -9, 0, None,
        ["guarding on", "stopping a process", "killing a process", "memory came back", "stopped"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "held_mib", "hangs", "messages"),
    [
        pytest.param("SIGTERM", 0, False, ["stopped"], id="who holds nothing may wait for it"),
        pytest.param("SIGINT", 500, False, ["stopped"], id="by hand, whatever runs"),
        pytest.param("SIGTERM", 500, True, ["guarding on", "stopped"], id="the driver hangs"),
    ],
)
def test_told_to_end_it_waits_for_nobody(number, held_mib, hangs, messages, pod):
    """A mesh's proxy that precedes the sidecar in the pod is stopped after the sidecar."""

    def incident(p, number, held_mib, hangs):
        p.contain(1, "f")
        other = p.process("stays", container="a")
        if held_mib:
            p.holds(other, held_mib)
        p.guard()
        p.observations(2)
        if hangs:
            p.hold("nvmlDeviceGetMemoryInfo_v2")
        p.enforcer.send_signal(signal.Signals[number])
        if hangs:
            p.wait_for("guarding on")
            p.later(16)
        return p.end(), p.messages[1:], other.code

    assert pod.run(incident, number, held_mib, hangs) == [0, messages, None]
