"""GPU requests of pods in the form of each product."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import pytest

from tests.support.foreign_clusters import a_pod, hami, kai, whole
from webhook.core.pod.quantity import MIB
from webhook.tools.simulate.gpu_requests import GpuRequest, RequestForm, read_request

GIB = 2**30
GPU, PERCENT = "nvidia.com/gpu", "nvidia.com/gpumem-percentage"
VOLCANO, GPUSHARE = "volcano.sh/vgpu", "aliyun.com/gpu-mem"
OURS = {"vramwarden.io/gpu-memory": "8Gi"}
OURS_ON_TWO = OURS | {"vramwarden.io/gpu-count": "2"}
IN_MIB = {GPU: "1", "nvidia.com/gpumem": "1024"}

whole_gpus = partial(GpuRequest, RequestForm.WHOLE)
share = partial(GpuRequest, RequestForm.SHARE)


def containers(*limits, init=()):
    def one(name, amounts):
        return {"name": name, "resources": {"limits": amounts}}

    pod = a_pod("p")
    pod["spec"]["containers"] = [one(f"c{index}", some) for index, some in enumerate(limits)]
    pod["spec"]["initContainers"] = [one(f"i{index}", some) for index, some in enumerate(init)]
    return pod


@pytest.mark.parametrize(
    ("pod", "wanted"),
    [
        (a_pod("p"), None),
        (a_pod("p", **{GPU: 0}), None),
        (a_pod("p", **{"amd.com/gpu": 1}), None),
        (whole("p", gpus=2), whole_gpus(2)),
        (a_pod("p", **{"nvidia.com/gpu.shared": 3}), GpuRequest(RequestForm.REPLICA, 3)),
        (a_pod("p", **{"nvidia.com/mig-1g.10gb": 2}), GpuRequest(RequestForm.SLICE, 2)),
        (hami("p", memory=3000), share(1, 3000 * MIB)),
        (a_pod("p", **{"nvidia.com/gpumem": 3000}), share(1, 3000 * MIB)),
        (a_pod("p", **{GPU: 2, PERCENT: 30}), share(2, part=Fraction(3, 10))),
        (a_pod("p", **{GPU: 1, PERCENT: 300}), share(1, part=Fraction(1))),
        (a_pod("p", **{GPU: 1, "nvidia.com/gpucores": 30}), whole_gpus(1)),
        (a_pod("p", **{f"{VOLCANO}-number": 2, f"{VOLCANO}-memory": 1024}), share(2, GIB)),
        (a_pod("p", **{f"{VOLCANO}-number": 1}), share(1, part=Fraction(1))),
        (kai("p", **{"gpu-fraction": "0.5"}), share(1, part=Fraction(1, 2))),
        (kai("p", **{"gpu-fraction": "7"}), share(1, part=Fraction(1))),
        (kai("p", **{"gpu-memory": "2048"}), share(1, 2 * GIB)),
        (kai("p", **{"gpu-memory": "2048", "gpu-fraction-num-devices": "2"}), share(2, 2 * GIB)),
        (kai("p", **{"gpu-memory": "8Gi"}), None),  # KAI reads plain numbers
        (a_pod("p", **{GPUSHARE: 3}), share(1, 3 * GIB)),
        (a_pod("p", **{GPUSHARE: "2k"}), share(1, 2000 * 2**20)),
        (a_pod("p", annotations=OURS), share(1, 8 * GIB)),
        (a_pod("p", annotations=OURS_ON_TWO), share(2, 8 * GIB)),
        # Requests of containers add up; those of init containers do not.
        (containers({GPU: "1"}, {GPU: "2"}, init=[{GPU: "2"}]), whole_gpus(3)),
        (containers({GPU: "1"}, init=[{GPU: "2"}]), whole_gpus(2)),
        # HAMi's containers share a GPU. A container without an amount takes all of it.
        (containers({GPU: "1", PERCENT: "30"}, IN_MIB), share(1, GIB, Fraction(3, 10))),
        (containers(*[{GPU: "1", PERCENT: "60"}] * 2), share(1, part=Fraction(1))),
        (containers({GPU: "1"}, IN_MIB), share(1, GIB, Fraction(1))),
    ],
)
def test_a_request_is_read(pod, wanted):
    assert read_request(pod) == wanted


def test_requests_count_where_there_is_no_limit():
    pod = containers({})
    pod["spec"]["containers"][0]["resources"] = {"requests": {GPU: "1"}}
    assert read_request(pod) == whole_gpus(1)


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
