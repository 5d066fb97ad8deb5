"""Each policy of the fence has a chart value, and is omitted on clusters too old for it."""

from __future__ import annotations

import pytest

from tests.support.charts import NAMESPACE, one

POLICIES = {
    "secondLine": {"second-line"},
    "sidecar": {"sidecar", "debuggers"},
    "void": {"void"},
    "enforcer": {"enforcer"},
    "exemption": {"exemption"},
    "accounts": {"accounts"},
}
ALWAYS = {"parameter"}
"""Policy that matches nothing and makes API servers read ConfigMaps."""
ALL = dict.fromkeys(POLICIES, True)


def policies(objects, suffix=""):
    """Return the names of the policies or bindings; check that each has the right kind."""
    kinds = {f"ValidatingAdmissionPolicy{suffix}", f"MutatingAdmissionPolicy{suffix}"}
    names = {
        thing["metadata"]["name"].removeprefix("vramwarden-"): thing["kind"]
        for thing in objects
        if thing["kind"] in kinds
    }
    assert {name for name, kind in names.items() if kind.startswith("Mutating")} <= {"void"}
    return set(names)


def test_all_but_the_void_stand_by_default(helm):
    objects = helm.render()
    expected = set().union(*POLICIES.values()) - {"void"} | ALWAYS
    assert policies(objects) == policies(objects, "Binding") == expected


@pytest.mark.parametrize("value", POLICIES)
def test_each_can_be_switched_off_alone(helm, value):
    objects = helm.render({"fence": {**ALL, value: False}})
    expected = set().union(*POLICIES.values()) - POLICIES[value] | ALWAYS
    assert policies(objects) == policies(objects, "Binding") == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.31", set().union(*POLICIES.values()) - {"void"} | ALWAYS),
        ("1.35.3", set().union(*POLICIES.values()) - {"void"} | ALWAYS),
        ("1.36", set().union(*POLICIES.values()) | ALWAYS),
    ],
)
def test_void_is_left_out_before_kubernetes_1_36(helm, version, expected):
    objects = helm.render({"fence": ALL}, "--kube-version", version)
    assert policies(objects) == policies(objects, "Binding") == expected


@pytest.mark.parametrize("part", ["agent", "sentry"])
def test_the_fence_of_who_is_not_there_is_left_out(helm, part):
    """One policy names all vramwarden accounts."""
    accounts = {name: f"vramwarden-{name}'" for name in ("agent", "sentry", "webhook")}
    for values, left_out in (({}, set()), ({part: {"enabled": False}}, {part})):
        policy = str(one(helm.render(values), "ValidatingAdmissionPolicy", "vramwarden-accounts"))
        assert {name for name in accounts if accounts[name] not in policy} == left_out


def test_whatever_reads_rules_holds_nothing_without_them(helm):
    objects = helm.render({"fence": ALL})
    reading = {
        thing["metadata"]["name"]
        for thing in objects
        if thing["kind"].endswith("AdmissionPolicy") and "paramKind" in thing["spec"]
    }
    assert reading == {"vramwarden-second-line", "vramwarden-void", "vramwarden-parameter"}
    for name in reading:
        kind = "Mutating" if name == "vramwarden-void" else "Validating"
        assert one(objects, f"{kind}AdmissionPolicyBinding", name)["spec"]["paramRef"] == {
            "name": "vramwarden-fence",
            "namespace": NAMESPACE,
            "parameterNotFoundAction": "Allow",
        }


def test_the_void_fails_closed(helm):
    spec = one(helm.render({"fence": ALL}), "MutatingAdmissionPolicy", "vramwarden-void")["spec"]
    assert (spec["failurePolicy"], spec["reinvocationPolicy"]) == ("Fail", "IfNeeded")


def test_the_accounts_of_schedulers_are_a_value(helm):
    accounts = ["system:kube-scheduler", "system:serviceaccount:volcano-system:*"]
    policy = one(
        helm.render({"fence": {"schedulers": accounts}}),
        *("ValidatingAdmissionPolicy", "vramwarden-accounts"),
    )
    expressions = [validation["expression"] for validation in policy["spec"]["validations"]]
    pattern = "^(system:kube-scheduler|system:serviceaccount:volcano-system:.*)$"
    assert sum(f"matches('{pattern}')" in expression for expression in expressions) == 1
