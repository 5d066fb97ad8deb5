"""Under Pod Security: what the sidecar needs is within the level of the namespace."""

from __future__ import annotations

import pytest

from tests.support.our_server import container
from tests.support.pods import a_container, a_pod
from webhook.core.pod.findings import Reason
from webhook.names import APP_ARMOR_ANNOTATION_PREFIX as NOTE


@pytest.fixture
def team_at(make_team):
    """Return a function that makes a team whose namespace enforces a level."""

    def make(level):
        prefix = "pod-security.kubernetes.io/"
        return make_team(labels={f"{prefix}enforce": level, f"{prefix}enforce-version": "latest"})

    return make


def a_restricted_pod(memory="8Gi", **pod_context):
    hardened = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, **pod_context}
    return a_pod(
        memory, containers=[a_container(securityContext=hardened)], securityContext=context
    )


def test_in_baseline_the_sidecar_runs_as_root_and_may_kill(team_at):
    pod = team_at("baseline").accepts(a_pod("8Gi"))
    context = container(pod, "vram-enforcer")["securityContext"]
    assert context["runAsUser"] == 0
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["KILL"]}


def test_in_restricted_the_sidecar_runs_as_the_pods_user(team_at):
    pod = team_at("restricted").accepts(a_restricted_pod(runAsUser=1000))
    context = container(pod, "vram-enforcer")["securityContext"]
    assert context["runAsUser"] == 1000
    assert context["runAsNonRoot"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_in_restricted_a_container_may_name_the_user(team_at):
    manifest = a_restricted_pod()
    manifest["spec"]["containers"][0]["securityContext"]["runAsUser"] = 1234
    pod = team_at("restricted").accepts(manifest)
    assert container(pod, "vram-enforcer")["securityContext"]["runAsUser"] == 1234


def test_in_restricted_a_pod_without_a_user_is_refused_by_us_and_told_what_to_do(team_at):
    team = team_at("restricted")
    assert team.denies(a_restricted_pod(), Reason.ENFORCEMENT_IMPOSSIBLE) == (
        "spec.containers[0].securityContext.runAsUser: is not set, so the sidecar cannot run as "
        "the same user and stop its processes; set runAsUser to the image's user id, or ask your "
        "platform team for a rule with enforcement.runAs: Root or "
        "enforcement.podRestart: RestartAllContainers"
    )


def test_in_restricted_a_pod_that_is_not_written_for_it_is_refused_by_pod_security(team_at):
    """Its words name our sidecar, too: what the namespace demands cannot be seen in a review."""
    error = team_at("restricted").refuses(a_pod("8Gi"))
    assert error.message.startswith(
        'pods "train-1" is forbidden: violates PodSecurity "restricted:latest": '
        "allowPrivilegeEscalation != false (container "
    )


def test_a_pod_without_a_demand_is_none_of_our_business_in_restricted(team_at):
    pod = team_at("restricted").accepts(a_restricted_pod(None))
    assert "initContainers" not in pod["spec"]


@pytest.mark.parametrize("level", ["baseline", "privileged"])
def test_a_pod_written_for_restricted_is_guarded_by_its_own_user_anywhere(team_at, level):
    pod = team_at(level).accepts(a_restricted_pod(runAsUser=1000))
    assert container(pod, "vram-enforcer")["securityContext"]["runAsUser"] == 1000


UNCONFINED = {"appArmorProfile": {"type": "Unconfined"}}
LOCALHOST = {"appArmorProfile": {"type": "Localhost", "localhostProfile": "gpu"}}
LABELLED = {"seLinuxOptions": {"type": "container_t", "level": "s0:c1,c2"}}


@pytest.mark.parametrize(
    ("level", "profile"),
    [("privileged", UNCONFINED), ("baseline", LOCALHOST), ("baseline", LABELLED)],
    ids=["unconfined", "localhost", "SELinux"],
)
def test_the_sidecar_has_the_profile_of_what_it_must_stop(team_at, level, profile):
    team = team_at(level)
    pod = team.accepts(a_pod("8Gi", containers=[a_container(securityContext=profile)]))
    if container(pod, "main")["securityContext"] != profile:
        pytest.skip(f"needs an API server that stores {', '.join(profile)}")
    context = container(pod, "vram-enforcer")["securityContext"]
    assert profile.items() <= context.items()
    assert team.calls()[1] == ("validate", "allowed", 0)


def test_a_profile_by_annotation_is_that_of_both(team_at):
    pod = team_at("privileged").accepts(a_pod("8Gi", annotations={NOTE + "main": "unconfined"}))
    assert pod["metadata"]["annotations"][NOTE + "vram-enforcer"] == "unconfined"
    # A field of both, or of neither, before Kubernetes 1.30.
    main = container(pod, "main").get("securityContext", {})
    assert main.items() <= container(pod, "vram-enforcer")["securityContext"].items()
    assert main in ({}, UNCONFINED)


def test_an_annotation_cannot_give_the_sidecar_a_profile(team_at):
    pod = a_pod("8Gi", annotations={NOTE + "vram-enforcer": "localhost/deny-kill"})
    pod = team_at("privileged").accepts(pod)
    assert NOTE + "vram-enforcer" not in pod["metadata"]["annotations"]
    assert "appArmorProfile" not in container(pod, "vram-enforcer")["securityContext"]


def test_baseline_itself_refuses_what_is_unconfined(team_at):
    pod = a_pod("8Gi", annotations={NOTE + "main": "unconfined"})
    error = team_at("baseline").refuses(pod)
    assert 'violates PodSecurity "baseline:latest": forbidden AppArmor profile' in error.message


def test_a_rule_with_the_workloads_user_fits_into_restricted(make_team):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    pod = make_team("workload", labels).accepts(a_restricted_pod(runAsUser=1000))
    assert container(pod, "vram-enforcer")["securityContext"]["runAsUser"] == 1000
