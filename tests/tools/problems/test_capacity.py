"""Free capacity in a cluster: reason, best node, and pods newer than the figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clusters import GIB, NOW_S, a_gpu, a_listed_pod, a_node, held
from tests.support.page_commands import table_of
from webhook.core.placement.fit import Need
from webhook.tools.problems.capacity import (
    add_newer_pods,
    find_best_fit,
    find_fits,
    find_no_room,
    no_room_code,
)
from webhook.tools.snapshot.pod import ClusterPod

ANY = ClusterPod({})
PAIR = Need(20 * GIB, 2)


def gpu(usable, free, **more):
    return a_gpu(usable, free_bytes=free if free is None else free * GIB, **more)


CLUSTERS = {
    "none is known": [],
    "none is eligible": [([gpu(79, 79)], {"held": "x"}), ([gpu(79, 79)], {"not_shared": "x"})],
    "the pod fits on one": [([gpu(79, 20), gpu(79, 20)], {}), ([gpu(79, 60), gpu(79, 0)], {})],
    "an eligible one has enough free memory, on several GPUs": [
        *(([gpu(79, 30), gpu(79, 15)], {}), ([gpu(79, 9)], {}), ([gpu(79, 79)], {"held": "x"})),
    ],
    "the eligible ones have enough free memory only together": [
        *(([gpu(79, 30), gpu(79, 5)], {}), ([gpu(79, 5), gpu(79, 5)], {}), ([gpu(9, 9)], {})),
    ],
    "the eligible ones have less free memory, even together": [
        *(([gpu(79, 19), gpu(79, 9)], {}), ([gpu(9, 9)], {}), ([gpu(79, 79)], {"held": "x"})),
    ],
    "the eligible ones have too few GPUs that are large enough": [
        ([gpu(79, 79)], {}), ([gpu(9, 9)], {}),
    ],
    "the eligible ones have no GPU that is large enough": [
        ([gpu(9, 9)] * 2, {}), ([gpu(79, None)], {}),
    ],
    "the eligible ones have no healthy GPU": [
        ([gpu(79, 79, healthy=False)] * 2, {}), ([gpu(79, None)], {}),
    ],
    "the eligible ones do not report free memory": [
        ([gpu(79, None)] * 2, {}), ([gpu(9, None)], {}),
    ],
}  # fmt: skip
"""GPUs and other node figures, keyed by row, for a pod that requests 20Gi on each of two GPUs."""


@pytest.mark.parametrize(("nodes", "code"), table_of(no_room_code))
def test_the_reason_of_a_cluster_is_that_of_the_table(nodes, code):
    made = enumerate(CLUSTERS[nodes])
    figures = [a_node(f"n{n}", *gpus, **more).figures for n, (gpus, more) in made]
    fits = find_fits(ANY, PAIR, figures, None, NOW_S)
    found = no_room_code(PAIR, fits)
    assert str(found or "none") == {"that of the first node": "Draining"}.get(code, code)
    problem = find_no_room(PAIR, fits)
    assert (problem and problem.code) == found


def test_a_node_with_figures_of_now_is_better_than_one_with_more_room_by_old_figures():
    old = a_node("old", a_gpu(79), age_s=86_400).figures
    now = a_node("now", a_gpu(79, held("x", 70))).figures
    fits = find_fits(ANY, Need(80 * GIB), [old, now], None, NOW_S)
    assert (find_best_fit(fits).name, find_best_fit(fits).largest_bytes) == ("now", 9 * GIB)
    assert find_best_fit([fit for fit in fits if fit.name == "old"]).age_s == 86_400


NODE = a_node("n1", a_gpu(79, held("known", 10)), a_gpu(79, free_bytes=None)).figures


def listed(uid, gib=5, gpus=("GPU-n1-0",), node="n1"):
    asked = None if gib is None else gib * GIB
    return a_listed_pod(uid, "team-a", uid, node=node, gpus=gpus, requested_bytes=asked)


@pytest.mark.parametrize(
    ("pod", "free", "promised"),
    [
        pytest.param(listed("new"), 64, 15, id="bound since"),
        pytest.param(listed("known"), 69, 10, id="in the figures"),
        pytest.param(listed("new", gpus=()), 69, 10, id="without a GPU yet"),
        pytest.param(listed("new", node=""), 69, 10, id="without a node"),
        pytest.param(listed("new", None), 69, 10, id="of an unknown amount"),
        pytest.param(listed("new", gpus=("GPU-n2-0",)), 69, 10, id="on another node"),
        pytest.param(listed("new", gpus=("GPU-n1-0", "GPU-n1-1")), 64, 15, id="on two GPUs"),
    ],
)
def test_the_memory_of_a_pod_that_was_bound_since_the_figures_is_not_free(pod, free, promised):
    (first, second) = add_newer_pods([NODE], [pod])[0].gpus
    assert (first.free_bytes, first.promised_bytes) == (free * GIB, promised * GIB)
    assert second.free_bytes is None


PODS = st.lists(
    st.builds(
        listed,
        st.sampled_from(["known", "a", "b", "c"]),
        st.none() | st.integers(1, 90),
        st.sampled_from([(), ("GPU-n1-0",), ("GPU-n1-0", "GPU-n1-1"), ("GPU-n2-0",)]),
        st.sampled_from(["", "n1"]),
    ),
    max_size=4,
    unique_by=lambda build: build.uid,
)


@given(PODS, st.randoms())
def test_newer_pods_count_once_in_any_order_and_only_their_own_memory(pods, random):
    node = replace(NODE, gpus=(NODE.gpus[0],))
    (added,) = add_newer_pods([node], pods)
    assert add_newer_pods([added], pods) == (added,)
    (gpu_before, gpu_after) = node.gpus[0], added.gpus[0]
    new = {pod.uid: pod.cap_bytes for pod in gpu_after.pods} | {"known": 0}
    assert gpu_before.free_bytes - gpu_after.free_bytes == sum(new.values())
    assert gpu_after.promised_bytes - gpu_before.promised_bytes == sum(new.values())
    shuffled = random.sample(pods, len(pods))
    (again,) = add_newer_pods([node], shuffled)
    assert {*again.gpus[0].pods} == {*gpu_after.pods}
    assert again.gpus[0].free_bytes == gpu_after.free_bytes
