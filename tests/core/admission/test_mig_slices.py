"""Pods under `accounting: MIG`: slices, other fields of the translation, and denials."""

from __future__ import annotations

import copy

import pytest

from tests.core.admission.device_plugin import (
    A100,
    H200,
    MIG,
    SLICE,
    a_sliced_node,
    decide_under,
    policy_and_cluster,
    read_limits,
    read_node_terms,
    translate_under,
    variables,
)
from tests.support.pods import A100 as A100_CLASS
from tests.support.pods import a_container, a_pod, a_policy, a_rule
from webhook.core.admission.decision import Phase
from webhook.core.pod.findings import Reason
from webhook.core.policy.cluster import UNKNOWN_CLUSTER, Cluster
from webhook.core.policy.model import Accounting, GPUClass

MIG_CLASS = GPUClass("sliced", {"pool": "mig"}, (), Accounting.MIG)

# The request, and the smallest profile by memory in the node label, not by name.
SIZES = {
    "64Mi": "1g.10gb",
    "8Gi": "1g.10gb",
    "9728Mi": "1g.10gb",
    "9729Mi": "1g.20gb",
    "10Gi": "1g.20gb",
    "19968Mi": "1g.20gb",
    "20Gi": "3g.40gb",
}


@pytest.mark.parametrize(("memory", "profile"), SIZES.items())
def test_a_demand_gets_the_smallest_slice_that_its_label_says_is_enough(memory, profile):
    pod = translate_under(a_pod(memory), policy_and_cluster())
    (container,) = pod["spec"]["containers"]
    amounts = {f"{SLICE}{profile}": "1"}
    assert container["resources"] == {"requests": amounts, "limits": amounts}


def test_no_node_with_a_smaller_slice_of_that_name_is_chosen():
    """A slice of the same name may have less memory on another GPU."""
    assert read_node_terms(translate_under(a_pod("8Gi"), policy_and_cluster())) == [
        ["nvidia.com/mig-1g.10gb.memory Gt 8191"]
    ]
    nodes = (a_sliced_node({"1g.10gb": 9728}), a_sliced_node({"1g.10gb": 9984}))
    pod = translate_under(a_pod("9800Mi"), policy_and_cluster(MIG, *nodes))
    assert read_limits(pod) == {"main": {f"{SLICE}1g.10gb": "1"}}
    assert read_node_terms(pod) == [["nvidia.com/mig-1g.10gb.memory Gt 9799"]]


def test_nothing_of_ours_holds_the_cap_and_none_of_our_nodes_is_asked_for():
    pod = translate_under(
        a_pod("8Gi", containers=[a_container(), a_container("side")]), policy_and_cluster()
    )
    assert not pod["spec"].get("initContainers")
    assert "shareProcessNamespace" not in pod["spec"]
    assert "nodeSelector" not in pod["spec"]
    main, side = pod["spec"]["containers"]
    # A pod's own variable overrides the device plugin.
    assert "NVIDIA_VISIBLE_DEVICES" not in variables(main)
    assert variables(main)["VRAMWARDEN_GPU_MEMORY_MIB"] == "8192"
    assert "VRAMWARDEN_GPU_MEMORY_FRACTION" not in variables(main)
    assert variables(side) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert pod["metadata"]["labels"] == {"vramwarden.io/managed": "true"}


def test_a_variable_that_chooses_devices_is_taken_out_whatever_wrote_it():
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}, {"name": "A", "value": "b"}]
    pod = translate_under(a_pod("8Gi", containers=[a_container(env=env)]), policy_and_cluster())
    assert "NVIDIA_VISIBLE_DEVICES" not in variables(pod["spec"]["containers"][0])
    assert variables(pod["spec"]["containers"][0])["A"] == "b"


def test_several_gpus_are_several_slices():
    notes = {"vramwarden.io/gpu-count": "3"}
    pod = translate_under(a_pod("8Gi", annotations=notes), policy_and_cluster())
    assert read_limits(pod) == {"main": {f"{SLICE}1g.10gb": "3"}}


def test_each_container_has_its_own_slice_and_all_are_of_one_node():
    containers = [a_container("a"), a_container("b"), a_container("c")]
    pod = a_pod("a=9Gi,b=15Gi", containers=containers)
    nodes = (a_sliced_node(A100), a_sliced_node(H200))
    stored = translate_under(pod, policy_and_cluster(MIG, *nodes))
    # Each alone would get 1g.10gb (A100) and 1g.18gb (H200), but no node offers both.
    assert read_limits(stored) == {
        "a": {f"{SLICE}1g.10gb": "1"},
        "b": {f"{SLICE}1g.20gb": "1"},
        "c": {},
    }
    assert read_node_terms(stored) == [
        ["nvidia.com/mig-1g.10gb.memory Gt 9215", "nvidia.com/mig-1g.20gb.memory Gt 15359"]
    ]


def test_two_of_one_profile_want_the_larger_amount():
    pod = a_pod("a=1Gi,b=9Gi", containers=[a_container("a"), a_container("b")])
    assert read_node_terms(translate_under(pod, policy_and_cluster())) == [
        ["nvidia.com/mig-1g.10gb.memory Gt 9215"]
    ]


SELECTED = {
    "the pod's selector": (MIG, {}, {"nodeSelector": {"pool": "b"}}),
    "the rule's": (a_rule(accounting=Accounting.MIG, node_selector={"pool": "b"}), {}, {}),
    "the class's": (
        MIG,
        {"classes": {"b": GPUClass("b", {"pool": "b"}, ())}},
        {"annotations": {"vramwarden.io/gpu-class": "b"}},
    ),
}


@pytest.mark.parametrize(("rule", "changes", "fields"), SELECTED.values(), ids=SELECTED)
def test_slices_of_nodes_that_are_not_selected_do_not_count(rule, changes, fields):
    nodes = (a_sliced_node(A100, pool="a"), a_sliced_node(H200, pool="b"))
    pod = translate_under(a_pod("8Gi", **fields), policy_and_cluster(rule, *nodes, **changes))
    assert read_limits(pod) == {"main": {f"{SLICE}1g.18gb": "1"}}


def test_a_class_may_have_slices_where_the_rule_has_none_and_the_other_way_round():
    classes = {"sliced": MIG_CLASS, "a100": A100_CLASS}
    nodes = (a_sliced_node(A100, pool="mig"),)
    policy = a_policy(classes=classes), Cluster(sliced_nodes=nodes)
    notes = {"vramwarden.io/gpu-class": "sliced"}
    pod = translate_under(a_pod("8Gi", annotations=notes), policy)
    assert read_limits(pod) == {"main": {f"{SLICE}1g.10gb": "1"}}
    assert pod["spec"]["nodeSelector"] == {"pool": "mig"}
    assert "initContainers" not in pod["spec"]
    assert read_limits(translate_under(a_pod("8Gi"), policy)) == {
        "main": {"vramwarden.io/vram": "8Gi"}
    }

    vram = GPUClass("whole", {}, (), Accounting.VRAM)
    policy = policy_and_cluster(MIG, classes={"whole": vram})
    pod = translate_under(a_pod("8Gi", annotations={"vramwarden.io/gpu-class": "whole"}), policy)
    assert read_limits(pod) == {"main": {"vramwarden.io/vram": "8Gi"}}
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["vram-enforcer"]
    assert pod["spec"]["nodeSelector"] == {"vramwarden.io/gpu": "true"}


def test_amounts_written_by_hand_become_the_annotation():
    resources = {"limits": {"vramwarden.io/vram": "16Gi", "cpu": "1"}}
    notes = {"vramwarden.io/gpu-count": "2"}
    pod = a_pod(containers=[a_container(resources=resources)], annotations=notes)
    stored = translate_under(pod, policy_and_cluster())
    assert read_limits(stored) == {"main": {f"{SLICE}1g.10gb": "2", "cpu": "1"}}
    assert stored["metadata"]["annotations"]["vramwarden.io/gpu-memory"] == "main=8Gi"


def test_what_is_known_since_changes_no_pod_that_is_about_to_be_stored():
    pod = translate_under(a_pod("8Gi"), policy_and_cluster())
    for nodes in ((), (a_sliced_node(H200),)):
        decision = decide_under(pod, (a_policy(MIG), Cluster(sliced_nodes=nodes)), Phase.VALIDATE)
        assert (decision.allowed, decision.findings) == (True, ())


def required(*terms):
    of_nodes = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
    return {"nodeAffinity": of_nodes}


def larger_than(mib):
    key = "nvidia.com/mig-1g.10gb.memory"
    return {"matchExpressions": [{"key": key, "operator": "Gt", "values": [mib]}]}


def in_zone(zone):
    return {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}


def test_a_pod_that_comes_again_gets_the_slice_that_is_the_smallest_now():
    pod = translate_under(
        a_pod("8Gi", affinity=required(in_zone("a"), in_zone("b"))), policy_and_cluster()
    )
    assert len(read_node_terms(pod)) == 2
    again = translate_under(pod, policy_and_cluster(MIG, a_sliced_node(H200)))
    assert read_limits(again) == {"main": {f"{SLICE}1g.18gb": "1"}}
    assert read_node_terms(again) == [
        ["zone In a", "nvidia.com/mig-1g.18gb.memory Gt 8191"],
        ["zone In b", "nvidia.com/mig-1g.18gb.memory Gt 8191"],
    ]
    assert decide_under(again, policy_and_cluster(MIG, a_sliced_node(H200))).patch == ()


def denied(pod, policy):
    (finding,) = decide_under(pod, policy).findings
    return finding.reason, finding.detail


def test_more_than_the_largest_slice_is_denied_and_named():
    reason, detail = denied(a_pod("41Gi"), policy_and_cluster())
    assert reason is Reason.TOO_LARGE
    assert "3g.40gb, which allows at most 40192Mi" in detail


def test_a_node_that_holds_the_largest_amount_holds_all():
    pod = a_pod("a=30Gi,b=9Gi", containers=[a_container("a"), a_container("b")])
    nodes = (a_sliced_node({"1g.10gb": 9728}), a_sliced_node({"3g.40gb": 40192}))
    assert read_limits(translate_under(pod, policy_and_cluster(MIG, *nodes))) == {
        "a": {f"{SLICE}3g.40gb": "1"},
        "b": {f"{SLICE}3g.40gb": "1"},
    }


@pytest.mark.parametrize(
    ("nodes", "which"),
    [
        ((), "no node is known"),
        ((a_sliced_node(A100, pool="a"),), "no node that this pod selects is"),
    ],
)
def test_where_no_slice_is_known_nothing_would_hold_the_pod(nodes, which):
    policy = a_policy(MIG), Cluster(sliced_nodes=nodes)
    reason, detail = denied(a_pod("8Gi", nodeSelector={"pool": "b"}), policy)
    assert reason is Reason.ENFORCEMENT_IMPOSSIBLE
    assert which in detail


def test_slices_written_by_hand_are_no_share():
    for resource in ("nvidia.com/mig-7g.80gb", "nvidia.com/gpu"):
        pod = a_pod("8Gi", containers=[a_container(resources={"limits": {resource: "1"}})])
        assert denied(pod, policy_and_cluster())[0] is Reason.WHOLE_GPU_AND_SHARE
    pod = translate_under(a_pod("8Gi"), policy_and_cluster())
    # A forged annotation gains nothing: translation writes the smallest slice.
    forged = copy.deepcopy(pod)
    for kind in ("requests", "limits"):
        forged["spec"]["containers"][0]["resources"][kind] = {"nvidia.com/mig-7g.80gb": "1"}
    assert read_limits(translate_under(forged, policy_and_cluster())) == read_limits(pod)


def with_amounts(**more):
    def harm(pod):
        for amounts in pod["spec"]["containers"][0]["resources"].values():
            amounts.update(more)

    return harm


HARM = {
    "no slice": lambda pod: pod["spec"]["containers"][0].pop("resources"),
    "more slices": with_amounts(**{f"{SLICE}1g.10gb": "2"}),
    "two profiles": with_amounts(**{f"{SLICE}3g.40gb": "1"}),
    "VRAM beside it": with_amounts(**{"vramwarden.io/vram": "8Gi"}),
    "any node": lambda pod: pod["spec"].pop("affinity"),
    "a smaller node": lambda pod: pod["spec"].update(affinity=required(larger_than("4095"))),
    "all GPUs": lambda pod: pod["spec"]["containers"][0]["env"].append(
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    ),
    "no mark": lambda pod: pod["metadata"].pop("labels"),
}


@pytest.mark.parametrize("digest", ["0123456789abcdef", "ffffffffffffffff"])
@pytest.mark.parametrize("harm", sorted(HARM))
def test_what_others_take_away_is_missed(harm, digest):
    pod = translate_under(a_pod("8Gi"), policy_and_cluster())
    HARM[harm](pod)
    decision = decide_under(pod, policy_and_cluster(digest=digest), Phase.VALIDATE)
    is_essential = harm not in {"any node", "a smaller node", "two profiles", "VRAM beside it"}
    if digest.startswith("0") or is_essential:
        assert {finding.reason for finding in decision.findings} & {
            Reason.UNMUTATED,
            Reason.VISIBLE_DEVICES_OVERRIDE,
            Reason.CONFLICTING_AMOUNTS,
        }


def test_who_asks_for_a_slice_is_not_told_that_it_is_much():
    assert decide_under(a_pod("8Gi"), policy_and_cluster()).advice_bytes is None
    assert decide_under(a_pod("8Gi"), (a_policy(), UNKNOWN_CLUSTER)).advice_bytes is not None


def test_what_a_user_asks_of_the_same_label_stays():
    """Only translation's expression is removed when the pod is created again."""
    pod = translate_under(
        a_pod("8Gi", affinity=required(larger_than("9000"))), policy_and_cluster()
    )
    both = [["nvidia.com/mig-1g.10gb.memory Gt 9000", "nvidia.com/mig-1g.10gb.memory Gt 8191"]]
    assert read_node_terms(pod) == both
    again = decide_under(pod, policy_and_cluster())
    assert again.allowed
    assert not again.patch
    assert decide_under(pod, policy_and_cluster(), Phase.VALIDATE).allowed
