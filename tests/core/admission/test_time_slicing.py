"""Pods under `accounting: CapOnly`: one time-slicing slot and a cap, no reserved memory."""

from __future__ import annotations

import pytest

from tests.core.admission.device_plugin import (
    CAP_ONLY,
    SLOT,
    decide_under,
    policy_and_cluster,
    read_limits,
    read_node_terms,
    translate_under,
    variables,
)
from tests.support.pods import a_container, a_pod, a_rule
from webhook.core.admission.decision import Phase
from webhook.core.pod.findings import Reason
from webhook.core.policy.model import Accounting, TimeSliced


def test_a_pod_gets_one_slot_and_a_sidecar_that_sees_all_gpus_of_its_node():
    pod = translate_under(
        a_pod("8Gi", containers=[a_container(), a_container("side")]), policy_and_cluster(CAP_ONLY)
    )
    assert read_limits(pod) == {"main": {SLOT: "1"}, "side": {}}
    main, side = pod["spec"]["containers"]
    assert "NVIDIA_VISIBLE_DEVICES" not in variables(main)
    assert variables(main)["VRAMWARDEN_GPU_MEMORY_MIB"] == "8192"
    assert variables(side) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    (sidecar,) = pod["spec"]["initContainers"]
    seen = variables(sidecar)
    assert (seen["VRAM_CAP_BYTES"], seen["NVIDIA_VISIBLE_DEVICES"]) == (str(8 * 2**30), "all")
    assert "VRAM_GPUS" not in seen
    assert pod["spec"]["shareProcessNamespace"] is True


def test_only_nodes_that_share_large_enough_gpus_so_are_chosen():
    pod = translate_under(a_pod("8Gi"), policy_and_cluster(CAP_ONLY))
    assert read_node_terms(pod) == [
        [
            "nvidia.com/gpu.sharing-strategy In time-slicing",
            "nvidia.com/gpu.memory Gt 8191",
            "vramwarden.io/enforcement NotIn none",
            "vramwarden.io/device-names NotIn none",
        ]
    ]
    assert "nodeSelector" not in pod["spec"]


def test_the_slot_may_have_the_other_name():
    rule = a_rule(accounting=Accounting.CAP_ONLY, time_sliced_resource=TimeSliced.SHARED.value)
    assert read_limits(translate_under(a_pod("8Gi"), policy_and_cluster(rule))) == {
        "main": {"nvidia.com/gpu.shared": "1"}
    }


def test_who_asks_for_a_slot_already_only_adds_the_annotation():
    pod = a_pod("8Gi", containers=[a_container(resources={"limits": {SLOT: "1"}})])
    assert read_limits(translate_under(pod, policy_and_cluster(CAP_ONLY))) == {"main": {SLOT: "1"}}


@pytest.mark.parametrize("amount", ["2", "500m"])
def test_other_amounts_are_not_made_one_in_silence(amount):
    pod = a_pod("8Gi", containers=[a_container(resources={"limits": {SLOT: amount}})])
    reasons = {
        finding.reason for finding in decide_under(pod, policy_and_cluster(CAP_ONLY)).findings
    }
    assert Reason.WHOLE_GPU_AND_SHARE in reasons


def test_a_slot_of_a_container_without_vram_is_a_whole_gpu():
    containers = [a_container(), a_container("side", resources={"limits": {SLOT: "1"}})]
    (finding,) = decide_under(
        a_pod("8Gi", containers=containers), policy_and_cluster(CAP_ONLY)
    ).findings
    assert finding.reason is Reason.WHOLE_GPU_AND_SHARE


def test_two_slots_are_no_two_gpus():
    pod = a_pod("8Gi", annotations={"vramwarden.io/gpu-count": "2"})
    (finding,) = decide_under(pod, policy_and_cluster(CAP_ONLY)).findings
    assert finding.reason is Reason.INVALID_COUNT
    assert finding.detail.startswith("remove the annotation; it asks for 2 GPUs, ")
    once = a_pod("8Gi", annotations={"vramwarden.io/gpu-count": "1"})
    assert decide_under(once, policy_and_cluster(CAP_ONLY)).allowed


def test_who_creates_such_a_pod_reads_that_nobody_keeps_its_memory_free():
    (note,) = decide_under(a_pod("8Gi"), policy_and_cluster(CAP_ONLY)).notes
    assert "8Gi is the most that this pod may use, and nobody keeps it free" in note
    assert decide_under(a_pod(), policy_and_cluster(CAP_ONLY)).notes == ()
    pod = translate_under(a_pod("8Gi"), policy_and_cluster(CAP_ONLY))
    assert decide_under(pod, policy_and_cluster(CAP_ONLY), Phase.VALIDATE).notes == ()


def test_the_sidecar_taken_away_is_missed():
    pod = translate_under(a_pod("8Gi"), policy_and_cluster(CAP_ONLY))
    del pod["spec"]["initContainers"]
    (finding,) = decide_under(pod, policy_and_cluster(CAP_ONLY), Phase.VALIDATE).findings
    assert finding.reason is Reason.UNMUTATED
