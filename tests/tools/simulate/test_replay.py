"""What becomes of a workload: small scenes by hand, and laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.simulate.clusters import a_node, a_pod
from webhook.core.placement.fit import Denial, place
from webhook.core.pod.gpus import free_bytes
from webhook.core.pod.quantity import MIB
from webhook.tools.simulate.generate import generate
from webhook.tools.simulate.replay.bounds import lower_bound
from webhook.tools.simulate.replay.cluster import Cause, Scheduling, SimulatedCluster
from webhook.tools.simulate.replay.replay import ORDERS, replay

TWO_BY_EIGHT = [a_node("n1", 8, 8)]


def test_two_gpus_of_8_take_5_and_5_and_deny_the_third_with_the_webhook_s_sentence():
    outcome = replay(TWO_BY_EIGHT, [a_pod(5), a_pod(5), a_pod(5, name="third")])
    assert (outcome.at_once, outcome.waited, outcome.never) == (2, 0, 1)
    assert outcome.blocked == {Cause.GPUS_SPLIT: 1}
    name, sentence = outcome.examples[Cause.GPUS_SPLIT]
    assert name == "third"
    assert sentence.startswith("no GPU of node n1 has 5Mi free, which this pod needs; the largest")


@pytest.mark.parametrize(
    ("nodes", "pods", "cause"),
    [
        ([a_node("n1", 8, zone="a")], [a_pod(1, zone="b")], Cause.NODE_SELECTOR),
        ([a_node("n1", 8)], [a_pod(1, zone="b")], Cause.NODE_SELECTOR),
        ([a_node("n1", 8)], [a_pod(9)], Cause.TOO_LARGE),
        ([a_node("n1", 8), a_node("n2", 9, zone="a")], [a_pod(10, zone="a")], Cause.TOO_LARGE),
        ([a_node("n1", 9), a_node("n2", 8, zone="a")], [a_pod(9, zone="a")], Cause.TOO_LARGE),
        ([a_node("n1", 8, 8), a_node("n2", 8)], [a_pod(1, 3)], Cause.TOO_FEW_GPUS),
        ([a_node("n1", 8, 4)], [a_pod(5, 2)], Cause.TOO_FEW_GPUS),
        ([a_node("n1", 8, 8)], [a_pod(5), a_pod(5), a_pod(6)], Cause.GPUS_SPLIT),
        ([a_node("n1", 8, 8)], [a_pod(6), a_pod(4, 2)], Cause.GPUS_SPLIT),
        ([a_node("n1", 8), a_node("n2", 8)], [a_pod(5), a_pod(5), a_pod(6)], Cause.NODES_SPLIT),
        ([a_node("n1", 8), a_node("n2", 8)], [a_pod(5), a_pod(5), a_pod(7)], Cause.NO_ROOM),
        ([a_node("n1", 8)], [a_pod(8), a_pod(1)], Cause.NO_ROOM),
    ],
)
def test_the_last_pod_is_blocked_for_the_first_cause_that_holds(nodes, pods, cause):
    outcome = replay(nodes, pods)
    assert outcome.blocked == {cause: 1}
    assert (outcome.at_once, outcome.never) == (len(pods) - 1, 1)
    assert bool(outcome.examples[cause][1]) == (cause is Cause.GPUS_SPLIT)


def test_the_causes_are_the_names_that_programs_rely_on():
    names = "NodeSelector TooLarge TooFewGPUs GPUsSplit NodesSplit NoRoom"
    assert [cause.value for cause in Cause] == names.split()


def test_only_nodes_with_all_labels_are_taken():
    nodes = [a_node("n1", 8, zone="a"), a_node("n2", 8, zone="a", disk="ssd")]
    outcome = replay(nodes, [a_pod(5, zone="a", disk="ssd"), a_pod(5, zone="a")])
    assert outcome.at_once == 2


def test_a_node_that_the_scheduler_would_not_try_is_not_the_cause():
    # n1 has enough in all, but no GPU as large: affinity to gpu-memory-mib excludes it.
    nodes = [a_node("n1", 4, 4), a_node("n2", 8)]
    assert replay(nodes, [a_pod(3, name="x"), a_pod(6), a_pod(6)]).blocked == {Cause.NODES_SPLIT: 1}


@pytest.mark.parametrize(("scheduling", "gpus"), [(Scheduling.SPREAD, 2), (Scheduling.PACK, 1)])
def test_the_scheduler_spreads_or_packs(scheduling, gpus):
    nodes = [a_node("n1", 8), a_node("n2", 8)]
    assert replay(nodes, [a_pod(3), a_pod(3)], scheduling=scheduling).gpus_used == gpus


@pytest.mark.parametrize("scheduling", Scheduling)
def test_shares_are_compared_and_not_amounts(scheduling):
    # Free are 6 of 8, which is more of the node, and 40 of 80, which is more memory.
    cluster = SimulatedCluster([a_node("n1", 8), a_node("n2", 80)], ORDERS["best fit"], scheduling)
    cluster.bind(0, a_pod(2), 0)
    cluster.bind(1, a_pod(40), 1)
    assert cluster.choose(a_pod(1)) == (0 if scheduling is Scheduling.SPREAD else 1)


@pytest.mark.parametrize(
    ("scheduling", "node"), [(Scheduling.SPREAD, "n2"), (Scheduling.PACK, "n1")]
)
def test_the_sentence_is_that_of_the_node_that_the_scheduler_would_try_first(scheduling, node):
    cluster = SimulatedCluster(
        [a_node("n1", 8, 8), a_node("n2", 8, 8)], ORDERS["best fit"], scheduling
    )
    for number, (mib, index) in enumerate([(5, 0), (5, 0), (5, 1), (4, 1)]):
        cluster.bind(number, a_pod(mib), index)
    cause, sentence = cluster.why_not(a_pod(6))
    assert cause is Cause.GPUS_SPLIT
    assert f"no GPU of node {node} has 6Mi free" in sentence


def test_ties_go_to_the_first_node():
    cluster = SimulatedCluster(
        [a_node("n1", 8), a_node("n2", 8)], ORDERS["best fit"], Scheduling.SPREAD
    )
    assert cluster.choose(a_pod(1)) == 0


def test_a_pod_that_waits_starts_where_another_ends_and_holds_nobody_up():
    pods = [
        a_pod(8, duration_s=100.0),
        a_pod(6, name="waits", arrival_s=10.0, duration_s=50.0),
        a_pod(8, arrival_s=20.0, duration_s=1.0),  # finds the second node
    ]
    outcome = replay([a_node("n1", 8)], pods[:2])
    assert (outcome.at_once, outcome.waited, outcome.longest_wait_s) == (1, 1, 90.0)
    outcome = replay(
        [a_node("n1", 8, zone="a"), a_node("n2", 8, zone="b")],
        [
            replace(pods[0], selector=(("zone", "a"),)),
            replace(pods[1], selector=(("zone", "a"),)),
            pods[2],
        ],
    )
    assert (outcome.at_once, outcome.waited) == (2, 1)


def test_what_ends_at_a_moment_makes_room_for_what_arrives_at_it():
    pods = [a_pod(8, duration_s=10.0), a_pod(8, arrival_s=10.0)]
    assert replay([a_node("n1", 8)], pods).at_once == 2


def test_those_that_wait_start_in_the_order_of_their_arrival_if_they_fit():
    first = a_pod(8, duration_s=10.0)
    waiting = [
        a_pod(7, arrival_s=1.0, duration_s=10.0),  # from 10 to 20
        a_pod(8, arrival_s=2.0, duration_s=10.0),  # from 20 to 30
        a_pod(1, arrival_s=3.0, duration_s=10.0),  # from 10 to 20, beside the first
        a_pod(8, arrival_s=4.0, duration_s=10.0),  # from 30
    ]
    outcome = replay([a_node("n1", 8)], [first, *waiting])
    assert (outcome.waited, outcome.never) == (4, 0)
    assert outcome.longest_wait_s == 26.0
    assert outcome.blocked == {Cause.NO_ROOM: 4}


def test_of_two_that_would_fit_alone_the_one_that_came_first_starts():
    pods = [
        a_pod(8, duration_s=10.0),
        a_pod(5, arrival_s=1.0, duration_s=10.0),  # from 10
        a_pod(6, arrival_s=2.0),  # from 20
    ]
    assert replay([a_node("n1", 8)], pods).longest_wait_s == 18.0


def test_a_waiting_pod_starts_only_on_a_node_that_it_selects():
    nodes = [a_node("n1", 8, zone="a"), a_node("n2", 8, zone="b")]
    pods = [
        a_pod(8, duration_s=10.0, zone="a"),
        a_pod(8, duration_s=20.0, zone="b"),
        a_pod(8, arrival_s=1.0, zone="b"),
    ]
    assert replay(nodes, pods).longest_wait_s == 19.0


def test_the_order_of_the_list_is_the_order_of_arrival_where_that_is_the_same():
    pods = [a_pod(8, name="late", arrival_s=5.0), a_pod(8, name="first"), a_pod(8, name="second")]
    outcome = replay([a_node("n1", 8)], pods)
    assert outcome.examples[Cause.NO_ROOM][0] == "second"
    assert outcome.never == 2


def test_figures_are_of_the_moment_when_they_are_largest():
    pods = [a_pod(3, duration_s=10.0), a_pod(6, duration_s=10.0), a_pod(8, arrival_s=10.0)]
    outcome = replay(TWO_BY_EIGHT, pods)
    assert outcome.gpus_used == 2
    assert outcome.used_bytes == 16 * MIB
    assert outcome.taken_bytes == 9 * MIB
    assert outcome.free_bytes == 7 * MIB
    # Pieces of 5 and 2: a pod of 3 can use 5, those of 6 and 8 neither.
    assert outcome.stranded_bytes == (2 + 7 + 7) * MIB // 3


def test_what_is_free_is_told_of_the_first_moment_when_most_is_taken():
    now = [a_pod(7, duration_s=10.0), a_pod(2, duration_s=10.0)]  # leave pieces of 1 and 6
    later = [a_pod(8, arrival_s=10.0), a_pod(1, arrival_s=10.0)]  # and those leave 0 and 7
    outcome = replay(TWO_BY_EIGHT, [*now, *later])
    assert outcome.taken_bytes == 9 * MIB
    assert outcome.stranded_bytes == (7 + 1 + 7 + 0) * MIB // 4


def test_nothing_comes_of_nothing():
    outcome = replay(TWO_BY_EIGHT, [])
    assert (outcome.used_bytes, outcome.longest_wait_s) == (0, 0.0)
    assert (outcome.at_once, outcome.gpus_used, outcome.taken_bytes) == (0, 0, 0)
    assert outcome.free_bytes == 16 * MIB
    assert outcome.stranded_bytes == 0
    assert replay([], [a_pod(1)]).blocked == {Cause.NODE_SELECTOR: 1}


NODES = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=4).map(
    lambda nodes: [a_node(f"n{index}", *sizes) for index, sizes in enumerate(nodes)]
)
PODS = st.lists(
    st.builds(
        a_pod,
        mib=st.integers(1, 14),
        count=st.integers(1, 3),
        arrival_s=st.integers(0, 9).map(float),
        duration_s=st.none() | st.integers(1, 5).map(float),
    ),
    max_size=14,
)
WORKLOADS = (NODES, PODS, st.sampled_from([*ORDERS.values()]), st.sampled_from(Scheduling))


@given(*WORKLOADS)
def test_every_pod_is_counted_once(nodes, pods, order, scheduling):
    outcome = replay(nodes, pods, order, scheduling)
    assert outcome.at_once + outcome.waited + outcome.never == len(pods)
    assert outcome.at_once + sum(outcome.blocked.values()) == len(pods)
    assert outcome.blocked.keys() == outcome.examples.keys()


@given(*WORKLOADS)
def test_no_figure_is_more_than_there_is(nodes, pods, order, scheduling):
    outcome = replay(nodes, pods, order, scheduling)
    sizes = [gpu.memory_bytes for node in nodes for gpu in node.gpus]
    assert outcome.gpus_used <= len(sizes)
    assert outcome.taken_bytes <= outcome.used_bytes <= sum(sizes)
    assert outcome.taken_bytes + outcome.free_bytes == sum(sizes)
    assert 0 <= outcome.stranded_bytes <= outcome.free_bytes


@given(*WORKLOADS)
def test_no_fewer_gpus_are_used_than_the_bound_says(nodes, pods, order, scheduling):
    outcome = replay(nodes, pods, order, scheduling)
    if not outcome.blocked:
        assert outcome.gpus_used >= lower_bound(nodes, pods)


@given(*WORKLOADS)
def test_pods_that_end_let_all_others_start_that_an_empty_cluster_can_run(
    nodes, pods, order, scheduling
):
    ending = [replace(pod, duration_s=pod.duration_s or 7.0) for pod in pods]
    outcome = replay(nodes, ending, order, scheduling)
    impossible = {Cause.TOO_LARGE, Cause.TOO_FEW_GPUS}
    assert outcome.never == sum(outcome.blocked.get(cause, 0) for cause in impossible)


@given(NODES, PODS, st.sampled_from([*ORDERS.values()]))
def test_the_scheduler_chooses_only_nodes_where_the_pod_is_placed(nodes, pods, order):
    cluster = SimulatedCluster(nodes, order, Scheduling.SPREAD)
    for number, pod in enumerate(pods):
        fits = [
            not isinstance(place(node.name, node.gpus, free, pod.need, order), Denial)
            for node, free in zip(nodes, cluster.free, strict=True)
        ]
        assert [cluster.has_room(index, pod.need) for index in range(len(nodes))] == fits
        index = cluster.choose(pod)
        assert (index is not None) == any(fits)
        if index is not None:
            assert cluster.bind(number, pod, index) is None


@given(NODES, PODS)
def test_a_cluster_is_as_empty_as_before_when_all_have_left(nodes, pods):
    cluster = SimulatedCluster(nodes, ORDERS["best fit"], Scheduling.SPREAD)
    bound = []
    for number, pod in enumerate(pods):
        if (index := cluster.choose(pod)) is not None:
            cluster.bind(number, pod, index)
            bound.append((number, pod, index))
    for one in bound:
        cluster.release(*one)
    assert cluster.free == [free_bytes(node.gpus, []) for node in nodes]
    assert (cluster.taken_bytes, cluster.used_gpus, cluster.used_bytes) == (0, 0, 0)


def test_best_fit_needs_no_more_gpus_than_first_fit_on_a_generated_workload():
    """At this size; among few nodes it may need one or two more, by chance."""
    nodes, pods = generate(10_000, 1_000, seed=0)
    outcomes = {name: replay(nodes, pods, order) for name, order in ORDERS.items()}
    best, first, worst = (outcomes[name] for name in ("best fit", "first fit", "worst fit"))
    assert best.gpus_used <= first.gpus_used <= worst.gpus_used
    assert best.used_bytes <= first.used_bytes <= worst.used_bytes
    assert best.never <= first.never <= worst.never
    assert lower_bound(nodes, pods) <= best.gpus_used


def test_of_many_selectors_some_are_remembered(monkeypatch):
    """Each pod of a cluster may have its own, and each keeps a list of nodes."""
    monkeypatch.setattr("webhook.tools.simulate.replay.cluster._MOST_SELECTORS", 3)
    labels = {str(number): "" for number in range(10)}
    cluster = SimulatedCluster([a_node("n", 80, **labels)], ORDERS["best fit"], Scheduling.PACK)
    for label in labels:
        assert cluster.choose(a_pod(1, **{label: ""})) == 0
        assert len(cluster._matching) <= 3
