"""Which nodes a pod may run on, and what is unknown is no mismatch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.clusters import NOW_S, a_gpu, a_node
from webhook.core.node.limits import Proof
from webhook.tools.problems.eligibility import find_mismatch, requires_sentry
from webhook.tools.problems.problem import Code
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.pod import ClusterPod

NODE = a_node("n1", a_gpu(79)).figures
UNENFORCED = a_node("n1", a_gpu(79), enforcement="none").figures


def mismatch(pod, node, seen):
    return find_mismatch(ClusterPod(pod), node, seen, NOW_S)


def requires(*expressions, field="matchExpressions"):
    terms = {"nodeSelectorTerms": [{field: [one]} for one in expressions]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {"spec": {"affinity": affinity}}


def expression(key, operator, *values):
    return {"key": key, "operator": operator, "values": list(values)}


def labelled(**labels):
    return a_node("n1", labels=labels).read


@pytest.mark.parametrize(
    ("operator", "values", "label", "holds"),
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
def test_an_expression_holds_as_the_scheduler_says(operator, values, label, holds):
    seen = labelled() if label is None else labelled(k=label)
    found = mismatch(requires(expression("k", operator, *values)), NODE, seen)
    assert (found is None) == holds


def test_one_term_that_holds_is_enough():
    pod = requires(expression("k", "In", "a"), expression("k", "In", "b"))
    assert mismatch(pod, NODE, labelled(k="b")) is None
    assert mismatch(pod, NODE, labelled(k="c"))[1] == "the pod wants k In a, and it has c"


def test_a_term_may_name_the_node():
    pod = requires(expression("metadata.name", "In", "n2"), field="matchFields")
    assert mismatch(pod, NODE, labelled())[0] is Code.NODE_SELECTOR
    pod = requires(expression("metadata.name", "In", "n1"), field="matchFields")
    assert mismatch(pod, NODE, labelled()) is None


def test_the_size_of_gpus_is_judged_by_the_gpus_and_not_by_their_label():
    pod = requires(expression("vramwarden.io/gpu-memory-mib", "Gt", "81919"))
    assert mismatch(pod, NODE, labelled()) is None


@pytest.mark.parametrize(
    ("spec", "known", "reason"),
    [
        ({"nodeSelector": {"zone": "a"}}, None, None),
        ({"nodeSelector": {"zone": "a"}}, {"zone": "a"}, None),
        ({"nodeSelector": {"zone": "a"}}, {}, Code.NODE_SELECTOR),
    ],
)
def test_a_label_that_nobody_may_read_is_no_mismatch(spec, known, reason):
    seen = None if known is None else labelled(**known)
    found = mismatch({"spec": spec}, NODE, seen)
    assert (found and found[0]) == reason


def test_the_figures_alone_say_where_no_sidecar_can_measure():
    pod = requires(expression("vramwarden.io/enforcement", "In", "sidecar"))
    assert mismatch(pod, NODE, None) is None
    assert mismatch(pod, UNENFORCED, None)[0] is Code.NO_ENFORCEMENT


@pytest.mark.parametrize(
    ("limit", "label", "why"),
    [
        (Proof(holds=True), None, ""),
        (Proof(holds=True), {}, "it proved that its driver holds caps, and its agent has not"),
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


def test_a_taint_that_only_advises_repels_nobody():
    taint = {"key": "k", "value": "v", "effect": "PreferNoSchedule"}
    assert mismatch({}, NODE, a_node("n1", taints=(taint,)).read) is None


@pytest.mark.parametrize(
    ("effect", "reason"), [(None, Code.CORDONED), ("NoExecute", Code.CORDONED), ("", None)]
)
def test_a_cordoned_node_is_for_who_tolerates_that_alone(effect, reason):
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": effect}
    pod = {"spec": {"tolerations": [] if effect is None else [toleration]}}
    found = mismatch(pod, NODE, a_node("n1", unschedulable=True).read)
    assert (found and found[0]) == reason


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


@pytest.mark.parametrize(
    ("verdict", "held", "code"),
    [
        ("Draining: a plugin", "", Code.DRAINING),
        ("Shared: yes", "a plugin", None),
        (None, "a plugin", Code.DRAINING),
    ],
)
def test_a_nodes_own_verdict_is_newer_than_its_figures(verdict, held, code):
    figures = a_node("n1", a_gpu(79), held=held).figures
    notes = {"vramwarden.io/sharing": verdict}
    node = a_node("n1", a_gpu(79), annotations=notes).read if verdict else None
    found = mismatch({}, figures, node)
    assert (found and found[0]) == code
