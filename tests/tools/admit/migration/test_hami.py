"""Migration of HAMi containers, compared with HAMi's own code."""

from __future__ import annotations

import pytest

from tests.support.pods import a_container, a_pod
from tests.tools.admit.migration.moving import GIB, a_limited, limits, move, moved_limits

LIMITS = "spec.containers[0].resources.limits"
SIXTEEN = {"gpu_bytes": 16 * GIB}


@pytest.mark.parametrize(
    ("amounts", "scale", "memory", "count"),
    [
        ({"gpu": "1", "gpumem": "3000"}, {}, "3000Mi", None),
        ({"gpu": "1", "gpumem": "3k"}, {}, "3000Mi", None),
        ({"gpu": "2", "gpumem": "3000"}, {}, "3000Mi", "2"),
        ({"gpumem": "2048"}, {}, "2Gi", None),
        ({"gpu": "1", "gpumem": "3"}, {"unit_bytes": GIB}, "3Gi", None),
        ({"gpu": "1", "gpumem_percentage": "50"}, SIXTEEN, "8Gi", None),
        ({"gpumem_percentage": "33"}, SIXTEEN, "5406Mi", None),
        ({"gpu": "1", "gpumem_percentage": "100"}, SIXTEEN, "16Gi", None),
        ({"gpu": "1", "gpumem_percentage": "0"}, SIXTEEN, "16Gi", None),
        ({"gpu": "1", "gpumem": "0"}, SIXTEEN, "16Gi", None),
        ({"gpu": "2"}, SIXTEEN, "16Gi", "2"),
        ({"gpucores": "30"}, SIXTEEN, "16Gi", None),
        ({"gpu": "1", "gpumem": "3000", "gpumem_percentage": "50"}, {}, "3000Mi", None),
    ],
)
def test_amounts_are_read_as_hami_reads_them(amounts, scale, memory, count):
    made = moved_limits("hami", scale, **amounts)
    assert (made.memory, made.count, made.problems) == (memory, count, [])
    assert "resources" not in made.pod["spec"]["containers"][0]


def test_requests_count_where_limits_do_not_say():
    container = a_container(resources={"requests": limits(gpu="1", gpumem="3000")})
    assert move("hami", a_pod(containers=[container])).memory == "3000Mi"


def test_memory_in_the_requests_alone_asks_for_nothing():
    pod = a_pod(containers=[a_container(resources={"requests": limits(gpumem="3000")})])
    assert move("hami", pod) == (pod, "", [], [])


NOT_WHOLE = "is not a whole number; correct it first"
UNIT = "is a plain number of MiB for HAMi, which rejects a unit; write the number first"
TOO_MANY = "1048577 units of 1Mi are more than any GPU has; correct the number"
UNSIZED = "of a GPU, and nothing here says how much that is; say it: --gpu-memory 16Gi"


@pytest.mark.parametrize(
    ("amounts", "name", "problem"),
    [
        ({"gpu": "0.5"}, "gpu", f'"0.5" {NOT_WHOLE}'),
        ({"gpu": "-1"}, "gpu", f'"-1" {NOT_WHOLE}'),
        ({"gpu": "x"}, "gpu", f'"x" {NOT_WHOLE}'),
        (
            {"gpu": "10000", "gpumem": "1"},
            "gpu",
            "no pod gets 10000 GPUs; correct the number first",
        ),
        ({"gpu": "1", "gpumem": "16Gi"}, "gpumem", UNIT),
        ({"gpu": "1", "gpumem": "1048577"}, "gpumem", TOO_MANY),
        (
            {"gpu": "1", "gpumem_percentage": "101"},
            "gpumem-percentage",
            "101 is no percentage, and HAMi denies it; correct it",
        ),
        (
            {"gpu": "1", "gpumem_percentage": "50"},
            "gpumem-percentage",
            f"asks for 50 percent {UNSIZED}",
        ),
        ({"gpu": "1"}, "gpu", f"asks for all memory {UNSIZED}"),
    ],
)
def test_what_cannot_be_read_leaves_the_pod_as_it_is(amounts, name, problem):
    pod = a_pod(containers=[a_limited(**amounts)])
    assert move("hami", pod) == (pod, "", [], [f"{LIMITS}[nvidia.com/{name}]: {problem}"])


def test_no_gpu_is_no_request():
    pod = a_pod(containers=[a_limited(gpu="0", gpumem="3000")])
    assert move("hami", pod) == (pod, "", [], [])


def test_all_problems_of_a_pod_are_reported_at_once():
    pod = a_pod(containers=[a_limited("a", gpu="1"), a_limited("b", gpu="x")])
    assert len(move("hami", pod).problems) == 2


def test_compute_and_priority_go_and_are_named():
    made = moved_limits("hami", gpu="1", gpumem="1024", gpucores="30", priority="0", cpu="1")
    assert made.notes == [
        (
            f"{LIMITS}[nvidia.com/gpucores]: 30 is removed: compute is not divided here, and pods "
            "of one GPU take turns"
        ),
        f"{LIMITS}[nvidia.com/priority]: 0 is removed: pods of one GPU have no order here",
    ]
    assert made.pod["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/cpu": "1"}}


def test_selection_of_gpus_stays_and_is_named():
    annotations = {
        "nvidia.com/use-gputype": "A100",
        "nvidia.com/nouse-gpuuuid": "GPU-1",
        "hami.io/gpu-scheduler-policy": "spread",
        "hami.io/vgpu-node": "n",
        "other": "kept",
    }
    pod = a_pod(
        containers=[a_limited(gpumem="1024")],
        annotations=annotations,
        schedulerName="hami-scheduler",
        nodeSelector={"gpu": "on", "zone": "a"},
    )
    made = move("hami", pod)
    assert made.annotations == {**annotations, "vramwarden.io/gpu-memory": "1Gi"}
    assert [note.partition(": ")[0] for note in made.notes] == [
        "metadata.annotations[nvidia.com/use-gputype]",
        "metadata.annotations[nvidia.com/nouse-gpuuuid]",
        "metadata.annotations[hami.io/gpu-scheduler-policy]",
        "metadata.annotations[hami.io/vgpu-node]",
        "spec.schedulerName",
        "spec.nodeSelector[gpu]",
    ]
    assert "schedulerName" not in made.pod["spec"]
    assert made.pod["spec"]["nodeSelector"] == {"gpu": "on", "zone": "a"}
