"""A thousand pods on twenty nodes, by eight clients, with a replica killed: no overcommitment.

All checks read the API server, never vramwarden's lists.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.scheduling.replicas import Cluster, placing
from tests.support.control_planes import ApiError, wait_until
from tests.support.schedulers import refusals

PODS, CLIENTS, NODES = 1000, 8, 20
SIZES_GIB = (1, 2, 3, 5, 8, 13, 20)
KINDS_GIB = (8, 16, 24, 40, 80)


def make_nodes(cluster, seed):
    """Create nodes with one to eight GPUs of different sizes."""
    chance = random.Random(seed)  # noqa: S311 - the same on each run
    for number in range(NODES):
        cluster.node(f"gpu-{number:02}", *chance.choices(KINDS_GIB, k=chance.randint(1, 8)))


def workload(seed):
    """Return sizes in GiB and numbers of GPUs, with about the total of the nodes."""
    chance = random.Random(seed)  # noqa: S311 - the same on each run
    weights = [13, 12, 10, 8, 5, 2, 1]
    return [
        (chance.choices(SIZES_GIB, weights)[0], chance.choices((1, 2), (19, 1))[0])
        for _ in range(PODS)
    ]


def percentiles(durations_ms):
    """Return median and 99th percentile as a string."""
    ordered = sorted(durations_ms)
    return (
        f"p50 {ordered[len(ordered) // 2]:.1f} ms, p99 {ordered[len(ordered) * 99 // 100]:.1f} ms"
    )


def free_by_gpu(cluster):
    """Return free GiB by GPU, and size, GPU count and node of each pod without a GPU."""
    free = {gpu: size for gpus in cluster.sizes.values() for gpu, size in gpus.items()}
    waiting = []
    for pod in cluster.pods():
        count = int(pod["metadata"]["annotations"].get("vramwarden.io/gpu-count", "1"))
        size = int(pod["metadata"]["annotations"]["vramwarden.io/gpu-memory"].removesuffix("Gi"))
        node = pod["spec"].get("nodeName")
        gpus = pod["metadata"]["annotations"].get("vramwarden.io/gpu", "").split(",")
        if gpus == [""]:  # not bound, or its replica was killed at the binding: assigned late
            waiting.append((size, count, node))
            continue
        assert len(set(gpus)) == count, pod["metadata"]
        for gpu in gpus:
            assert gpu in cluster.sizes[node], (gpu, node)
            free[gpu] -= size
    return free, waiting


def fits(cluster, free, waiting, size, count, bound_to):
    """Return True if a pending pod fits on its node or, if it is not bound, on any node.

    The scheduler counts a pod bound without a GPU against its node.
    """

    def has_room(node):
        gpus = cluster.sizes[node]
        late = 0 if bound_to else sum(item[0] * item[1] for item in waiting if item[2] == node)
        left = sum(free[gpu] for gpu in gpus) - late
        return left >= size * count and sum(free[gpu] >= size for gpu in gpus) >= count

    return any(has_room(node) for node in ([bound_to] if bound_to else cluster.sizes))


@pytest.fixture
def cluster(control_plane, make_namespace):
    with Cluster(control_plane.api, make_namespace()) as made:
        make_nodes(made, seed=5)
        yield made


def create(cluster, *pod):
    """Create a pod; retry if its review was lost with a replica, as a controller does."""
    for _ in range(2):
        try:
            return cluster.create(*pod)
        except ApiError as error:
            if "failed to call webhook" not in str(error):
                raise
    return cluster.create(*pod)


def create_all(cluster, pods, during=lambda: None):
    """Create the pods with all clients in parallel; return the duration in seconds."""
    started = time.monotonic()
    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        pool.submit(during)  # first, since it would otherwise wait until the last creation starts
        done = [
            pool.submit(create, cluster, f"pod-{number:04}", f"{size}Gi", count)
            for number, (size, count) in enumerate(pods)
        ]
        for item in done:
            item.result()
    return time.monotonic() - started


def settle(cluster):
    """Wait until no pending pod would fit; return free memory and pending pods."""

    def settled():
        cluster.act_as_agents()
        free, waiting = free_by_gpu(cluster)
        assert min(free.values()) >= 0, "a GPU is overcommitted"
        return not any(fits(cluster, free, waiting, *pod) for pod in waiting) and (free, waiting)

    return wait_until("no pod that would fit waits", settled, timeout=180)


def test_a_thousand_pods_fill_twenty_nodes_and_no_gpu_is_overcommitted(
    cluster, control_plane, tmp_path
):
    pods = workload(seed=5)
    with placing(control_plane, tmp_path) as servers:

        def kill_one():
            wait_until("half of them", lambda: len(cluster.pods()) > PODS / 2, timeout=120)
            servers[0].process.kill()

        started = time.monotonic()
        created_s = create_all(cluster, pods, kill_one)
        free, waiting = settle(cluster)
        took_s = time.monotonic() - started
        reviews = [
            line
            for server in servers
            for line in server.log()
            if line.get("webhook") == "bind" and line["decision"] in {"placed", "denied"}
        ]
    assert servers[0].process.returncode == -9
    placed = [line["durationMs"] for line in reviews if line["decision"] == "placed"]
    in_vain = refusals(cluster.api, cluster.namespace)
    bound = PODS - len(waiting)
    total = sum(sum(gpus.values()) for gpus in cluster.sizes.values())
    print(
        f"{bound} of {PODS} pods bound, {len(waiting)} wait; {sum(free.values())} of {total} GiB "
        f"free; created within {created_s:.1f} s, settled within {took_s:.1f} s; "
        f"{in_vain} refusals by the events, {len(reviews) - len(placed)} by the logs; our part of "
        f"a binding while all cores are busy: {percentiles(placed)}"
    )
    assert bound > PODS / 2


def test_two_hundred_bindings_in_turn_leave_the_exact_sum(control_plane, make_namespace, tmp_path):
    with placing(control_plane, tmp_path), Cluster(control_plane.api, make_namespace()) as cluster:
        cluster.node("alone", *(80 for _ in range(8)))
        for number in range(200):
            pod = cluster.create(f"alone-{number}", "3Gi", 1, schedulerName="nobody")
            cluster.bind(pod, "alone")
        free, waiting = free_by_gpu(cluster)
    assert waiting == []
    assert sum(free.values()) == 8 * 80 - 200 * 3
    assert all(amount >= 0 for amount in free.values())
