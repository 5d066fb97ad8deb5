"""Which GPUs nodes have by what others wrote on them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.foreign_clusters import a_node, gfd_node
from tests.support.strategies import ANY_JSON
from webhook.core.kinds.workloads import Workload
from webhook.core.pod.quantity import MIB
from webhook.core.policy.match import matches_any
from webhook.tools.shared.bounds import MOST_NODE_GPUS
from webhook.tools.shared.node import ClusterNode
from webhook.tools.simulate.judge import offered as judged
from webhook.tools.simulate.judge.offered import (
    GpuSource,
    Offered,
    Size,
    SizeIndex,
    usable_estimate,
)

GFD, PLUGIN = GpuSource.GFD, GpuSource.PLUGIN
HAMI, GPUSHARE = GpuSource.HAMI, GpuSource.GPUSHARE

GIB = 2**30
GPU = "nvidia.com/gpu"
REGISTER = "hami.io/node-nvidia-register"
ONE = {"id": "GPU-1", "devmem": 24576, "type": "A10", "mode": "hami-core"}


def offered_of(raw):
    return judged.offered_of(ClusterNode(raw))


MIXED = {
    f"{GPU}.count": "2",
    f"{GPU}.memory": "1024",
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/mig.capable": "true",
}


def registered(*cards):
    return {REGISTER: json.dumps(cards)}


def gpus(source, *totals_bytes, **more):
    return Offered(source=source, totals_bytes=totals_bytes, **more)


@pytest.mark.parametrize(
    ("node", "offered"),
    [
        (a_node("n"), None),
        (a_node("n", **{GPU: 0}), None),
        (gfd_node("n", 2, "1024", "T4"), gpus(GFD, GIB, GIB, product="T4")),
        (gfd_node("n", 2, "1024", "T4", replicas=4), gpus(GFD, GIB, GIB, product="T4", replicas=4)),
        (gfd_node("n", 1, ""), gpus(GFD, None, product="NVIDIA-A100-SXM4-80GB")),
        (a_node("n", **{GPU: 2}), gpus(PLUGIN, None, None)),
        (a_node("n", {f"{GPU}.memory": "1024"}, **{GPU: 1}), gpus(PLUGIN, None)),
        (a_node("n", **{"nvidia.com/gpu.shared": 8}), gpus(PLUGIN, counted=False)),
        (
            a_node("n", None, registered(ONE, {**ONE, "devmem": 1024}), **{GPU: 20}),
            gpus(HAMI, 24 * GIB, GIB, product="A10"),
        ),
        (
            a_node(
                "n", None, {REGISTER: "GPU-1,10,1024,100,T4,0,true:GPU-2,10,2048,100,T4,0,true:"}
            ),
            gpus(HAMI, GIB, 2 * GIB, product="T4"),
        ),
        (
            a_node("n", None, {REGISTER: "GPU-1,7,1024,100,A100,0,true,0,mig:"}),
            gpus(HAMI, is_sliced=True),
        ),
        (a_node("n", None, {REGISTER: "[{"}, **{GPU: 1}), gpus(PLUGIN, None)),
        (
            a_node("n", **{"aliyun.com/gpu-count": 2, "aliyun.com/gpu-mem": 30}),
            gpus(GPUSHARE, 15 * GIB, 15 * GIB),
        ),
        (a_node("n", **{"aliyun.com/gpu-count": 2, "aliyun.com/gpu-mem": 1}), None),
        # MIG strategy single: GPUs are slices.
        (
            gfd_node("n", 7, "9728", "A100-MIG-1g.10gb"),
            gpus(GFD, product="A100-MIG-1g.10gb", is_sliced=True),
        ),
        (
            gfd_node("n", 0, "", "A100-MIG-INVALID"),
            gpus(GFD, product="A100-MIG-INVALID", is_sliced=True),
        ),
        # MIG strategy mixed, without slices: one GPU is in MIG mode, all are, none is.
        (a_node("n", MIXED, **{GPU: 1}), gpus(GFD, GIB, is_sliced=True)),
        (a_node("n", MIXED), gpus(GFD, is_sliced=True)),
        (a_node("n", MIXED, **{GPU: 2}), gpus(GFD, GIB, GIB)),
        (
            a_node("n", {**MIXED, f"{GPU}.replicas": "4"}, **{"nvidia.com/gpu.shared": 8}),
            gpus(GFD, GIB, GIB, replicas=4),
        ),
        # MIG strategy mixed: the label counts all GPUs, the capacity those that are whole.
        (
            a_node(
                "n",
                {f"{GPU}.count": "4", f"{GPU}.memory": "1024", "nvidia.com/mig-1g.5gb.count": "7"},
                **{GPU: 3, "nvidia.com/mig-1g.5gb": 7},
            ),
            gpus(GFD, GIB, GIB, GIB, is_sliced=True),
        ),
        (
            a_node(
                "n",
                {f"{GPU}.count": "4", f"{GPU}.memory": "1024", f"{GPU}.replicas": "2"},
                **{GPU: 6, "nvidia.com/mig-1g.5gb": 7},
            ),
            gpus(GFD, GIB, GIB, GIB, replicas=2, is_sliced=True),
        ),
        (
            a_node("n", {f"{GPU}.count": "1"}, **{"nvidia.com/mig-1g.5gb": 7}),
            gpus(GFD, is_sliced=True),
        ),
    ],
)
def test_what_a_node_offers_is_read(node, offered):
    assert offered_of(node) == offered


def test_labels_count_before_hami_whose_figures_may_be_scaled():
    node = gfd_node("n", 1, "1024", "T4")
    node["metadata"]["annotations"] = registered(ONE)
    assert offered_of(node) == gpus(GFD, GIB, product="T4")


def test_a_product_is_shown_without_what_a_terminal_obeys():
    node = a_node("n", None, registered({**ONE, "type": "A\x1b[2J10\n"}))
    assert offered_of(node).product == "A[2J10"


def test_nobody_makes_a_node_cost_more_than_a_node_does():
    assert len(offered_of(gfd_node("n", 10**8)).totals_bytes) == MOST_NODE_GPUS
    assert len(offered_of(a_node("n", **{GPU: 10**15})).totals_bytes) == MOST_NODE_GPUS
    many = a_node("n", None, registered(*[ONE] * 1000))
    assert len(offered_of(many).totals_bytes) == MOST_NODE_GPUS
    assert offered_of(a_node("n", None, {REGISTER: "[" * 200_000})) is None
    assert offered_of(a_node("n", None, registered(*[ONE] * 10_000))) is None
    assert offered_of(gfd_node("n", 1, "9" * 9)).totals_bytes == (2**24 * MIB,)


@pytest.mark.parametrize(
    ("total_mib", "usable_mib"), [(81920, 80691), (15360, 14848), (512, 0), (100, 0)]
)
def test_what_is_usable_is_an_estimate_on_the_safe_side(total_mib, usable_mib):
    assert usable_estimate(total_mib * MIB) == usable_mib * MIB


@given(ANY_JSON)
def test_whatever_stands_in_a_node_is_read(value):
    for node in (
        {"metadata": value, "status": value},
        {"metadata": {"labels": value, "annotations": {REGISTER: json.dumps(value)}}},
        {"metadata": {"labels": {f"{GPU}.count": value}}, "status": {"capacity": {GPU: value}}},
    ):
        offered_of(node)


NAMES = st.sampled_from(["a", "b", "*", "a*", "Job/a", "Job/*", "*b"])


@given(
    st.lists(st.builds(Size, NAMES, NAMES, st.integers(0, 99))),
    *(st.sampled_from(["a", "b", "ab"]) for _ in range(3)),
)
def test_of_a_file_of_sizes_the_first_line_that_fits_counts(sizes, namespace, pod, workload):
    names = (f"Job/{workload}", workload, pod)
    fitting = [
        size.memory_bytes
        for size in sizes
        if matches_any(namespace, (size.namespace,))
        and any(matches_any(name, (size.workload,)) for name in names)
    ]
    found = SizeIndex(sizes).find(namespace, pod, Workload("Job", workload))
    assert found == next(iter(fitting), None)
