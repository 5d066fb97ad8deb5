"""AppArmor and SELinux profiles of the sidecar."""

from __future__ import annotations

import re
from copy import deepcopy

import pytest

from tests.core.admission.decisions import (
    BY_SENTRY,
    WITHOUT_SIDECAR,
    a_full_pod,
    a_hardened_pod,
    assert_admitted,
    assert_denied,
    assert_unchanged,
    decide_pod,
    decide_reasons,
    find_container,
    merge_into_container,
    translate,
)
from tests.support.pods import RULE, a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.admission.sidecar.security_context import enforcer_profiles
from webhook.core.policy.model import PodRestart

APP_ARMOR, SELINUX = "appArmorProfile", "seLinuxOptions"
UNCONFINED = {"type": "Unconfined"}
DEFAULT = {"type": "RuntimeDefault"}
LOCAL = {"type": "Localhost", "localhostProfile": "gpu"}
OTHER = {"type": "Localhost", "localhostProfile": "cpu"}
LEVEL, LABEL = {"level": "s0:c1,c2"}, {"type": "spc_t"}
APP_ARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
NOTES = {
    "unconfined": UNCONFINED,
    "runtime/default": DEFAULT,
    "localhost/gpu": LOCAL,
    "localhost/cpu": OTHER,
}


def a_confined_pod(field, main=None, second=None, *, pod=None, notes=None):
    """Return a pod with two VRAM containers; `notes` are AppArmor annotations."""
    made = a_full_pod("main=4Gi,second=4Gi")
    for name, value in (("main", main), ("second", second)):
        if value is not None:
            merge_into_container(made, name, {"securityContext": {field: value}})
    if pod is not None:
        made["spec"]["securityContext"] = {field: pod}
    for name, value in (notes or {}).items():
        made["metadata"]["annotations"][APP_ARMOR_ANNOTATION + name] = value
    return made


def case(field, *own, wanted=None, **more):
    shown = [*map(str, own), *(f"{key} {value}" for key, value in more.items())]
    return pytest.param(
        a_confined_pod(field, *own, **more), field, wanted, id=f"{field} {', '.join(shown)}"
    )


def stored(pod, *, notes_fields=True):
    """Return a pod as the API server passes it to validation.

    Source: applyAppArmorVersionSkew in k8s.io/kubernetes/pkg/registry/core/pod/strategy.go. Only
    some versions write an annotation for a field.
    """
    pod = deepcopy(pod)
    spec, notes = pod["spec"], pod["metadata"]["annotations"]
    of_pod = spec.get("securityContext", {})
    for one in spec["initContainers"] + spec["containers"]:
        context = one.setdefault("securityContext", {})
        if profile := NOTES.get(notes.get(APP_ARMOR_ANNOTATION + one["name"])):
            context.setdefault(APP_ARMOR, profile)
        elif notes_fields and (profile := context.get(APP_ARMOR) or of_pod.get(APP_ARMOR)):
            spelt = (text for text, known in NOTES.items() if known == profile)
            notes[APP_ARMOR_ANNOTATION + one["name"]] = next(spelt)
    return pod


def noted(profile: str):
    return {"notes": {"main": profile, "second": profile}}


# Settings of the containers with VRAM, and the sidecar's expected setting. None means unset.
AGREE = [
    case(APP_ARMOR),
    case(APP_ARMOR, UNCONFINED, UNCONFINED, wanted=UNCONFINED),
    case(APP_ARMOR, LOCAL, LOCAL, wanted=LOCAL),
    case(APP_ARMOR, DEFAULT, DEFAULT),
    case(APP_ARMOR, DEFAULT, None),
    case(APP_ARMOR, pod=UNCONFINED),
    case(APP_ARMOR, UNCONFINED, pod=UNCONFINED),
    case(APP_ARMOR, DEFAULT, DEFAULT, pod=LOCAL, wanted=DEFAULT),
    case(APP_ARMOR, LOCAL, LOCAL, pod=UNCONFINED, wanted=LOCAL),
    case(APP_ARMOR, wanted=UNCONFINED, **noted("unconfined")),
    case(APP_ARMOR, wanted=LOCAL, **noted("localhost/gpu")),
    case(APP_ARMOR, **noted("runtime/default")),
    case(APP_ARMOR, **noted("localhost/")),
    case(APP_ARMOR, **noted("")),
    case(APP_ARMOR, pod=LOCAL, wanted=UNCONFINED, **noted("unconfined")),
    case(APP_ARMOR, pod=LOCAL, wanted=DEFAULT, **noted("runtime/default")),
    case(APP_ARMOR, LOCAL, LOCAL, wanted=LOCAL, notes={"main": "localhost/gpu"}),
    case(APP_ARMOR, LOCAL, wanted=LOCAL, notes={"second": "localhost/gpu"}),
    case(APP_ARMOR, notes={"init": "unconfined"}),
    case(SELINUX),
    case(SELINUX, LEVEL, LEVEL, wanted=LEVEL),
    case(SELINUX, {**LEVEL, "user": None}, {**LEVEL, "type": ""}, wanted=LEVEL),
    case(SELINUX, pod=LEVEL),
    case(SELINUX, LEVEL, pod=LEVEL),
    case(SELINUX, LABEL, LABEL, pod=LEVEL, wanted=LABEL),
    case(SELINUX, {}, {}, pod=LEVEL, wanted={}),
    case(SELINUX, {}),
]
DIFFER = [
    case(APP_ARMOR, UNCONFINED),
    case(APP_ARMOR, None, UNCONFINED),
    case(APP_ARMOR, LOCAL, UNCONFINED),
    case(APP_ARMOR, LOCAL, OTHER),
    case(APP_ARMOR, DEFAULT, pod=UNCONFINED),
    case(APP_ARMOR, notes={"main": "unconfined"}),
    case(APP_ARMOR, notes={"main": "localhost/gpu", "second": "localhost/cpu"}),
    case(SELINUX, LEVEL),
    case(SELINUX, LEVEL, LABEL),
    case(SELINUX, {}, pod=LEVEL),
]
CASES = {"agree": AGREE, "differ": DIFFER}


def rows():
    """Return the rows in `enforcer_profiles`'s docstring, with `any` expanded."""
    lines = re.findall(r"^ *\| (.+) \|$", enforcer_profiles.__doc__ or "", re.MULTILINE)[2:]
    return [
        (cells[0], restart, cells[2])
        for cells in ([cell.strip() for cell in line.split("|")] for line in lines)
        for restart in (PodRestart if cells[1] == "any" else [PodRestart(cells[1])])
    ]


def test_the_table_of_profiles_says_each_case_once():
    cases = [row[:2] for row in rows()]
    assert len(cases) == len(set(cases)) == len(CASES) * len(PodRestart)


@pytest.mark.parametrize(
    ("restart", "sidecar", "pod", "field", "wanted"),
    [
        pytest.param(restart, sidecar, *found.values, id=f"{restart} {found.id}")
        for containers, restart, sidecar in rows()
        for found in CASES[containers]
    ],
)
def test_the_sidecar_is_confined_as_the_table_says(restart, sidecar, pod, field, wanted):
    rule = a_rule(enforcement={"pod_restart": restart})
    if sidecar == "EnforcementImpossible":
        for phase in Phase:
            path = f"spec.containers[1].securityContext.{field}"
            assert_denied(decide_pod(pod, rule, phase), "EnforcementImpossible", path)
        return
    context = find_container(stored(translate(pod, rule)), "vram-enforcer")["securityContext"]
    assert sidecar in {"the same", "that of the pod"}
    assert context.get(field) == (wanted if sidecar == "the same" else None)
    assert {APP_ARMOR, SELINUX} & context.keys() <= {field}
    assert_admitted(pod, rule)


def test_profiles_of_containers_without_vram_do_not_matter():
    pod = a_full_pod("second=8Gi")
    merge_into_container(pod, "main", {"securityContext": {APP_ARMOR: UNCONFINED, SELINUX: LEVEL}})
    merge_into_container(pod, "second", {"securityContext": {APP_ARMOR: LOCAL}})
    context = find_container(translate(pod), "vram-enforcer")["securityContext"]
    assert context[APP_ARMOR] == LOCAL
    assert SELINUX not in context


def test_a_profile_is_the_only_thing_that_changes():
    plain = find_container(translate(a_confined_pod(APP_ARMOR)), "vram-enforcer")
    found = find_container(translate(a_confined_pod(APP_ARMOR, LOCAL, LOCAL)), "vram-enforcer")
    assert found["securityContext"].pop(APP_ARMOR) == LOCAL
    assert found == plain


@pytest.mark.parametrize("notes_fields", [True, False])
@pytest.mark.parametrize(
    "pod", [a_confined_pod(APP_ARMOR, **noted(one)) for one in NOTES], ids=NOTES
)
def test_what_any_api_server_stores_is_what_we_asked_for(notes_fields, pod):
    kept = stored(translate(pod), notes_fields=notes_fields)
    assert_unchanged(decide_pod(kept, phase=Phase.VALIDATE))
    assert decide_pod(kept).patch == ()
    main, sidecar = (
        find_container(kept, name)["securityContext"].get(APP_ARMOR, DEFAULT)
        for name in ("main", "vram-enforcer")
    )
    assert main == sidecar


@pytest.mark.parametrize("rule", [RULE, BY_SENTRY, WITHOUT_SIDECAR])
def test_no_annotation_gives_the_sidecar_another_profile(rule):
    pod = a_confined_pod(APP_ARMOR, notes={"vram-enforcer": "localhost/deny-kill"})
    assert (
        APP_ARMOR_ANNOTATION + "vram-enforcer"
        not in translate(pod, rule)["metadata"]["annotations"]
    )
    pod = translate(a_confined_pod(APP_ARMOR), rule)
    pod["metadata"]["annotations"][APP_ARMOR_ANNOTATION + "vram-enforcer"] = "localhost/deny-kill"
    assert decide_pod(pod, rule, phase=Phase.VALIDATE).reasons == ("Unmutated",)


@pytest.mark.parametrize("profile", [UNCONFINED, DEFAULT, OTHER], ids=str)
def test_no_webhook_gives_the_sidecar_another_profile(profile):
    for wanted in (None, LOCAL):
        pod = translate(a_confined_pod(APP_ARMOR, wanted, wanted))
        find_container(pod, "vram-enforcer")["securityContext"][APP_ARMOR] = profile
        assert decide_pod(pod, phase=Phase.VALIDATE).reasons == ("Unmutated",)


def test_the_denial_names_both_containers_and_the_setting_that_would_help():
    (finding,) = decide_pod(a_confined_pod(APP_ARMOR, LOCAL)).findings
    assert finding.detail == (
        'write that of container "main", or ask your platform team for a rule with '
        "enforcement.podRestart: RestartAllContainers; one sidecar can stop processes of one "
        "appArmorProfile only"
    )


def test_all_that_keeps_signals_from_arriving_is_reported_at_once():
    pod = a_hardened_pod(restricted=True, users=(1000, 1001))
    merge_into_container(pod, "main", {"securityContext": {APP_ARMOR: LOCAL, SELINUX: LEVEL}})
    path = "spec.containers[1].securityContext"
    assert decide_reasons(pod) == [
        ("EnforcementImpossible", f"{path}.{field}") for field in ("runAsUser", APP_ARMOR, SELINUX)
    ]


@pytest.mark.parametrize("rule", [BY_SENTRY, WITHOUT_SIDECAR], ids=["sentry", "none"])
def test_without_a_sidecar_profiles_may_differ(rule):
    assert_admitted(a_confined_pod(APP_ARMOR, LOCAL, UNCONFINED), rule)


@pytest.mark.parametrize("wrong", [5, "x", [], {"type": 5}, {"level": []}], ids=str)
@pytest.mark.parametrize("field", [APP_ARMOR, SELINUX])
@pytest.mark.parametrize("where", ["pod", "main"])
def test_a_profile_of_a_wrong_type_is_malformed(wrong, field, where):
    if isinstance(wrong, dict) and field == APP_ARMOR and "level" in wrong:
        wrong = {"localhostProfile": []}
    decision = decide_pod(a_confined_pod(field, **{where: wrong}), RULE)
    assert decision.outcome is Outcome.MALFORMED
    holder = "spec" if where == "pod" else "spec.containers[0]"
    assert decision.malformed.startswith(f"{holder}.securityContext.{field}")
