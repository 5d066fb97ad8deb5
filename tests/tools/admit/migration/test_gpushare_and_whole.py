"""Migration of gpushare pods and of pods with whole GPUs."""

from __future__ import annotations

import pytest

from tests.support.pods import a_container, a_pod
from tests.tools.admit.migration.moving import GIB, a_limited, move, moved_limits

MEMORY, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
SIXTEEN = {"gpu_bytes": 16 * GIB}


def a_share(name: str = "main", **more):
    return a_container(name, resources={"limits": {MEMORY: "3", **more}})


def test_units_are_gib_or_what_is_said():
    pod = a_pod(containers=[a_share()])
    assert move("gpushare", pod).memory == "3Gi"
    assert move("gpushare", pod, unit_bytes=2**20).memory == "3Mi"


def test_all_containers_have_one_gpu_as_before():
    made = move("gpushare", a_pod(containers=[a_share("a"), a_share("b")]))
    assert (made.memory, made.count, made.notes) == ("a=3Gi, b=3Gi", None, [])


def test_a_unit_that_is_too_large_is_reported():
    pod = a_pod(containers=[a_container(resources={"limits": {MEMORY: "16276"}})])
    made = move("gpushare", pod)
    assert made.pod == pod
    assert made.problems == [
        (
            f"spec.containers[0].resources.limits[{MEMORY}]: 16276 units of 1Gi are more than any "
            "GPU has; say what one unit is, e.g. --gpu-memory-unit 1Mi, or correct the number"
        )
    ]
    assert move("gpushare", pod, unit_bytes=2**20).memory == "16276Mi"


def test_memory_of_several_gpus_is_divided():
    pod = a_pod(containers=[a_share()], labels={COUNT: "2", "app": "x"})
    made = move("gpushare", pod)
    assert (made.memory, made.count) == ("1536Mi", "2")
    assert made.pod["metadata"]["labels"] == {"app": "x"}
    assert made.notes == [
        (
            f"metadata.labels[{COUNT}]: the memory was that of 2 GPUs together; each gets its "
            "part, 1536Mi"
        )
    ]


def test_one_gpu_by_label_is_nothing_to_talk_about():
    made = move("gpushare", a_pod(containers=[a_share()], labels={COUNT: "1"}))
    assert (made.memory, made.count, made.notes) == ("3Gi", None, [])
    assert "labels" not in made.pod["metadata"]


@pytest.mark.parametrize("text", ["0", "two", "0.5", "10000"])
def test_a_number_of_gpus_that_cannot_be_read_is_reported(text):
    pod = a_pod(containers=[a_share()], labels={COUNT: text})
    made = move("gpushare", pod)
    assert made.pod == pod
    assert made.problems[0].startswith(f"metadata.labels[{COUNT}]: ")


def test_a_label_alone_asks_for_nothing():
    pod = a_pod(labels={COUNT: "2"})
    assert move("gpushare", pod) == (pod, "", [], [])


def test_what_gpushare_tells_programs_is_named():
    container = a_share(**{COUNT: "1", "aliyun.com/gpu-core.percentage": "30"})
    container |= {
        "args": ["--limit=$(ALIYUN_COM_GPU_MEM_CONTAINER)"],
        "env": [{"name": "ALIYUN_COM_GPU_MEM_IDX", "value": "0"}],
    }
    made = move("gpushare", a_pod(containers=[container], nodeSelector={"gpushare": "true"}))
    (after,) = made.pod["spec"]["containers"]
    assert after == {key: container[key] for key in ("name", "image", "args", "env")}
    assert [note.partition(": ")[0] for note in made.notes] == [
        "spec.nodeSelector[gpushare]",
        f"spec.containers[0].resources.limits[{COUNT}]",
        "spec.containers[0].resources.limits[aliyun.com/gpu-core.percentage]",
        "spec.containers[0].env[0]",
        "spec.containers[0].args",
    ]


@pytest.mark.parametrize(
    ("amounts", "memory", "count", "notes"),
    [
        ({"gpu": "1"}, "16Gi", None, 0),
        ({"gpu": "2"}, "16Gi", "2", 0),
        ({"gpu.shared": "1"}, "16Gi", None, 0),
        ({"gpu.shared": "3"}, "16Gi", None, 1),
    ],
)
def test_whole_gpus_become_what_is_said(amounts, memory, count, notes):
    made = moved_limits("whole", SIXTEEN, **amounts)
    assert (made.memory, made.count, len(made.notes)) == (memory, count, notes)


@pytest.mark.parametrize("name", ["gpu", "gpu.shared"])
def test_where_the_memory_of_a_gpu_is_missing_the_place_that_asks_for_one_is_named(name):
    (problem,) = moved_limits("whole", {}, **{name: "1"}).problems
    place = f"spec.containers[0].resources.limits[nvidia.com/{name}]"
    assert problem.startswith(f"{place}: asks for a GPU, and nothing here says how much that is")


def test_replicas_beside_whole_gpus_are_reported():
    made = moved_limits("whole", SIXTEEN, **{"gpu": "1", "gpu.shared": "1"})
    assert made.problems == [
        (
            "spec.containers[0].resources.limits[nvidia.com/gpu.shared]: stands beside "
            "nvidia.com/gpu; keep one"
        )
    ]


def test_slices_stay_and_are_named():
    pod = a_pod(containers=[a_limited(**{"mig-1g.5gb": "1"})])
    path = "spec.containers[0].resources.limits[nvidia.com/mig-1g.5gb]"
    why = "nvidia.com/mig-1g.5gb is a GPU of its own and stays; no share replaces it"
    assert move("whole", pod, **SIXTEEN) == (pod, "", [f"{path}: {why}"], [])
