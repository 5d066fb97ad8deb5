"""The quality-of-service class that an API server gives a pod, with our sidecar and without."""

from __future__ import annotations

import copy

import pytest

from tests.core.pod.test_compute import GUARANTEED, NOT
from tests.support.our_server import container

ANNOTATION = {"vramwarden.io/gpu-memory": "c0=1Gi"}
# The first two are no pods to an API server; the third asks for VRAM by itself.
LEFT_OUT = {"a malformed limit", "equal in sum only", "another resource"}
PODS = {name: pod for name, pod in {**GUARANTEED, **NOT}.items() if name not in LEFT_OUT}


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_the_sidecar_leaves_the_class_of_a_pod_as_it_is(team, pod):
    plain = team.accepts(copy.deepcopy(pod))
    asking = copy.deepcopy(pod)
    asking["metadata"]["annotations"] = dict(ANNOTATION)
    stored = team.accepts(asking)
    classes = [one["status"]["qosClass"] for one in (plain, stored)]
    # Any amount makes a pod without one Burstable, except where pod-level resources decide.
    alone = "resources" in pod["spec"]
    raised = classes[0] == "BestEffort" and not alone
    assert classes[1] == ("Burstable" if raised else classes[0])
    requests = container(stored, "vram-enforcer")["resources"]["requests"]
    assert (requests["cpu"] == "200m") is (classes[0] == "Guaranteed")
