"""Nodes on which a pod may run. Unknown facts never exclude a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.clusters import NOW_S, a_gpu, a_node
from webhook.core.nvidia.drivers import Proof
from webhook.tools.problems.eligibility import find_mismatch, requires_sentry
from webhook.tools.problems.problem import Code
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.pod import ClusterPod

NODE = a_node("n1", a_gpu(79)).figures
UNENFORCED = a_node("n1", a_gpu(79), enforcement="none").figures


def mismatch(pod, node, seen):
    return find_mismatch(ClusterPod(pod), node, seen, NOW_S)


def requires(*expressions, field="matchExpressions"):
    terms = {"nodeSelectorTerms": [{field: [expression]} for expression in expressions]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {"spec": {"affinity": affinity}}


def expression(key, operator, *values):
    return {"key": key, "operator": operator, "values": list(values)}


def labelled(**labels):
    return a_node("n1", labels=labels).read


@pytest.mark.parametrize(
    ("operator", "values", "label", "is_met"),
    [
        ("In", ["a", "b"], "b", True),
        ("In", ["a"], "b", False),
        ("In", ["a"], None, False),
        ("NotIn", ["a"], "b", True),
        ("NotIn", ["b"], "b", False),
        ("NotIn", ["b"], None, True),
        ("Exists", [], "", True),
        ("Exists", [], None, False),
        ("DoesNotExist", [], None, True),
        ("DoesNotExist", [], "x", False),
        ("Gt", ["7"], "8", True),
        ("Gt", ["8"], "8", False),
        ("Gt", ["8"], None, False),
        ("Gt", ["x"], "8", False),
        ("Lt", ["8"], "7", True),
        ("Lt", [], "7", False),
        ("Like", ["b"], "b", False),
    ],
)
def test_an_expression_holds_as_the_scheduler_says(operator, values, label, is_met):
    seen = labelled() if label is None else labelled(k=label)
    found = mismatch(requires(expression("k", operator, *values)), NODE, seen)
    assert (found is None) == is_met


def named(node):
    return requires(expression("metadata.name", "In", node), field="matchFields")


def tolerates_cordons(effect):
    key = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    return {"spec": {"tolerations": [key | {"effect": effect}]}}


def says(verdict):
    return a_node("n1", a_gpu(79), annotations={"vramwarden.io/sharing": verdict}).read


A_OR_B = requires(expression("k", "In", "a"), expression("k", "In", "b"))
CARDS = requires(expression("vramwarden.io/gpu-memory-mib", "Gt", "81919"))
ZONE = {"spec": {"nodeSelector": {"zone": "a"}}}
SIDECAR = requires(expression("vramwarden.io/enforcement", "In", "sidecar"))
ADVICE = {"key": "k", "value": "v", "effect": "PreferNoSchedule"}
CORDONED = a_node("n1", unschedulable=True).read
HELD = a_node("n1", a_gpu(79), held="a plugin").figures
ROWS = {
    "one term that holds is enough": (A_OR_B, NODE, labelled(k="b"), None),
    "no term holds": (A_OR_B, NODE, labelled(k="c"), Code.NODE_SELECTOR),
    "a term names the node": (named("n1"), NODE, labelled(), None),
    "a term names another node": (named("n2"), NODE, labelled(), Code.NODE_SELECTOR),
    "a size, judged by the GPUs and not by their label": (CARDS, NODE, labelled(), None),
    "a label": (ZONE, NODE, labelled(zone="a"), None),
    "a label that is missing": (ZONE, NODE, labelled(), Code.NODE_SELECTOR),
    "a label that nobody may read": (ZONE, NODE, None, None),
    "sidecars, by figures alone": (SIDECAR, NODE, None, None),
    "no sidecars, by figures alone": (SIDECAR, UNENFORCED, None, Code.NO_ENFORCEMENT),
    "a taint that only advises": ({}, NODE, a_node("n1", taints=(ADVICE,)).read, None),
    "cordoned": ({}, NODE, CORDONED, Code.CORDONED),
    "cordoned, with another effect": (
        tolerates_cordons("NoExecute"), NODE, CORDONED, Code.CORDONED,
    ),
    "cordoned, and tolerated": (tolerates_cordons(""), NODE, CORDONED, None),
    "a verdict newer than figures": ({}, NODE, says("Draining: a plugin"), Code.DRAINING),
    "shared again since figures": ({}, HELD, says("Shared: yes"), None),
    "no verdict": ({}, HELD, None, Code.DRAINING),
}  # fmt: skip
"""A pod, a node's figures, the node if readable, and why the pod may not run on the node."""


@pytest.mark.parametrize(("pod", "node", "seen", "code"), ROWS.values(), ids=ROWS)
def test_a_node_is_eligible_or_not(pod, node, seen, code):
    found = mismatch(pod, node, seen)
    assert (found and found[0]) == code


def test_a_mismatch_says_what_is_wanted_and_what_there_is():
    found = mismatch(A_OR_B, NODE, labelled(k="c"))
    assert found[1] == "the pod wants k In a, and it has c"


@pytest.mark.parametrize(
    ("limit", "label", "why"),
    [
        (Proof(holds=True), None, ""),
        (
            Proof(holds=True),
            {},
            "it proved that its driver holds caps, and its agent has not",
        ),
        (Proof(holds=False, why="too old"), None, "its driver holds no caps: too old"),
        (Proof(holds=False), {}, "its driver holds no caps"),
        (None, None, "no limiter reports there (limiter.enabled)"),
        (None, {"vramwarden.io/driver-limit": "true"}, ""),
    ],
)
def test_a_node_whose_driver_does_not_hold_caps_says_why(limit, label, why):
    pod = {"spec": {"nodeSelector": {"vramwarden.io/driver-limit": "true"}}}
    node = a_node("n1", a_gpu(79), limit=limit).figures
    found = mismatch(pod, node, None if label is None else labelled(**label))
    assert bool(found) == bool(why)
    assert found is None or (found[0] is Code.NO_DRIVER_LIMIT and found[1].startswith(why))


def test_a_node_is_read_without_what_is_not_as_kubernetes_stores_it():
    raw = {
        "metadata": {"name": "n1", "labels": {"a": "b", "c": 1}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}, 7], "unschedulable": True},
    }
    node = ClusterNode(raw)
    assert (node.name, node.labels, node.unschedulable) == ("n1", {"a": "b"}, True)
    assert node.taints == (("k", "", "NoSchedule"),)


@pytest.mark.parametrize(
    ("key", "container", "requires_it"),
    [
        ("vramwarden.io/sentry", "main", True),
        ("vramwarden.io/sentry", "vram-enforcer", False),
        ("vramwarden.io/enforcement", "main", False),
    ],
)
def test_a_pod_by_sentry_has_no_sidecar_and_requires_the_label(key, container, requires_it):
    pod = requires(expression(key, "In", "true"))
    pod["spec"]["initContainers"] = [{"name": container}]
    assert requires_sentry(ClusterPod(pod)) is requires_it


@pytest.mark.parametrize(("age_s", "reason"), [(120, None), (121, Code.NO_SENTRY)])
def test_figures_alone_say_whether_a_node_has_a_sentry_that_acts(age_s, reason):
    guarded = a_node("n1", a_gpu(79, measured=True), age_s=age_s).figures
    pod = requires(expression("vramwarden.io/sentry", "In", "true"))
    found = mismatch(pod, replace(guarded, acts=True), None)
    assert (found and found[0]) == reason
