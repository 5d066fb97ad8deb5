"""GPUs of nodes as each product reports them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.foreign_clusters import a_node, gfd_node
from tests.support.strategies import ANY_JSON
from webhook.core.pod.quantity import MIB
from webhook.tools.simulate.node_gpus import Given, parse_gpu_size, read_node_gpus, usable_estimate
from webhook.tools.snapshot.node import ClusterNode

GIB = 2**30
GPU = "nvidia.com/gpu"
REGISTER = "hami.io/node-nvidia-register"
ONE = {"id": "GPU-1", "devmem": 24576, "type": "A10", "mode": "hami-core"}
MIXED = {
    f"{GPU}.count": "2",
    f"{GPU}.memory": "1024",
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/mig.capable": "true",
}
LINES = "GPU-1,10,1024,100,T4,0,true:GPU-2,10,2048,100,T4,0,true:"
ONE_OF_1GI = {f"{GPU}.count": "1", f"{GPU}.memory": "1024"}
FOUR = {f"{GPU}.count": "4", f"{GPU}.memory": "1024"}
UNKNOWN = a_node("n", **{GPU: 2})
SLICES = {"nvidia.com/mig-1g.5gb": 7}


def registered(*cards):
    return {REGISTER: json.dumps(cards)}


def found_on(raw, *given_memory):
    """Return the GiB of each GPU and the replicas, or None without GPUs."""
    node = read_node_gpus(ClusterNode(raw), given_memory)
    return node and ([(gpu.total_bytes or 0) / GIB for gpu in node.gpus], node.replicas)


@pytest.mark.parametrize(
    ("node", "gib", "replicas"),
    [
        (gfd_node("n", 2, "1024"), [1, 1], 1),
        (gfd_node("n", 2, "1024", replicas=4), [1, 1], 4),
        (gfd_node("n", 1, ""), [0], 1),
        (a_node("n", **{GPU: 2}), [0, 0], 1),
        (a_node("n", {f"{GPU}.memory": "1024"}, **{GPU: 1}), [1], 1),
        (a_node("n", **{f"{GPU}.shared": 2}), [0, 0], 1),
        (a_node("n", None, registered(ONE, {**ONE, "devmem": 1024}), **{GPU: 20}), [24, 1], 1),
        (a_node("n", None, {REGISTER: LINES}), [1, 2], 1),
        (a_node("n", None, {REGISTER: "GPU-1,7,1024,100,A100,0,true,0,mig:"}), [], 1),
        (a_node("n", ONE_OF_1GI, registered(ONE)), [1], 1),  # HAMi's figures may be scaled
        (a_node("n", None, registered({**ONE, "mode": "mig"})), [], 1),
        (a_node("n", None, {REGISTER: "[{"}, **{GPU: 1}), [0], 1),
        (a_node("n", **{"aliyun.com/gpu-count": 2, "aliyun.com/gpu-mem": 30}), [15, 15], 1),
        # MIG strategy single: GPUs are slices.
        (gfd_node("n", 7, "9728", "A100-MIG-1g.10gb"), [], 1),
        (gfd_node("n", 0, "", "A100-MIG-INVALID"), [], 1),
        # MIG strategy mixed, without slices: one GPU, all GPUs, or no GPU is in MIG mode.
        (a_node("n", MIXED, **{GPU: 1}), [1], 1),
        (a_node("n", MIXED), [], 1),
        (a_node("n", MIXED, **{GPU: 2}), [1, 1], 1),
        (a_node("n", {**MIXED, f"{GPU}.replicas": "4"}, **{f"{GPU}.shared": 8}), [1, 1], 4),
        # MIG strategy mixed: the label counts all GPUs, the capacity only whole GPUs.
        (a_node("n", FOUR | {"nvidia.com/mig-1g.5gb.count": "7"}, **{GPU: 3}), [1, 1, 1], 1),
        (a_node("n", {**FOUR, f"{GPU}.replicas": "2"}, **{GPU: 6, **SLICES}), [1, 1, 1], 2),
        (a_node("n", {f"{GPU}.count": "1"}, **SLICES), [], 1),
    ],
)
def test_the_gpus_of_a_node_are_read(node, gib, replicas):
    assert found_on(node) == (gib, replicas)


@pytest.mark.parametrize(
    "node",
    [
        a_node("n"),
        a_node("n", **{GPU: 0}),
        a_node("n", **{"aliyun.com/gpu-count": 2, "aliyun.com/gpu-mem": 0}),
    ],
)
def test_a_node_without_gpus_is_none(node):
    assert found_on(node) is None


def test_a_node_has_a_bounded_number_of_gpus():
    for node in (gfd_node("n", 10**8), a_node("n", **{GPU: 10**15})):
        assert len(found_on(node)[0]) == 256
    assert found_on(a_node("n", None, {REGISTER: "[" * 200_000})) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("80Gi", Given("", 0, 80 * GIB)),
        ("4x24Gi", Given("", 4, 24 * GIB)),
        ("old-*=24Gi", Given("old-*", 0, 24 * GIB)),
        ("old-*=4x24Gi", Given("old-*", 4, 24 * GIB)),
        ("train/*=whole", Given("train/*", 0, 0)),
    ],
)
def test_a_given_amount_is_read(text, found):
    assert parse_gpu_size(text) == found


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a=b=80Gi", "'a=b=80Gi' is not [NAMES=][COUNTx]SIZE; write e.g. 80Gi or 'a-*=4x24Gi'"),
        ("80GB", "'80GB' is not a Kubernetes quantity"),
        ("whole", "'whole' is not a Kubernetes quantity"),
    ],
)
def test_the_error_says_what_is_wrong_with_a_given_amount(text, error):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the text is compared below
        parse_gpu_size(text)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("node", "options", "gib"),
    [
        (UNKNOWN, ["24Gi"], [24, 24]),
        (UNKNOWN, ["n=80Gi", "24Gi"], [80, 80]),
        (UNKNOWN, ["24Gi", "n=80Gi"], [24, 24]),  # the first match counts
        (UNKNOWN, ["n=3x80Gi"], [80, 80, 80]),
        (UNKNOWN, ["other=80Gi"], [0, 0]),
        (a_node("n", ONE_OF_1GI), ["80Gi"], [1]),
        (a_node("n", ONE_OF_1GI), ["n=80Gi"], [80]),  # takes precedence over reported memory
    ],
)
def test_memory_is_given_to_nodes(node, options, gib):
    assert found_on(node, *map(parse_gpu_size, options)) == (gib, 1)


@pytest.mark.parametrize(
    ("total_mib", "usable_mib"), [(81920, 80691), (15360, 14848), (512, 0), (100, 0)]
)
def test_usable_memory_is_a_cautious_estimate(total_mib, usable_mib):
    assert usable_estimate(total_mib * MIB) == usable_mib * MIB


@given(ANY_JSON | st.just([{"mode": "mig"}, {"devmem": 7}]))
def test_any_value_in_a_node_is_read(value):
    for node in (
        {"metadata": value, "status": value},
        {"metadata": {"labels": value, "annotations": {REGISTER: json.dumps(value)}}},
        {"metadata": {"labels": {f"{GPU}.count": value}}, "status": {"capacity": {GPU: value}}},
    ):
        read_node_gpus(ClusterNode(node))
