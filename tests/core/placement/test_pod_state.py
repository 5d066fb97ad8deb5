from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.assignments import NODE, TWO
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from tests.support.strategies import ANY_JSON
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.bounds import MAX_UUID_LENGTH
from webhook.core.formatting import MAX_BYTES
from webhook.core.placement.assignment_codec import read_assignments, write_assignments
from webhook.core.placement.assignments import Assignment, free_bytes_by_gpu, rebuild_from_pods
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.placement.fit import Need
from webhook.core.placement.pod_state import (
    PendingAssignment,
    PodState,
    read_pod_state,
    terms_by_rule,
)
from webhook.core.pod.demand import read_demand
from webhook.core.pod.gpus import MAX_GPUS
from webhook.core.pod.patch import apply_patch
from webhook.core.pod.quantity import MIB
from webhook.core.pod.views import read_pod
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.model import EnforceBy, Placement

VRAM = "vramwarden.io/vram"
GIB = 1024 * MIB


def from_field(
    path="metadata.annotations['vramwarden.io/visible-devices']", name="NVIDIA_VISIBLE_DEVICES"
):
    env = {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    return a_container(env=[{"name": "A", "value": "1"}, env])


def asking(vram, container=None):
    """Return a container that requests VRAM, after admission or any other change."""
    amounts = {VRAM: vram}
    return {**(container or from_field()), "resources": {"requests": amounts, "limits": amounts}}


def stored(memory="8Gi", *, phase="Running", containers=None, uid="u-1", **more):
    raw = a_pod(memory, containers=containers or [asking(memory)], **more)
    raw["metadata"]["uid"] = uid
    return {**raw, "status": {"phase": phase}}


def test_a_bound_pod_is_read_with_all_that_placement_needs():
    raw = stored(
        annotations={"vramwarden.io/gpu": "GPU-a,GPU-b", "vramwarden.io/gpu-count": "2"},
        containers=[asking("16Gi")],
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
        terms=CapTerms(
            cap_bytes=8 * GIB,
            tolerance_bytes=8 * GIB // 50,
            delay_s=1.5,
            enforce=False,
            by=EnforceBy.NONE,
        ),
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
    ("containers", "at_binding"),
    [
        ([from_field()], True),
        ([from_field(path="metadata.annotations['vramwarden.io/gpu']")], False),
        ([a_container()], False),
        ([a_container(), from_field()], True),
        ([a_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])], False),
        ([from_field(path="metadata.annotations['another']")], False),
        ([from_field(name="OTHER")], False),
    ],
)
def test_a_pod_is_placed_at_binding_where_a_container_reads_our_annotation(containers, at_binding):
    assert read_pod_state(stored(containers=containers)).at_binding == at_binding


def test_what_many_pods_have_in_common_is_in_memory_once():
    more = {"annotations": {"vramwarden.io/gpu": "GPU-a"}, "nodeName": NODE}
    raw = json.dumps(stored("8Gi", containers=[asking("8Gi", from_field())], **more))
    one, other = (read_pod_state(json.loads(raw)) for _ in range(2))
    written = write_assignments(
        {"u": Assignment(pod=one.name, uuids=one.uuids, memory_bytes=1, since_s=1, terms=one.terms)}
    )
    (entry,) = read_assignments(json.loads(json.dumps(written)))[0].values()
    assert entry.terms is one.terms
    assert (one.node, one.uuids) == (NODE, ("GPU-a",))
    assert one.terms is other.terms
    assert one.node is other.node
    assert one.uuids[0] is other.uuids[0] is entry.uuids[0]


@pytest.mark.parametrize("memory", ["8Gi", "8GB", "x=1Gi", None])
@pytest.mark.parametrize("count", [None, "2", "x"])
def test_an_annotation_without_an_amount_takes_nothing_whatever_it_says(memory, count):
    annotations = {"vramwarden.io/gpu": "GPU-a"}
    annotations |= {"vramwarden.io/gpu-count": count} if count else {}
    labels = {"vramwarden.io/managed": "true"}
    for container in (a_container(), from_field()):
        more = {"annotations": annotations, "labels": labels, "nodeName": NODE}
        state = read_pod_state(stored(memory, containers=[container], **more))
        assert (state.need, state.unreadable) == (None, "")
        assert free_bytes_by_gpu(NODE, TWO, {}, {"u-1": state}) == free_bytes_by_gpu(
            NODE, TWO, {}, {}
        )
        assert rebuild_from_pods(NODE, {}, [state], 1.0) == {}


@pytest.mark.parametrize(
    ("vram", "count", "need"),
    [
        ("8Gi", None, Need(8 * GIB)),
        ("8Gi", "4", Need(2 * GIB, 4)),
        ("8Gi", "3", Need(2731 * MIB, 3)),  # rounded up to MiB
        ("1", None, Need(MIB)),
        (str(MAX_BYTES), None, Need(MAX_BYTES)),  # maximum of an assignment list
        # the number of GPUs is unknown: the full amount on each
        ("8Gi", "0", Need(8 * GIB)),
        ("8Gi", "9" * 5, Need(8 * GIB)),
        ("8Gi", "two", Need(8 * GIB)),
        # amounts that no kubelet admits
        ("0", None, None),
        ("-8Gi", None, None),
        ("8Ei", None, None),
        ("1e30", None, None),
        ("8GB", None, None),
    ],
)
def test_the_amount_in_resources_counts_by_the_number_of_gpus(vram, count, need):
    annotations = {"vramwarden.io/gpu-count": count} if count else {}
    raw = stored(None, containers=[asking(vram)], annotations=annotations)
    assert read_pod_state(raw).need == need


BEYOND = [asking("8E"), asking("7E", a_container("b"))]  # the sum is too large for any kubelet
UNEQUAL = a_container(resources={"requests": {VRAM: "2Gi"}, "limits": {VRAM: "1Gi"}})
LIMITED = a_container(resources={"limits": {VRAM: "1Gi"}})  # the API server copies it to requests
OURS = asking("8Gi", a_container("vram-enforcer"))
FETCHES = stored(None, containers=[asking("2Gi")], initContainers=[asking("5Gi", a_container("f"))])


@pytest.mark.parametrize(
    ("raw", "need"),
    [
        pytest.param(stored(None, containers=[a_container()]), None, id="no demand"),
        pytest.param(FETCHES, Need(5 * GIB), id="the peak of init containers"),
        pytest.param(stored(None, containers=BEYOND), None, id="no sum for a kubelet"),
        pytest.param(stored(None, containers=[UNEQUAL]), Need(2 * GIB), id="a request"),
        pytest.param(stored(None, containers=[LIMITED]), Need(GIB), id="without one, the limit"),
        pytest.param(
            stored(None, containers=[a_container()], initContainers=[OURS]),
            Need(8 * GIB),
            id="what a container with the sidecar's name asks for, too",
        ),
    ],
)
def test_what_containers_ask_for_counts_as_the_kubelet_counts_it(raw, need):
    assert read_pod_state(raw).need == need


@pytest.mark.parametrize(
    ("memory", "vram", "why"),
    [
        ("8GB", "4Gi", "InvalidQuantity: metadata.annotations["),
        ("8Gi", "4Gi", "ConflictingAmounts: spec.containers[0]."),
        ("other=4Gi", "4Gi", "UnknownContainer: metadata.annotations["),
    ],
)
def test_an_amount_counts_although_the_annotation_cannot_be_read_or_says_otherwise(
    memory, vram, why
):
    state = read_pod_state(stored(memory, containers=[asking(vram)]))
    assert state.need == Need(4 * GIB)
    assert state.unreadable.startswith(why)


def test_why_a_demand_cannot_be_read_is_cut():
    containers = [a_container(f"{n:a>63}") for n in range(20)]
    state = read_pod_state(stored("x=1Gi", containers=[asking("1Gi"), *containers]))
    assert len(state.unreadable) == 500


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_a_pod_that_no_api_server_stores_takes_nothing(phase):
    raw = stored(phase=phase)
    raw["spec"]["containers"] = {"name": "main"}
    assert read_pod_state(raw) == PodState(
        uid="u-1", name="team-a/train", need=None, finished=phase == "Failed"
    )


@pytest.mark.parametrize(
    ("written", "uuids"),
    [
        *((empty, ()) for empty in ("", ",", ",,")),
        ("GPU-a,GPU-b", ("GPU-a", "GPU-b")),
        ("GPU-b,GPU-a,GPU-b", ("GPU-b", "GPU-a")),  # a repeated UUID counts once
        ("G" * MAX_UUID_LENGTH, ("G" * MAX_UUID_LENGTH,)),
        ("G" * (MAX_UUID_LENGTH + 1) + ",GPU-a", ("GPU-a",)),
        (",".join(map(str, range(9999))), tuple(map(str, range(MAX_GPUS)))),
        (",".join(map(str, range(MAX_GPUS + 1))), tuple(map(str, range(MAX_GPUS)))),
        ("," * 9999 + "GPU-a", ()),
        ("*,GPU-a", ("GPU-a",)),  # `*` means all GPUs in the assignment list
        ('GPU-",GPU-\\,GPU-\u0663,GPU-a', ("GPU-a",)),  # escaped, it is longer in the list
    ],
)
def test_the_gpus_that_an_annotation_names_are_read_within_bounds(written, uuids):
    assert read_pod_state(stored(annotations={"vramwarden.io/gpu": written})).uuids == uuids


AMOUNTS = st.sampled_from([None, "1", "3Gi", "8Gi", "100Gi", "8GB", "-1", "0", "1e30", 7, []])
ANNOTATIONS = st.dictionaries(
    st.sampled_from(["gpu-memory", "gpu-count", "gpu", "admitted", "gpu-class"]).map(
        "vramwarden.io/{}".format
    ),
    st.sampled_from(
        ["", "1", "2", "8GB", "8Gi", "main=8Gi", "GPU-a", "GPU-a,GPU-a", "GPU-a,GPU-b", "x" * 99]
    ),
)


@st.composite
def pods_of_anybody(draw):
    """Draw a pod that bypassed admission, with the amount that a kubelet would count."""
    containers = []
    for number in range(draw(st.integers(1, 3))):
        base = from_field() if draw(st.booleans()) else a_container()
        amount = draw(AMOUNTS)
        containers.append(asking(amount, base) if amount is not None else base)
        containers[-1]["name"] = f"c{number}"
    return stored(None, containers=containers, annotations=draw(ANNOTATIONS), nodeName=NODE)


@given(pods_of_anybody())
def test_nobody_takes_more_of_a_gpu_than_a_kubelet_would_admit(raw):
    state = read_pod_state(raw)
    sizes = {"1": 1, "3Gi": 3 * GIB, "8Gi": 8 * GIB, "100Gi": 100 * GIB, 7: 7}
    asked = [
        container.get("resources", {"requests": {VRAM: "0"}})["requests"][VRAM]
        for container in raw["spec"]["containers"]
    ]
    admitted = sum(sizes.get(request, 0) for request in asked if not isinstance(request, list))
    before, after = (
        free_bytes_by_gpu(NODE, TWO, {}, {}),
        free_bytes_by_gpu(NODE, TWO, {}, {"u-1": state}),
    )
    rounded = -(-admitted // MIB) * MIB
    taken = [before[uuid] - after[uuid] for uuid in before]
    assert max(taken) <= rounded
    if state.at_binding:  # the amount is for all GPUs together
        assert sum(taken) < rounded + len(TWO) * MIB


@given(
    st.dictionaries(st.sampled_from(["main", "b", "fetch"]), st.integers(1, 2**20), min_size=1),
    st.integers(1, 9),
    st.sampled_from(Placement),
    st.sampled_from(EnforceBy),
)
def test_of_a_pod_of_ours_exactly_its_cap_counts(mib, count, placement, by):
    memory = ",".join(f"{name}={amount}Mi" for name, amount in mib.items())
    containers, init = [a_container("main"), a_container("b")], [a_container("fetch")]
    annotations = {"vramwarden.io/gpu-count": str(count)}
    raw = a_pod(memory, containers=containers, initContainers=init, annotations=annotations)
    demand, _ = read_demand(read_pod(raw))
    policy = a_policy(a_rule(placement=placement, enforcement={"by": by}))
    decision = decide(a_request(raw), policy, UNKNOWN_CLUSTER, Phase.MUTATE)
    state = read_pod_state(apply_patch(raw, decision.patch))
    terms = terms_by_rule(state, policy, UNKNOWN_CLUSTER)
    assert (terms.cap_bytes, terms.by) == (demand.per_gpu_bytes, by)
    at_binding = placement is Placement.BINDING
    assert (state.need, state.at_binding) == (Need(demand.per_gpu_bytes, count), at_binding)
    assert state.unreadable == ""


@given(ANY_JSON)
def test_reading_never_fails(value):
    read_pod_state({"metadata": value, "spec": value, "status": value})
    read_pod_state({"metadata": {"annotations": value}, "spec": {"containers": [value]}})


CONTROLLER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1"}


def bare(*, owners=(), deleted=False, **more):
    raw = stored(nodeName=NODE, **more)
    raw["metadata"]["ownerReferences"] = list(owners)
    if deleted:
        raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return raw


@pytest.mark.parametrize(
    ("raw", "pending"),
    [
        (bare(), PendingAssignment()),
        (
            bare(initContainers=[{"name": "vram-enforcer", "restartPolicy": "Always"}]),
            PendingAssignment(),
        ),
        (bare(owners=[CONTROLLER | {"controller": True}]), PendingAssignment(has_controller=True)),
        (bare(owners=[CONTROLLER]), PendingAssignment()),
        (
            bare(annotations={"vramwarden.io/gpu-waits": "x" * 2000}),
            PendingAssignment(last_message="x" * 1024),
        ),
        (bare(deleted=True), None),
        (bare(phase="Succeeded"), None),
        (bare(annotations={"vramwarden.io/gpu": "GPU-a"}), None),
        (bare(containers=[asking("8Gi", a_container())]), None),
        (bare(containers=[from_field()]), None),
        (stored(), None),
    ],
)
def test_a_pod_that_is_bound_without_a_gpu_waits_for_one(raw, pending):
    assert read_pod_state(raw).pending == pending
