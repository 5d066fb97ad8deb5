"""Facts from a pod's metadata, and facts that need the whole pod."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clusters import GIB, a_pod, ago
from webhook.core.pod.fields import find_object
from webhook.tools.snapshot.objects import CachedProperty
from webhook.tools.snapshot.pod import BOUND_WHILE_AWAY, ClusterPod

NOT_CREATED = "CreateContainerConfigError"
GATED = "missing value for VRAMWARDEN_GPU_ASSIGNMENT"


def listed(memory="8Gi", **more):
    """Return a pod as in a list: metadata and two columns."""
    status = more.pop("status", "Running")
    pod = a_pod("train", memory, node="n1", **more)
    return ClusterPod({"metadata": pod["metadata"]}, status=status, node="n1")


def says(**annotations):
    ours = {f"vramwarden.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    return listed(annotations=ours)


def gated(field="initContainerStatuses", message=GATED, **more):
    """Return a stored pod with a container that the kubelet does not create."""
    waiting = {"reason": NOT_CREATED, "message": message}
    statuses = [{"name": "first"}, {"name": "second", "state": {"waiting": waiting}}]
    return ClusterPod(a_pod("train", "8Gi", node="n1", status={field: statuses}, **more))


@pytest.mark.parametrize(
    ("pod", "waits"),
    [
        (gated(), BOUND_WHILE_AWAY),
        (gated("containerStatuses"), BOUND_WHILE_AWAY),
        (gated(annotations={"vramwarden.io/gpu-waits": "no room"}), "no room"),
        (gated(gpus="GPU-a"), ""),
        (gated(message='configmap "c" not found'), ""),
        (listed(status=NOT_CREATED), BOUND_WHILE_AWAY),
        (listed(status=f"Init:{NOT_CREATED}"), BOUND_WHILE_AWAY),
        (listed(status=NOT_CREATED, gpus="GPU-a"), ""),
        (listed(status="Init:ImagePullBackOff"), ""),
    ],
)
def test_a_pod_whose_containers_are_not_created_for_want_of_a_gpu_waits_for_one(pod, waits):
    assert pod.waiting_reason == waits


def test_what_is_kept_of_a_pod_is_known_without_it_and_nothing_else_is():
    pod = says(gpu_waits="no room").project("name", "waiting_reason")
    assert vars(pod) == {"name": "train", "waiting_reason": "no room"}
    with pytest.raises(AttributeError):
        _ = pod.namespace


@pytest.mark.parametrize("memory", ["8GB", "", "a=8Gi,b=1Gi", "main=8Gi", "-1", "9" * 300])
def test_what_is_not_one_quantity_stays_unknown(memory):
    assert says(gpu_memory=memory).requested_bytes is None


@pytest.mark.parametrize("count", ["", "0", "-1", "two", "99999", "²"])
def test_what_is_no_number_of_gpus_is_one(count):
    assert says(gpu_count=count).gpu_count == 1


def test_a_pod_without_the_label_is_not_managed():
    assert not listed(metadata={"labels": {"vramwarden.io/managed": "false"}}).managed
    assert not listed(memory=None).managed


def test_of_the_gpus_in_an_annotation_no_more_are_read_than_a_node_has():
    assert len(says(gpu=",".join(f"GPU-{n}" for n in range(1000)) + ",\x1b[2J").gpus) == 64


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["metadata", "uid", "namespace", "name", "annotations", "labels"])
                | st.sampled_from(
                    ["spec", "status", "conditions", "containers", "message", "type"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_nothing_that_a_server_sends_fails(found):
    raw = found if isinstance(found, dict) else {"metadata": found}
    facts = [name for name, kind in vars(ClusterPod).items() if isinstance(kind, CachedProperty)]
    assert set(vars(ClusterPod(raw).project(*facts, "created_s", "ready"))) > set(facts)


def test_a_whole_pod_says_exactly_what_it_asks_for_and_why_it_has_no_node():
    said = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    status = {"conditions": [{"type": "Ready"}, said]}
    unsaid = {"vramwarden.io/gpu-memory": None}
    pod = ClusterPod(a_pod("p", "8Gi", count=2, status=status, annotations=unsaid))
    assert (pod.requested_bytes, pod.gpu_count, pod.status, pod.node) == (8 * GIB, 2, "Pending", "")
    assert pod.scheduler_message == "0/3 nodes are available"


def test_a_pod_that_is_being_deleted_is_terminating():
    pod = ClusterPod(a_pod("p", node="n1", metadata={"deletionTimestamp": ago(1)}))
    assert (pod.status, pod.node) == ("Terminating", "n1")


def test_of_a_pod_with_a_malformed_part_the_rest_is_known():
    pod = ClusterPod(a_pod("train", "8Gi") | {"spec": {"containers": 1}})
    assert (pod.name, pod.requested_bytes, pod.gpu_count) == ("train", 8 * GIB, 1)


@pytest.mark.parametrize("odd", [None, 7, "text", [], True])
def test_what_is_no_object_reads_as_an_empty_one(odd):
    assert find_object({"a": odd}, "a") == find_object({"a": odd}, "a", "b") == {}
    assert find_object({"a": {"b": odd}}, "a", "b") == {}
    assert find_object({"a": {"b": {"c": 1}}}, "a", "b") == {"c": 1}


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ({}, {}),
        ({"state": {"running": {}}}, {}),
        ({"state": {"terminated": {"exitCode": 70}}}, {"exitCode": 70}),
        (
            {"lastState": {"terminated": {"exitCode": 88}}, "state": {"running": {}}},
            {"exitCode": 88},
        ),
        ({"state": {"terminated": "70"}}, {}),
    ],
)
def test_how_the_enforcer_ended_is_read_also_after_a_restart(status, ended):
    others = {"name": "main", "state": {"terminated": {"exitCode": 1}}}
    statuses = [others, {"name": "vram-enforcer", **status}]
    pod = ClusterPod({"status": {"containerStatuses": statuses}})
    assert pod.enforcer_termination() == ended


@pytest.mark.parametrize(
    ("admitted", "rule"),
    [("v1 team 0123456789ab", '"team"'), ("v1 team", ""), ("", ""), ('v1 a"b 0123456789ab', "")],
)
def test_the_rule_is_read_from_our_mark(admitted, rule):
    annotations = {"vramwarden.io/admitted": admitted}
    assert ClusterPod({"metadata": {"annotations": annotations}}).rule == rule
