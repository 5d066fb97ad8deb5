"""The agent's reports about driver and GPUs, and when it exits because of them."""

from dataclasses import replace

import pytest

from tests.agent.stepped import DOWN, FINE, GONE, GPU, UNSURE, ZEROED, Bench
from webhook.core.node.access import Access
from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import Fault, ScannedGpu
from webhook.node_programs.program import NewContainerNeededError

MIG = Scan(
    gpus=(
        ScannedGpu(
            uuid="GPU-a", product="NVIDIA H200", index=0, usable_bytes=1000 * 2**20, mig=True
        ),
    ),
    driver_version="570.86.15",
)
SMALLER = Scan(
    gpus=(ScannedGpu(uuid="GPU-a", product="NVIDIA H200", index=0, usable_bytes=999 * 2**20),),
    driver_version="570.86.15",
)
CANNOT = Scan(gpus=(GPU,), driver_version="570.86.15", cannot_measure="no figures")
RESET = Scan(gpus=(replace(GPU, recovery=1),), driver_version="570.86.15")
REMAP = Scan(gpus=(replace(GPU, remap_failed=True),), driver_version="570.86.15")
PENDING = Scan(gpus=(replace(GPU, remap_pending=True),), driver_version="570.86.15")
EXCLUSIVE = Scan(gpus=(replace(GPU, compute_mode=3),), driver_version="570.86.15")
UNIFIED = replace(GPU, uuid="GPU-u", index=1, product="NVIDIA GB10", usable_bytes=None)
BESIDE_UNIFIED = Scan(gpus=(GPU, UNIFIED), driver_version="570.86.15")
FINE_AND_SAID_SO = Scan(gpus=(replace(GPU, recovery=0),), driver_version="570.86.15")


def told(bench):
    """Return the Events written since the last call."""
    waiting = bench.agent._events.waiting
    found = [waiting.get_nowait() for _ in range(waiting.qsize())]
    return [(item.reason, item.sentence, item.reason.warning) for item in found]


LOST = "GPU 0 (GPU-a) is lost; it leaves the list if that lasts for 300 s; it gets no further pod"
SILENT = "GPU 0 (GPU-a) does not answer; it gets no further pod"
BACK = ("GPUBack", "GPU 0 (GPU-a) is as advertised again", False)
IN_MIG = "GPU 0 (GPU-a) left the list: it is in MIG mode now"
NONE = ("VRAMCapacityChanged", "its GPUs have 0 to share now, and had 1000Mi", False)
ITSELF = "it gets no further pod. It is taken back by itself once the driver no longer says so"
NEEDS, FAILED = "needs a reset of the GPU", "row remapping failed"
PENDS = "pending retirement of a bad row of memory: reset the GPU when it is idle"
MODE = "compute mode Exclusive_Process: run nvidia-smi -i GPU-a -c DEFAULT"
NO_MEMORY = (
    "GPU 1 (NVIDIA GB10) cannot be shared by memory: the driver reports no memory of its own, as "
    "with unified memory; if there is no other GPU, label the node vramwarden.io/share=false"
)
ALL = ("VRAMCapacityChanged", "its GPUs have 1000Mi to share now, and had 0", False)
ILL = "a GPU is not healthy; it gets no further pod"
WELL = "a GPU is healthy again"
PATCHED = "node patched"


def unhealthy(why):
    return "GPUUnhealthy", f"GPU 0 (GPU-a): {why}; {ITSELF}", True


def healthy(why):
    return "GPUHealthy", f"GPU 0 (GPU-a) is healthy again; it was not: {why}", False


@pytest.mark.parametrize(
    ("scan", "said", "events", "over", "events_over"),
    [
        (
            DOWN,
            ["the driver does not answer; the node keeps what it shows"], [],
            ["the driver answers"], [],
        ),
        (
            GONE,
            ["a GPU is lost; it leaves the list if that lasts", PATCHED], [("GPULost", LOST, True)],
            ["a GPU is as advertised", PATCHED], [BACK],
        ),
        (
            SMALLER,
            ["a GPU reports another size; the node shows it if that lasts", PATCHED], [],
            ["a GPU is as advertised", PATCHED], [BACK],
        ),
        (
            UNSURE,
            ["a GPU does not answer; it gets no further pod", PATCHED], [("GPULost", SILENT, True)],
            ["every GPU answers, or is lost", PATCHED], [BACK],
        ),
        (CANNOT, ["a sidecar cannot measure here"], [], ["a sidecar can measure here"], []),
        (RESET, [ILL, PATCHED], [unhealthy(NEEDS)], [WELL, PATCHED], [healthy(NEEDS)]),
        (REMAP, [ILL, PATCHED], [unhealthy(FAILED)], [WELL, PATCHED], [healthy(FAILED)]),
        (EXCLUSIVE, [ILL, PATCHED], [unhealthy(MODE)], [WELL, PATCHED], [healthy(MODE)]),
        (PENDING, [], [("GPURetirementPending", f"GPU 0 (GPU-a): {PENDS}", True)], [], []),
        (
            MIG,
            ["GPU skipped", "a GPU left the list", "GPUs", PATCHED],
            [("GPULost", IN_MIG, True), NONE],
            ["GPU no longer skipped", "GPUs", PATCHED], [ALL],
        ),
    ],
    ids=["down", "gone", "smaller", "unsure", "cannot", "reset", "remap", "mode", "pending", "MIG"],
)  # fmt: skip
def test_what_happens_is_logged_and_an_event_once_when_it_begins_and_when_it_is_over(
    scan, said, events, over, events_over, bench
):
    bench.hear(FINE, bench.see_node())
    assert told(bench) == []
    for _ in range(2):
        for heard, lines, sent in ((scan, said, events), (FINE, over, events_over)):
            known = len(bench.said())
            for _ in range(3):
                bench.hear(heard, after_s=1)
            assert (bench.said()[known:], told(bench)) == (lines, sent)


ALONE = Scan(gpus=(UNIFIED,), driver_version="570.86.15")
FAILING = Scan(driver_version="570.86.15", unsure=frozenset({""}))


@pytest.mark.parametrize(
    ("scan", "amount", "code", "down"),
    [
        (ALONE, None, "NoUsableGPU", "Settling"),
        (BESIDE_UNIFIED, "1000Mi", "SomeGPUsUnfit", "SomeGPUsUnfit"),
    ],
)
def test_a_gpu_without_memory_of_its_own_is_not_shared_and_the_node_says_so(
    scan, amount, code, down, bench
):
    note = f"{code}: {NO_MEMORY}"
    for heard in (scan, scan, FAILING):
        bench.hear(heard, bench.see_node())
        assert (bench.annotations["vramwarden.io/sharing"], bench.capacity) == (note, amount)
    assert told(bench)[0] == ("GPUsNotShared", NO_MEMORY, False)
    assert bench.unready() == ""
    again = bench.restarted()
    again.hear(DOWN, again.see_node())
    assert again.annotations["vramwarden.io/sharing"].partition(":")[0] == down
    again.hear(FINE)
    assert again.annotations["vramwarden.io/sharing"].startswith("Shared: ")
    again.hear(scan)
    assert told(again)[-1] == ("GPUsNotShared", NO_MEMORY, False)


def test_a_node_that_is_not_to_be_shared_says_nothing_of_its_gpus(bench):
    bench.hear(ALONE, bench.see_node())
    told(bench)
    bench.hear(bench.edit({"metadata": {"labels": {"vramwarden.io/share": "false"}}}))
    bench.hear(ALONE)
    assert bench.annotations["vramwarden.io/sharing"].startswith("NotShared: its label ")
    assert told(bench) == []


def test_a_gpu_that_is_lost_a_second_time_is_reported_a_second_time(bench):
    bench.hear(FINE, bench.see_node())
    known = len(bench.said())
    bench.hear(GONE, after_s=1)
    bench.hear(GONE, after_s=300)
    left = [
        "a GPU is lost; it leaves the list if that lasts",
        "node patched",
        "a GPU left the list",
        "GPUs",
        "node patched",
    ]
    assert bench.said()[known:] == left
    bench.hear(FINE, after_s=1)
    bench.hear(GONE, after_s=1)
    assert bench.said()[known + 5 :] == ["GPUs", "node patched", *left[:2]]


def test_a_gpu_that_stays_lost_is_another_amount_at_last(bench):
    bench.hear(FINE, bench.see_node())
    bench.hear(GONE, after_s=1)
    told(bench)
    bench.hear(GONE, after_s=300)
    assert told(bench) == [NONE]


def test_an_amount_that_lasts_is_told_with_what_it_was(bench):
    bench.hear(FINE, bench.see_node())
    bench.hear(SMALLER, after_s=1)
    bench.hear(SMALLER, after_s=300)
    sentence = "its GPUs have 999Mi to share now, and had 1000Mi"
    assert told(bench) == [("VRAMCapacityChanged", sentence, False)]


def test_a_driver_with_which_no_sidecar_measures_is_told_once_the_node_shows_it(bench):
    bench.hear(FINE, bench.see_node())
    bench.hear(CANNOT, after_s=1)
    assert told(bench) == []
    for _ in range(3):
        bench.hear(CANNOT, after_s=300)
    unfit = ("GPUDriverUnfit", "a sidecar cannot measure here: no figures", True)
    assert told(bench) == [unfit]
    bench.hear(FINE, after_s=1)
    for _ in range(2):
        bench.hear(CANNOT, after_s=300)
    assert told(bench) == [unfit]


def test_of_a_node_that_is_not_shared_nothing_of_this_is_told(monkeypatch):
    bench = Bench(monkeypatch)
    bench.hear(FINE, bench.edit({"metadata": {"labels": {"vramwarden.io/share": "false"}}}))
    told(bench)
    for scan in (GONE, FINE, MIG):
        bench.hear(scan, after_s=1)
    assert told(bench) == []


def test_what_an_admin_should_change_of_the_access_is_told_by_an_event_too(monkeypatch):
    bench = Bench(monkeypatch, access=Access(visible_devices="void"))
    for _ in range(3):
        bench.hear(FINE, bench.see_node(), after_s=1)
    ((reason, sentence, warning),) = told(bench)
    assert (reason, warning, bench.told()) == ("DefaultRuntime", True, [])
    assert "any image can show itself GPUs: " in sentence
    assert "fence.void" in sentence


def test_a_driver_without_gpus_is_reported_once(bench):
    for _ in range(3):
        bench.hear(GONE, bench.see_node(), after_s=1)
    assert bench.said() == ["no GPU on this node; waiting", "node patched"]
    assert bench.sent == []


CHANGED = Scan(failed="the driver was replaced", fault=Fault.DRIVER_CHANGED)
UNKNOWN = Scan(failed="revoked", fault=Fault.UNKNOWN)
MISSING = Scan(failed="no library", fault=Fault.LIBRARY_MISSING)


@pytest.mark.parametrize(
    ("before", "scan", "ends_after_s"),
    [
        (FINE, CHANGED, 40),
        (DOWN, CHANGED, 40),
        (FINE, UNKNOWN, 310),
        (DOWN, UNKNOWN, None),
        (FINE, DOWN, None),
        (FINE, MISSING, None),
    ],
)
def test_it_ends_where_only_a_new_container_sees_the_driver(before, scan, ends_after_s, bench):
    bench.hear(before, bench.see_node())
    if before is FINE:
        bench.hear(before, after_s=1000)
    for second in range(10, 2000, 10):
        try:
            bench.hear(scan, after_s=10)
        except NewContainerNeededError as error:
            assert str(error) == scan.failed
            assert second == ends_after_s
            return
    assert ends_after_s is None


def test_a_driver_that_hangs_is_reported_and_keeps_nothing_else_waiting(bench):
    bench.hear(FINE, bench.see_node())
    bench.hear(bench.edit(ZEROED), after_s=91)
    assert bench.capacity == "1000Mi"
    bench.hear(after_s=1)
    assert bench.said().count("the driver hangs") == 1
    bench.hear(FINE, after_s=1)
    assert bench.said()[-1] == "the driver no longer hangs"


def test_a_log_that_cannot_be_written_ends_nothing(monkeypatch):
    bench = Bench(monkeypatch)
    bench.log.close()
    bench.hear(FINE, bench.see_node())
    assert bench.capacity == "1000Mi"


def test_no_folder_for_the_heartbeat_is_reported_once(monkeypatch, tmp_path):
    bench = Bench(monkeypatch, run_folder=str(tmp_path / "none"))
    bench.agent._beat()
    bench.agent._beat()
    assert bench.said() == ["no heartbeat"]
