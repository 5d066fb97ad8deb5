"""Which GPUs pods get as shares, how many they need at least: small scenes by hand, and laws."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.simulate.scene import a_node
from webhook.core.placement.fit import Denial, Need, place
from webhook.core.pod.quantity import MIB
from webhook.tools.simulate.judge.packing import (
    BlockedBy,
    Packing,
    Scheduling,
    SizedPod,
    UsedGpu,
    fewest_gpus,
    martello_toth,
    pack,
)

SPREAD, PACK = Scheduling.SPREAD, Scheduling.PACK


def a_pod(mib, count=1, name="p", **selector):
    return SizedPod(name, Need(mib * MIB, count), tuple(selector.items()))


def nodes_of(packing, *names):
    """Return the nodes on which these pods are."""
    placed = {name: gpu.node for gpu in packing.gpus for name, _ in gpu.pods}
    return [placed.get(name) for name in names]


def test_two_gpus_of_8_take_5_and_5_and_deny_the_third_with_the_webhook_s_sentence():
    packing = pack([a_node("n1", 8, 8)], [a_pod(5), a_pod(5), a_pod(5, name="third")], SPREAD)
    assert packing.gpus == [("n1", [("p", 5 * MIB)])] * 2
    assert packing.blocked == {BlockedBy.GPUS_SPLIT: 1}
    name, sentence = packing.examples[BlockedBy.GPUS_SPLIT]
    assert name == "third"
    assert sentence.startswith("no GPU of node n1 has 5Mi free, which this pod needs; the largest")


@pytest.mark.parametrize(
    ("nodes", "pods", "cause"),
    [
        ([a_node("n1", 8, zone="a")], [a_pod(1, zone="b")], BlockedBy.NODE_SELECTOR),
        ([a_node("n1", 8)], [a_pod(1, zone="b")], BlockedBy.NODE_SELECTOR),
        ([a_node("n1", 8, zone="a")], [a_pod(1, zone="a", x="")], BlockedBy.NODE_SELECTOR),
        ([], [a_pod(1)], BlockedBy.NODE_SELECTOR),
        ([a_node("n1", 8)], [a_pod(9)], BlockedBy.TOO_LARGE),
        ([a_node("n1", 8), a_node("n2", 9, zone="a")], [a_pod(10, zone="a")], BlockedBy.TOO_LARGE),
        ([a_node("n1", 9), a_node("n2", 8, zone="a")], [a_pod(9, zone="a")], BlockedBy.TOO_LARGE),
        ([a_node("n1", 8, 8), a_node("n2", 8)], [a_pod(1, 3)], BlockedBy.TOO_FEW_GPUS),
        ([a_node("n1", 8, 4)], [a_pod(5, 2)], BlockedBy.TOO_FEW_GPUS),
        ([a_node("n1", 8, 8)], [a_pod(5), a_pod(5), a_pod(6)], BlockedBy.GPUS_SPLIT),
        ([a_node("n1", 8, 8)], [a_pod(6), a_pod(4, 2)], BlockedBy.GPUS_SPLIT),
        ([a_node("n1", 8), a_node("n2", 8)], [a_pod(5), a_pod(5), a_pod(6)], BlockedBy.NODES_SPLIT),
        # n1 has enough in all, but no GPU as large: affinity to gpu-memory-mib excludes it.
        (
            [a_node("n1", 4, 4), a_node("n2", 8)],
            [a_pod(3), a_pod(6), a_pod(6)],
            BlockedBy.NODES_SPLIT,
        ),
        ([a_node("n1", 8), a_node("n2", 8)], [a_pod(5), a_pod(5), a_pod(7)], BlockedBy.NO_ROOM),
        ([a_node("n1", 8)], [a_pod(8), a_pod(1)], BlockedBy.NO_ROOM),
    ],
)
def test_the_last_pod_is_blocked_for_the_first_cause_that_holds(nodes, pods, cause):
    packing = pack(nodes, pods, SPREAD)
    assert packing.blocked == {cause: 1}
    assert bool(packing.examples[cause][1]) == (cause is BlockedBy.GPUS_SPLIT)


@pytest.mark.parametrize(
    ("scheduling", "pods", "found"),
    [
        (SPREAD, [a_pod(3, name="a"), a_pod(3, name="b")], ["n1", "n2"]),
        (PACK, [a_pod(3, name="a"), a_pod(3, name="b")], ["n1", "n1"]),
        # Free are then 6 of 8, which is more of the node, and 40 of 80, which is more memory.
        (SPREAD, [a_pod(40), a_pod(2, name="a", n="1"), a_pod(1, name="b")], ["n1", "n1"]),
        (PACK, [a_pod(40), a_pod(2, name="a", n="1"), a_pod(1, name="b")], ["n1", "n2"]),
    ],
)
def test_the_scheduler_spreads_or_packs_by_parts_of_nodes(scheduling, pods, found):
    """Of nodes alike, the first in the list."""
    nodes = [a_node("n1", 8, n="1"), a_node("n2", 80 if len(pods) > 2 else 8)]
    assert nodes_of(pack(nodes, pods, scheduling), "a", "b") == found


def test_the_last_of_equals_is_no_better_than_the_first():
    assert nodes_of(pack([a_node("n1", 8), a_node("n2", 8)], [a_pod(1)], SPREAD), "p") == ["n1"]


@pytest.mark.parametrize(("scheduling", "node"), [(SPREAD, "n2"), (PACK, "n1")])
def test_the_sentence_is_that_of_the_node_that_the_scheduler_would_try_first(scheduling, node):
    nodes = [a_node("n1", 8, 8, n="1"), a_node("n2", 8, 8, n="2")]
    pods = [a_pod(5, n="1"), a_pod(5, n="1"), a_pod(5, n="2"), a_pod(4, n="2"), a_pod(6)]
    cause, (_, sentence) = next(iter(pack(nodes, pods, scheduling).examples.items()))
    assert cause is BlockedBy.GPUS_SPLIT
    assert f"no GPU of node {node} has 6Mi free" in sentence


def test_of_many_selectors_some_are_remembered(monkeypatch):
    """Each pod of a cluster may have its own, and each keeps a list of nodes."""
    monkeypatch.setattr("webhook.tools.simulate.judge.packing.MOST_SELECTORS", 3)
    labels = {str(number): "" for number in range(10)}
    pods = [a_pod(1, **{label: ""}) for label in labels] * 2
    assert not pack([a_node("n", 80, **labels)], pods, PACK).blocked


def packed_plainly(nodes, pods, scheduling):
    """Return what `pack` says, by asking each node for each pod."""
    free = [{gpu.uuid: gpu.memory_bytes for gpu in node.gpus} for node in nodes]
    sign = 1 if scheduling is PACK else -1
    gpus, blocked, examples = {}, Counter(), {}

    def rank(index):
        total = sum(gpu.memory_bytes for gpu in nodes[index].gpus)
        return sign * (sum(free[index].values()) * 10**6 // total), index

    for pod in pods:
        need, wanted = pod.need, dict(pod.selector).items()
        allowed = [index for index, node in enumerate(nodes) if wanted <= node.labels.items()]
        bound = [
            (index, uuids)
            for index in sorted(allowed, key=rank)
            if not isinstance(uuids := place("", nodes[index].gpus, free[index], need), Denial)
        ]
        if bound:
            index, uuids = bound[0]
            for uuid in uuids:
                free[index][uuid] -= need.memory_bytes
                gpu = gpus.setdefault(uuid, UsedGpu(nodes[index].name, []))
                gpu.pods.append((pod.name, need.memory_bytes))
            continue
        as_large = {
            index: sum(gpu.memory_bytes >= need.memory_bytes for gpu in nodes[index].gpus)
            for index in allowed
        }
        sums = {index: sum(free[index].values()) for index in allowed}
        tried = [i for i in allowed if as_large[i] and sums[i] >= pod.total_bytes]
        cause, sentence = BlockedBy.NO_ROOM, ""
        if not allowed:
            cause = BlockedBy.NODE_SELECTOR
        elif not any(as_large.values()):
            cause = BlockedBy.TOO_LARGE
        elif max(as_large.values()) < need.gpu_count:
            cause = BlockedBy.TOO_FEW_GPUS
        elif tried:
            index = min(tried, key=rank)
            denial = place(nodes[index].name, nodes[index].gpus, free[index], need)
            cause, sentence = BlockedBy.GPUS_SPLIT, denial.sentence
        elif sum(sums.values()) >= pod.total_bytes:
            cause = BlockedBy.NODES_SPLIT
        blocked[cause] += 1
        examples.setdefault(cause, (pod.name, sentence))
    return Packing(list(gpus.values()), blocked, examples)


LABELS = st.dictionaries(st.sampled_from(["rack", "zone"]), st.sampled_from("ab"))


@given(st.data(), st.sampled_from(Scheduling))
def test_the_answer_is_that_of_asking_each_node_for_each_pod(data, scheduling):
    sizes = st.lists(st.integers(1, 12), min_size=1, max_size=4)
    nodes = [
        a_node(f"n{index}", *data.draw(sizes), **data.draw(LABELS))
        for index in range(data.draw(st.integers(0, 6)))
    ]
    pods = [
        a_pod(mib, count, str(name), **labels)
        for name, (mib, count, labels) in enumerate(
            data.draw(st.lists(st.tuples(st.integers(1, 14), st.integers(1, 3), LABELS)))
        )
    ]
    assert pack(nodes, pods, scheduling) == packed_plainly(nodes, pods, scheduling)


def steps_of(run):
    """Return how many instructions of Python a call takes."""
    steps = 0

    def trace(frame, event, _):
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("scheduling", Scheduling)
@pytest.mark.parametrize("mib", [3, 50], ids=["all fit", "most do not"])
def test_a_cluster_of_twice_the_size_takes_little_more_than_twice_the_steps(scheduling, mib):
    def steps(size):
        nodes = [a_node(f"n{index}", 80, 80, zone=str(index % 3)) for index in range(size)]
        pods = [
            a_pod(mib + number % 30, 1 + (number % 8 == 7), zone=str(number % 4))
            for number in range(4 * size)
        ]
        return steps_of(lambda: pack(nodes, pods, scheduling))

    assert steps(128) < 2.3 * steps(64)


NODES = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=4).map(
    lambda nodes: [a_node(f"n{index}", *sizes) for index, sizes in enumerate(nodes)]
)
PODS = st.lists(
    st.builds(lambda mib, count: (mib, count), st.integers(1, 14), st.integers(1, 3)), max_size=14
).map(lambda pods: [a_pod(mib, count, str(name)) for name, (mib, count) in enumerate(pods)])


@given(NODES, PODS, st.sampled_from(Scheduling))
def test_every_pod_is_placed_whole_or_blocked_and_no_gpu_holds_more_than_it_has(
    nodes, pods, scheduling
):
    packing = pack(nodes, pods, scheduling)
    placed = [(name, amount) for gpu in packing.gpus for name, amount in gpu.pods]
    names = {name for name, _ in placed}
    assert len(names) + packing.blocked.total() == len(pods)
    assert packing.blocked.keys() == packing.examples.keys()
    for pod in pods:
        parts = [pod.need.memory_bytes] * pod.need.gpu_count if pod.name in names else []
        assert [amount for name, amount in placed if name == pod.name] == parts
    sizes = sorted((gpu.memory_bytes for node in nodes for gpu in node.gpus), reverse=True)
    used = sorted((sum(amount for _, amount in gpu.pods) for gpu in packing.gpus), reverse=True)
    assert all(amount <= size for amount, size in zip(used, sizes, strict=False))
    assert len(used) <= len(sizes)
    for gpu in packing.gpus:
        assert len({name for name, _ in gpu.pods}) == len(gpu.pods)


@given(NODES, PODS, st.sampled_from(Scheduling))
def test_no_fewer_gpus_are_used_than_the_bound_says(nodes, pods, scheduling):
    packing = pack(nodes, pods, scheduling)
    if not packing.blocked:
        assert len(packing.gpus) >= fewest_gpus(nodes, pods)


@pytest.mark.parametrize(
    ("parts", "size", "bins"),
    [
        ([], 10, 0),
        ([10], 10, 1),
        ([5, 5], 10, 1),
        ([6, 6, 6], 10, 3),  # over half
        ([7, 7, 4, 4], 10, 3),  # 4 fits beside no 7
        ([7, 7, 4], 10, 3),
        ([6, 6, 4, 4], 10, 2),
        ([9, 1, 1, 1], 10, 2),
        ([1] * 25, 10, 3),
        ([8, 5, 5, 5, 2], 10, 3),
    ],
)
def test_the_bound_of_martello_and_toth(parts, size, bins):
    assert martello_toth(parts, size) == bins


@pytest.mark.parametrize(
    ("nodes", "pods", "bound"),
    [
        ([a_node("n1", 8, 8)], [], 0),
        ([a_node("n1", 8, 8)], [a_pod(5), a_pod(3)], 1),
        ([a_node("n1", 8, 8)], [a_pod(5), a_pod(5)], 2),
        ([a_node("n1", 8, 8), a_node("n2", 20)], [a_pod(8), a_pod(8)], 1),  # large ones first
        ([a_node("n1", 8, 8), a_node("n2", 20)], [a_pod(7), a_pod(7), a_pod(8)], 2),
        ([a_node("n1", 8, 8)], [a_pod(1, 2)], 2),
        ([a_node("n1", 8)], [a_pod(8), a_pod(8), a_pod(8)], 3),  # more than there are
        ([a_node("n1", 8)], [a_pod(9), a_pod(1, 2), a_pod(1, zone="b")], 0),  # run nowhere
        ([a_node("n1", 20, 4, 4, 4)], [a_pod(10), a_pod(10), a_pod(4), a_pod(4)], 3),
        ([a_node("n1", 20, 4)], [*[a_pod(10)] * 2, *[a_pod(4)] * 4], 3),
        ([a_node("n1", 8, 8)], [a_pod(1), a_pod(1, 2)], 2),
    ],
)
def test_so_many_gpus_are_needed_at_least(nodes, pods, bound):
    assert fewest_gpus(nodes, pods) == bound


def fewest_bins(parts, size):
    """Return how many bins are needed, by trying everything."""

    def fits(left, room):
        if not left:
            return True
        first, *rest = left
        tried = set()
        for index, free in enumerate(room):
            if free >= first and free not in tried:
                tried.add(free)
                if fits(rest, [*room[:index], free - first, *room[index + 1 :]]):
                    return True
        return False

    parts = sorted(parts, reverse=True)
    return next(bins for bins in range(len(parts) + 1) if fits(parts, [size] * bins))


@given(st.lists(st.integers(1, 12), max_size=7))
def test_the_bound_lies_between_what_is_clear_and_what_is_needed(parts):
    bound = martello_toth(parts, 12)
    assert max(-(-sum(parts) // 12), sum(part > 6 for part in parts)) <= bound
    assert bound <= fewest_bins(parts, 12)
    assert fewest_gpus([a_node("n", *[12] * 7)], map(a_pod, parts)) == bound
