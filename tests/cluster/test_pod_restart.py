"""The sidecar's rule to restart all containers, on old and new API servers."""

from __future__ import annotations

import pytest

from tests.support.control_planes import ApiError, ControlPlane
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from tests.support.webhook_on_cluster import container
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.admission.sidecar.security_context import OWN_UID
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.model import PodRestart

OURS = [
    {
        "action": "RestartAllContainers",
        "exitCodes": {"operator": "NotIn", "values": [0, 70, 75]},
    }
]
GATE = "RestartAllContainersOnContainerExits"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
POLICY = a_policy(a_rule(enforcement={"pod_restart": PodRestart.ALL_CONTAINERS}))


@pytest.fixture(autouse=True)
def _new_enough(control_plane):
    version = control_plane.api.request("GET", "/version")
    if (int(version["major"]), int(version["minor"].rstrip("+"))) < (1, 36):
        pytest.skip("needs kube-apiserver 1.36")


def a_pod_without_a_user():
    hardened = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return a_pod(
        "8Gi",
        containers=[a_container(securityContext=hardened)],
        securityContext={"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    )


def test_the_sidecar_is_stored_with_the_rule_as_we_wrote_it(make_team):
    team = make_team("restarted")
    found = container(team.accepts(a_pod("8Gi")), "vram-enforcer")
    assert (found["restartPolicy"], found["restartPolicyRules"]) == ("Always", OURS)
    assert team.calls()[1] == ("validate", "allowed", 0)


def test_in_restricted_a_pod_without_a_user_is_guarded_by_a_user_of_our_own(make_team):
    team = make_team("restarted", RESTRICTED)
    pod = team.accepts(a_pod_without_a_user())
    found = container(pod, "vram-enforcer")
    assert found["restartPolicyRules"] == OURS
    assert found["securityContext"]["runAsUser"] == OWN_UID
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_stored_pod_can_be_created_again(make_team):
    team = make_team("restarted", RESTRICTED)
    stored = team.accepts(a_pod_without_a_user())
    keep = {key: stored["metadata"][key] for key in ("annotations", "labels")}
    copied = team.accepts({**stored, "metadata": keep})
    assert copied["spec"] == stored["spec"]
    assert team.calls()[2:] == [("mutate", "allowed", 0), ("validate", "allowed", 0)]


def translated():
    pod = decide(a_request(a_pod_without_a_user()), POLICY, UNKNOWN_CLUSTER, Phase.MUTATE).obj
    pod["metadata"]["namespace"] = "default"
    return pod


def test_with_the_gate_off_the_api_server_refuses_the_pod():
    with (
        ControlPlane(apiserver_args=[f"--feature-gates={GATE}=false"]) as older,
        pytest.raises(ApiError, match="restartPolicyRules are not allowed for init containers"),
    ):
        older.api.create(translated())


def test_where_the_field_is_not_known_it_is_dropped_and_we_refuse_the_pod():
    off = f"--feature-gates={GATE}=false,ContainerRestartRules=false"
    with ControlPlane(apiserver_args=[off]) as older:
        stored = older.api.create(translated())
    assert "restartPolicyRules" not in container(stored, "vram-enforcer")
    decision = decide(a_request(stored), POLICY, UNKNOWN_CLUSTER, Phase.VALIDATE)
    assert decision.reasons == ("Unmutated",)
    assert "spec.initContainers" in decision.message
