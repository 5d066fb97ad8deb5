from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clusters import GIB, NOW_S, a_gpu, a_node, held
from webhook.core.kinds.node_write_delay import (
    JITTER_S,
    MAX_INTERVAL_S,
    MIN_INTERVAL_S,
    get_write_delay_s,
    has_significant_change,
)
from webhook.core.kinds.nodes import MAX_PODS, GpuFigures, NodeFigures, PodFigures
from webhook.core.nvidia.drivers import Proof

MIB = 2**20
POD = held("u1", 8, 4, 5)
HOLDS = {"unmanaged": {"": 1}, "unattributed_bytes": 0, "product": "A10"}
NODE = a_node(
    "n1",
    a_gpu(9, POD, total_bytes=10 * GIB, **HOLDS),
    a_gpu(9, POD, total_bytes=100 * GIB, **HOLDS),
    age_s=100,
).figures
SMALL, LARGE = NODE.gpus


def due(now):
    return get_write_delay_s(NODE, now, 2.0)


def with_gpu(gpu=SMALL, **values):
    gpus = tuple(
        replace(found_gpu, **values) if found_gpu is gpu else found_gpu for found_gpu in NODE.gpus
    )
    return replace(NODE, gpus=gpus)


def with_pod(**values):
    return with_gpu(pods=(replace(POD, **values),))


def test_what_was_never_written_is_due_after_the_nodes_jitter():
    assert get_write_delay_s(None, NODE, 2.0) == 2.0


@pytest.mark.parametrize("jitter_s", [0.0, 2.0, 5.0, 99.0, -1.0])
def test_what_did_not_move_is_due_a_minute_and_a_bounded_jitter_later(jitter_s):
    later = replace(NODE, observed_s=NOW_S)
    expected = MAX_INTERVAL_S + min(max(jitter_s, 0), JITTER_S)
    assert get_write_delay_s(NODE, later, jitter_s) == expected
    for idle_since_s in (NOW_S, None):
        assert get_write_delay_s(NODE, with_pod(idle_since_s=idle_since_s), jitter_s) == expected


AMOUNTS = [
    lambda more: with_gpu(total_bytes=SMALL.total_bytes + more),
    lambda more: with_gpu(usable_bytes=SMALL.usable_bytes + more),
    lambda more: with_gpu(promised_bytes=SMALL.promised_bytes - more),
    lambda more: with_gpu(used_bytes=SMALL.used_bytes + more),
    lambda more: with_gpu(free_bytes=SMALL.free_bytes - more),
    lambda more: with_gpu(unattributed_bytes=more),
    lambda more: with_pod(cap_bytes=POD.cap_bytes + more),
    lambda more: with_pod(used_bytes=POD.used_bytes - more),
    lambda more: with_pod(peak_bytes=POD.peak_bytes + more),
    lambda more: with_gpu(unmanaged={"": GIB + more}),
]


@pytest.mark.parametrize("moved", AMOUNTS)
def test_a_figure_that_moved_by_256_mebibytes_is_due_soon(moved):
    assert due(moved(256 * MIB - 1)) == MAX_INTERVAL_S + 2.0
    assert due(moved(256 * MIB)) == MIN_INTERVAL_S


def test_of_a_large_gpu_two_percent_count():
    def moved(more):
        return with_gpu(LARGE, used_bytes=LARGE.used_bytes + more)

    assert due(moved(2 * GIB - 1)) == MAX_INTERVAL_S + 2.0
    assert due(moved(2 * GIB)) == MIN_INTERVAL_S


@pytest.mark.parametrize(
    "now",
    [
        replace(NODE, driver_version="590"),
        replace(NODE, enforcement="none"),
        replace(NODE, acts=True),
        replace(NODE, not_shared="x"),
        replace(NODE, held="x"),
        replace(NODE, gpus=(SMALL,)),
        replace(NODE, gpus=()),
        with_gpu(healthy=False),
        with_gpu(healthy=False, fault="is lost"),
        with_gpu(product="A10G"),
        with_gpu(measured=True),
        with_gpu(index=7),
        with_gpu(pods=()),
        with_gpu(pods=(POD, replace(POD, uid="u2"))),
        with_pod(uid="u2"),
        with_pod(stops=1),
        with_pod(would_stop=1, would_stop_since_s=5.0),
        with_pod(stops=None),
        with_pod(held_by="driver"),
        replace(NODE, limit=Proof(holds=False, why="x")),
        with_pod(used_bytes=None),
        with_pod(peak_bytes=None),
        with_gpu(used_bytes=None),
        with_gpu(promised_bytes=None),
        with_gpu(unmanaged={}),
        with_gpu(unmanaged={"u3": GIB}),
    ],
)
def test_what_came_went_or_became_unknown_is_due_soon_and_so_is_its_return(now):
    assert due(now) == MIN_INTERVAL_S
    assert get_write_delay_s(now, NODE, 2.0) == MIN_INTERVAL_S


sizes = st.none() | st.integers(0, 200 * GIB)
pods = st.builds(
    PodFigures,
    uid=st.sampled_from("abc"),
    cap_bytes=st.integers(1, GIB),
    used_bytes=sizes,
    peak_bytes=sizes,
)
gpus = st.builds(
    GpuFigures,
    uuid=st.sampled_from(["GPU-a", "GPU-b"]),
    index=st.just(0),
    product=st.just("A10"),
    total_bytes=st.integers(1, 200 * GIB),
    usable_bytes=st.integers(1, 200 * GIB),
    promised_bytes=sizes,
    used_bytes=sizes,
    free_bytes=sizes,
    pods=st.lists(pods, max_size=3).map(tuple),
)
nodes = st.builds(
    NodeFigures,
    name=st.just("n1"),
    observed_s=st.just(1.0),
    driver_version=st.just("580"),
    enforcement=st.just("none"),
    acts=st.booleans(),
    gpus=st.lists(gpus, max_size=3).map(tuple),
)


def test_pods_and_holders_beyond_those_that_are_written_move_nothing():
    def crowd(**last):
        pods = (*(replace(POD, uid=f"u{n}") for n in range(MAX_PODS)), replace(POD, **last))
        holders = {f"x{n}": GIB for n in range(MAX_PODS)} | {f"{last}": last.get("used_bytes", 0)}
        return with_gpu(pods=pods, unmanaged=holders)

    assert not has_significant_change(crowd(), crowd(uid="u-last"))
    assert not has_significant_change(crowd(), crowd(used_bytes=8 * GIB))


@given(nodes, nodes, st.floats(0, 60))
def test_nothing_is_written_again_before_its_time_or_never(before, now, jitter_s):
    assert MIN_INTERVAL_S <= get_write_delay_s(before, now, jitter_s) <= MAX_INTERVAL_S + JITTER_S
    assert get_write_delay_s(now, now, jitter_s) >= MAX_INTERVAL_S
