"""Comparison of today's GPUs with the GPUs that shares would need."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gpus import a_gpu
from webhook.core.placement.fit import Denial, Need, place
from webhook.core.pod.quantity import MIB
from webhook.tools.simulate import comparison
from webhook.tools.simulate.comparison import GpuCounts, TodayPod, compare
from webhook.tools.simulate.gpu_requests import GpuRequest, RequestForm
from webhook.tools.simulate.node_gpus import Given, NodeGpus, parse_gpu_size

SMALL = (Given("", 0, 300 * MIB),)


def a_node(name="n1", *sizes, replicas=1, **labels):
    """Return a node with GPUs of these sizes, in MiB."""
    gpus = tuple(a_gpu(f"{name}-{index}", mib, index) for index, mib in enumerate(sizes))
    return NodeGpus(name, gpus, labels, replicas)


def a_pod(name="p", at="n1", form=RequestForm.WHOLE, gpus=1, mib=0, part=0, **more):
    if mib or part:
        form = RequestForm.SHARE
    request = GpuRequest(form, gpus, mib * MIB, Fraction(part))
    return TodayPod(path=f"team/{name}", request=request, node=at, workload=f"team/{name}", **more)


def total(found):
    return comparison.sum_counts(found.elsewhere, *found.products.values())


def test_pods_with_a_size_share_and_the_others_keep_their_gpus():
    nodes = [a_node("n1", 1000, 1000, 1000), a_node("n2", 1000, 1000), a_node("idle", 500)]
    pods = [a_pod("a"), a_pod("b"), a_pod("c", "n2", gpus=2), a_pod("d", "")]
    found = compare(nodes, pods, SMALL)
    assert total(found) == GpuCounts(nodes=3, gpus=6, held=5, shares=3)
    assert found.elsewhere == GpuCounts(held=1)
    assert (found.whole, found.blocked, found.pods) == ({"team/c": 2}, [], 4)


@pytest.mark.parametrize(
    ("pods", "held"),
    [
        ([a_pod(gpus=2), a_pod()], 3),
        ([a_pod(gpus=9)], 4),  # never more than the node has
        ([a_pod(mib=600)] * 2, 2),
        ([a_pod(part=Fraction(1, 2))] * 2, 1),
        ([a_pod(mib=100, gpus=2)], 2),
        ([a_pod(mib=900, gpus=2), a_pod(mib=900)], 3),
        ([a_pod(), a_pod(mib=10), a_pod(mib=10)], 2),
        ([a_pod(at="")], 1),
        ([a_pod(at="gone", mib=10)], 1),
    ],
)
def test_held_gpus_count_once(pods, held):
    assert total(compare([a_node("n1", 1000, 1000, 1000, 1000)], pods)).held == held


@pytest.mark.parametrize(
    ("pods", "held", "shares"),
    [
        ([a_pod(str(number)) for number in range(5)], 2, 2),
        ([a_pod(gpus=2)], 1, 1),
        ([a_pod(gpus=8)], 2, 1),  # as a share at most one whole GPU
        ([a_pod(str(number), form=RequestForm.REPLICA, gpus=2) for number in range(4)], 2, 2),
    ],
)
def test_replicas_hold_as_few_gpus_as_they_fit_on_and_are_parts_of_one(pods, held, shares):
    found = total(compare([a_node("n1", 1000, 1000, replicas=4)], pods))
    assert (found.held, found.shares) == (held, shares)


def test_a_waiting_pod_may_get_a_replica_only_if_every_node_has_some():
    some = compare([a_node("n1", 1000, replicas=4), a_node("n2", 1000)], [a_pod(at="")])
    assert (some.elsewhere.held, some.whole) == (1, {"team/p": 1})
    every = compare([a_node("n1", 1000, replicas=4)], [a_pod(at="")])
    assert (every.elsewhere.held, every.whole) == (1, {})


@pytest.mark.parametrize(
    ("one", "sizes", "need"),
    [
        (a_pod(), ["team/p=5Mi", "7Mi"], Need(5 * MIB)),
        (a_pod(), ["*/x=5Mi", "te*=6Mi", "*=7Mi"], Need(6 * MIB)),
        (a_pod(), ["7Mi", "team/*=whole"], None),
        (a_pod(), ["7Mi"], Need(7 * MIB)),
        (a_pod(), ["2x7Mi"], Need(7 * MIB, 2)),
        (a_pod(), [], None),
        (a_pod(gpus=2), ["7Mi"], None),
        (a_pod(gpus=2), ["*=5Mi"], Need(5 * MIB, 2)),
        (a_pod(mib=9), ["7Mi"], Need(9 * MIB)),
        (a_pod(mib=9), ["*=5Mi"], Need(5 * MIB)),
        # The part refers to total memory, 7 more than the usable memory, but never exceeds the
        # latter.
        (a_pod(part=Fraction(1, 2)), [], Need(504 * MIB)),
        (a_pod(part=1), [], Need(1000 * MIB)),
        (a_pod(part=Fraction(1, 2), at=""), [], Need(504 * MIB)),
        (a_pod(form=RequestForm.REPLICA), [], None),
        (a_pod(form=RequestForm.REPLICA, gpus=3), ["7Mi"], Need(7 * MIB)),
    ],
)
def test_the_first_known_size_counts(monkeypatch, one, sizes, need):
    placed = []
    monkeypatch.setattr(comparison, "_place_all", lambda _, pods: placed.extend(pods) or [])
    gpus = [
        replace(gpu, total_bytes=gpu.memory_bytes + 7 * MIB)
        for gpu in a_node("n1", 1000, 1000).gpus
    ]
    compare([NodeGpus("n1", tuple(gpus))], [one], [parse_gpu_size(size) for size in sizes])
    assert placed == ([(one, need)] if need else [])


@pytest.mark.parametrize(
    ("pods", "blocked"),
    [
        ([a_pod("a"), a_pod("b", "", mib=10)], ["team/b"]),  # a GPU that is kept whole
        ([a_pod(name, part=Fraction(1, 2)) for name in "ab"], []),  # half of the usable memory
        ([a_pod("a", mib=800, created_s=2.0), a_pod("b", mib=300, created_s=1.0)], ["team/a"]),
    ],
)
def test_pods_that_would_not_fit_are_named(pods, blocked):
    assert [pod.path for pod, _ in compare([a_node("n1", 1000)], pods).blocked] == blocked


def test_products_add_up_their_nodes():
    nodes = [a_node("n1", 1000, 1000), a_node("n2", 1000)]
    pods = [a_pod("a", gpus=2), a_pod("b", "n2", mib=10)]
    product = nodes[0].gpus[0].product
    assert compare(nodes, pods).products == {product: GpuCounts(2, 3, 3, 3)}
    assert compare(nodes, []).products == {product: GpuCounts(2, 3, 0, 0)}
    assert total(compare([], [])) == GpuCounts()


LABELS = st.dictionaries(st.sampled_from(["rack", "zone"]), st.sampled_from("ab"))
NODES = st.lists(
    st.tuples(st.lists(st.integers(1, 12), min_size=1, max_size=4), LABELS), max_size=5
)
PODS = st.lists(st.tuples(st.integers(1, 14), st.integers(1, 3), LABELS), max_size=14)


@given(NODES, PODS)
def test_the_answer_is_that_of_asking_the_product_for_each_pod_and_node(nodes, pods):
    nodes = [a_node(f"n{at}", *sizes, **labels) for at, (sizes, labels) in enumerate(nodes)]
    pods = [
        a_pod(f"{at:02}", "", mib=mib, gpus=gpus, selector=tuple(labels.items()))
        for at, (mib, gpus, labels) in enumerate(pods)
    ]
    free = {gpu.uuid: gpu.memory_bytes for node in nodes for gpu in node.gpus}
    used, blocked = set(), []
    for pod in pods:
        need = Need(pod.request.memory_bytes, pod.request.gpus)
        allowed = [node for node in nodes if dict(pod.selector).items() <= node.labels.items()]
        tried = (place(node.name, node.gpus, free, need) for node in allowed)
        uuids = next((item for item in tried if not isinstance(item, Denial)), ())
        for uuid in uuids:
            free[uuid] -= need.memory_bytes
        used.update(uuids)
        if not uuids:
            blocked.append((pod, need))
    found = compare(nodes, pods)
    assert (found.blocked, total(found).shares) == (blocked, len(used))
