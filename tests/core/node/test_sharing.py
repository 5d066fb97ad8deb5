"""Whether a node's GPUs are shared: the table in the docstring, row by row, and its parts."""

from __future__ import annotations

import itertools

import pytest

from tests.support.documents import table_of
from tests.support.gpus import DOWN, a_scan
from webhook.core.node.inventory import Scan
from webhook.core.node.sharing import (
    FREE_BYTES,
    Beside,
    Shared,
    Sharing,
    claimed_before,
    given_away,
    gpus_in_use,
    has_offered,
    is_advertised,
    judge,
    limited,
    whole_gpus,
    why_held,
)
from webhook.core.node.state import NodeState, patches, withdrawn
from webhook.core.nvidia.drivers import SeenGpu
from webhook.core.pod.quantity import MIB
from webhook.names import NODE_SHARE_LABEL, VRAM_RESOURCE

VALUES = {
    "offered": {
        "no": ({}, False),
        "settles": ({}, True),
        "yes": ({"nvidia.com/gpu": "8"}, False),
    },
    "label": {"absent": None, "true": "true", "false": "false", "anything else": "True"},
    "advertised": {"no": (False, {}), "yes": (True, {}), "held": (True, {"held": "said"})},
    "pods": {"no": False, "yes": True, "unknown": None},
    "in use": {"no": (), "yes": ("GPU-a",), "unknown": None},
}


def a_node(allocatable=None, label=None, **more):
    labels = {} if label is None else {NODE_SHARE_LABEL: label}
    status = {} if allocatable is None else {"allocatable": allocatable}
    return {"metadata": {"name": "n", "labels": labels}, "status": status, **more}


def judged_beside(node, *, shares=False, has_pods=False, in_use=(), **more):
    return judge(node, Beside(shares=shares, has_pods=has_pods, in_use=in_use, **more))


def rows():
    """Return the cases that each row of the table stands for, and what is to come of them."""
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
    shares, marks = advertised
    known = {"shares": shares, "has_pods": pods, "in_use": in_use, "settles": settles}
    node = a_node(offered, label)
    node["metadata"]["annotations"] = {f"vramwarden.io/{key}": one for key, one in marks.items()}
    found = judged_beside(node, **known)
    assert bool(found.sentence) == bool(found.reason)
    return found.shared, found.reason or ""


@pytest.mark.parametrize(("case", "expected"), list(rows()), ids=str)
def test_each_row_of_the_table_holds(case, expected):
    assert judged(case) == expected


def test_the_table_has_each_case_once():
    cases = [case for case, _ in rows()]
    assert len(cases) == len(set(cases))
    assert set(cases) == set(itertools.product(*VALUES.values()))


def test_what_is_offered_now_does_not_settle():
    node = a_node({"nvidia.com/gpu": "8"})
    assert judged_beside(node, settles=True) == judged_beside(node)


PLUGIN, DRA = "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.dra-driver"
TEN_MINUTES = 600
OFFERED, HEEDLESS, FORGOTTEN, OPERATOR, CLAIMS, HAMI = (
    f"label the node {PLUGIN}=false",
    "give its DaemonSet the affinity of deploy/take-the-plugin-off.md",
    "the kubelet forgets it within five minutes",
    "share at once with vramwarden.io/share=true",
    f"with NVIDIA's operator by the label {DRA}=false",
    "`kubectl label node n gpu-`",
)


@pytest.mark.parametrize(
    ("capacity", "allocatable", "labels", "beside", "cure"),
    [
        # As a kubelet writes it: of a plugin that is there, restarts or is gone, and forgotten.
        ("2", "2", {}, {}, OFFERED),
        ("2", "0", {}, {}, OFFERED),
        ("0", "0", {}, {}, None),
        (None, "2", {}, {}, OFFERED),
        ("2", None, {}, {}, OFFERED),
        ("what", "0", {}, {}, OFFERED),
        ("2", "2", {PLUGIN: "true"}, {}, OFFERED),
        ("2", "2", {PLUGIN: "false"}, {}, HEEDLESS),
        ("2", "0", {PLUGIN: "false"}, {}, FORGOTTEN),
        ("0", "0", {PLUGIN: "false"}, {"age_s": 0}, None),
        # What NVIDIA's operator says before its plugin comes, or its DRA driver.
        ("0", "0", {PLUGIN: "true"}, {"age_s": TEN_MINUTES - 1}, OPERATOR),
        ("0", "0", {PLUGIN: "true"}, {"age_s": -5}, OPERATOR),
        ("0", "0", {PLUGIN: "true"}, {"age_s": TEN_MINUTES}, None),
        ("0", "0", {PLUGIN: "true"}, {}, None),
        ("0", "0", {PLUGIN: "paused"}, {"age_s": 0}, None),
        ("0", "0", {DRA: "true"}, {"age_s": 0}, None),
        ("0", "0", {DRA: "true"}, {"age_s": 0, "claimed_by": None}, OPERATOR),
        ("0", "0", {DRA: "true"}, {"age_s": TEN_MINUTES, "claimed_by": None}, None),
        ("0", "0", {}, {"age_s": 0, "claimed_by": None}, None),
        # A DRA driver that is there.
        ("0", "0", {}, {"claimed_by": ("gpu.nvidia.com",)}, CLAIMS),
        ("0", "0", {PLUGIN: "false", DRA: "false"}, {"claimed_by": ("gpu.nvidia.com",)}, CLAIMS),
        ("0", "0", {}, {"claimed_by": ("gpu.amd.com", "gpu.nvidia.com")}, CLAIMS),
        ("0", "0", {}, {"claimed_by": ("gpu.amd.com",)}, "; take AMD's driver off the node, or"),
    ],
    ids=str,
)
def test_a_sign_is_found_and_the_cure_is_the_one_that_helps_there(
    capacity, allocatable, labels, beside, cure
):
    amounts = {"capacity": capacity, "allocatable": allocatable}
    status = {part: {"nvidia.com/gpu": one} for part, one in amounts.items() if one is not None}
    node = {"metadata": {"name": "n", "labels": labels}, "status": status}
    found = judged_beside(node, **beside)
    assert found.shared is (Shared.YES if cure is None else Shared.NO)
    assert (cure or "") in found.sentence
    held = judged_beside(node, shares=True, has_pods=True, **beside)
    assert held.shared is (Shared.YES if cure is None else Shared.HELD)
    node["metadata"]["labels"] = {**labels, NODE_SHARE_LABEL: "true"}
    assert judged_beside(node, **beside) == Sharing(Shared.YES)


@pytest.mark.parametrize("label", [None, "true"])
@pytest.mark.parametrize("in_use", [(), None])
def test_pods_with_whole_gpus_count_as_use_unless_an_admin_wants_both(label, in_use):
    node, pods = a_node(None, label), ("team/notebook",)
    found = judged_beside(node, in_use=in_use, whole_pods=pods)
    unknown = judged_beside(node, in_use=in_use, whole_pods=None)
    if label:
        assert found == unknown == judged_beside(node, in_use=in_use)
        return
    assert (found.shared, found.reason) == (Shared.NOT_YET, "DrainWholeGPUPods")
    assert "have GPUs all the same: team/notebook;" in found.sentence
    assert unknown == Sharing(Shared.NOT_YET)
    many = judged_beside(node, whole_pods=("t/a", "t/b", "t/c"), whole_count=8)
    assert "all the same: t/a, t/b, t/c and 5 more;" in many.sentence
    assert judged_beside(node, shares=True, in_use=in_use, whole_pods=pods) == Sharing(Shared.YES)


def said(allocatable, label=None, **known):
    return judged_beside(a_node(allocatable, label), **known).sentence


def test_who_is_not_shared_is_told_the_cure():
    assert said({"nvidia.com/gpu": "8", "cpu": "4"}) == (
        "the GPUs of this node are not shared by memory: a device plugin offers them whole "
        "(nvidia.com/gpu); label the node nvidia.com/gpu.deploy.device-plugin=false, which takes "
        "NVIDIA's plugin off it under its operator, or share both ways with "
        "vramwarden.io/share=true"
    )
    assert "'yes', which is neither true nor false; correct it" in said({}, "yes")
    both = {"nvidia.com/gpu": "8", "aliyun.com/gpu-mem": "15"}  # the cure is that for whole GPUs
    assert "nvidia.com/gpu.deploy.device-plugin=false" in said(both)
    node = a_node({"nvidia.com/gpu": "20"})
    node["metadata"]["annotations"] = {"hami.io/node-nvidia-register": "[]"}
    assert HAMI in judged_beside(node).sentence  # its plugin heeds a label of its own
    node["metadata"]["annotations"] = {"hami.io/node-amd-register": "[]"}
    assert HAMI not in judged_beside(node).sentence
    node["status"] = {}
    assert judged_beside(node).sentence == (
        "the GPUs of this node are not shared by memory: HAMi gives AMD's away (annotation "
        "hami.io/node-amd-register); take HAMi's AMD plugin off the node and remove the "
        "annotation, or share both ways with vramwarden.io/share=true"
    )
    gone = {"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "2"}  # as such a plugin leaves it
    assert judged_beside(a_node(gone)) == Sharing(Shared.YES)


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
    node = a_node({resource: "15"})
    found = judged_beside(node)
    assert (found.shared, found.reason) == (Shared.NO, "GPUsNotShared")
    assert found.sentence == (
        "the GPUs of this node are not shared by memory: another product gives them away "
        f"({resource}); take that product's device plugin off the node, or share both ways with "
        "vramwarden.io/share=true"
    )
    assert (given_away(node), whole_gpus(node)) == ((resource,), ())
    assert has_offered({"status": {"capacity": {resource: "0"}}})


def test_who_is_still_shared_beside_the_plugin_is_told_so_too():
    sentence = said({"nvidia.com/gpu.shared": "8"}, shares=True, has_pods=True)
    assert sentence.startswith(
        "a device plugin offers them whole (nvidia.com/gpu.shared), but pods"
    )
    assert "nvidia.com/gpu.deploy.device-plugin=false" in sentence
    assert "is false, but pods may have VRAM" in said({}, "false", shares=True, has_pods=None)


def test_who_waits_is_told_for_which_gpus():
    in_use = tuple(f"GPU-{number}" for number in range(5))
    sentence = said({}, in_use=in_use)
    assert sentence.startswith("drain the whole-GPU pods first: ")
    assert "on GPU-0, GPU-1, GPU-2 and 2 more;" in sentence


def test_a_sentence_fits_an_event():
    names = {f"nvidia.com/gpu-{'x' * 200}{number}": "1" for number in range(100)}
    assert len(said(names)) < 1024
    assert len(said({}, "x" * 63)) < 1024


@pytest.mark.parametrize(
    ("allocatable", "offered"),
    [
        (None, ()),
        ({}, ()),
        ({"nvidia.com/gpu": "0"}, ()),
        ({"nvidia.com/gpu": "0k"}, ()),
        ({"nvidia.com/gpu": "1"}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": "1k"}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": 1}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": "500m"}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": "many"}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": ""}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": None}, ("nvidia.com/gpu",)),
        (
            {"nvidia.com/gpumem": "9", "nvidia.com/gpu.shared": "4", "nvidia.com/gpu": "0"},
            ("nvidia.com/gpu.shared", "nvidia.com/gpumem"),
        ),
        ({"nvidia.com/mig-1g.10gb": "7", "amd.com/gpu": "1", VRAM_RESOURCE: "80Gi"}, ()),
    ],
    ids=str,
)
def test_whole_gpus_are_what_is_offered_of_them(allocatable, offered):
    assert whole_gpus(a_node(allocatable)) == offered
    assert whole_gpus({"status": {"capacity": allocatable}}) == offered


@pytest.mark.parametrize(
    ("capacity", "allocatable", "offered"),
    [
        ({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "0"}, True),  # the plugin restarts
        ({"nvidia.com/gpu": "0"}, {"nvidia.com/gpu": "0"}, True),  # the kubelet did
        ({}, {"nvidia.com/gpu.shared": "8"}, True),
        ({"nvidia.com/mig-1g.10gb": "7", VRAM_RESOURCE: "80Gi"}, {"amd.com/gpu": "1"}, False),
    ],
)
def test_a_name_that_is_left_says_that_whole_gpus_were_offered(capacity, allocatable, offered):
    assert has_offered({"status": {"capacity": capacity, "allocatable": allocatable}}) is offered


def test_a_node_without_any_status_offers_nothing():
    for node in ({}, {"status": None}, {"status": {"allocatable": None}}):
        assert whole_gpus(node) == ()
        assert not has_offered(node)
        assert not is_advertised(node)
        assert judged_beside(node, has_pods=None) == Sharing(Shared.YES)


GPUS = '[{"uuid":"GPU-a","memory":1048576,"product":"x","index":0}]'


@pytest.mark.parametrize(
    ("annotations", "capacity", "advertised"),
    [
        ({}, {}, False),
        ({"vramwarden.io/gpus": GPUS}, {}, True),
        ({"vramwarden.io/gpus": GPUS}, {VRAM_RESOURCE: "0"}, True),  # zeroed by a kubelet
        ({"vramwarden.io/gpus": "[]"}, {VRAM_RESOURCE: "0"}, False),
        ({"vramwarden.io/gpus": "what"}, {VRAM_RESOURCE: "1Gi"}, True),
        ({}, {VRAM_RESOURCE: "1Gi"}, True),
        ({}, {VRAM_RESOURCE: "what"}, True),
    ],
)
def test_a_node_is_advertised_by_its_list_or_capacity(annotations, capacity, advertised):
    """Labels say nothing: Karpenter and autoscalers' node groups set them beforehand."""
    labels = {"vramwarden.io/gpu": "true", "vramwarden.io/gpu-memory-mib": "81920"}
    metadata = {"labels": labels, "annotations": annotations}
    assert is_advertised({"metadata": metadata, "status": {"capacity": capacity}}) is advertised


def a_gpu(uuid, used_bytes, *, mig=False, usable_bytes=1000 * MIB):
    return SeenGpu(
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
    assert gpus_in_use(scan) == in_use


def test_what_is_not_shared_is_withdrawn_and_what_is_not_yet_is_left_alone():
    whole = NodeState(MIB, {"vramwarden.io/gpu": "true"})
    shown = {
        "metadata": {
            "labels": {"vramwarden.io/gpu": "true", "a": "b"},
            "annotations": {"vramwarden.io/gpus": GPUS, "c": "d"},
        },
        "status": {"capacity": {VRAM_RESOURCE: "1Mi"}, "allocatable": {VRAM_RESOURCE: "1Mi"}},
    }
    assert limited(shown, whole, Sharing(Shared.YES)) == whole
    assert limited(shown, whole, Sharing(Shared.NOT_YET)) == NodeState()
    made = patches(shown, limited(shown, whole, Sharing(Shared.NO)))
    assert made.metadata == {
        "metadata": {
            "labels": {"vramwarden.io/gpu": None},
            "annotations": {"vramwarden.io/gpus": None},
        }
    }
    zero = {VRAM_RESOURCE: "0"}
    assert made.status == {"status": {"capacity": zero, "allocatable": zero}}


@pytest.mark.parametrize("state", [NodeState(MIB), withdrawn()], ids=["shared", "no GPUs left"])
def test_where_nothing_of_ours_is_shown_nothing_is_withdrawn(state):
    """Labels may be somebody else's, and all that brings the agent there."""
    labelled = {"metadata": {"labels": {"vramwarden.io/gpu": "true"}}}
    for amount in ({}, {VRAM_RESOURCE: "0"}):
        node = {**labelled, "status": {"capacity": amount, "allocatable": amount}}
        assert limited(node, state, Sharing(Shared.NO)) == NodeState()
        assert limited(node, withdrawn(), Sharing(Shared.YES)) == NodeState()
    node = {**labelled, "status": {"capacity": {VRAM_RESOURCE: "1Gi"}}}
    assert limited(node, state, Sharing(Shared.NO)) == withdrawn()


@pytest.mark.parametrize(
    ("shows", "promised_bytes", "amount"),
    [
        ("8Mi", 3 * MIB, 3 * MIB),
        ("3Mi", 3 * MIB, 3 * MIB),
        ("3Mi", 5 * MIB, 5 * MIB),
        ("8Mi", 9 * MIB, 8 * MIB),  # pods that see all GPUs may have more than there is
        ("8Mi", None, 8 * MIB),
        ("3Mi", None, 3 * MIB),
        ("0", None, 8 * MIB),  # zeroed by a kubelet that started again
    ],
)
def test_what_is_held_shows_what_its_pods_have_and_why(shows, promised_bytes, amount):
    node = {"status": {"capacity": {VRAM_RESOURCE: shows}, "allocatable": {VRAM_RESOURCE: shows}}}
    whole = NodeState(8 * MIB, {"vramwarden.io/gpu": "true"})
    held = limited(node, whole, Sharing(Shared.HELD, "x", "why"), promised_bytes=promised_bytes)
    assert held.vram_bytes == amount
    assert held.annotations == {"vramwarden.io/held": "why"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (None, ""),
        ("", "annotation vramwarden.io/held"),
        ("a plugin", "a plugin"),
        ("\x1b]0;pwn\x07" + "h" * 600, "?]0;pwn?" + "h" * 504),
    ],
)
def test_why_a_node_is_held_is_read_printable_and_bounded(written, read):
    node = a_node({})
    node["metadata"]["annotations"] = {} if written is None else {"vramwarden.io/held": written}
    assert why_held(node) == read
    settling = judged_beside(node, shares=True, settles=True)
    assert settling.sentence == read


def test_drivers_that_claimed_a_node_are_read_printable_and_bounded():
    node = a_node({})
    node["metadata"]["annotations"] = {"vramwarden.io/dra-driver": "\x1b[31mx," + "d" * 999}
    assert claimed_before(node) == ("?[31mx", "d" * 249)


@pytest.mark.parametrize("shared", list(Shared))
def test_question_claim_and_hold_stand_while_they_hold(shared):
    old = dict.fromkeys(("vramwarden.io/held", "vramwarden.io/dra-driver"), "old")
    node = {"metadata": {"labels": {"vramwarden.io/whole-gpu-pods": "1"}, "annotations": old}}
    found = Sharing(shared, "x", "why")
    gone = limited(node, NodeState(), found)
    assert gone.labels["vramwarden.io/whole-gpu-pods"] is None
    assert gone.annotations["vramwarden.io/dra-driver"] is None
    held = {Shared.HELD: "why", Shared.NOT_YET: "as it was"}.get(shared)
    assert gone.annotations.get("vramwarden.io/held", "as it was") == held
    there = limited(node, NodeState(), found, asks="2", claimed_by=("a", "b"))
    assert there.labels["vramwarden.io/whole-gpu-pods"] == "2"
    assert there.annotations["vramwarden.io/dra-driver"] == "a,b"
