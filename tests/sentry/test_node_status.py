"""Figures of a scan for people: assigned memory, use and peaks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sentry.fakes import (
    CAP_MIB,
    MIB,
    OTHER,
    TOTAL_MIB,
    TRAINER,
    a_gpu,
    an_assignment,
    cap_terms,
    held,
)
from webhook.adapters.kube.node_objects import AssignmentsSeen, OwnNode
from webhook.core.kinds.nodes import (
    MAX_PODS,
    GpuFigures,
    NodeFigures,
    PodFigures,
    read_gpu_node,
    write_gpu_node,
)
from webhook.core.nvidia.drivers import Fault
from webhook.core.placement.assignments import Assignment
from webhook.sentry.assignments import NodeAssignments
from webhook.sentry.node_status import REMEMBER_S, NodeStatus
from webhook.sentry.program_reports import LimiterReport
from webhook.sentry.scanner import ProcessScan
from webhook.sentry.usage import OLD_LIST_S, UsageTracker

USABLE = (TOTAL_MIB - 1) * MIB
share = partial(PodFigures, held_by="sidecar")
THIRD = "cccccccc-0000-4000-8000-000000000003"
LOST = ProcessScan(failed="gone", fault=Fault.DRIVER_DOWN)


def a_scan(a=0, b=0, on_a=None, on_b=None, version="580.65.06"):
    """Return a scan with these MiB in use; None means that the list was not read."""
    gpus = (a_gpu("GPU-a", 0, _bytes(a)), a_gpu("GPU-b", 1, _bytes(b)))
    lists = {"GPU-a": on_a, "GPU-b": on_b}
    listed = {gpu: tuple(listed) for gpu, listed in lists.items() if listed is not None}
    return ProcessScan(gpus=gpus, driver_version=version, lists=listed)


def _bytes(mib):
    return None if mib is None else mib * MIB


OWN = OwnNode("u-1", "sidecar")


def shown(status, unmanaged=None, *, own=OWN, followed=True):
    """Return the status after another scan without lists, at the time of the last scan."""
    return status.show(unmanaged, own, followed=followed)


class ScannedStatus(NodeStatus):
    """A node's status with its assignments and usage, as the loop passes them."""

    def __init__(self):
        super().__init__("n1", LimiterReport("/dev/null"))
        self.assignments, self.tracker, self.stats = NodeAssignments(), UsageTracker(), {}
        self.last = ProcessScan(), 0.0

    def on_list(self, lines):
        self.assignments = self.assignments.with_list(AssignmentsSeen(lines), 0.0)

    def see(self, scan, now_s):
        self.last = scan, now_s
        self.take(scan, now_s, self.assignments, OWN)

    def take(self, scan, now_s, assignments, own, unmanaged=None):
        usage = self.tracker.update(scan, assignments, now_s)
        if unmanaged is not None:
            usage = replace(usage, unmanaged=unmanaged)
        return self.update(scan, usage, assignments, self.stats, own, now_s, 1000.0 + now_s)

    def show(self, unmanaged, own, *, followed):
        scan, now_s = self.last
        again = replace(scan, lists={}, ran={})
        assignments = replace(self.assignments, followed_since_s=0.0 if followed else None)
        node = self.take(again, now_s, assignments, own, unmanaged or {})
        return replace(node, observed_s=100.0)


def seen(*scans, lines=None, stats=None):
    status = ScannedStatus()
    if lines is not None:
        status.on_list(lines)
    status.stats = stats or {}
    for number, scan in enumerate(scans):
        status.see(scan, float(number))
    return status


def pods_of(figures, gpu=0, **options):
    return {pod.uid: pod for pod in shown(figures, **options).gpus[gpu].pods}


def a_pod(uid, cap_mib, used_mib):
    used_bytes = used_mib * MIB
    return share(uid=uid, cap_bytes=cap_mib * MIB, used_bytes=used_bytes, peak_bytes=used_bytes)


def test_a_node_with_everything_known():
    lines = {
        TRAINER: an_assignment("GPU-a"),
        OTHER: an_assignment("*", terms=cap_terms(cap_mib=500), pod="x/y"),
    }
    scan = a_scan(
        5000, 700, [held(50, 900), held(51, 30), held(60, 40, OTHER)], [held(60, 600, OTHER)]
    )
    figures = seen(scan, lines=lines)
    unmanaged = {scan.gpus[0]: {"": 70 * MIB, THIRD: 90 * MIB}}
    a = GpuFigures(
        uuid="GPU-a", index=0, product="H200", total_bytes=TOTAL_MIB * MIB, usable_bytes=USABLE,
        promised_bytes=2 * CAP_MIB * MIB, used_bytes=5000 * MIB,
        free_bytes=USABLE - 2 * CAP_MIB * MIB, unattributed_bytes=(5000 - 970) * MIB, measured=True,
        pods=(a_pod(TRAINER, CAP_MIB, 930), a_pod(OTHER, 500, 40)),
        unmanaged={"": 70 * MIB, THIRD: 90 * MIB},
    )  # fmt: skip
    b = GpuFigures(
        uuid="GPU-b", index=1, product="H200", total_bytes=TOTAL_MIB * MIB, usable_bytes=USABLE,
        promised_bytes=CAP_MIB * MIB, used_bytes=700 * MIB,
        free_bytes=USABLE - CAP_MIB * MIB, unattributed_bytes=100 * MIB, measured=True,
        pods=(a_pod(OTHER, 500, 600),),
    )  # fmt: skip
    assert shown(figures, unmanaged) == NodeFigures(
        name="n1",
        observed_s=100.0,
        driver_version="580.65.06",
        enforcement="sidecar",
        acts=True,
        gpus=(a, b),
    )
    assert [[pod.processes for pod in gpu.pods] for gpu in shown(figures).gpus] == [[2, 1], [1]]


def test_what_its_agent_says_of_the_node_is_shown():
    whys = {"not_shared": "nvidia.com/gpu is offered", "held": "others give them away, too"}
    own = replace(OWN, **whys, faults={"GPU-b": "is broken"})
    node = shown(seen(a_scan(0, 500)), own=own)
    assert {name: getattr(node, name) for name in whys} == whys
    assert [(gpu.healthy, gpu.fault, gpu.used_bytes) for gpu in node.gpus] == [
        (True, "", 0), (False, "is broken", 500 * MIB),
    ]  # fmt: skip
    assert read_gpu_node(write_gpu_node(node)) == node
    assert "largestFree" not in write_gpu_node(node)["status"]["summary"]


def test_before_the_list_was_read_and_while_it_cannot_be_followed_nothing_is_said_of_promises():
    scan = a_scan(5000, 0, [held(50, 900)], [])
    never = shown(seen(scan), followed=False).gpus[0]
    assert (never.promised_bytes, never.free_bytes, never.pods) == (None, None, ())
    assert (never.used_bytes, never.unattributed_bytes) == (5000 * MIB, 4100 * MIB)
    away = shown(seen(scan, lines={TRAINER: an_assignment()}), followed=False).gpus[0]
    assert (away.promised_bytes, away.free_bytes) == (None, None)
    assert away.pods == (
        share(uid=TRAINER, cap_bytes=CAP_MIB * MIB, used_bytes=900 * MIB, peak_bytes=900 * MIB),
    )


BOTH, NEITHER = ("GPU-a", "GPU-b"), ()
FAILED = replace(a_scan(0, 0), unread=frozenset({"GPU-a"}))
ONE_GPU = replace(a_scan(0, on_a=[]), gpus=a_scan(0).gpus[:1])


@pytest.mark.parametrize(
    ("scans", "measured"),
    [
        ([a_scan(0, 0)], NEITHER),
        ([a_scan(0, 0, [], [])], BOTH),
        ([a_scan(0, 0, [], []), a_scan(0, 0)], BOTH),
        ([a_scan(0, 0, [], []), FAILED], ("GPU-b",)),
        ([a_scan(0, 0, [], []), FAILED, a_scan(0, 0)], ("GPU-b",)),
        ([a_scan(0, 0, [], []), FAILED, a_scan(0, 0, on_a=[])], BOTH),
        ([a_scan(0, 0, [], []), LOST], NEITHER),
        ([a_scan(0, 0, [], []), LOST, a_scan(0, 0, on_a=[])], ("GPU-a",)),
        ([a_scan(0, 0, [], []), ONE_GPU], ("GPU-a",)),
        ([a_scan(0, 0, [held(50, None)], [])], BOTH),
    ],
    ids=[
        "not listed yet", "listed", "not due again", "one failed", "not tried again", "it answers",
        "no driver", "the driver is back", "one is gone", "a process without a figure",
    ],
)  # fmt: skip
def test_a_gpu_is_measured_if_its_processes_were_listed_at_the_last_try(scans, measured):
    assert tuple(gpu.uuid for gpu in shown(seen(*scans)).gpus if gpu.measured) == measured


def test_a_sentry_acts_if_it_may_and_follows_its_list_of_pods():
    figures = seen(a_scan(0, 0))
    assert (shown(figures).acts, shown(figures, followed=False).acts) == (True, False)
    figures._acts = False
    assert not shown(figures).acts


def test_what_cannot_be_measured_is_absent_and_never_zero():
    lines = {TRAINER: an_assignment(), OTHER: an_assignment("GPU-b")}
    unread = pods_of(seen(a_scan(100), lines=lines))[TRAINER]
    assert (unread.used_bytes, unread.peak_bytes, unread.stops) == (None, None, None)
    blind = seen(
        a_scan(None, 300, [held(50, 900), held(51, None)], [held(60, 10, "")]), lines=lines
    )
    first, second = shown(blind).gpus
    assert (first.used_bytes, first.unattributed_bytes) == (None, None)
    assert (first.pods[0].used_bytes, first.pods[0].peak_bytes) == (None, None)
    assert second.pods == (
        share(uid=OTHER, cap_bytes=CAP_MIB * MIB, used_bytes=0, peak_bytes=None),
    )
    assert second.unattributed_bytes == 290 * MIB


def test_of_a_pod_that_came_after_the_list_was_read_nothing_is_known():
    figures = seen(a_scan(5000, 0, [held(50, 900)], []), lines={TRAINER: an_assignment()})
    figures.on_list({TRAINER: an_assignment(), OTHER: an_assignment(pod="x/y")})
    held_by = {uid: (pod.used_bytes, pod.processes) for uid, pod in pods_of(figures).items()}
    assert held_by == {OTHER: (None, None), TRAINER: (900 * MIB, 1)}
    figures.see(a_scan(5000, 0, [held(50, 900)]), 5.0)
    assert pods_of(figures)[OTHER].used_bytes == 0


def test_unattributed_is_of_the_moment_of_the_list_and_never_below_zero():
    figures = seen(a_scan(1000, 0, [held(50, 900)]), a_scan(5000), lines={})
    assert shown(figures).gpus[0].unattributed_bytes == 100 * MIB
    less = seen(a_scan(100, 0, [held(50, 900)]), lines={})
    assert shown(less).gpus[0].unattributed_bytes == 0


def test_usable_is_what_the_node_agent_advertises():
    odd = replace(a_gpu("GPU-a"), usable_bytes=USABLE + 5)
    none = replace(a_gpu("GPU-b", 1), total_bytes=None, usable_bytes=None)
    figures = seen(ProcessScan(gpus=(odd, none)), lines={})
    assert [(gpu.uuid, gpu.usable_bytes) for gpu in shown(figures).gpus] == [("GPU-a", USABLE)]


def test_a_gpu_that_cannot_be_seen_is_not_healthy_and_leaves_after_a_while():
    figures = seen(a_scan(500, 0, [held(50, 400)], []), lines={TRAINER: an_assignment()})
    only_b = ProcessScan(gpus=(a_gpu("GPU-b", 1),))
    for scan in (only_b, LOST):
        figures.see(scan, REMEMBER_S - 1)
        gpu = shown(figures).gpus[0]
        assert (gpu.healthy, gpu.used_bytes, gpu.unattributed_bytes) == (False, None, None)
        assert gpu.promised_bytes == CAP_MIB * MIB
        assert gpu.pods == (
            share(uid=TRAINER, cap_bytes=CAP_MIB * MIB, used_bytes=None, peak_bytes=400 * MIB),
        )
    figures.see(only_b, REMEMBER_S)
    assert [gpu.uuid for gpu in shown(figures).gpus] == ["GPU-b"]


def test_a_list_that_was_not_read_for_long_says_nothing_of_now():
    figures = seen(a_scan(500, 0, [held(50, 400)]), lines={TRAINER: an_assignment()})
    figures.see(a_scan(500), OLD_LIST_S - 1)
    assert pods_of(figures)[TRAINER].used_bytes == 400 * MIB
    figures.see(a_scan(500), OLD_LIST_S)
    assert pods_of(figures)[TRAINER].used_bytes is None


def test_no_more_pods_of_a_gpu_are_shown_than_are_read():
    lines = {
        f"u{n}": Assignment(pod=f"a/p{n}", uuids=("GPU-a",), memory_bytes=MIB, since_s=1)
        for n in range(MAX_PODS + 9)
    }
    node = shown(seen(a_scan(), lines=lines))
    assert [pod.uid for pod in node.gpus[0].pods] == list(lines)
    gpu = read_gpu_node(write_gpu_node(node)).gpus[0]
    assert [pod.uid for pod in gpu.pods] == [f"u{n}" for n in range(MAX_PODS)]
    assert gpu.promised_bytes == (MAX_PODS + 9) * MIB


def test_a_peak_is_the_most_that_was_listed_and_leaves_with_its_pod():
    scans = [a_scan(900, 0, [held(50, mib)]) for mib in (100, 800, 300)]
    figures = seen(*scans, lines={TRAINER: an_assignment()})
    assert pods_of(figures)[TRAINER].peak_bytes == 800 * MIB
    figures.on_list({OTHER: an_assignment()})
    assert OTHER in pods_of(figures)
    figures.on_list({TRAINER: an_assignment()})
    assert pods_of(figures)[TRAINER].peak_bytes is None


@pytest.mark.parametrize(
    ("gpus", "company", "said", "peak"),
    [
        (("GPU-a",), {}, 700, 500),
        (("GPU-a",), {}, 300, 300),
        (("GPU-a",), {}, 50, 100),
        (("GPU-a",), {OTHER: an_assignment()}, 700, 100),
        (("GPU-a",), {OTHER: an_assignment("*")}, 700, 100),
        (("GPU-a", "GPU-b"), {}, 700, 100),
        (("*",), {}, 700, 100),
    ],
    ids=[
        "more than in use",
        "less",
        "less than listed",
        "company",
        "everywhere",
        "two GPUs",
        "all",
    ],
)
def test_what_a_sidecar_says_counts_for_a_pod_alone_up_to_what_was_in_use(
    gpus, company, said, peak
):
    """The pod is listed with 100 MiB on a GPU with 500 MiB in use."""
    lines, stats = {TRAINER: an_assignment(*gpus)} | company, {TRAINER: (0, said * MIB)}
    figures = seen(a_scan(500, 0, [held(50, 100)], []), a_scan(200), lines=lines, stats=stats)
    assert pods_of(figures)[TRAINER].peak_bytes == peak * MIB


def test_since_when_a_pod_idles_is_kept_by_the_sentry_that_comes_after():
    quiet = replace(a_scan(500, 0, [held(50, 100)], []), ran={"GPU-a": {}})
    figures = seen(quiet, quiet, lines={TRAINER: an_assignment(), OTHER: an_assignment()})
    idle = {uid: pod.idle_since_s for uid, pod in pods_of(figures).items()}
    assert idle == {TRAINER: 1000.0, OTHER: None}
    stored = replace(shown(figures), observed_s=1001.0)
    later = ScannedStatus()
    later.seed(stored, 0.0)
    later.on_list({TRAINER: an_assignment()})
    for second in (100.0, 110.0):
        later.see(quiet, second)
    assert pods_of(later)[TRAINER].idle_since_s == 1000.0


def test_what_a_sidecar_says_later_counts_up_to_what_was_in_use_while_the_pod_was_alone():
    late = seen(a_scan(900, 0, [held(50, 100)]), a_scan(200), lines={TRAINER: an_assignment()})
    late.stats = {TRAINER: (0, 800 * MIB)}
    late.see(a_scan(200), 3.0)
    assert pods_of(late)[TRAINER].peak_bytes == 800 * MIB
    figures = seen(a_scan(900), lines={TRAINER: an_assignment(), OTHER: an_assignment()})
    figures.on_list({TRAINER: an_assignment()})
    figures.stats = {TRAINER: (0, 900 * MIB)}
    figures.see(a_scan(200), 1.0)
    assert pods_of(figures)[TRAINER].peak_bytes == 200 * MIB


def test_stops_are_ours_and_what_the_sidecar_said_at_most():
    figures = seen(a_scan(), lines={TRAINER: an_assignment()})
    assert pods_of(figures)[TRAINER].stops is None
    figures.stats = {TRAINER: (0, None), OTHER: (5, None)}
    figures.see(a_scan(), 1.0)
    assert pods_of(figures)[TRAINER].stops == 0
    for stops in (2, 1):
        figures.stats = {TRAINER: (stops, None)}
        figures.see(a_scan(), 2.0)
        figures.stopped(TRAINER)
        figures.stopped(OTHER)
    assert pods_of(figures)[TRAINER].stops == 4


def restart(figures):
    """Return a new status, seeded with the stored object of another one."""
    stored = read_gpu_node(write_gpu_node(shown(figures)))
    fresh = ScannedStatus()
    fresh.seed(stored, 0.0)
    return fresh


def test_after_a_restart_stops_are_counted_on_and_none_twice():
    figures = seen(a_scan(), lines={TRAINER: an_assignment()}, stats={TRAINER: (2, None)})
    figures.stopped(TRAINER)
    fresh = restart(figures)
    fresh.on_list({TRAINER: an_assignment()})
    fresh.see(a_scan(), 1.0)
    counted = [pods_of(fresh)[TRAINER].stops]
    for said in (2, 3):
        fresh.stats = {TRAINER: (said, None)}
        fresh.see(a_scan(), 2.0)
        counted.append(pods_of(fresh)[TRAINER].stops)
    fresh.stopped(TRAINER)
    assert [*counted, pods_of(fresh)[TRAINER].stops] == [3, 3, 4, 5]
    early = ScannedStatus()
    early.on_list({TRAINER: an_assignment()})
    early.stats = {TRAINER: (2, None)}
    early.see(a_scan(), 0.5)
    early.seed(read_gpu_node(write_gpu_node(shown(figures))), 0.0)
    early.see(a_scan(), 1.0)
    assert pods_of(early)[TRAINER].stops == 3


def test_a_gpu_that_was_lost_before_a_restart_is_shown_for_as_long_after_it():
    fresh = restart(seen(a_scan(500, 0, [], []), lines={TRAINER: an_assignment()}))
    fresh.on_list({TRAINER: an_assignment()})
    fresh.see(ProcessScan(gpus=(a_gpu("GPU-b", 1),)), REMEMBER_S - 1)
    assert [(gpu.uuid, gpu.healthy) for gpu in shown(fresh).gpus] == [
        ("GPU-a", False), ("GPU-b", True),
    ]  # fmt: skip
    fresh.see(ProcessScan(gpus=(a_gpu("GPU-b", 1),)), REMEMBER_S)
    assert [gpu.uuid for gpu in shown(fresh).gpus] == ["GPU-b"]


PODS = (TRAINER, OTHER, THIRD)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("scan"),
            st.none() | st.integers(0, 5000),
            st.lists(
                st.tuples(st.sampled_from(PODS), st.none() | st.integers(1, 3000)), max_size=4
            ),
        ),
        st.tuples(st.just("said"), st.sampled_from(PODS), st.integers(0, 9000)),
        st.tuples(st.just("stop"), st.sampled_from(PODS), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@given(steps, st.booleans())
def test_a_peak_is_honest_and_no_restart_forgets_it(done, with_company):
    """It is never above the GPU's measured use, never below the listed memory, and never sinks."""
    lines = {uid: an_assignment() for uid in (PODS if with_company else PODS[:1])}
    figures = seen(lines=lines)
    most_listed, most_used, before, said = {}, 0, {}, {}
    for now_s, (what, item, other) in enumerate(done):
        if what == "scan":
            listed = [held(50 + n, mib, uid) for n, (uid, mib) in enumerate(other)]
            figures.see(a_scan(item, 0, listed), float(now_s))
            most_used = max(most_used, item or 0)
            for uid in lines:
                sizes = [mib for whose, mib in other if whose == uid]
                if sizes and None not in sizes:
                    most_listed[uid] = max(most_listed.get(uid, 0), sum(sizes))
        elif what == "said":
            said[item] = (0, other * MIB)
            figures.stats = said
        elif what == "stop":
            figures.stopped(item)
        elif what == "restart" and shown(figures).gpus:
            figures = restart(figures)
            figures.on_list(lines)
            figures.stats = said
        if not shown(figures).gpus:
            continue
        for uid, pod in pods_of(figures).items():
            peak = (pod.peak_bytes or 0) // MIB
            listed = most_listed.get(uid, 0)
            assert listed <= peak <= max(listed, most_used if not with_company else 0)
            was = before.get(uid, share(uid=uid, cap_bytes=1))
            assert peak * MIB >= (was.peak_bytes or 0)
            assert (pod.stops or 0) >= (was.stops or 0)
            before[uid] = pod


names = st.text(alphabet="abcdefghij", min_size=5, max_size=9)


@given(st.lists(st.tuples(names, names), min_size=1, max_size=4))
def test_no_name_of_a_namespace_or_a_pod_is_in_the_object(pods):
    lines = {f"u{n}": an_assignment("*", pod=f"ns-{a}/pod-{b}") for n, (a, b) in enumerate(pods)}
    written = str(write_gpu_node(shown(seen(a_scan(), lines=lines)), "u-1"))
    assert not [item for pair in pods for item in pair if f"-{item}" in written]
