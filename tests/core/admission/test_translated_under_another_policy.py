"""Parts that a pod translated under another policy must have."""

from __future__ import annotations

import copy

import pytest

from tests.core.admission.decisions import (
    RICH_RULE,
    VISIBLE,
    VRAM,
    a_plain_pod,
    another_policy,
    assert_unchanged,
    decide_pod,
    find_container,
    stored_pod,
)
from tests.support.pods import RULE, a_policy, a_rule
from webhook.core.admission.decision import Phase
from webhook.core.policy.model import EnforceBy, MemoryBounds, Placement, PodRestart

OTHER = another_policy(a_rule(memory=MemoryBounds(max_bytes=2**40)))


def stored_under_another_policy(pod):
    return decide_pod(pod, phase=Phase.VALIDATE, policy=OTHER)


def test_a_pod_bears_the_digest_of_the_policy_that_translated_it():
    notes = stored_pod()["metadata"]["annotations"]
    assert notes["vramwarden.io/admitted"] == "v1 default 0123456789ab"


RESTARTING = a_rule(enforcement={"pod_restart": PodRestart.ALL_CONTAINERS})
OF_ANOTHER_RELEASE = {"image": "vramwarden/enforcer:2", "grace": "0s", "tolerance": "5%"}
OF_THE_POLICY = {
    "plain": (RULE, copy.copy),
    "rich": (RICH_RULE, copy.copy),
    "another release": (a_rule(enforcement=OF_ANOTHER_RELEASE), copy.copy),
    "restarts": (RESTARTING, copy.copy),
    "selector": (RICH_RULE, lambda pod: pod["spec"].pop("nodeSelector")),
    "tolerations": (RICH_RULE, lambda pod: pod["spec"].pop("tolerations")),
    "runtime class": (RICH_RULE, lambda pod: pod["spec"].pop("runtimeClassName")),
    "env of the rule": (RICH_RULE, lambda pod: unset(pod, "XLA_PYTHON_CLIENT_PREALLOCATE")),
    "cap": (RICH_RULE, lambda pod: unset(pod, "VRAMWARDEN_GPU_MEMORY_MIB")),
    "probe": (RICH_RULE, lambda pod: find_container(pod, "vram-enforcer").pop("startupProbe")),
}


@pytest.mark.parametrize(("rule", "break_"), OF_THE_POLICY.values(), ids=OF_THE_POLICY)
def test_what_a_policy_decides_is_not_missed_under_another_one(rule, break_):
    pod = stored_pod(rule)
    break_(pod)
    assert_unchanged(stored_under_another_policy(pod))


def test_a_policy_that_restarts_pods_does_not_miss_that_in_pods_of_another():
    assert_unchanged(
        decide_pod(stored_pod(), phase=Phase.VALIDATE, policy=another_policy(RESTARTING))
    )


def unset(pod, name):
    env = find_container(pod, "main")["env"]
    env.remove(next(entry for entry in env if entry["name"] == name))


def without_amount(kind):
    def break_(pod):
        for each in ("requests", "limits"):
            if kind in (each, "both"):
                del find_container(pod, "main")["resources"][each][VRAM]

    return break_


def second_cap(pod):
    more = {"name": "VRAM_CAP_BYTES", "value": str(2**50)}
    find_container(pod, "vram-enforcer")["env"].append(more)


def other_cap(pod):
    find_container(pod, "vram-enforcer")["env"][0]["value"] = str(2**50)


ESSENTIALS = {
    "requests": (without_amount("requests"), "spec.containers[0].resources.requests"),
    "amounts": (without_amount("both"), "spec.containers[0].resources.requests"),
    "GPU": (lambda pod: unset(pod, VISIBLE), "spec.containers[0].env"),
    "second's GPU": (
        lambda pod: find_container(pod, "second").pop("env"),
        "spec.containers[1].env",
    ),
    "label": (
        lambda pod: pod["metadata"]["labels"].pop("vramwarden.io/managed"),
        "metadata.labels[vramwarden.io/managed]",
    ),
    "namespace": (
        lambda pod: pod["spec"].pop("shareProcessNamespace"),
        "spec.shareProcessNamespace",
    ),
    "sidecar": (lambda pod: pod["spec"]["initContainers"].pop(0), "spec.initContainers"),
    "cap": (other_cap, "spec.initContainers"),
    "second cap": (second_cap, "spec.initContainers"),
}


@pytest.mark.parametrize(("break_", "path"), ESSENTIALS.values(), ids=ESSENTIALS)
def test_what_no_policy_changes_is_missed_under_every_one(break_, path):
    pod = stored_pod()
    break_(pod)
    decision = stored_under_another_policy(pod)
    assert decision.reasons == ("Unmutated",)
    assert decision.findings[0].path == path


@pytest.mark.parametrize(("amount", "reasons"), [("0", ()), ("1", ("Unmutated",))])
def test_the_sidecar_has_no_device_under_any_policy(amount, reasons):
    pod = stored_pod()
    find_container(pod, "vram-enforcer")["resources"]["limits"]["rdma/ib"] = amount
    assert stored_under_another_policy(pod).reasons == reasons


def test_no_policy_restarts_a_pod_by_other_rules_than_ours():
    pod = stored_pod(RESTARTING)
    find_container(pod, "vram-enforcer")["restartPolicyRules"][0]["action"] = "Restart"
    assert stored_under_another_policy(pod).reasons == ("Unmutated",)


def test_a_mark_written_by_hand_does_not_replace_translation():
    pod = a_plain_pod()
    pod["metadata"]["annotations"]["vramwarden.io/admitted"] = "v1 default fedcba987654"
    for policy in (a_policy(), OTHER):
        decision = decide_pod(pod, phase=Phase.VALIDATE, policy=policy)
        assert decision.reasons == ("Unmutated",)


def test_a_mark_written_by_hand_is_overwritten():
    pod = a_plain_pod()
    pod["metadata"]["annotations"]["vramwarden.io/admitted"] = "v1 mine ffffffffffff"
    assert stored_pod(pod=pod) == stored_pod()


@pytest.mark.parametrize("by", [EnforceBy.SENTRY, EnforceBy.NONE])
def test_without_a_sidecar_the_amounts_and_marks_are_still_essential(by):
    rule = a_rule(enforcement={"by": by}, placement=Placement.NONE)
    other = another_policy(rule)
    pod = stored_pod(rule)
    assert_unchanged(decide_pod(pod, phase=Phase.VALIDATE, policy=other))
    pod["metadata"]["labels"].clear()
    assert decide_pod(pod, phase=Phase.VALIDATE, policy=other).reasons == ("Unmutated",)
