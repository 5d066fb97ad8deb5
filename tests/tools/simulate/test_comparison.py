"""Today's GPUs beside those that shares would need."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from tests.tools.simulate.scene import a_node
from webhook.core.placement.fit import Need
from webhook.core.pod.quantity import MIB
from webhook.tools.simulate.judge.asked import GpuRequest, How
from webhook.tools.simulate.judge.comparison import SizedBy, TodayPod, compare
from webhook.tools.simulate.judge.offered import TodayNode
from webhook.tools.simulate.judge.packing import BlockedBy


def a_pod(name="p", at="n1", how=How.WHOLE, gpus=1, mib=0, part=0, cards=(), **more):
    asked = GpuRequest(how, gpus, mib * MIB, Fraction(part), cards)
    more = {key: value * MIB if key.endswith("_bytes") else value for key, value in more.items()}
    return TodayPod(name=name, asked=asked, node=at, **more)


def shares(today):
    """Return what each pod got, in MiB, by pod."""
    gpus = today.packed.gpus
    return {name: amount // MIB for gpu in gpus for name, amount in gpu.pods}


def test_pods_with_a_size_share_and_the_others_keep_what_they_have():
    nodes = [a_node("n1", 1000, 1000, 1000), a_node("n2", 1000, 1000)]
    pods = [
        a_pod("a", otherwise_bytes=300),
        a_pod("b", otherwise_bytes=300),
        a_pod("c", "n2", gpus=2, otherwise_bytes=300, workload="team Job/c"),
        a_pod("d", "", otherwise_bytes=300),
    ]
    today = compare(nodes, pods)
    assert (today.held, today.wanted, today.whole_today) == (4, 1, 5)
    assert (today.kept, len(today.packed.gpus), today.shares) == (2, 1, 3)
    assert (today.fewest, len(today.spread.gpus)) == (1, 1)
    assert (today.nodes, today.gpus, today.memory_bytes) == (2, 5, 5000 * MIB)
    assert today.unsized == {"team Job/c": (1, 2)}
    assert today.sizes == {SizedBy.OPTION: 3, SizedBy.WHOLE: 1}
    assert today.hows == {"whole GPUs": (4, 3)}
    assert today.free_nodes == ()
    assert shares(today) == {"a": 300, "b": 300, "d": 300}


def test_nodes_that_nobody_needs_any_more_are_named():
    nodes = [a_node("n1", 1000), a_node("n2", 1000, 1000), a_node("idle", 1000)]
    pods = [a_pod("a", otherwise_bytes=300), a_pod("b", "n2", otherwise_bytes=300)]
    today = compare(nodes, pods)
    assert (today.free_nodes, today.free_gpus) == (("n2",), 2)


@pytest.mark.parametrize(
    ("pods", "held"),
    [
        ([a_pod(gpus=2), a_pod()], 3),
        ([a_pod(gpus=9)], 4),  # no node has more than it has
        ([a_pod(how=How.HAMI, mib=10, cards=("A",))] * 3, 1),
        ([a_pod(how=How.HAMI, mib=10, cards=("A",)), a_pod(how=How.KAI, mib=10, cards=("B",))], 2),
        ([a_pod(how=How.KAI, mib=600)] * 2, 2),
        ([a_pod(how=How.KAI, part=Fraction(1, 2))] * 2, 1),
        ([a_pod(how=How.KAI, mib=100, gpus=2)], 2),
        ([a_pod(how=How.KAI, mib=900, gpus=2), a_pod(how=How.KAI, mib=900)], 3),
        ([a_pod(), a_pod(how=How.HAMI, mib=10, cards=("A",)), a_pod(how=How.KAI, mib=10)], 3),
        ([a_pod(at="")], 1),
        ([a_pod(at="gone")], 1),
    ],
)
def test_gpus_that_are_held_are_counted_each_once(pods, held):
    assert compare([a_node("n1", 1000, 1000, 1000, 1000)], pods).whole_today == held


def test_replicas_hold_as_few_gpus_as_they_fit_on_and_are_a_part_of_one_each():
    nodes = [a_node("n1", 1000, 1000, replicas=4)]
    today = compare(nodes, [a_pod(str(number)) for number in range(5)])
    assert (today.held, today.shares) == (2, 2)
    assert shares(today) == dict.fromkeys("01234", 250)
    assert today.sizes == {SizedBy.REPLICA: 5}
    assert today.has_replicas
    assert not compare([a_node("n1", 1000)], [a_pod()]).has_replicas


def test_several_replicas_are_of_one_gpu():
    two = compare([a_node("n1", 1000, 1000, replicas=4)], [a_pod(gpus=2)])
    assert shares(two) == {"p": 500}
    many = compare([a_node("n1", 1000, 1000, replicas=4)], [a_pod(gpus=8)])
    assert shares(many) == {"p": 1000}
    given = compare([a_node("n1", 1000, replicas=4)], [a_pod(gpus=2, otherwise_bytes=100)])
    assert shares(given) == {"p": 100}


def test_who_waits_may_get_a_replica_only_where_all_are_such():
    some = compare([a_node("n1", 1000, replicas=4), a_node("n2", 1000)], [a_pod(at="")])
    assert (some.wanted, some.kept) == (1, 1)
    every = compare([a_node("n1", 1000, replicas=4)], [a_pod(at="")])
    assert (every.wanted, every.kept, shares(every)) == (1, 0, {"p": 250})


@pytest.mark.parametrize(
    ("one", "need", "by"),
    [
        (a_pod(given_bytes=5, history_bytes=6, otherwise_bytes=7), Need(5 * MIB, 1), SizedBy.FILE),
        (a_pod(given_bytes=0, history_bytes=6, otherwise_bytes=7), None, SizedBy.WHOLE),
        (a_pod(history_bytes=6, otherwise_bytes=7), Need(6 * MIB, 1), SizedBy.HISTORY),
        (a_pod(otherwise_bytes=7), Need(7 * MIB, 1), SizedBy.OPTION),
        (a_pod(), None, SizedBy.WHOLE),
        (a_pod(gpus=2, otherwise_bytes=7), None, SizedBy.WHOLE),
        (a_pod(gpus=2, given_bytes=5), Need(5 * MIB, 2), SizedBy.FILE),
        (a_pod(gpus=2, history_bytes=5), Need(5 * MIB, 2), SizedBy.HISTORY),
        (a_pod(how=How.HAMI, mib=9, otherwise_bytes=7), Need(9 * MIB, 1), SizedBy.ITSELF),
        (a_pod(how=How.HAMI, mib=9, given_bytes=5), Need(5 * MIB, 1), SizedBy.FILE),
        # A part is one of the total, 7 more than is usable here, and never more than that.
        (a_pod(how=How.KAI, part=Fraction(1, 2)), Need(504 * MIB, 1), SizedBy.ITSELF),
        (a_pod(how=How.KAI, part=1), Need(1000 * MIB, 1), SizedBy.ITSELF),
        (a_pod(how=How.KAI, part=Fraction(1, 2), at=""), Need(500 * MIB, 1), SizedBy.ITSELF),
        (a_pod(how=How.REPLICA), None, SizedBy.WHOLE),
    ],
)
def test_the_first_who_knows_a_size_says_it(one, need, by):
    gpus = tuple(
        replace(gpu, total_bytes=gpu.memory_bytes + 7 * MIB)
        for gpu in a_node("n1", 1000, 1000).gpus
    )
    today = compare([TodayNode("n1", gpus)], [one])
    assert list(today.sizes) == [by]
    filled = [gpu.pods for gpu in today.packed.gpus]
    expected = [] if need is None else [[("p", need.memory_bytes)]] * need.gpu_count
    assert filled == expected


def test_slices_are_counted_apart():
    nodes = [a_node("single", is_sliced=True), a_node("mixed", 1000, is_sliced=True)]
    pods = [
        a_pod("a", "single"),
        a_pod("b", "mixed"),
        a_pod("c", "mixed", how=How.SLICE),
        a_pod("d", "", how=How.SLICE),
    ]
    today = compare(nodes, pods)
    assert (today.slices, today.pods, today.held, today.nodes) == (3, 1, 1, 1)


def test_pods_that_would_not_fit_are_said_with_their_cause():
    nodes = [a_node("n1", 1000, zone="a")]
    pods = [
        a_pod("huge", otherwise_bytes=2000),
        a_pod("away", otherwise_bytes=10, selector=(("zone", "b"),)),
        a_pod("here", otherwise_bytes=10, selector=(("zone", "a"),)),
    ]
    packed = compare(nodes, pods).packed
    assert packed.blocked == {BlockedBy.TOO_LARGE: 1, BlockedBy.NODE_SELECTOR: 1}


def test_pods_come_in_the_order_in_which_they_were_created():
    pods = [
        a_pod("late", otherwise_bytes=800, created_s=2.0),
        a_pod("early", otherwise_bytes=300, created_s=1.0),
    ]
    assert shares(compare([a_node("n1", 1000)], pods)) == {"early": 300}


def test_products_add_up_their_nodes():
    nodes = [a_node("n1", 1000, 1000), a_node("n2", 1000)]
    pods = [a_pod("a", gpus=2), a_pod("b", "n2", otherwise_bytes=10)]
    product = nodes[0].gpus[0].product
    assert compare(nodes, pods).products == {product: (2, 3, 3, 3)}


def test_a_cluster_without_pods_needs_nothing():
    today = compare([a_node("n1", 1000)], [])
    assert (today.whole_today, today.shares, today.fewest, today.free_nodes) == (0, 0, 0, ())


def test_who_waits_is_said_how_many_pods_are_placed_in_which_way():
    said = []

    def watch(pods, text):
        said.append((len(list(pods)), text))
        return pods

    nodes, pods = [a_node("n1", 1000)], [a_pod(otherwise_bytes=300)]
    assert compare(nodes, pods, watch) == compare(nodes, pods)
    assert said == [(1, f"placed {{}} of 1 pods, {way} of 3 ways") for way in (1, 2, 3)]
