"""What a pod that another policy translated must hold."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import (
    RICH_RULE,
    VISIBLE,
    VRAM,
    a_plain_pod,
    another_policy,
    assert_left,
    container_of,
    decided,
    stored_pod,
)
from tests.support.pods import RULE, a_policy, a_rule
from webhook.core.admission.decide import Phase
from webhook.core.policy.values import Bounds, EnforceBy, Placement, PodRestart

OTHER = another_policy(a_rule(memory=Bounds(max_bytes=2**40)))


def stored_under_another_policy(pod):
    return decided(pod, phase=Phase.VALIDATE, policy=OTHER)


def test_a_pod_bears_the_digest_of_the_policy_that_translated_it():
    notes = stored_pod()["metadata"]["annotations"]
    assert notes["vramwarden.io/admitted"] == "v1 default 0123456789ab"


@pytest.mark.parametrize("rule", [RULE, RICH_RULE], ids=["plain", "rich"])
def test_a_pod_of_another_policy_is_stored(rule):
    assert_left(stored_under_another_policy(stored_pod(rule)))


def test_a_pod_with_a_sidecar_of_another_release_and_settings_is_stored():
    changes = {"image": "vramwarden/enforcer:2", "grace": "0s", "tolerance": "5%"}
    pod = stored_pod(a_rule(enforcement=changes))
    assert_left(stored_under_another_policy(pod))


def test_a_pod_whose_probes_ask_python_as_an_older_release_wrote_them_is_stored():
    pod = stored_pod()
    sidecar = container_of(pod, "vram-enforcer")
    asked = ["python3", "-I", "-m", "webhook.sidecar", "--probe"]
    sidecar["startupProbe"]["exec"]["command"] = [*asked, "startup", "--wait", "25"]
    sidecar["livenessProbe"]["exec"]["command"] = [*asked, "liveness"]
    assert_left(stored_under_another_policy(pod))
    again = decided(pod)
    assert again.obj == stored_pod()


RESTARTING = a_rule(enforcement={"pod_restart": PodRestart.ALL_CONTAINERS})


def test_a_pod_that_either_policy_restarts_is_stored():
    assert_left(stored_under_another_policy(stored_pod(RESTARTING)))
    other = another_policy(RESTARTING)
    assert_left(decided(stored_pod(), phase=Phase.VALIDATE, policy=other))


def test_no_policy_restarts_a_pod_by_other_rules_than_ours():
    pod = stored_pod(RESTARTING)
    container_of(pod, "vram-enforcer")["restartPolicyRules"][0]["action"] = "Restart"
    assert stored_under_another_policy(pod).reasons == ("Unmutated",)


@pytest.mark.parametrize(
    "break_",
    [
        lambda pod: pod["spec"].pop("nodeSelector"),
        lambda pod: pod["spec"].pop("tolerations"),
        lambda pod: pod["spec"].pop("runtimeClassName"),
        lambda pod: unset(pod, "XLA_PYTHON_CLIENT_PREALLOCATE"),
        lambda pod: unset(pod, "VRAMWARDEN_GPU_MEMORY_MIB"),
        lambda pod: container_of(pod, "vram-enforcer").pop("startupProbe"),
    ],
    ids=["selector", "tolerations", "runtime class", "env of the rule", "cap", "probe"],
)
def test_what_a_policy_decides_is_not_missed_under_another_one(break_):
    pod = stored_pod(RICH_RULE)
    break_(pod)
    assert_left(stored_under_another_policy(pod))


def unset(pod, name):
    env = container_of(pod, "main")["env"]
    env.remove(next(entry for entry in env if entry["name"] == name))


def without_amount(kind):
    def break_(pod):
        for each in ("requests", "limits"):
            if kind in (each, "both"):
                del container_of(pod, "main")["resources"][each][VRAM]

    return break_


def second_cap(pod):
    more = {"name": "VRAM_CAP_BYTES", "value": str(2**50)}
    container_of(pod, "vram-enforcer")["env"].append(more)


def other_cap(pod):
    container_of(pod, "vram-enforcer")["env"][0]["value"] = str(2**50)


ESSENTIALS = [
    (without_amount("requests"), "spec.containers[0].resources.requests"),
    (without_amount("both"), "spec.containers[0].resources.requests"),
    (lambda pod: unset(pod, VISIBLE), "spec.containers[0].env"),
    (
        lambda pod: pod["metadata"]["labels"].pop("vramwarden.io/managed"),
        "metadata.labels[vramwarden.io/managed]",
    ),
    (lambda pod: pod["spec"].pop("shareProcessNamespace"), "spec.shareProcessNamespace"),
    (lambda pod: pod["spec"]["initContainers"].pop(0), "spec.initContainers"),
    (other_cap, "spec.initContainers"),
    (second_cap, "spec.initContainers"),
]


@pytest.mark.parametrize(
    ("break_", "path"),
    ESSENTIALS,
    ids=["requests", "amounts", "GPU", "label", "namespace", "sidecar", "cap", "second cap"],
)
def test_what_no_policy_changes_is_missed_under_every_one(break_, path):
    pod = stored_pod()
    break_(pod)
    decision = stored_under_another_policy(pod)
    assert decision.reasons == ("Unmutated",)
    assert decision.findings[0].path == path


@pytest.mark.parametrize(
    "entries",
    [
        [{"name": "LD_PRELOAD", "value": "/x.so"}],
        [{"name": "PYTHONPATH", "value": "/x"}],
    ],
    ids=str,
)
def test_no_policy_lets_others_steer_the_sidecar(entries):
    pod = stored_pod()
    container_of(pod, "vram-enforcer")["env"].extend(entries)
    assert stored_under_another_policy(pod).reasons == ("Unmutated",)


@pytest.mark.parametrize(
    ("field", "item"),
    [
        ("env", {"name": VISIBLE, "value": "void"}),
        ("env", {"name": "VRAM_TOLERANCE", "value": "9Ti"}),
        ("envFrom", {"configMapRef": {"name": "m"}}),
        ("volumeMounts", {"name": "v", "mountPath": "/usr"}),
    ],
    ids=["blind", "second tolerance", "variables from a map", "mount over /usr"],
)
def test_no_policy_lets_others_blind_or_replace_the_sidecar(field, item):
    pod = stored_pod()
    container_of(pod, "vram-enforcer").setdefault(field, []).append(item)
    assert stored_under_another_policy(pod).reasons == ("Unmutated",)


def test_containers_without_vram_see_no_gpu_under_any_policy_that_denies():
    pod = stored_pod()
    del container_of(pod, "second")["env"]
    assert stored_under_another_policy(pod).reasons == ("Unmutated",)


def test_a_mark_written_by_hand_does_not_replace_translation():
    pod = a_plain_pod()
    pod["metadata"]["annotations"]["vramwarden.io/admitted"] = "v1 default fedcba987654"
    for policy in (a_policy(), OTHER):
        decision = decided(pod, phase=Phase.VALIDATE, policy=policy)
        assert decision.reasons == ("Unmutated",)


def test_a_mark_written_by_hand_is_overwritten():
    pod = a_plain_pod()
    pod["metadata"]["annotations"]["vramwarden.io/admitted"] = "v1 mine ffffffffffff"
    assert stored_pod(pod=pod) == stored_pod()


def test_without_a_sidecar_the_amounts_and_marks_are_still_essential():
    rule = a_rule(enforcement={"by": EnforceBy.NONE}, placement=Placement.NONE)
    other = another_policy(rule)
    pod = stored_pod(rule)
    assert_left(decided(pod, phase=Phase.VALIDATE, policy=other))
    pod["metadata"]["labels"].clear()
    assert decided(pod, phase=Phase.VALIDATE, policy=other).reasons == ("Unmutated",)
