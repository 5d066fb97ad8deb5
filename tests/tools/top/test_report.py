"""Reports of `top`: sums, names, states and problems."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clusters import (
    GIB,
    NOW_S,
    a_cluster,
    a_gpu,
    a_listed_pod,
    a_node,
    a_pod,
    ago,
    gib,
    held,
    held_nodes,
    held_pods,
    team_nodes,
    team_pods,
)
from webhook.core.kinds.nodes import GpuFigures, PodFigures
from webhook.tools.top.columns import state as state_of
from webhook.tools.top.json_report import as_json
from webhook.tools.top.report import build_report
from webhook.tools.top.rows import Order, PodPhase, sort_report, sum_gpus

UIDS = [f"uid-{number}" for number in range(12)]
sizes = st.integers(0, 100 * GIB)
unknown = st.none() | sizes


def core_path(nodes=(), pods=()):
    cluster = a_cluster(list(nodes), list(pods))
    return build_report(cluster.figures, cluster.listed_pods, NOW_S)


def joined_team():
    return core_path(team_nodes(), team_pods())


HOLDERS = st.builds(
    PodFigures,
    uid=st.sampled_from(UIDS), cap_bytes=sizes, used_bytes=unknown, peak_bytes=unknown,
    stops=unknown,
)  # fmt: skip
GPUS = st.builds(
    GpuFigures,
    uuid=st.just(""), index=st.just(0), product=st.just("A"), total_bytes=sizes,
    usable_bytes=sizes, promised_bytes=unknown, used_bytes=unknown,
    free_bytes=st.none() | st.integers(-GIB, 100 * GIB), unattributed_bytes=unknown,
    healthy=st.booleans(), pods=st.lists(HOLDERS, max_size=3).map(tuple),
    unmanaged=st.dictionaries(st.sampled_from(["", *UIDS]), sizes, max_size=2),
)  # fmt: skip
NOT_OURS = [{}, {"not_shared": "nvidia.com/gpu is offered"}, {"held": "held by others"}]
FACTS = st.fixed_dictionaries({
    "status": st.sampled_from(["Running", "Pending", "Terminating", "Init:0/1", ""]),
    "node": st.sampled_from(["", "n0", "n1", "elsewhere"]),
    "created_s": st.none() | st.just(NOW_S - 60),
    "gpus": st.lists(st.sampled_from(["GPU-0-0", "GPU-x"]), max_size=2, unique=True).map(tuple),
    "requested_bytes": unknown, "gpu_count": st.integers(1, 3), "managed": st.booleans(),
})  # fmt: skip


@st.composite
def clusters(draw):
    """Draw figures with missing values, and pods, some of which are in the figures."""
    figures = []
    for number in range(draw(st.integers(0, 3))):
        gpus = [
            replace(gpu, index=index, uuid=f"GPU-{number}-{index}")
            for index, gpu in enumerate(draw(st.lists(GPUS, max_size=3)))
        ]
        node = a_node(f"n{number}", a_gpu(1), age_s=draw(st.integers(-5, 400))).figures
        changes = draw(st.sampled_from(NOT_OURS))
        figures.append(replace(node, gpus=tuple(gpus), **changes))
    teams = st.sampled_from(["team-a", "team-b"])
    pods = [
        a_listed_pod(uid, draw(teams), f"pod-{uid}", **draw(FACTS))
        for uid in draw(st.lists(st.sampled_from(UIDS), unique=True))
    ]
    return figures, pods


def known_sum(values):
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@given(clusters())
def test_sums_of_rows_are_the_totals(cluster):
    report = build_report(*cluster, NOW_S)
    gpus = [gpu for node in report.nodes if not node.not_shared for gpu in node.gpus]
    for rows, sums in [
        (gpus, report.amounts),
        *((node.gpus, sum_gpus(node.gpus)) for node in report.nodes),
    ]:
        assert sums.gpus == len(rows)
        assert sums.usable_bytes == sum(row.usable_bytes for row in rows)
        assert sums.promised_bytes == known_sum(row.promised_bytes for row in rows)
        assert sums.used_bytes == known_sum(row.used_bytes for row in rows)
        assert sums.unmanaged_bytes == known_sum(row.unmanaged_bytes for row in rows)
        assert sums.promised_gpus == sum(row.promised_bytes is not None for row in rows)
        assert sums.used_gpus == sum(row.used_bytes is not None for row in rows)
        free = [
            max(0, row.free_bytes) for row in rows if row.healthy and row.free_bytes is not None
        ]
        assert sums.free_bytes == known_sum(free)
        assert sums.largest_free_bytes == max(free, default=None)
    assert not any(sum_gpus(node.gpus).free_bytes for node in report.nodes if node.held)
    per_workload = report.workloads
    assert sum(row.pods for row in per_workload) == len(report.pods)
    assert known_sum(row.used_bytes for row in per_workload) == known_sum(
        figure.used_bytes for pod in report.pods for figure in pod.figures
    )
    assert known_sum(row.promised_bytes for row in per_workload) == known_sum(
        item.cap_bytes if item else pod.cap_bytes
        for pod in report.pods
        for _, item in pod.gpu_figures
    )


@pytest.mark.parametrize(
    ("holders", "idle", "said"),
    [
        (["driver"], [5], ("driver", 5)),
        (["driver", "driver, late"], [5, 3], ("driver, late", 5)),
        (["sentry", "sidecar"], [5, None], ("sentry", None)),
        (["driver", ""], [None, None], ("", None)),
        (["driver", "another"], [0, 5], ("", 5)),
        ([], [], ("", None)),
    ],
)
def test_a_pod_is_held_as_on_its_worst_gpu_and_idle_where_it_is_so_on_each(holders, idle, said):
    gpus = [
        a_gpu(79, held("p", 8, held_by=by, idle_since_s=since_s))
        for by, since_s in zip(holders, idle, strict=True)
    ]
    (row,) = core_path([a_node("n1", *gpus)] if gpus else [], [a_pod("p", "8Gi", node="n1")]).pods
    assert (row.held_by, row.idle_since_s) == said


@pytest.mark.parametrize("by", ["sentry", "sidecar"])
@pytest.mark.parametrize(("age_s", "proves"), [(120, True), (121, False)])
def test_figures_say_for_two_minutes_that_the_sentry_holds_a_pod(by, age_s, proves):
    node = a_node("n1", a_gpu(79, held("p", 8, held_by=by, idle_since_s=5)), age_s=age_s)
    (row,) = core_path([node], [a_pod("p", "8Gi", node="n1")]).pods
    assert (row.held_by, row.idle_since_s) == (by if proves or by == "sidecar" else "", 5)


def test_programs_read_who_holds_a_pod_since_when_it_idles_and_what_the_driver_can():
    report = as_json(core_path(held_nodes(), held_pods()), ("nodes", "pods"))
    limits = [node["driverLimit"] for node in report["nodes"]]
    assert limits == [{"proven": True, "backEnd": "misc"}, {"proven": False, "why": "it is old"}]
    keys = ("name", "heldBy", "idleSince")
    assert [tuple(pod.get(key) for key in keys) for pod in report["pods"]] == [
        ("asleep", None, None),  # old figures: the sentry may be gone, the pod may run
        ("embed", "driver", None),
        ("llama", "driver, late", ago(21_600)),
        ("train", "sidecar", ago(30)),
    ]
    train = report["pods"][-1]["gpus"]
    assert [tuple(pod[key] for key in keys[1:]) for pod in train] == [
        ("driver", ago(60)),
        ("sidecar", ago(30)),
    ]


@given(clusters())
def test_a_pod_that_the_user_could_not_list_is_never_named(cluster):
    figures, seen = cluster
    named = {pod.uid: (pod.namespace, pod.name) for pod in seen}
    report = build_report(figures, seen, NOW_S)
    assert {uid: report.find_name(uid) for uid in UIDS} == {
        uid: named.get(uid, ("", "")) for uid in UIDS
    }
    assert {row.pod.uid for row in report.pods} == {pod.uid for pod in seen if pod.managed}
    nameless = build_report(figures, [], NOW_S)
    assert "pod-uid" not in repr(nameless)
    assert "team-" not in repr(nameless)


@given(clusters())
def test_what_is_not_known_is_never_zero(cluster):
    figures, seen = cluster
    unknown = {"promised_bytes": None, "used_bytes": None, "free_bytes": None, "unmanaged": {}}
    blind = []
    for node in figures:
        gpus = []
        for gpu in node.gpus:
            holders = [replace(pod, used_bytes=None, peak_bytes=None) for pod in gpu.pods]
            gpus.append(replace(gpu, pods=tuple(holders), **unknown))
        blind.append(replace(node, gpus=tuple(gpus)))
    report = build_report(blind, seen, NOW_S)
    sums = report.amounts
    assert (sums.promised_bytes, sums.used_bytes, sums.free_bytes) == (None, None, None)
    assert (sums.largest_free_bytes, sums.unmanaged_bytes) == (None, None)
    assert all(row.used_bytes is None and row.peak_bytes is None for row in report.pods)
    assert all(row.used_bytes is None and row.peak_bytes is None for row in report.workloads)
    assert not any("no GPU has" in row.reason or "no node has" in row.reason for row in report.pods)


def test_what_could_not_be_read_is_none_and_not_empty():
    report = build_report(None, None, NOW_S, missing=["why"])
    assert (report.nodes, report.pods, report.workloads) == (None, None, None)
    assert report.missing == ("why",)


def states(report):
    return {row.pod.name: state_of(row, report) for row in report.pods}


PENDING = PodPhase.PENDING
NEVER = "no GPU has 60Gi: the largest has 50Gi, so this pod will never start"
TOO_FEW = "no node has 2 GPUs with 40Gi or more, so it will never start"
SCHEDULER = (
    "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 "
    "nodes are available: 1 No preemption victims found for incoming pod."
)


def asks(amount, **facts):
    return {"node": "", "requested_bytes": gib(amount)} | facts


@pytest.mark.parametrize(
    ("facts", "phase", "state"),
    [
        ({"status": "Terminating"}, PodPhase.ENDING, "ending"),
        ({"node": "", "status": "Pending"}, PENDING, "pending 60s"),
        ({"node": "", "created_s": None}, PENDING, "pending"),
        ({"node": "", "scheduler_message": "0/1 nodes"}, PENDING, "pending 60s: 0/1 nodes"),
        ({"node": "", "scheduler_message": SCHEDULER}, PENDING, "pending 60s: 1 Insufficient cpu"),
        ({"node": "", "scheduler_message": "no " * 99}, PENDING, f"pending 60s: {'no ' * 51}no..."),
        (asks(60, scheduler_message="no volume"), PENDING, "pending 60s: no volume"),
        (
            asks(60, scheduler_message="1 Insufficient vramwarden.io/vram"),
            PENDING,
            f"pending 60s: {NEVER}",
        ),
        (asks(40, gpu_count=2), PENDING, f"pending 60s: {TOO_FEW}"),
        (asks(30, gpu_count=2), PENDING, "pending 60s"),
        (
            {"waiting_reason": "no room"},
            PodPhase.WAITING,
            "waits for a GPU (created 60s ago): no room",
        ),
        ({"waiting_reason": "no room", "gpus": ("GPU-0",)}, PodPhase.RUNNING, "running"),
        ({}, PodPhase.RUNNING, "running"),
        ({"status": "Pending", "gpus": ("GPU-0",)}, PodPhase.STARTING, "starting"),
        ({"status": "Init:0/1", "gpus": ("GPU-0",)}, PodPhase.STARTING, "Init:0/1"),
        ({"status": "CrashLoopBackOff"}, PodPhase.STARTING, "CrashLoopBackOff"),
    ],
)
def test_each_state(facts, phase, state):
    facts = {"status": "Running", "node": "n1", "created_s": NOW_S - 60} | facts
    figures = a_node("n1", a_gpu(50), a_gpu(35)).figures
    report = build_report([figures], [a_listed_pod("u", "team-a", "p", **facts)], NOW_S)
    assert (report.pods[0].phase, states(report)) == (phase, {"p": state})


def test_what_was_free_minutes_ago_may_be_free():
    nodes = [a_node("n1", a_gpu(20)), a_node("n2", a_gpu(79), age_s=600)]
    assert states(core_path(nodes, [a_pod("p", "40Gi", age_s=60)])) == {"p": "pending 60s"}


@pytest.mark.parametrize(
    ("used", "state"),
    [
        ([18.99], "running"),
        ([19], "running, near its cap"),
        ([20, 1], "running, near its cap"),
        ([20.1], "running, over its cap"),
        ([1, 20.1, 19], "running, over its cap"),
        ([None], "running"),
    ],
)
def test_a_pod_is_near_its_cap_from_95_percent_and_over_it_above(used, state):
    gpus = [a_gpu(50, held("p", 20, used_gib)) for used_gib in used]
    report = core_path([a_node("n1", *gpus)], [a_pod("p", "20Gi", node="n1")])
    assert states(report) == {"p": state}
    said = {key: as_json(report, ["pods"])["pods"][0][key] for key in ("overCap", "nearCap")}
    assert said == {"overCap": "over" in state, "nearCap": "near" in state}


def test_what_is_promised_too_much_is_said_though_it_is_little():
    over = a_gpu(50, promised_bytes=50 * GIB + 2**20)
    (problem,) = core_path([a_node("n1", over)]).problems
    assert problem.message == "51201Mi are promised of 50Gi usable"


@pytest.mark.parametrize(("age_s", "stale"), [(-60, 0), (0, 0), (180, 0), (181, 1)])
def test_figures_are_old_after_three_minutes_and_no_sooner(age_s, stale):
    report = core_path([a_node("n1", a_gpu(1), age_s=age_s)])
    assert report.is_stale(report.nodes[0]) == bool(stale)


def test_without_figures_nobody_is_told_that_a_node_has_none():
    assert build_report(None, a_cluster([], team_pods()).listed_pods, NOW_S).problems == ()


def test_a_pod_that_no_figures_name_has_the_gpus_of_its_annotation():
    report = core_path(team_nodes(), [a_pod("p", "1Gi", node="n1", gpus="GPU-n1-1,GPU-x", count=2)])
    (row,) = report.pods
    assert ([uuid for uuid, _ in row.gpu_figures], row.cap_bytes) == (["GPU-n1-1", "GPU-x"], GIB)
    assert as_json(report, ["pods"])["pods"][0]["gpus"] == [
        {"uuid": "GPU-n1-1", "index": 1, "capBytes": GIB},
        {"uuid": "GPU-x", "capBytes": GIB},
    ]


@pytest.mark.parametrize(
    ("order", "on_top", "gpus", "first_pods"),
    [
        (Order.NAME, ["n1", "n2", "n3"], [0, 1], ["embed-29411-8tq5w", "eval-4"]),
        (Order.USED, ["n3", "n1", "n2"], [1, 0], ["train-1", "train-0"]),
        (Order.CAP, ["n1", "n3", "n2"], [1, 0], ["eval-4", "train-1"]),
        (Order.PEAK, ["n3", "n1", "n2"], [1, 0], ["train-1", "train-0"]),
        (Order.FREE, ["n3", "n1", "n2"], [0, 1], ["train-0", "llama-7c9f-x2kq4"]),
        (Order.IDLE, ["n1", "n3", "n2"], [1, 0], ["train-0", "llama-7c9f-x2kq4"]),
    ],
)
def test_each_order_has_the_most_first(order, on_top, gpus, first_pods):
    report = sort_report(joined_team(), order)
    assert [node.name for node in report.nodes] == on_top
    (n1,) = [node for node in report.nodes if node.name == "n1"]
    assert [gpu.index for gpu in n1.gpus] == gpus
    assert [row.pod.name for row in report.pods][:2] == first_pods
    if order not in {Order.NAME, Order.CAP}:  # unknown values are last
        assert report.pods[-1].pod.name == "eval-4"
    assert report.amounts == joined_team().amounts


def test_names_with_numbers_are_in_the_order_of_the_numbers():
    report = core_path([a_node(name, a_gpu(1)) for name in ("n10", "n9", "m", "n", "n9-b")])
    assert [row.name for row in report.nodes] == ["m", "n", "n9", "n9-b", "n10"]
