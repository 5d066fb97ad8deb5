"""A process exceeds the cap: which process is stopped, how, and the report."""

import re
import signal

import pytest

from tests.sidecar.incidents import MIB

STOP = ["stopping a process", "memory came back"]
KILL = ["stopping a process", "killing a process", "memory came back"]


def test_the_process_over_the_cap_reads_why_and_ends_and_its_neighbour_is_left_alone(pod):
    def incident(p):
        hog, neighbour = p.process("leaves"), p.process("stays")
        p.holds(hog, 500)
        p.holds(neighbour, 300)
        p.guard(VRAM_GRACE="1h")
        p.holds(hog, 1200, more_bytes=1)
        p.wait_for("memory came back")
        p.observations(3)
        said = p.outputs[0].read_text().splitlines()[:2]
        ended = hog.pid, hog.wait(), hog.notes
        return ended, [neighbour.code, neighbour.notes], said, p.events(), p.termination_message

    (pid, code, notes), left, said, events, message = pod.run(incident)
    assert (code, left) == (3, [None, []])
    assert [event["msg"] for event in events] == ["self-test", *STOP]
    first, stop, back = events
    assert (first["level"], first["ability"]) == ("info", "full")
    assert message == f"stopping a process: {stop['why']}\n"
    assert notes == ["SIGTERM", *said, message.strip()]  # the message was written before the signal
    figures = {
        "level": "warning", "gpu": "GPU-a", "pid": pid, "used_bytes": 1200 * MIB + 1,
        "sum_bytes": 1500 * MIB + 1, "peak_bytes": 1500 * MIB + 1, "cap_bytes": 1000 * MIB,
    }  # fmt: skip
    assert figures.items() <= stop.items()
    assert "incident_workload.py leaves" in stop["command"]
    assert re.fullmatch(
        rf"over the VRAM cap on GPU GPU-a: process {pid} \(.+\) holds 1.2Gi, other "
        r"processes of the pod 300Mi, the cap is 1000Mi; it grew last, by 701Mi within \d+\.\d s; "
        r"the pod's peak was 1.5Gi, so write vramwarden\.io/gpu-memory: 1.75Gi "
        r"\(the peak and 15 %\)",
        stop["why"],
    )
    assert (back["pid"], back["freed_bytes"], back["gpu"]) == (pid, 1200 * MIB + 1, "GPU-a")
    assert back["after_s"] > 0
    assert f"{back['after_s']:.1f} s after its first signal" in back["why"]


def test_a_process_that_gives_its_memory_back_is_left_to_live(pod):
    def incident(p):
        hog = p.process("stays")
        p.holds(hog, 1200)
        p.guard(VRAM_GRACE="1m")
        p.wait_until(lambda: hog.notes)
        p.gives_back(hog)
        back = p.wait_for("memory came back")
        p.later(61)
        p.observations(1)
        return "left the driver's list" in back["why"], hog.code, hog.notes, p.messages[1:]

    assert pod.run(incident) == [True, None, ["SIGTERM"], STOP]


@pytest.mark.parametrize(("how", "grace_s"), [("stays", 0), ("stays", 0.2), ("sleeps", 0.2)])
def test_a_process_that_does_not_end_is_killed_when_its_grace_is_over(how, grace_s, pod):
    def incident(p, how, grace_s):
        hog = p.process("stays" if how == "stays" else "plain")
        if how == "sleeps":
            hog.started.send_signal(signal.SIGSTOP)
        p.holds(hog, 1200)
        p.guard(VRAM_GRACE=f"{grace_s}s")
        back = p.wait_for("memory came back")
        return hog.wait(), hog.notes, p.events()[1:], back["after_s"]

    code, notes, events, after_s = pod.run(incident, how, grace_s)
    assert code == -9
    assert notes in ([["SIGTERM"], []] if grace_s == 0 else [["SIGTERM"] if how == "stays" else []])
    assert [event["msg"] for event in events] == KILL
    stop, kill, _ = events
    assert kill["why"].endswith(f" is still there {grace_s:g} s after SIGTERM")
    assert (kill["pid"], kill["gpu"], kill["level"]) == (stop["pid"], "GPU-a", "warning")
    assert after_s >= grace_s


def test_children_are_counted_and_the_one_that_grew_last_is_stopped(pod):
    def incident(p):
        parent = p.process("plain", children=2)
        first, second = parent.children
        for who in (parent.pid, first, second):
            p.holds(who, 300)
        p.guard()
        p.holds(second, 500)
        stop, back = p.wait_for("stopping a process"), p.wait_for("memory came back")
        p.observations(3)
        p.wait_until(lambda: parent.notes)
        figures = [stop["pid"] == back["pid"] == second, stop["used_bytes"], stop["sum_bytes"]]
        return figures, parent.notes == [f"{second} ended with -15"], parent.code, len(p.messages)

    assert pod.run(incident) == [[True, 500 * MIB, 1100 * MIB], True, None, 3]


def test_the_cap_and_its_tolerance_are_of_each_gpu_by_itself(pod):
    def incident(p):
        p.script(gpus="ab")
        on_both, on_one = p.process("stays"), p.process("plain")
        p.lists(on_both, f"GPU-a {900 * MIB}", f"GPU-b {600 * MIB}")
        p.holds(on_one, 420, gpu="GPU-b")
        p.guard(VRAM_TOLERANCE="2%")
        p.observations(3)
        within = p.messages
        p.holds(on_one, 420, gpu="GPU-b", more_bytes=1)
        p.later(10)  # then lists are read although the total hardly changed
        stop = p.wait_for("stopping a process")
        on_one.wait()
        p.wait_for("memory came back")
        p.observations(3)
        left = [on_both.code, on_both.notes, len(p.messages)]
        return within, [stop["pid"] == on_one.pid, stop["gpu"], stop["sum_bytes"]], left

    within, stop, left = pod.run(incident)
    assert within == ["self-test"]
    assert stop == [True, "GPU-b", 1020 * MIB + 1]
    assert left == [None, [], 3]
