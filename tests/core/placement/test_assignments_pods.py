"""What placement reads of a stored pod."""

from __future__ import annotations

import pytest

from tests.support.assignments import NODE
from tests.support.pods import a_container, a_pod
from webhook.core.placement.assignments import PodState, read_pod_state
from webhook.core.placement.fit import Need
from webhook.core.pod.quantity import MAX_BYTES, MIB


def from_field(path="metadata.annotations['vramwarden.io/gpu']", name="NVIDIA_VISIBLE_DEVICES"):
    env = {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    return a_container(env=[{"name": "A", "value": "1"}, env])


def stored(memory="8Gi", *, phase="Running", containers=None, uid="u-1", **more):
    raw = a_pod(memory, containers=containers or [from_field()], **more)
    raw["metadata"]["uid"] = uid
    return {**raw, "status": {"phase": phase}}


def test_a_bound_pod_is_read_with_all_that_placement_needs():
    raw = stored(
        annotations={"vramwarden.io/gpu": "GPU-a,GPU-b", "vramwarden.io/gpu-count": "2"},
        nodeName=NODE,
    )
    assert read_pod_state(raw) == PodState(
        uid="u-1",
        name="team-a/train",
        need=Need(8 * 1024 * MIB, 2),
        at_binding=True,
        node=NODE,
        uuids=("GPU-a", "GPU-b"),
        finished=False,
        unreadable="",
    )


@pytest.mark.parametrize(
    ("phase", "finished"),
    [
        ("Pending", False),
        ("Running", False),
        ("Unknown", False),
        ("Succeeded", True),
        ("Failed", True),
        (None, False),
    ],
)
def test_a_pod_is_finished_by_its_phase_alone(phase, finished):
    assert read_pod_state(stored(phase=phase)).finished == finished


@pytest.mark.parametrize(
    ("container", "at_binding"),
    [
        (from_field(), True),
        (from_field(path="metadata.annotations['vramwarden.io/visible-devices']"), True),
        (from_field(path="metadata.annotations['vramwarden.io/gpu-waits']"), False),
        (a_container(), False),
        (a_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]), False),
        (from_field(path="metadata.annotations['another']"), False),
        (from_field(name="OTHER"), False),
    ],
)
def test_a_pod_is_placed_at_binding_where_a_container_reads_our_annotation(container, at_binding):
    assert read_pod_state(stored(containers=[container])).at_binding == at_binding


def test_any_container_that_reads_it_is_enough():
    raw = stored(containers=[a_container(), from_field()])
    assert read_pod_state(raw).at_binding


@pytest.mark.parametrize("written", ["", ",", ",,"])
def test_an_empty_annotation_names_no_gpu(written):
    assert read_pod_state(stored(annotations={"vramwarden.io/gpu": written})).uuids == ()


def test_a_pod_without_a_demand_needs_nothing():
    state = read_pod_state(stored(memory=None))
    assert (state.need, state.unreadable) == (None, "")


def test_the_peak_of_init_containers_counts():
    raw = stored(memory="main=2Gi, fetch=5Gi", initContainers=[a_container("fetch")])
    assert read_pod_state(raw).need == Need(5 * 1024 * MIB)


def test_a_demand_that_cannot_be_read_needs_more_than_there_is():
    state = read_pod_state(stored(memory="8GB"))
    assert state.need == Need(MAX_BYTES)
    assert state.unreadable.startswith("InvalidQuantity: metadata.annotations[")


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_a_malformed_pod_needs_more_than_there_is(phase):
    raw = stored(phase=phase)
    raw["spec"]["containers"] = {"name": "main"}
    state = read_pod_state(raw)
    assert state.need == Need(MAX_BYTES)
    assert state.unreadable == "spec.containers: must be a list, not an object"
    assert state.finished == (phase == "Failed")
