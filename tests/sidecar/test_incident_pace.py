"""How often lists, which are dear, are read beside the total, which is cheap; and what is said.

Bounds are of counts by time that passed: what takes longer here than elsewhere stays within them.
"""

import signal
import time

FLOOR = "pacing.LIST_FLOOR_S = 1.0"
LISTS, TOTAL = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo_v2"


def test_while_the_total_is_within_the_cap_lists_are_left_alone(pod):
    def incident(p, lists, total, floor):
        mine = p.process("stays")
        p.holds(mine, 500)
        p.script(used_mib=400)
        started_s = time.monotonic()
        p.guard(constants=floor)
        for used_mib in range(0, 400, 40):
            totals = len(p.calls(total))
            p.script(used_mib=used_mib)
            p.wait_until(lambda totals=totals: len(p.calls(total)) > totals)
        # The self-test reads them, the first observation does, and then one in ten seconds.
        most = 2 + (time.monotonic() - started_s) / 10
        return len(p.calls(lists)) <= most, mine.code, mine.notes, p.messages

    assert pod.run(incident, LISTS, TOTAL, FLOOR) == [True, None, [], ["self-test"]]


def test_a_peak_between_two_lists_is_seen_where_the_total_is_higher_than_ever(pod):
    """The pod is alone on its GPU, and within its cap all the time."""

    def incident(p, lists):
        mine = p.process("stays")
        p.holds(mine, 500)
        p.guard(constants="pacing.LIST_EVERY_S = float('inf')")
        read = len(p.calls(lists))
        p.holds(mine, 900)
        p.wait_until(lambda: len(p.calls(lists)) > read)
        p.holds(mine, 500)
        name = p.wait_until(lambda: p.name if p.name == "vw s0 900" else "")
        p.enforcer.send_signal(signal.SIGINT)
        p.end()
        return name, p.events("last words")[0]["peak_bytes"], p.messages

    peak = {"GPU-a": 900 * 2**20}
    assert pod.run(incident, LISTS) == ["vw s0 900", peak, ["self-test", "stopped"]]


def test_lists_are_read_once_a_second_at_most_and_use_up_to_the_ceiling_is_left_alone(pod):
    def incident(p, lists, total, floor):
        mine = p.process("stays")
        p.holds(mine, 1020)
        started_s = time.monotonic()
        p.guard(VRAM_TOLERANCE="2%", constants=floor)
        used_mib = 2000
        while len(p.calls(lists)) < 3:
            used_mib += 100
            p.script(used_mib=used_mib)
            totals = len(p.calls(total))
            p.wait_until(lambda: len(p.calls(total)) > totals)  # noqa: B023
        elapsed_s = time.monotonic() - started_s
        left = [mine.code, mine.notes, p.messages]
        p.holds(mine, 1020, more_bytes=1)
        p.script(used_mib=used_mib + 100)
        return elapsed_s >= 1, left, p.wait_for("stopping a process")["used_bytes"]

    left = [None, [], ["self-test"]]
    assert pod.run(incident, LISTS, TOTAL, FLOOR) == [True, left, 1020 * 2**20 + 1]


def test_each_look_reads_the_lists_of_a_gpu_that_is_judged_and_of_no_other(pod):
    def incident(p, lists, total):
        p.script(gpus="ab")
        hog, other = p.process("stays"), p.process("stays")
        p.holds(hog, 1200)
        p.holds(other, 900, gpu="GPU-b")
        p.guard(VRAM_GRACE="1h")
        p.wait_for("stopping a process")
        before = len(p.calls())
        p.observations(5)
        letters = {lists: "L", total: "T"}
        return "".join(letters.get(call, "") for call in p.calls()[before:])

    order = pod.run(incident, LISTS, TOTAL)
    assert order.count("L") >= 5
    assert order in "TLT" * len(order)
