"""Process lists are expensive, and read only if the cheap total requires it."""

import signal

LISTS, TOTAL = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo_v2"


def test_a_peak_between_two_lists_is_seen_where_the_total_is_higher_than_ever(pod):
    """The pod is the only one on its GPU, and always within its cap."""

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
