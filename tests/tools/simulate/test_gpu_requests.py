"""The GPUs that pods request, in the form of each product."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.support.foreign_clusters import a_pod, hami, kai, whole
from webhook.core.pod.quantity import MIB
from webhook.tools.simulate.judge.gpu_requests import GpuRequest, RequestForm, read_request

GIB = 2**30
GPU, PERCENT = "nvidia.com/gpu", "nvidia.com/gpumem-percentage"
VOLCANO = "volcano.sh/vgpu"


@pytest.mark.parametrize(
    ("pod", "wanted"),
    [
        (a_pod("p"), None),
        (a_pod("p", **{GPU: 0}), None),
        (a_pod("p", **{"amd.com/gpu": 1}), None),
        (whole("p", gpus=2), GpuRequest(RequestForm.WHOLE, 2)),
        (a_pod("p", **{"nvidia.com/gpu.shared": 3}), GpuRequest(RequestForm.REPLICA, 3)),
        (a_pod("p", **{"nvidia.com/mig-1g.10gb": 2}), GpuRequest(RequestForm.SLICE, 2)),
        (hami("p", memory=3000), GpuRequest(RequestForm.SHARE, 1, 3000 * MIB)),
        (
            hami("p", cards="GPU-7"),
            GpuRequest(RequestForm.SHARE, 1, 4096 * MIB, cards=frozenset({"GPU-7"})),
        ),
        (a_pod("p", **{"nvidia.com/gpumem": 3000}), GpuRequest(RequestForm.SHARE, 1, 3000 * MIB)),
        (
            a_pod("p", **{GPU: 2, PERCENT: 30}),
            GpuRequest(RequestForm.SHARE, 2, part=Fraction(3, 10)),
        ),
        (a_pod("p", **{GPU: 1, PERCENT: 300}), GpuRequest(RequestForm.SHARE, 1, part=Fraction(1))),
        (a_pod("p", **{GPU: 1, "nvidia.com/gpucores": 30}), GpuRequest(RequestForm.WHOLE, 1)),
        (
            a_pod("p", **{f"{VOLCANO}-number": 2, f"{VOLCANO}-memory": 1024}),
            GpuRequest(RequestForm.SHARE, 2, GIB),
        ),
        (
            a_pod("p", **{f"{VOLCANO}-number": 1}),
            GpuRequest(RequestForm.SHARE, 1, part=Fraction(1)),
        ),
        (
            kai("p", **{"gpu-fraction": "0.5"}),
            GpuRequest(RequestForm.SHARE, 1, part=Fraction(1, 2)),
        ),
        (kai("p", **{"gpu-fraction": "7"}), GpuRequest(RequestForm.SHARE, 1, part=Fraction(1))),
        (kai("p", **{"gpu-memory": "2048"}), GpuRequest(RequestForm.SHARE, 1, 2 * GIB)),
        (
            kai("p", **{"gpu-memory": "2048", "gpu-fraction-num-devices": "2"}),
            GpuRequest(RequestForm.SHARE, 2, 2 * GIB),
        ),
        (
            kai("p", group="g", **{"gpu-memory": "1024"}),
            GpuRequest(RequestForm.SHARE, 1, GIB, cards=frozenset({"g"})),
        ),
        (
            a_pod(
                "p",
                annotations={"gpu-fraction": "0.5"},
                labels={"runai-gpu-group/a": "a", "runai-gpu-group/b": "b", "app": "c"},
            ),
            GpuRequest(RequestForm.SHARE, 1, part=Fraction(1, 2), cards=frozenset({"a", "b"})),
        ),
        (kai("p", **{"gpu-memory": "8Gi"}), None),  # KAI reads plain numbers
        (a_pod("p", **{"aliyun.com/gpu-mem": 3}), GpuRequest(RequestForm.SHARE, 1, 3 * GIB)),
        (
            a_pod("p", **{"aliyun.com/gpu-mem": "2k"}),
            GpuRequest(RequestForm.SHARE, 1, 2000 * 2**20),
        ),
        (
            a_pod("p", annotations={"ALIYUN_COM_GPU_MEM_IDX": "1"}, **{"aliyun.com/gpu-mem": 3}),
            GpuRequest(RequestForm.SHARE, 1, 3 * GIB, cards=frozenset({"1"})),
        ),
        (
            a_pod("p", annotations={"vramwarden.io/gpu-memory": "8Gi"}),
            GpuRequest(RequestForm.SHARE, 1, 8 * GIB),
        ),
        (
            a_pod(
                "p",
                annotations={
                    "vramwarden.io/gpu-memory": "8Gi",
                    "vramwarden.io/gpu-count": "2",
                    "vramwarden.io/gpu": "GPU-1,GPU-2",
                },
            ),
            GpuRequest(RequestForm.SHARE, 2, 8 * GIB, cards=frozenset({"GPU-1", "GPU-2"})),
        ),
    ],
)
def test_a_wantedis_read(pod, wanted):
    assert read_request(pod) == wanted


def containers(*limits, init=()):
    def one(name, amounts):
        return {"name": name, "resources": {"limits": amounts}}

    pod = a_pod("p")
    pod["spec"]["containers"] = [one(f"c{index}", some) for index, some in enumerate(limits)]
    pod["spec"]["initContainers"] = [one(f"i{index}", some) for index, some in enumerate(init)]
    return pod


def test_containers_add_up_and_init_containers_do_not():
    assert read_request(containers({GPU: "1"}, {GPU: "2"}, init=[{GPU: "2"}])) == GpuRequest(
        RequestForm.WHOLE, 3
    )
    assert read_request(containers({GPU: "1"}, init=[{GPU: "2"}])) == GpuRequest(
        RequestForm.WHOLE, 2
    )


def test_containers_of_hami_share_a_gpu_and_one_without_an_amount_takes_all_of_it():
    two = containers({GPU: "1", PERCENT: "30"}, {GPU: "1", "nvidia.com/gpumem": "1024"})
    assert read_request(two) == GpuRequest(RequestForm.SHARE, 1, GIB, Fraction(3, 10))
    most = containers({GPU: "1", PERCENT: "60"}, {GPU: "1", PERCENT: "60"})
    assert read_request(most) == GpuRequest(RequestForm.SHARE, 1, part=Fraction(1))
    greedy = containers({GPU: "1"}, {GPU: "1", "nvidia.com/gpumem": "1024"})
    assert read_request(greedy) == GpuRequest(RequestForm.SHARE, 1, GIB, Fraction(1))


def test_requests_count_where_there_is_no_limit():
    pod = containers({})
    pod["spec"]["containers"][0]["resources"] = {"requests": {GPU: "1"}}
    assert read_request(pod) == GpuRequest(RequestForm.WHOLE, 1)


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (whole("p", gpus="some"), "nvidia.com/gpu: some is not a Kubernetes quantity"),
        (whole("p", gpus="0.5"), "nvidia.com/gpu: 0.5 is not a whole number"),
        (whole("p", gpus="-1"), "nvidia.com/gpu: -1 is not a whole number"),
        ({"kind": "Pod", "metadata": {}, "spec": "too large to be read"}, "spec"),
        (a_pod("p", annotations={"vramwarden.io/gpu-memory": "8GB"}), "InvalidQuantity"),
    ],
)
def test_the_error_names_what_is_unreadable(pod, said):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the text is compared below
        read_request(pod)
    assert said in str(raised.value)
