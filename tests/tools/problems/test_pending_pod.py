"""Pods without a node: order of the reasons, and useful advice."""

from __future__ import annotations

import pytest

from tests.support.clusters import GIB, NOW_S, a_gpu, a_node, a_pod, held
from webhook.core.placement.fit import Need
from webhook.tools.problems.capacity import find_fits
from webhook.tools.problems.pending_pod import Room, find_pending, other_scheduler_reasons
from webhook.tools.problems.problem import Code, Severity
from webhook.tools.snapshot.pod import ClusterPod

NODES = [a_node("n1", a_gpu(79, held("old", 60)), a_gpu(79, held("other", 60))).figures]
DENIED = 'admission webhook "bind.vramwarden.io" denied the request: no GPU of n1 has so much'


@pytest.mark.parametrize(
    ("message", "reasons"),
    [
        ("", []),
        ("0/2 nodes are available: 2 Insufficient vramwarden.io/vram. preemption: x", []),
        ("0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient vramwarden.io/vram.",
         ["1 Insufficient cpu"]),
        ("0/2 nodes are available: 1 node(s) had untolerated taint {a: b}.", []),
        ("0/2 nodes are available: 1 node(s) were unschedulable.", []),
        ("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.", []),
        ('0/1 nodes are available: pvc "m" not found.', ['pvc "m" not found']),
        ("something new", ["something new"]),
        (f"binding rejected: {DENIED}", []),
    ],
)  # fmt: skip
def test_reasons_of_the_scheduler_that_are_neither_about_memory_nor_about_nodes(message, reasons):
    assert other_scheduler_reasons(message) == reasons


def pending(memory=30, message="", names=(), nodes=NODES, **pod):
    """Return the problems of a Deployment's pod; the named pods of its namespace have GPUs."""
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    status = {"conditions": [condition]}
    owner = pod.pop("owner", "Deployment/web")
    one = ClusterPod(a_pod("new", f"{memory}Gi", owner=owner, status=status, **pod))
    need = Need(memory * GIB)
    fits = find_fits(one, need, nodes, None, NOW_S)
    named = {other.uid: other for other in names}
    room = Room(need=need, nodes=nodes, fits=fits, own_pods=named, reads_nodes=False)
    return [*find_pending(one, room, explained=False)]


def codes(problems):
    return [problem.code for problem in problems]


def test_a_denied_binding_is_only_a_note_if_the_figures_say_the_same():
    assert pending(message=DENIED)[-1].severity is Severity.INFO
    assert pending(8, DENIED)[-1].severity is Severity.WARNING
    assert codes(pending(8, DENIED)) == [Code.BINDING_DENIED]


OLD = {"kind": "ReplicaSet", "name": "web-7f", "uid": "web-7f", "controller": True}


def old_pod(owner="Deployment/web", replica_set="7f", **metadata):
    made = a_pod("old", "60Gi", node="n1", gpus="GPU-n1-0", owner=owner)
    if owner.startswith("Deployment/"):
        name = f"{owner.partition('/')[2]}-{replica_set}"
        made["metadata"]["ownerReferences"][0] |= {"name": name, "uid": name}
        made["metadata"]["labels"]["pod-template-hash"] = replica_set
    return ClusterPod(made)


@pytest.mark.parametrize(
    ("old", "owner", "blocked"),
    [
        pytest.param(old_pod(), "Deployment/web", True, id="an older ReplicaSet"),
        pytest.param(old_pod(replica_set="5d9c7"), "Deployment/web", False, id="its own"),
        pytest.param(old_pod("Deployment/api"), "Deployment/web", False, id="another Deployment"),
        pytest.param(old_pod("Job/web-29384755"), "Job/web-29384756", False, id="a CronJob"),
    ],
)
def test_a_rollout_blocks_itself_by_an_older_replica_set_of_its_deployment(old, owner, blocked):
    found = [
        problem
        for problem in pending(names=[old], owner=owner)
        if problem.code is Code.BLOCKED_ROLLOUT
    ]
    assert bool(found) == blocked
    assert all("maxSurge: 0 and maxUnavailable: 1" in problem.fix for problem in found)


@pytest.mark.parametrize(
    ("spec", "memory", "names", "fix"),
    [
        ({"priority": 9}, 30, [old_pod("Job/x")], "delete old yourself, if it matters less"),
        ({"priority": 9}, 30, [], ""),
        ({"priority": 9}, 30, [old_pod()], None),  # the rollout gets other advice
        ({"priority": 9}, 60, [old_pod("Job/x")], None),  # no node has that sum: it preempts
        ({"priority": 0}, 30, [old_pod("Job/x")], None),
        ({}, 30, [old_pod("Job/x")], None),
    ],
)
def test_a_priority_does_not_help_where_memory_is_in_pieces(spec, memory, names, fix):
    found = [
        problem.fix
        for problem in pending(memory, names=names, **spec)
        if "preempts" in problem.message
    ]
    assert found == ([] if fix is None else [fix])
