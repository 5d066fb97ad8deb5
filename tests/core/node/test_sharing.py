"""Decision whether a node's GPUs are shared: the docstring's table, row by row, and its parts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.core.node.sharing_nodes import (
    DRA,
    GPU_LIST,
    HAMI_REMEDY,
    PLUGIN,
    SHARING,
    judge_with,
    make_node,
    node_with_verdict,
)
from tests.support.gpus import DOWN, a_scan
from tests.support.page_commands import table_of
from webhook.core.node.inventory import Scan
from webhook.core.node.node_fields import explain_closed, read_verdict
from webhook.core.node.other_allocators import find_allocator_resources, had_other_allocator
from webhook.core.node.patches import build_patches
from webhook.core.node.sharing import (
    FREE_BYTES,
    Shared,
    SharingDecision,
    apply_sharing,
    find_gpus_in_use,
    judge,
)
from webhook.core.node.state import NodeState, build_withdrawn_state
from webhook.core.nvidia.drivers import ScannedGpu
from webhook.core.pod.quantity import MIB
from webhook.names import NODE_SHARE_LABEL, VRAM_RESOURCE

VALUES = {
    "offered": {
        "no": ({}, False),
        "settles": ({}, True),
        "yes": ({"nvidia.com/gpu": "8"}, False),
    },
    "label": {"absent": None, "true": "true", "false": "false", "anything else": "True"},
    "advertised": {"no": (False, ""), "yes": (True, ""), "draining": (True, "said")},
    "pods": {"no": False, "yes": True, "unknown": None},
    "in use": {"no": (), "yes": ("GPU-a",), "unknown": None},
}


def rows():
    """Yield the cases of each row of the table, with the expected result."""
    for *given, shared, reason in table_of(judge):
        meant = [
            values if cell == "-" else cell.split(" or ")
            for cell, values in zip(given, VALUES.values(), strict=True)
        ]
        for case in itertools.product(*meant):
            yield case, (Shared[shared], "" if reason == "-" else reason)


def judged(case):
    (offered, settles), label, advertised, pods, in_use = (
        values[cell] for cell, values in zip(case, VALUES.values(), strict=True)
    )
    is_advertised, draining_reason = advertised
    found = judge_with(
        make_node(offered, label),
        is_settling=settles,
        is_advertised=is_advertised,
        draining_reason=draining_reason,
        has_pods=pods,
        in_use=in_use,
    )
    assert bool(found.sentence) == (found.shared is not Shared.YES)
    return found.shared, found.reason or ""


@pytest.mark.parametrize(("case", "expected"), list(rows()), ids=str)
def test_each_row_of_the_table_holds(case, expected):
    assert judged(case) == expected


def test_the_table_has_each_case_once():
    cases = [case for case, _ in rows()]
    assert len(cases) == len(set(cases))
    assert set(cases) == set(itertools.product(*VALUES.values()))


def test_what_is_offered_now_does_not_settle():
    node = make_node({"nvidia.com/gpu": "8"})
    assert judge_with(node, is_settling=True) == judge_with(node)


@pytest.mark.parametrize("label", [None, "true"])
@pytest.mark.parametrize("in_use", [(), None])
def test_pods_with_whole_gpus_count_as_use_unless_an_admin_wants_both(label, in_use):
    node, pods = make_node(None, label), ("team/notebook",)
    found = judge_with(node, in_use=in_use, whole_pods=pods)
    unknown = judge_with(node, in_use=in_use, whole_pods=None)
    if label:
        assert found == unknown == judge_with(node, in_use=in_use)
        return
    assert (found.shared, found.reason) == (Shared.NOT_YET, "DrainWholeGPUPods")
    assert (
        "even if they use nothing (team/notebook); drain the whole-GPU pods first" in found.sentence
    )
    assert (unknown.shared, unknown.reason) == (Shared.NOT_YET, None)
    assert "waits for" in unknown.sentence
    assert "a replica of the webhook" in unknown.sentence
    many = judge_with(node, whole_pods=("t/a", "t/b", "t/c"), whole_count=8)
    assert "(t/a, t/b, t/c and 5 more);" in many.sentence
    assert judge_with(node, is_advertised=True, in_use=in_use, whole_pods=pods) == SharingDecision(
        Shared.YES
    )


def said(allocatable, label=None, **known):
    return judge_with(make_node(allocatable, label), **known).sentence


def test_the_sentence_of_a_node_that_is_not_shared_has_the_remedy():
    assert said({"nvidia.com/gpu": "8", "cpu": "4"}) == (
        "a device plugin offers the GPUs whole (nvidia.com/gpu); label the node "
        "nvidia.com/gpu.deploy.device-plugin=false, or share both ways (vramwarden.io/share=true)"
    )
    assert "is neither true nor false (yes); correct it" in said({}, "yes")
    assert (
        said({}, "false") == "its label vramwarden.io/share is false; remove it to share the node"
    )
    both = {"nvidia.com/gpu": "8", "aliyun.com/gpu-mem": "15"}  # the remedy for whole GPUs is shown
    assert "nvidia.com/gpu.deploy.device-plugin=false" in said(both)
    node = make_node({"nvidia.com/gpu": "20"})
    node["metadata"]["annotations"] = {"hami.io/node-nvidia-register": "[]"}
    assert HAMI_REMEDY in judge_with(node).sentence  # HAMi's plugin has its own label
    node["metadata"]["annotations"] = {"hami.io/node-amd-register": "[]"}
    assert HAMI_REMEDY not in judge_with(node).sentence
    node["status"] = {}
    assert judge_with(node).sentence == (
        "HAMi gives AMD's GPUs away (hami.io/node-amd-register); take HAMi's AMD plugin off the "
        "node and remove the annotation, or share both ways (vramwarden.io/share=true)"
    )
    gone = {"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "2"}  # left by such a plugin
    assert judge_with(make_node(gone)) == SharingDecision(Shared.YES)


@pytest.mark.parametrize(
    "resource",
    [
        "aliyun.com/gpu-mem",
        "volcano.sh/gpu-memory",
        "volcano.sh/gpu-number",
        "volcano.sh/vgpu-memory",
        "volcano.sh/vgpu-number",
    ],
)
def test_a_node_that_another_product_serves_is_not_shared_either(resource):
    node = make_node({resource: "15"})
    found = judge_with(node)
    assert (found.shared, found.reason) == (Shared.NO, "GPUsNotShared")
    assert found.sentence == (
        f"another product gives the GPUs away ({resource}); take that product's device plugin off "
        "the node, or share both ways (vramwarden.io/share=true)"
    )
    assert find_allocator_resources(node) == (resource,)
    assert had_other_allocator({"status": {"capacity": {resource: "0"}}})


LONGEST = tuple(f"{letter}{'x' * 300}" for letter in "abcd")
RESOURCES = {f"nvidia.com/gpu{name}": "1" for name in LONGEST}


@pytest.mark.parametrize(
    "url", ["", "https://d.example/{page}.html", f"https://{'x' * 300}/{{page}}"]
)
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize(
    ("amounts", "metadata", "known"),
    [
        (RESOURCES, {}, {}),
        (RESOURCES, {"labels": {PLUGIN: "false"}}, {}),
        (RESOURCES, {"annotations": {"hami.io/node-nvidia-register": "[]"}}, {}),
        ({"volcano.sh/vgpu-memory": "1", "aliyun.com/gpu-mem": "1"}, {}, {}),
        ({}, {"annotations": {"hami.io/node-amd-register": "[]"}}, {}),
        ({}, {"labels": {PLUGIN: "true"}}, {"age_s": 1}),
        ({}, {"labels": {DRA: "true"}}, {"age_s": 1, "dra_drivers": None}),
        ({}, {}, {"dra_drivers": LONGEST}),
        ({}, {}, {"dra_drivers": ("gpu.amd.com",)}),
        ({}, {"labels": {NODE_SHARE_LABEL: "x" * 63}}, {}),
        ({}, {"labels": {NODE_SHARE_LABEL: "false"}}, {}),
        ({}, {}, {"in_use": LONGEST}),
        ({}, {}, {"whole_pods": LONGEST, "whole_count": 10_000}),
        ({}, {}, {"in_use": None, "whole_pods": None, "is_settling": True}),
    ],
    ids=str,
)
def test_cause_and_remedy_fit_whatever_names_are_in_them(amounts, metadata, known, shares, url):
    """Only one list of names differs from the sentence with short names."""
    node = {"metadata": {"name": "n" * 253, **metadata}, "status": {"capacity": amounts}}
    found = judge_with(node, is_advertised=shares, has_pods=True, documentation_url=url, **known)
    if found.shared is Shared.YES:  # only if the node was advertised
        assert shares
        return
    assert len(found.sentence) <= 256
    before, _, rest = found.sentence.partition(" (")
    after = rest.partition(")")[2]
    assert ";" in after or ";" in before, found.sentence
    assert not found.sentence.endswith("…")
    assert (
        read_verdict(node_with_verdict(str(found.verdict("", has_gpus=True)))).sentence
        == found.sentence
    )


LONG = "https://docs.platform.corp.example/k8s/vramwarden/{page}.html"


@pytest.mark.parametrize(
    ("url", "shares", "named"),
    [
        ("", False, "deploy/take-the-plugin-off.md in the documentation"),
        ("https://d.example/{page}", True, "https://d.example/deploy/take-the-plugin-off"),
        (LONG, False, LONG.replace("{page}", "deploy/take-the-plugin-off")),
        (LONG, True, "deploy/take-the-plugin-off.md in the documentation"),  # a longer sentence
    ],
)
def test_a_remedy_leads_to_the_page_by_its_url_if_the_sentence_keeps_all_of_it(url, shares, named):
    node = make_node({"nvidia.com/gpu": "8"})
    node["metadata"]["labels"][PLUGIN] = "false"
    found = judge_with(node, is_advertised=shares, has_pods=True, documentation_url=url)
    assert "(nvidia.com/gpu)" in found.sentence
    assert found.sentence.endswith(f"give its DaemonSet the affinity of {named}")
    assert len(found.sentence) <= 256


def a_gpu(uuid, used_bytes, *, mig=False, usable_bytes=1000 * MIB):
    return ScannedGpu(
        uuid=uuid,
        product="NVIDIA H200",
        index=0,
        usable_bytes=usable_bytes,
        mig=mig,
        used_bytes=used_bytes,
    )


@pytest.mark.parametrize(
    ("scan", "in_use"),
    [
        (None, None),
        (DOWN, None),
        (Scan(), ()),
        (a_scan(a_gpu("GPU-a", 0), a_gpu("GPU-b", FREE_BYTES)), ()),
        (a_scan(a_gpu("GPU-a", 0), a_gpu("GPU-b", FREE_BYTES + 1)), ("GPU-b",)),
        (a_scan(a_gpu("GPU-a", None)), ("GPU-a",)),
        (a_scan(a_gpu("GPU-a", 2**33, mig=True)), ()),
        (a_scan(a_gpu("GPU-a", 2**33, usable_bytes=None)), ()),
    ],
    ids=str,
)
def test_a_gpu_is_in_use_above_256_mebibytes_or_where_nobody_knows(scan, in_use):
    assert FREE_BYTES == 256 * 2**20
    assert find_gpus_in_use(scan) == in_use


def test_what_is_not_shared_is_withdrawn_and_what_is_not_yet_is_left_alone():
    whole = NodeState(MIB, {"vramwarden.io/gpu": "true"})
    shown = {
        "metadata": {
            "labels": {"vramwarden.io/gpu": "true", "a": "b"},
            "annotations": {"vramwarden.io/gpus": GPU_LIST, "c": "d"},
        },
        "status": {"capacity": {VRAM_RESOURCE: "1Mi"}, "allocatable": {VRAM_RESOURCE: "1Mi"}},
    }
    shared = {SHARING: "Shared: its GPUs are shared by memory"}
    assert apply_sharing(shown, whole, SharingDecision(Shared.YES)) == replace(
        whole, annotations=shared
    )
    assert apply_sharing(shown, whole, SharingDecision(Shared.NOT_YET)) == NodeState()
    made = build_patches(
        shown, apply_sharing(shown, whole, SharingDecision(Shared.NO, None, "why"))
    )
    assert made.metadata == {
        "metadata": {
            "labels": {"vramwarden.io/gpu": None},
            "annotations": {"vramwarden.io/gpus": None, SHARING: "NotShared: why"},
        }
    }
    zero = {VRAM_RESOURCE: "0"}
    assert made.status == {"status": {"capacity": zero, "allocatable": zero}}


@pytest.mark.parametrize(
    "state", [NodeState(MIB), build_withdrawn_state()], ids=["shared", "no GPUs left"]
)
def test_where_nothing_of_ours_is_shown_nothing_is_withdrawn(state):
    """Labels may belong to another controller, and may select the node for the agent."""
    labelled = {"metadata": {"labels": {"vramwarden.io/gpu": "true"}}}
    for amount in ({}, {VRAM_RESOURCE: "0"}):
        node = {**labelled, "status": {"capacity": amount, "allocatable": amount}}
        assert set(apply_sharing(node, state, SharingDecision(Shared.NO)).annotations) == {SHARING}
        assert (
            apply_sharing(node, build_withdrawn_state(), SharingDecision(Shared.YES)).labels == {}
        )
    node = {**labelled, "status": {"capacity": {VRAM_RESOURCE: "1Gi"}}}
    assert (
        apply_sharing(node, state, SharingDecision(Shared.NO)).labels
        == build_withdrawn_state().labels
    )


@pytest.mark.parametrize(
    ("shows", "promised_bytes", "amount"),
    [
        ("8Mi", 3 * MIB, 3 * MIB),
        ("3Mi", 3 * MIB, 3 * MIB),
        ("3Mi", 5 * MIB, 5 * MIB),
        ("8Mi", 9 * MIB, 8 * MIB),  # pods that see all GPUs may have more than the node has
        ("8Mi", None, 8 * MIB),
        ("3Mi", None, 3 * MIB),
        ("0", None, 8 * MIB),  # set to 0 by a kubelet that restarted
    ],
)
def test_a_node_that_drains_shows_what_its_pods_have_and_why(shows, promised_bytes, amount):
    node = {"status": {"capacity": {VRAM_RESOURCE: shows}, "allocatable": {VRAM_RESOURCE: shows}}}
    whole = NodeState(8 * MIB, {"vramwarden.io/gpu": "true"})
    found = SharingDecision(Shared.DRAINING, "x", "why")
    drains = apply_sharing(node, whole, found, promised_bytes=promised_bytes)
    assert drains.vram_bytes == amount
    assert drains.annotations == {SHARING: "Draining: why"}


@pytest.mark.parametrize("shared", list(Shared))
@pytest.mark.parametrize("is_shown", [True, False])
def test_question_claim_and_verdict_are_those_of_now(shared, is_shown):
    old = dict.fromkeys((SHARING, "vramwarden.io/dra-driver"), "old")
    old |= {"vramwarden.io/gpus": GPU_LIST} if is_shown else {}
    node = {"metadata": {"labels": {"vramwarden.io/whole-gpu-pods": "1"}, "annotations": old}}
    found = SharingDecision(shared, "x", "why")
    gone = apply_sharing(node, NodeState(MIB), found)
    assert gone.labels["vramwarden.io/whole-gpu-pods"] is None
    assert gone.annotations["vramwarden.io/dra-driver"] is None
    codes = dict(zip(Shared, ("Shared", "Draining", "NotShared", "InUse"), strict=True))
    # If a node is advertised while its agent starts, only this annotation may close it.
    verdict = "old" if is_shown and shared is Shared.NOT_YET else codes[shared]
    assert gone.annotations.get(SHARING, "old").partition(":")[0] == verdict
    there = apply_sharing(node, NodeState(), found, question="2", dra_drivers=("a", "b"))
    assert there.labels["vramwarden.io/whole-gpu-pods"] == "2"
    assert there.annotations["vramwarden.io/dra-driver"] == "a,b"


@pytest.mark.parametrize(
    ("reason", "shared", "unfit", "has_gpus", "code"),
    [
        (None, Shared.YES, "", True, "Shared"),
        (None, Shared.YES, "GPU 1", True, "SomeGPUsUnfit"),
        (None, Shared.YES, "GPU 1", False, "NoUsableGPU"),
        (None, Shared.YES, "", False, "NoUsableGPU"),
        ("x", Shared.NO, "GPU 1", True, "NotShared"),
        (None, Shared.NO, "", True, "NotShared"),
        ("x", Shared.NOT_YET, "GPU 1", True, "InUse"),
        (None, Shared.NOT_YET, "GPU 1", True, "Settling"),
        ("x", Shared.DRAINING, "GPU 1", True, "Draining"),
    ],
)
def test_each_decision_has_one_code(reason, shared, unfit, has_gpus, code):
    verdict = SharingDecision(shared, reason, "why").verdict(unfit, has_gpus=has_gpus)
    assert verdict.code == code
    if shared is not Shared.YES:
        assert verdict.sentence == "why"
    elif unfit:
        assert verdict.sentence == unfit


def test_a_verdict_that_was_removed_or_spoilt_keeps_a_node_draining_while_it_settles():
    node = node_with_verdict("spoilt")
    found = judge_with(
        node, is_advertised=True, is_settling=True, draining_reason=explain_closed(node)
    )
    assert (found.shared, found.sentence) == (Shared.DRAINING, explain_closed(node))
