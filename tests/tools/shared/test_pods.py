"""What a pod's metadata says, and what only the whole pod says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.tools.shared.pods import SeenPod, seen_pod, seen_whole

GIB = 2**30


def metadata(annotations=None, labels=None, **other):
    return {
        "uid": "u1",
        "namespace": "team-a",
        "name": "train",
        "creationTimestamp": "2026-11-21T20:15:04Z",
        "annotations": {f"vramwarden.io/{key}": text for key, text in (annotations or {}).items()},
        "labels": {"vramwarden.io/managed": "true"} if labels is None else labels,
    } | other


def seen(**annotations):
    names = {key.replace("_", "-"): text for key, text in annotations.items()}
    return seen_pod(metadata(names), "Running", "n1")


def test_metadata_and_two_columns_say_nearly_everything():
    assert seen(gpu_memory="8Gi", gpu_count="2", gpu="GPU-a,GPU-b", gpu_waits="no room") == SeenPod(
        "u1",
        "team-a",
        "train",
        "Running",
        "n1",
        1_795_292_104.0,
        ("GPU-a", "GPU-b"),
        8 * GIB,
        2,
        "no room",
        kind="Pod",
        workload="train",
    )


def test_a_pod_belongs_to_what_made_it():
    owner = {"kind": "ReplicaSet", "name": "llama-5d9c7", "controller": True}
    labels = {"pod-template-hash": "5d9c7", "vramwarden.io/managed": "true"}
    pod = seen_pod(metadata(labels=labels, ownerReferences=[owner]))
    assert (pod.kind, pod.workload) == ("Deployment", "llama")


@pytest.mark.parametrize("memory", ["8GB", "", "a=8Gi,b=1Gi", "main=8Gi", "-1", "9" * 300])
def test_what_is_not_one_quantity_stays_unknown(memory):
    assert seen(gpu_memory=memory).asked_bytes is None


@pytest.mark.parametrize("count", ["", "0", "-1", "two", "99999", "²"])
def test_what_is_no_number_of_gpus_is_one(count):
    assert seen(gpu_count=count).gpu_count == 1


def test_a_pod_without_the_label_is_not_managed():
    assert not seen_pod(metadata(labels={"vramwarden.io/managed": "false"})).managed
    assert not seen_pod(metadata(labels={})).managed


def test_what_somebody_wrote_into_annotations_is_bounded():
    pod = seen(gpu_waits="x" * 10_000, gpu=",".join(f"GPU-{n}" for n in range(1000)) + ",\x1b[2J")
    assert (len(pod.waits), len(pod.gpus)) == (300, 64)


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
    for read in (seen_whole(raw), seen_pod(raw)):
        assert read is None or isinstance(read, SeenPod)


def whole(**spec):
    resources = {"limits": {"vramwarden.io/vram": "16Gi"}}
    containers = [{"name": "main", "image": "x", "resources": resources}]
    said = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    return {
        "metadata": metadata({"gpu-count": "2"}),
        "spec": {"containers": containers, **spec},
        "status": {"phase": "Pending", "conditions": [{"type": "Ready"}, said]},
    }


def test_a_whole_pod_says_exactly_what_it_asks_for_and_why_it_has_no_node():
    pod = seen_whole(whole())
    assert (pod.asked_bytes, pod.gpu_count, pod.status, pod.node) == (8 * GIB, 2, "Pending", "")
    assert pod.unscheduled == "0/3 nodes are available"


def test_a_pod_that_is_being_deleted_is_terminating():
    raw = whole(nodeName="n1")
    raw["metadata"]["deletionTimestamp"] = "2026-11-21T20:15:04Z"
    assert (seen_whole(raw).status, seen_whole(raw).node) == ("Terminating", "n1")


def test_of_a_pod_with_a_malformed_part_the_rest_is_known():
    pod = seen_whole({"metadata": metadata({"gpu-memory": "8Gi"}), "spec": {"containers": 1}})
    assert (pod.name, pod.asked_bytes, pod.gpu_count) == ("train", 8 * GIB, 1)
