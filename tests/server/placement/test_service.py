"""Events between the parts of placement in one replica."""

from __future__ import annotations

import itertools
from dataclasses import replace

from tests.support.api_server import ApiServer
from tests.support.pods import a_pod, a_policy, a_rule
from tests.support.recorded_log import RecordedLog
from webhook.adapters.kube.placement import GpuNode
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.placement.fit import Need
from webhook.core.placement.pod_state import PendingAssignment, PodState
from webhook.core.pod.gpus import EnforceBy, Gpu
from webhook.core.policy.cluster import Cluster
from webhook.names import ADMITTED_ANNOTATION, VRAM_RESOURCE
from webhook.server.metrics import Metrics
from webhook.server.placement.service import PlacementService

ADMITTED = {ADMITTED_ANNOTATION: "v1 a-rule-that-is-gone 0123456789ab"}
PODS = "/api/v1/namespaces/ml/pods"
NODE = GpuNode(
    name="n1",
    gpus=(Gpu(uuid="GPU-a", memory_bytes=10, product="X", index=0),),
    device_names=DeviceNames.NONE,
)
WAITS = PodState(uid="p1", name="team/train", need=Need(5), node="n1", pending=PendingAssignment())


def a_service(server, policy, **namespaces):
    """Return placement under a policy, in a cluster with these namespace labels."""
    known = Cluster(namespaces=namespaces)
    told = Metrics(), RecordedLog()
    return PlacementService(server.kube(), "sys", *told, lambda: policy, lambda _: known)


def test_terms_are_those_of_the_policy_in_force_and_of_the_labels_for_which_it_asks():
    server = ApiServer()
    raw = a_pod("8Gi", labels={"queue": "night", "other": "x"}, annotations=ADMITTED)
    raw["spec"]["containers"][0]["resources"] = {"limits": {VRAM_RESOURCE: "8Gi"}}
    server.put(f"{PODS}/train", raw)

    def night(tier):
        return a_rule(
            name="night",
            enforcement={"grace": "9s"},
            pod_labels={"queue": "night"},
            namespace_labels={"tier": tier},
        )

    for tier, grace_s in (("gold", 9), ("tin", 5)):
        service = a_service(server, a_policy(night("gold"), a_rule()), ml={"tier": tier})
        for api in (service.binder._api, service._late._api, service._maintenance._api):
            pod = api.pod("ml", "train")
            assert pod.admission.subject.pod_labels == {"queue": "night"}
            terms = service._lists._find_terms(pod)
            assert (terms.by, terms.grace_s) == (EnforceBy.SENTRY, grace_s)
    watched = service._tracker.pods._collection.project(server.objects[f"{PODS}/train"])
    assert watched == pod


def test_a_pod_that_waits_is_tried_again_when_its_node_changes():
    service = a_service(ApiServer(), a_policy())
    tracker, late = service._tracker, service._late
    late._clock = itertools.count().__next__  # each call returns one second more
    tracker._on_nodes([NODE, replace(NODE, name="n2")])
    tracker._on_pods([WAITS, replace(WAITS, uid="p2", name="team/other", node="n2")])
    assert sorted(late._wait_for_nodes(0)) == ["n1", "n2"]
    tracker._on_node("MODIFIED", replace(NODE, device_names=DeviceNames.UUID))
    assert late._wait_for_nodes(0) == ["n1"]
