"""Rules that ask who creates a pod: at its creation, and when somebody else changes it."""

from __future__ import annotations

import copy

import pytest

from tests.core.admission.decisions import decided
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import Outcome, Phase, decide, governing_rule
from webhook.core.policy.cluster import UNKNOWN
from webhook.core.policy.match import Match
from webhook.core.policy.values import Action, Bounds
from webhook.names import ADMITTED_ANNOTATION

INTERN = {"user": "oidc:ida", "groups": ("oidc:interns", "system:authenticated")}
BOSS = {"user": "oidc:bob", "groups": ("oidc:staff", "system:authenticated")}
CONTROLLER = {"user": "system:serviceaccount:argo:argo", "groups": ("system:serviceaccounts",)}

INTERNS = a_rule(name="interns", groups=("oidc:interns",), memory=Bounds(max_bytes=8 * 2**30))
BOSSES = a_rule(name="bosses", users=("oidc:bob",), action=Action.IGNORE)
EVERYBODY = a_rule(name="everybody")
POLICY = a_policy(INTERNS, BOSSES, EVERYBODY)
ALL_GPUS = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


def rule(request, policy=POLICY):
    found = governing_rule(request, policy, UNKNOWN)
    return found.name if found else ""


@pytest.mark.parametrize(
    ("who", "name"), [(INTERN, "interns"), (BOSS, "bosses"), (CONTROLLER, "everybody")]
)
def test_both_phases_of_a_creation_judge_its_creator(who, name):
    pod = a_pod("9Gi")
    for phase in Phase:
        assert decided(pod, phase=phase, policy=POLICY, **who).rule == name
    assert decided(pod, policy=POLICY, **INTERN).reasons == ("TooLarge",)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"serviceAccountName": "trainer"}, "trainers"),
        ({"serviceAccount": "trainer"}, "trainers"),
        ({"serviceAccountName": "trainer", "serviceAccount": "default"}, "trainers"),
        ({"serviceAccountName": ""}, "defaults"),
        ({}, "defaults"),
        ({"serviceAccountName": "other"}, ""),
    ],
)
def test_a_pod_without_a_service_account_has_the_default_one(spec, name):
    rules = [a_rule(name=f"{name}s", service_accounts=(name,)) for name in ("trainer", "default")]
    assert rule(a_request(a_pod("8Gi", **spec)), a_policy(*rules)) == name


def test_a_service_account_that_is_no_text_is_malformed():
    request = a_request(a_pod("8Gi", serviceAccountName=1))
    assert decide(request, POLICY, UNKNOWN, Phase.MUTATE).outcome is Outcome.MALFORMED


def admitted(amount="8Gi", mark="interns", **fields):
    """Return a pod with a demand as it is stored."""
    pod = a_pod(amount, **fields)
    pod["metadata"]["annotations"][ADMITTED_ANNOTATION] = f"v1 {mark} 0123456789ab"
    return pod


def changes(old, policy=POLICY, **request):
    return rule(a_request(copy.deepcopy(old), operation="UPDATE", old=old, **request), policy)


@pytest.mark.parametrize("who", [INTERN, BOSS, CONTROLLER], ids=lambda who: who["user"])
@pytest.mark.parametrize("name", ["interns", "everybody"])
def test_a_change_is_governed_by_the_rule_that_admitted_the_pod(name, who):
    assert changes(admitted(mark=name), **who) == name


CHANGERS = [(INTERN, "interns"), (BOSS, "bosses"), (CONTROLLER, "everybody")]


@pytest.mark.parametrize(("who", "name"), CHANGERS)
@pytest.mark.parametrize(
    "pod",
    [a_pod(), a_pod("8Gi"), admitted(mark="gone"), admitted(mark="bosses")],
    ids=["asks for nothing", "bears no mark", "of a rule that is gone", "of one that ignores"],
)
def test_a_change_of_another_pod_is_judged_as_if_who_makes_it_had_created_the_pod(pod, who, name):
    assert changes(pod, **who) == name


def test_a_mark_on_a_pod_without_a_demand_is_not_believed():
    forged = a_pod(annotations={ADMITTED_ANNOTATION: "v1 everybody 0123456789ab"})
    assert changes(forged, **INTERN) == "interns"


def test_a_mark_of_a_rule_for_other_pods_is_not_believed():
    others = a_rule(name="others", namespaces=("elsewhere",))
    assert changes(admitted(mark="others"), a_policy(INTERNS, others), **INTERN) == "interns"


def test_a_rule_that_asks_for_no_creator_governs_a_change_wherever_it_stands_first():
    policy = a_policy(a_rule(name="new", namespaces=("team-*",)), INTERNS, EVERYBODY)
    assert changes(admitted(mark="interns"), policy, **INTERN) == "new"


def test_an_exception_for_creators_holds_for_changes_as_it_did_at_the_creation():
    strict = a_rule(name="strict", exception=Match(groups=("oidc:staff",)))
    policy = a_policy(strict, a_rule(name="lax", action=Action.WARN))
    for who in (INTERN, BOSS):
        assert changes(admitted(mark="strict"), policy, **who) == "strict"
        assert changes(admitted(mark="lax"), policy, **who) == "lax"


def test_an_intern_gets_no_debugging_container_by_which_a_whole_gpu_is_seen():
    debugger = [a_container("debug", env=ALL_GPUS)]
    for old in (a_pod(), admitted(mark="interns"), admitted(mark="everybody")):
        new = copy.deepcopy(old)
        new["spec"]["ephemeralContainers"] = debugger
        request = a_request(
            new, operation="UPDATE", subresource="ephemeralcontainers", old=old, **INTERN
        )
        assert not decide(request, POLICY, UNKNOWN, Phase.MUTATE).allowed


@pytest.mark.parametrize("who", [INTERN, BOSS, CONTROLLER], ids=lambda who: who["user"])
def test_nobody_is_denied_a_change_that_touches_nothing_of_ours(who):
    for old in (a_pod(), a_pod("8Gi"), admitted(), admitted("80Gi", mark="everybody")):
        new = copy.deepcopy(old)
        new["metadata"]["labels"] = {"app": "new"}
        request = a_request(new, operation="UPDATE", old=old, **who)
        assert decide(request, POLICY, UNKNOWN, Phase.VALIDATE).allowed


def test_nobody_takes_a_demand_away():
    new = admitted(mark="interns")
    del new["metadata"]["annotations"]["vramwarden.io/gpu-memory"]
    for who in (INTERN, BOSS, CONTROLLER):
        request = a_request(new, operation="UPDATE", old=admitted(), **who)
        assert decide(request, POLICY, UNKNOWN, Phase.VALIDATE).reasons == ("Immutable",)
