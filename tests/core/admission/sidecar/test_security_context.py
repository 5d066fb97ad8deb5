"""User of the sidecar, and pods in which no user would work."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tests.core.admission.decisions import (
    BY_SENTRY,
    EVERYWHERE,
    WITHOUT_SIDECAR,
    a_full_pod,
    a_hardened_pod,
    assert_admitted,
    assert_denied,
    capability,
    decide_pod,
    find_container,
    host_path,
    merge_fields,
    merge_into_container,
    translate,
)
from tests.support.pods import a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.admission.sidecar.security_context import OWN_UID, enforcer_user
from webhook.core.pod.demand import read_demand
from webhook.core.pod.views import read_pod
from webhook.core.policy.model import Isolation, PodRestart, RunAs


class Row(NamedTuple):
    """Row of the table in `enforcer_user`'s docstring, with `any` expanded."""

    isolation: Isolation
    run_as: RunAs
    restricted: bool
    one_user: bool
    pod_restart: PodRestart
    sidecar: str


def rows() -> list[Row]:
    lines = re.findall(r"^ *\| (.+) \|$", enforcer_user.__doc__ or "", re.MULTILINE)[2:]
    words = {"any": (True, False), "yes": (True,), "no": (False,)}
    return [
        Row(isolation, RunAs(cells[1]), restricted, one_user, pod_restart, cells[5])
        for cells in ([cell.strip() for cell in line.split("|")] for line in lines)
        for isolation in (Isolation if cells[0] == "any" else [Isolation(cells[0])])
        for restricted in words[cells[2]]
        for one_user in words[cells[3]]
        for pod_restart in (PodRestart if cells[4] == "any" else [PodRestart(cells[4])])
    ]


def test_the_table_of_users_says_each_case_once():
    cases = [row[:5] for row in rows()]
    # No policy has isolation NonRoot and runAs Workload.
    wanted = (len(Isolation) * len(RunAs) - 1) * 4 * len(PodRestart)
    assert len(cases) == len(set(cases)) == wanted


@pytest.mark.parametrize("row", rows(), ids=lambda row: "-".join(map(str, row)))
def test_the_sidecar_runs_as_the_table_says(row):
    held = {"run_as": row.run_as, "pod_restart": row.pod_restart}
    rule = a_rule(isolation=row.isolation, enforcement=held)
    known = [((1000, 1000), None), ((None, None), 1000), ((1000, None), 1000), ((1000, 1000), 5)]
    unknown = [((None, None), None), ((1000, None), None), ((1000, 1001), None), ((7, None), 8)]
    for users, pod_user in known if row.one_user else unknown:
        pod = a_hardened_pod(restricted=row.restricted, users=users, pod_user=pod_user)
        if row.isolation is Isolation.NON_ROOT:
            # Only admitted pods. The tests of the rules cover other faults.
            read = read_pod(pod)
            assert enforcer_user(read, read_demand(read)[0], rule) == 0
            continue
        decision = decide_pod(pod, rule)
        if row.sidecar == "EnforcementImpossible":
            assert decision.outcome is Outcome.DENIED
            assert decision.reasons == ("EnforcementImpossible",)
            continue
        context = find_container(decision.obj, "vram-enforcer")["securityContext"]
        root = row.sidecar == "root with KILL"
        uids = {"root with KILL": 0, "that user": 1000, "user of its own": OWN_UID}
        assert context["runAsUser"] == uids[row.sidecar]
        assert context["runAsNonRoot"] is not root
        assert context["capabilities"] == ({"drop": ["ALL"]} | ({"add": ["KILL"]} if root else {}))
        assert_admitted(pod, rule)


@pytest.mark.parametrize(
    ("users", "pod_user", "path"),
    [
        ((None, None), None, "spec.containers[0]"),
        ((1000, None), None, "spec.containers[1]"),
        ((1000, 1001), None, "spec.containers[1]"),
        ((None, 8), 7, "spec.containers[1]"),
    ],
)
@pytest.mark.parametrize("run_as", [RunAs.AUTO, RunAs.WORKLOAD])
def test_an_impossible_enforcement_names_the_container(users, pod_user, path, run_as):
    rule = a_rule(enforcement={"run_as": run_as})
    pod = a_hardened_pod(restricted=True, users=users, pod_user=pod_user)
    for phase in Phase:
        decision = decide_pod(pod, rule, phase)
        where = f"{path}.securityContext.runAsUser"
        assert_denied(decision, "EnforcementImpossible", where)
        assert "runAsUser" in decision.findings[0].detail


@pytest.mark.parametrize(
    ("run_as", "settings"),
    [
        (RunAs.AUTO, ["runAs: Root", "podRestart: RestartAllContainers"]),
        (RunAs.WORKLOAD, ["podRestart: RestartAllContainers"]),
    ],
)
def test_an_impossible_enforcement_names_the_settings_that_would_help(run_as, settings):
    pod = a_hardened_pod(restricted=True, users=(None, None))
    message = decide_pod(pod, a_rule(enforcement={"run_as": run_as})).message
    asked = " or ".join(f"enforcement.{setting}" for setting in settings)
    assert f", or ask your platform team for a rule with {asked}; " in message


@pytest.mark.parametrize(
    ("memory", "users", "of_pod", "wanted"),
    [
        ("second=8Gi", {"second": 1000, "main": 0}, {}, 1000),
        ("main=4Gi,second=4Gi", {"main": 0, "second": 0}, {"runAsUser": 1000}, 0),
    ],
    ids=["users of containers without VRAM do not matter", "root overrides the user of its pod"],
)
def test_the_sidecar_runs_as_the_user_of_the_containers_with_vram(memory, users, of_pod, wanted):
    pod = a_full_pod(memory, securityContext=of_pod)
    for name, user in users.items():
        merge_into_container(pod, name, {"securityContext": {"runAsUser": user}})
    rule = a_rule(enforcement={"run_as": RunAs.WORKLOAD})
    context = find_container(translate(pod, rule), "vram-enforcer")["securityContext"]
    assert (context["runAsUser"], context["capabilities"]) == (wanted, {"drop": ["ALL"]})


@pytest.mark.parametrize("rule", [BY_SENTRY, WITHOUT_SIDECAR], ids=["sentry", "none"])
@pytest.mark.parametrize("users", [(None, None), (1000, 1001)], ids=str)
def test_without_a_sidecar_no_user_is_needed(users, rule):
    assert_admitted(a_hardened_pod(restricted=True, users=users), rule)


def with_context(name, **fields):
    return lambda pod: merge_into_container(pod, name, {"securityContext": fields})


LOOSENED = {
    "may escalate": with_context("init", allowPrivilegeEscalation=None),
    "may be root": with_context("main", runAsNonRoot=False),
    "no seccomp": with_context("main", seccompProfile=None),
    "seccomp unconfined": with_context("side", seccompProfile={"type": "Unconfined"}),
    "keeps capabilities": with_context("second", capabilities=None),
    "adds NET_ADMIN": lambda pod: merge_into_container(pod, "second", capability("NET_ADMIN")),
    "hostNetwork": lambda pod: merge_fields(pod["spec"], {"hostNetwork": True}),
    "hostPath": lambda pod: merge_fields(pod["spec"], host_path("/data")),
}


@pytest.mark.parametrize("loosen", LOOSENED.values(), ids=LOOSENED)
def test_a_pod_that_restricted_would_reject_gets_a_sidecar_as_root(loosen):
    pod = a_hardened_pod(restricted=True, users=(None, None))
    loosen(pod)
    decision = decide_pod(pod)
    assert decision.outcome is Outcome.MUTATED, decision.message
    assert find_container(decision.obj, "vram-enforcer")["securityContext"]["runAsUser"] == 0


def test_what_the_pod_says_for_all_its_containers_counts_as_theirs():
    pod = a_full_pod("8Gi")
    for name in EVERYWHERE:
        own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        merge_into_container(pod, name, {"securityContext": own})
    seccomp = {"seccompProfile": {"type": "RuntimeDefault"}}
    pod["spec"]["securityContext"] = {"runAsNonRoot": True, "runAsUser": 1000, **seccomp}
    context = find_container(translate(pod), "vram-enforcer")["securityContext"]
    assert context["runAsUser"] == 1000
