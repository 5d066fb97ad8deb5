"""Process lists of the driver with figures that are missing, repeated, or too many."""

import pytest

from tests.sidecar.incidents import MIB

MORE_MIB = 2000
"""Memory of another pod, which changes the total so that lists are read again."""


@pytest.mark.parametrize("figures", ["zeros", "unavailable"])
def test_without_figures_it_is_blind_and_kills_nobody_until_they_are_back(pod, figures):
    def incident(p, figures, more_mib):
        hog = p.process("plain")
        p.holds(hog, 1200)
        p.script(f"live {figures}")
        p.guard()
        blind = p.wait_for("cannot measure")
        p.observations(3)
        during = [hog.code, p.probe(), p.messages, p.termination_message]
        p.script(used_mib=more_mib)
        p.wait_for("measuring again")
        p.wait_for("memory came back")
        return blind, hog.pid, during, hog.wait(), p.messages[2:]

    blind, pid, during, code, after = pod.run(incident, figures, MORE_MIB)
    why = f"the driver lists process {pid} without a figure for its memory"
    assert (blind["why"], blind["level"]) == (why, "error")
    assert during == [
        None, [0, "guarding"], ["self-test", "cannot measure"], f"cannot measure: {why}\n",
    ]  # fmt: skip
    assert (code, after) == (-15, ["measuring again", "stopping a process", "memory came back"])


@pytest.mark.parametrize("figures", ["zeros", "unavailable"])
def test_without_figures_the_pod_restarts_where_the_policy_says_so(pod, figures):
    def incident(p, figures):
        hog = p.process("stays")
        p.holds(hog, 1200)
        p.script(f"live {figures}")
        p.guard(VRAM_WHEN_BLIND="Terminate", VRAM_BLIND_AFTER="1m")
        p.observations(1)
        p.later(60)
        return p.end(), hog.code, hog.notes, p.messages, p.termination_message, hog.pid

    code, alive, notes, messages, message, pid = pod.run(incident, figures)
    assert (code, alive, notes) == (88, None, [])
    assert messages == ["self-test", "cannot measure", "the pod must restart"]
    assert message.startswith("the pod must restart: blind for 60 s: the driver lists process ")
    assert f"process {pid} " in message


def test_one_process_without_a_figure_hides_no_other_that_is_over(pod):
    def incident(p):
        hog, unknown = p.process("plain"), p.process("stays")
        p.holds(hog, 1200)
        p.lists(unknown, "GPU-a unavailable")
        p.guard()
        p.wait_for("memory came back")
        p.wait_for("cannot measure")
        return hog.wait(), unknown.code, unknown.notes

    assert pod.run(incident) == [-15, None, []]


def test_a_process_that_is_listed_several_times_counts_once_by_its_largest_figure(pod):
    def incident(p):
        hog = p.process("plain")
        twice, once = f"GPU-a {600 * MIB} compute", f"GPU-a {900 * MIB} graphics"
        p.lists(hog, twice, twice, once, f"GPU-a {300 * MIB} mps")
        p.guard()
        p.observations(3)
        within = [hog.code, p.messages]
        p.lists(hog, twice, twice, f"GPU-a {1100 * MIB} graphics", f"GPU-a {300 * MIB} mps")
        stop = p.wait_for("stopping a process")
        return within, stop["used_bytes"], stop["sum_bytes"], hog.wait()

    assert pod.run(incident) == [[None, ["self-test"]], 1100 * MIB, 1100 * MIB, -15]


def test_a_list_that_outgrows_its_buffer_hides_nobody(pod):
    def incident(p):
        hog, neighbour = p.process("plain"), p.process("stays")
        p.script(f"crowd 0 compute 5000 300 {MIB}\ncrowd 0 graphics 6000 300 {MIB}")
        p.holds(hog, 1200)
        p.holds(neighbour, 100)
        p.guard()
        stop = p.wait_for("stopping a process")
        p.wait_for("memory came back")
        p.observations(3)
        left = [neighbour.code, neighbour.notes]
        return stop["pid"] == hog.pid, stop["sum_bytes"], hog.wait(), left, p.messages

    said = ["self-test", "stopping a process", "memory came back"]
    assert pod.run(incident) == [True, 1300 * MIB, -15, [None, []], said]
