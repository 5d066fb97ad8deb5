"""Migration of KAI pods, compared with KAI's own code."""

from __future__ import annotations

import pytest

from tests.support.pods import a_container, a_pod
from tests.tools.admit.migration.moving import GIB, a_limited, move

SIXTEEN = {"gpu_bytes": 16 * GIB}
NAME = "gpu-fraction-container-name"
COUNT = "gpu-fraction-num-devices"


def a_kai_pod(**annotations: str):
    named = {key.replace("_", "-"): value for key, value in annotations.items()}
    containers = [a_container("main"), a_container("side")]
    inits = [a_container("before")]
    return a_pod(containers=containers, initContainers=inits, annotations=named)


@pytest.mark.parametrize(
    ("annotations", "scale", "memory", "count"),
    [
        ({"gpu-memory": "2000"}, {}, "main=2000Mi", None),
        ({"gpu-fraction": "0.5"}, SIXTEEN, "main=8Gi", None),
        ({"gpu-fraction": ".25"}, SIXTEEN, "main=4Gi", None),
        ({"gpu-fraction": "5e-1"}, SIXTEEN, "main=8Gi", None),
        ({"gpu-fraction": "0.3333"}, SIXTEEN, "main=5460Mi", None),
        ({"gpu-fraction": "0.00000001"}, SIXTEEN, "main=1Mi", None),
        ({"gpu-memory": "1024", COUNT: "2"}, {}, "main=1Gi", "2"),
        ({"gpu-memory": "1024", NAME: "main"}, {}, "main=1Gi", None),
        ({"gpu-memory": "1024", NAME: "side"}, {}, "side=1Gi", None),
        ({"gpu-memory": "1024", NAME: "before"}, {}, "before=1Gi", None),
        (
            {"gpu-memory": "1024", "kubectl.kubernetes.io/default-container": "side"},
            {},
            "main=1Gi",
            None,
        ),
    ],
)
def test_amounts_are_read_as_kai_reads_them(annotations, scale, memory, count):
    made = move("kai", a_kai_pod(**annotations), **scale)
    assert (made.memory, made.count, made.problems) == (memory, count, [])
    assert not {"gpu-memory", "gpu-fraction", NAME, COUNT} & {*made.annotations}


NO_COUNT = "is not a whole number above 0, and KAI denies it"
NO_FRACTION = "is not between 0 and 1, and KAI denies it"
UNSIZED = 'asks for "0.5" of a GPU, and nothing here says how much that is'
TOO_MUCH = "9" * 18


@pytest.mark.parametrize(
    ("key", "annotations", "problem"),
    [
        ("gpu-memory", {"gpu-memory": "0"}, f'"0" {NO_COUNT}'),
        ("gpu-memory", {"gpu-memory": "2Gi"}, f'"2Gi" {NO_COUNT}'),
        *(
            ("gpu-fraction", {"gpu-fraction": text}, f'"{text}" {NO_FRACTION}')
            for text in ("0", "1", "1.5", "-0.5", "NaN", "0x1p-1", "half", "50m")
        ),
        ("gpu-fraction", {"gpu-fraction": "0.5"}, UNSIZED),
        (
            "gpu-memory",
            {"gpu-memory": "1", "gpu-fraction": "0.5"},
            "stands beside gpu-fraction, which KAI denies",
        ),
        (COUNT, {COUNT: "2"}, "says nothing without gpu-memory or gpu-fraction"),
        (COUNT, {"gpu-memory": "1", COUNT: "0"}, f'"0" {NO_COUNT}'),
        (COUNT, {"gpu-memory": "1", COUNT: "99999"}, "no pod gets 99999 GPUs"),
        (NAME, {"gpu-memory": "1", NAME: "x"}, 'the pod has no container "x"'),
        (
            "gpu-memory",
            {"gpu-memory": TOO_MUCH},
            f"{TOO_MUCH} units of 1Mi are more than any GPU has",
        ),
    ],
)
def test_what_kai_denies_stays_as_it_is(key, annotations, problem):
    pod = a_kai_pod(**annotations)
    made = move("kai", pod)
    assert made[:3] == (pod, "", [])
    assert [problem.partition(";")[0] for problem in made.problems] == [
        f"metadata.annotations[{key}]: {problem}"
    ]


def test_a_share_beside_whole_gpus_stays_as_it_is():
    pod = a_pod(containers=[a_limited(gpu="1")], annotations={"gpu-memory": "1"})
    why = "metadata.annotations[gpu-memory]: stands beside nvidia.com/gpu, which KAI denies"
    assert move("kai", pod).problems == [f"{why}; keep one"]


def test_amounts_by_container_are_read_and_the_limit_is_the_cap():
    pod = a_kai_pod(
        **{
            "nvidia.com/container.main.gpu-memory.request": "2Gi",
            "nvidia.com/container.main.gpu-memory.limit": "4Gi",
            "nvidia.com/container.side.gpu-memory.request": "1Gi",
        }
    )
    made = move("kai", pod)
    assert made.annotations == {"vramwarden.io/gpu-memory": "main=4Gi, side=1Gi"}
    (note,) = made.notes
    assert note == (
        "metadata.annotations[nvidia.com/container.main.gpu-memory.limit]: nothing is promised "
        "twice here, so the limit of 4Gi is reserved as well; the request was 2Gi"
    )


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [("x", "1Gi", 'the pod has no container "x"'), ("main", "1GB", '"1GB" is not a Kubernetes')],
)
def test_amounts_by_container_that_cannot_be_read_stay(name, text, problem):
    key = f"nvidia.com/container.{name}.gpu-memory.limit"
    pod = a_kai_pod(**{key: text})
    made = move("kai", pod)
    assert made.pod == pod
    assert made.problems[0].startswith(f"metadata.annotations[{key}]: {problem}")


def test_pods_without_a_share_stay_with_their_scheduler():
    pod = a_pod(containers=[a_limited(gpu="1")], schedulerName="kai-scheduler")
    why = "kai-scheduler places this pod, which asks for no share, and is not changed"
    assert move("kai", pod) == (pod, "", [f"spec.schedulerName: {why}"], [])


def test_queues_and_mps_stay_and_are_named():
    pod = a_pod(
        annotations={"gpu-memory": "1024", "mps": "true"},
        labels={"kai.scheduler/queue": "q", "kai.scheduler/node-pool": "p", "app": "x"},
        schedulerName="kai-scheduler",
    )
    made = move("kai", pod)
    assert made.pod["metadata"]["labels"] == pod["metadata"]["labels"]
    assert made.annotations == {"mps": "true", "vramwarden.io/gpu-memory": "1Gi"}
    assert made.notes == [
        (
            "metadata.annotations[mps]: stays without effect: shares are kept apart by their caps "
            "here, without MPS"
        ),
        (
            "metadata.labels[kai.scheduler/queue]: stays without effect: there are no queues here; "
            "a ResourceQuota on requests.vramwarden.io/vram bounds a namespace"
        ),
        "metadata.labels[kai.scheduler/node-pool]: stays without effect: only KAI reads it",
        "spec.schedulerName: kai-scheduler is removed, so the default scheduler places the pod",
    ]


def test_the_limit_is_the_cap_also_below_the_request():
    name = "nvidia.com/container.main.gpu-memory"
    made = move("kai", a_kai_pod(**{f"{name}.request": "4Gi", f"{name}.limit": "2Gi"}))
    assert made.memory == "main=2Gi"


@pytest.mark.parametrize("inits", [[], [a_container("before")]])
def test_without_a_container_nobody_gets_the_gpu(inits):
    pod = a_pod(containers=[], initContainers=inits, annotations={"gpu-memory": "1024"})
    made = move("kai", pod)
    assert made.pod == pod
    assert made.problems == ["spec.containers: has no container that could get the GPU"]
