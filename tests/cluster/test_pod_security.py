"""Pod Security: the sidecar complies with the level of its namespace."""

from __future__ import annotations

import pytest

from tests.support.pods import a_container, a_pod
from tests.support.webhook_on_cluster import container
from webhook.core.pod.findings import Reason
from webhook.names import APP_ARMOR_ANNOTATION_PREFIX as NOTE


@pytest.fixture
def team_at(make_team):
    """Return a function that creates a team whose namespace enforces a level."""

    def make(level, rule="team"):
        key = "pod-security.kubernetes.io/enforce"
        return make_team(rule, {key: level, f"{key}-version": "latest"})

    return make


def a_restricted_pod(memory="8Gi", **pod_context):
    hardened = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, **pod_context}
    return a_pod(
        memory, containers=[a_container(securityContext=hardened)], securityContext=context
    )


OWN_USER = {"runAsUser": 1000, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}
UNCONFINED = {"appArmorProfile": {"type": "Unconfined"}}
LOCALHOST = {"appArmorProfile": {"type": "Localhost", "localhostProfile": "gpu"}}
LABELLED = {"seLinuxOptions": {"type": "container_t", "level": "s0:c1,c2"}}


def confined(profile):
    return a_pod("8Gi", containers=[a_container(securityContext=profile)])


@pytest.mark.parametrize(
    ("level", "rule", "pod", "context"),
    [
        pytest.param(
            "baseline",
            "team",
            a_pod("8Gi"),
            {"runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ["KILL"]}},
            id="in baseline it is root and may kill",
        ),
        *(
            pytest.param("restricted", rule, a_restricted_pod(runAsUser=1000), OWN_USER, id=what)
            for rule, what in (
                ("team", "in restricted it runs as the pod's user"),
                ("workload", "a rule with the workload's user fits into restricted"),
            )
        ),
        pytest.param("privileged", "team", confined(UNCONFINED), UNCONFINED, id="unconfined"),
        pytest.param("baseline", "team", confined(LOCALHOST), LOCALHOST, id="localhost"),
        pytest.param("baseline", "team", confined(LABELLED), LABELLED, id="SELinux"),
    ],
)
def test_the_sidecar_is_within_the_level_and_can_stop_what_it_must(
    team_at, level, rule, pod, context
):
    team = team_at(level, rule)
    stored = team.accepts(pod)
    kept = container(stored, "main").get("securityContext", {})
    assert pod["spec"]["containers"][0].get("securityContext", {}).items() <= kept.items()
    assert context.items() <= container(stored, "vram-enforcer")["securityContext"].items()
    assert team.calls()[1] == ("validate", "allowed", 0)


def test_in_restricted_a_pod_without_a_user_is_refused_by_us_and_told_what_to_do(team_at):
    team = team_at("restricted")
    assert team.denies(a_restricted_pod(), Reason.ENFORCEMENT_IMPOSSIBLE) == (
        "spec.containers[0].securityContext.runAsUser: set runAsUser to the image's user id, or "
        "ask your platform team for a rule with enforcement.runAs: Root or "
        "enforcement.podRestart: RestartAllContainers; the sidecar that holds the cap can stop "
        "only processes of its own user"
    )


@pytest.mark.parametrize("user", [{}, {"runAsUser": 1000}], ids=["no user", "a user"])
def test_by_sentry_a_pod_within_restricted_is_stored_in_its_own_context(team_at, user):
    team, pod = team_at("restricted", "sentry"), a_restricted_pod(**user)
    stored = team.accepts(pod)
    for field in ("containers", "initContainers"):
        wanted, found = (
            [(item["name"], item["securityContext"]) for item in each["spec"].get(field, ())]
            for each in (pod, stored)
        )
        assert found == wanted
    assert stored["spec"]["securityContext"] == pod["spec"]["securityContext"]
    assert team.calls()[1] == ("validate", "allowed", 0)


@pytest.mark.parametrize("shared", [True, False])
def test_by_sentry_a_pod_keeps_its_own_process_namespace_and_never_the_nodes(make_team, shared):
    team = make_team("sentry")
    stored = team.accepts(a_pod("8Gi", shareProcessNamespace=shared))
    assert stored["spec"].get("shareProcessNamespace", False) is shared
    assert team.denies(a_pod("8Gi", hostPID=True), Reason.HOST_PID) == (
        "spec.hostPID: remove hostPID; processes of the pod could stop the node's sentry, which "
        "holds the cap"
    )


def test_in_restricted_a_pod_that_is_not_written_for_it_is_refused_by_pod_security(team_at):
    """The message also names the sidecar, since a review does not contain the namespace's level."""
    error = team_at("restricted").refuses(a_pod("8Gi"))
    assert error.message.startswith(
        'pods "train-1" is forbidden: violates PodSecurity "restricted:latest": '
        "allowPrivilegeEscalation != false (container "
    )


def test_a_profile_by_annotation_is_that_of_both(team_at):
    pod = team_at("privileged").accepts(a_pod("8Gi", annotations={NOTE + "main": "unconfined"}))
    assert container(pod, "main")["securityContext"] == UNCONFINED
    assert UNCONFINED.items() <= container(pod, "vram-enforcer")["securityContext"].items()


def test_baseline_itself_refuses_what_is_unconfined(team_at):
    pod = a_pod("8Gi", annotations={NOTE + "main": "unconfined"})
    error = team_at("baseline").refuses(pod)
    assert 'violates PodSecurity "baseline:latest": forbidden AppArmor profile' in error.message
