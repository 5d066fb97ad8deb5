"""Property tests: a pod fits according to `explain` exactly if `plan` accepts it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.assignments import NOW_S, Plan, plan
from tests.support.clusters import GIB, a_gpu, a_node
from webhook.core.kinds.nodes import PodFigures, read_gpu_node, write_gpu_node
from webhook.core.placement.assignments import Assignment, free_bytes_by_gpu
from webhook.core.placement.fit import Need
from webhook.core.placement.pod_state import PodState
from webhook.core.pod.gpus import EVERY_GPU, Gpu
from webhook.tools.problems.capacity import (
    find_best_fit,
    find_fits,
    find_pods_to_free,
    no_room_code,
)
from webhook.tools.snapshot.pod import ClusterPod

MIB = 2**20
LABELS = {"vramwarden.io/gpu": "true"}
POD = ClusterPod({"spec": {"nodeSelector": LABELS}})
AMOUNTS = st.integers(1, 64 * MIB)
WHOLE = st.integers(1, 64).map(lambda mib: mib * MIB)


@st.composite
def nodes(draw, amounts=AMOUNTS):
    """Draw the GPUs and assignment list of a node."""
    name = draw(st.sampled_from(["n1", "n2", "n3"]))
    count = draw(st.integers(1, 4))
    gpus = [
        Gpu(
            uuid=f"GPU-{name}-{index}",
            memory_bytes=draw(st.integers(1, 64)) * MIB,
            product="H",
            index=index,
            total_bytes=None,
            healthy=draw(st.sampled_from([True, True, True, False])),
        )
        for index in range(count)
    ]
    sets = st.just((EVERY_GPU,)) | st.lists(
        st.sampled_from([gpu.uuid for gpu in gpus]), min_size=1, unique=True
    ).map(tuple)
    held = draw(st.lists(st.tuples(sets, amounts), max_size=4))
    assignments = {
        f"u-{name}-{number}": Assignment(
            pod=f"ns/p{number}", uuids=uuids, memory_bytes=amount, since_s=int(NOW_S)
        )
        for number, (uuids, amount) in enumerate(held)
    }
    return name, gpus, assignments


def clusters(amounts=AMOUNTS):
    return st.lists(nodes(amounts), min_size=1, max_size=3, unique_by=lambda node: node[0])


def figures(name, gpus, assignments):
    """Return the figures that the node's sentry writes, parsed."""
    free = free_bytes_by_gpu(name, gpus, assignments, {})

    def shown(gpu):
        holders = (
            PodFigures(uid=uid, cap_bytes=assignment.memory_bytes)
            for uid, assignment in assignments.items()
            if {gpu.uuid, EVERY_GPU} & {*assignment.uuids}
        )
        more = {"uuid": gpu.uuid, "free_bytes": free[gpu.uuid], "healthy": gpu.healthy}
        return a_gpu(gpu.memory_bytes / GIB, *holders, **more)

    return read_gpu_node(write_gpu_node(a_node(name, *map(shown, gpus)).figures))


def accepts(node, amount, count) -> bool:
    name, gpus, assignments = node
    newcomer = PodState(uid="u-new", name="team-a/new", need=Need(amount, count))
    return isinstance(plan(name, gpus, assignments, {}, newcomer, NOW_S), Plan)


@given(clusters(), WHOLE, st.integers(1, 3))
def test_what_would_start_now_is_the_most_that_plan_accepts(cluster, amount, count):
    shown = [figures(*node) for node in cluster]
    fits = find_fits(POD, Need(amount, count), shown, None, NOW_S)
    by_name = {node[0]: node for node in cluster}
    most = 0
    if found := find_best_fit(fits):
        most = found.largest_bytes
        assert accepts(by_name[found.name], most, count)
    assert not any(accepts(node, most + MIB, count) for node in cluster)


@given(clusters(), WHOLE, st.integers(1, 3))
def test_a_node_fits_where_plan_accepts_and_only_there(cluster, amount, count):
    shown = [figures(*node) for node in cluster]
    fits = find_fits(POD, Need(amount, count), shown, None, NOW_S)
    names = {node.name for node in fits if node.code is None}
    assert names == {node[0] for node in cluster if accepts(node, amount, count)}
    assert (no_room_code(Need(amount, count), fits) is None) == bool(names)


@given(clusters(WHOLE), WHOLE, st.integers(1, 2))
def test_the_end_of_each_pod_that_is_named_makes_room_and_of_no_other(cluster, amount, count):
    need = Need(amount, count)
    shown = [figures(*node) for node in cluster]
    fits = find_fits(POD, need, shown, None, NOW_S)
    named = {(pod.node, pod.uid) for pod in find_pods_to_free(need, shown, fits)}
    expected = {
        (name, uid)
        for name, gpus, assignments in cluster
        if not accepts((name, gpus, assignments), amount, count)
        for uid in assignments
        if accepts(
            (
                name,
                gpus,
                {key: assignment for key, assignment in assignments.items() if key != uid},
            ),
            amount,
            count,
        )
    }
    assert named == expected


@given(clusters(), WHOLE, st.sets(st.sampled_from(["n1", "n2", "n3"])))
def test_a_node_that_the_pod_does_not_select_is_never_room(cluster, amount, without):
    shown = [figures(*node) for node in cluster]
    seen = {
        node.name: a_node(node.name, labels={} if node.name in without else LABELS).read
        for node in shown
    }
    fits = find_fits(POD, Need(amount), shown, seen, NOW_S)
    assert {node.name for node in fits if not node.is_eligible} == without & {*seen}
    assert not any(node.largest_bytes for node in fits if not node.is_eligible)
    found = find_best_fit(fits)
    assert found is None or found.name not in without
