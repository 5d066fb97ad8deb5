"""What the parts of placement report to each other in a replica."""

from __future__ import annotations

import itertools
from dataclasses import replace

from tests.support.api_server import ApiServer
from tests.support.logs import RecordedLog
from webhook.adapters.kube.placement import GpuNode
from webhook.core.nvidia.device_names import DeviceNames
from webhook.core.placement.assignments import PodState, Waits
from webhook.core.placement.fit import Need
from webhook.core.pod.gpus import Gpu
from webhook.server.metrics import Metrics
from webhook.server.placement.service import PlacementService

NODE = GpuNode(
    name="n1",
    gpus=(Gpu(uuid="GPU-a", memory_bytes=10, product="X", index=0),),
    device_names=DeviceNames.NONE,
)
WAITS = PodState(uid="p1", name="team/train", need=Need(5), node="n1", waits=Waits())


def test_a_pod_that_waits_is_tried_again_when_its_node_changes():
    service = PlacementService(ApiServer().kube(), "sys", Metrics(), RecordedLog())
    tracker, late = service._tracker, service._late
    late._clock = itertools.count().__next__  # each reading is a second later
    tracker._on_nodes([NODE, replace(NODE, name="n2")])
    tracker._on_pods([WAITS, replace(WAITS, uid="p2", name="team/other", node="n2")])
    assert sorted(late._next(0)) == ["n1", "n2"]
    tracker._on_node("MODIFIED", replace(NODE, device_names=DeviceNames.UUID))
    assert late._next(0) == ["n1"]
