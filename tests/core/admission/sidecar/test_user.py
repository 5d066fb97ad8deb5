"""Whether a sidecar can enforce at all, and the user it runs as."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tests.core.admission.decisions import (
    EVERYWHERE,
    WITHOUT_SIDECAR,
    a_full_pod,
    a_hardened_pod,
    assert_denied,
    assert_fine,
    capability,
    container_of,
    decided,
    host_path,
    put,
    put_in,
    translated,
)
from tests.support.pods import a_rule
from webhook.core.admission.decide import Outcome, Phase
from webhook.core.admission.sidecar.user import OWN_UID, enforcer_user
from webhook.core.pod.demand import read_demand
from webhook.core.pod.views import read_pod
from webhook.core.policy.values import Isolation, PodRestart, RunAs, Style


class Row(NamedTuple):
    """A row of the table in `enforcer_user`'s docstring, with `any` written out."""

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
            # Of the pods that are not denied: what else they lack, the rules say.
            read = read_pod(pod)
            assert enforcer_user(read, read_demand(read)[0], rule) == 0
            continue
        decision = decided(pod, rule)
        if row.sidecar == "EnforcementImpossible":
            assert decision.outcome is Outcome.DENIED
            assert decision.reasons == ("EnforcementImpossible",)
            continue
        context = container_of(decision.obj, "vram-enforcer")["securityContext"]
        root = row.sidecar == "root with KILL"
        uids = {"root with KILL": 0, "that user": 1000, "user of its own": OWN_UID}
        assert context["runAsUser"] == uids[row.sidecar]
        assert context["runAsNonRoot"] is not root
        assert context["capabilities"] == ({"drop": ["ALL"]} | ({"add": ["KILL"]} if root else {}))
        assert_fine(pod, rule)


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
        decision = decided(pod, rule, phase)
        where = f"{path}.securityContext.runAsUser"
        assert_denied(decision, "EnforcementImpossible", where)
        assert "runAsUser" in decision.findings[0].detail


@pytest.mark.parametrize(
    ("run_as", "style", "settings"),
    [
        (RunAs.AUTO, Style.NATIVE, ["runAs: Root", "podRestart: RestartAllContainers"]),
        (RunAs.WORKLOAD, Style.NATIVE, ["podRestart: RestartAllContainers"]),
        (RunAs.AUTO, Style.CONTAINER, ["runAs: Root"]),
        (RunAs.WORKLOAD, Style.CONTAINER, []),
    ],
)
def test_an_impossible_enforcement_names_the_settings_that_would_help(run_as, style, settings):
    pod = a_hardened_pod(restricted=True, users=(None, None))
    message = decided(pod, a_rule(enforcement={"run_as": run_as, "style": style})).message
    asked = " or ".join(f"enforcement.{setting}" for setting in settings)
    wanted = f", or ask your platform team for a rule with {asked}" if settings else "user id"
    assert message.endswith(wanted)


def test_users_of_containers_without_vram_do_not_matter():
    rule = a_rule(enforcement={"run_as": RunAs.WORKLOAD})
    pod = a_full_pod("second=8Gi")
    put_in(pod, "second", {"securityContext": {"runAsUser": 1000}})
    put_in(pod, "main", {"securityContext": {"runAsUser": 0}})
    context = container_of(translated(pod, rule), "vram-enforcer")["securityContext"]
    assert context["runAsUser"] == 1000


def test_a_container_as_root_overrides_the_user_of_its_pod():
    rule = a_rule(enforcement={"run_as": RunAs.WORKLOAD})
    pod = a_hardened_pod(restricted=False, users=(0, 0), pod_user=1000)
    context = container_of(translated(pod, rule), "vram-enforcer")["securityContext"]
    assert context["runAsUser"] == 0
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_without_a_sidecar_no_user_is_needed():
    assert_fine(a_hardened_pod(restricted=True, users=(None, None)), WITHOUT_SIDECAR)


@pytest.mark.parametrize(
    "loosen",
    [
        lambda pod: put_in(pod, "init", {"securityContext": {"allowPrivilegeEscalation": None}}),
        lambda pod: put_in(pod, "main", {"securityContext": {"runAsNonRoot": False}}),
        lambda pod: put_in(pod, "main", {"securityContext": {"seccompProfile": None}}),
        lambda pod: put_in(
            pod, "side", {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}
        ),
        lambda pod: container_of(pod, "second")["securityContext"].pop("capabilities"),
        lambda pod: put_in(pod, "second", capability("NET_ADMIN")),
        lambda pod: put(pod["spec"], {"hostNetwork": True}),
        lambda pod: put(pod["spec"], host_path("/data")),
    ],
    ids=[
        "may escalate",
        "may be root",
        "no seccomp",
        "seccomp unconfined",
        "keeps capabilities",
        "adds NET_ADMIN",
        "hostNetwork",
        "hostPath",
    ],
)
def test_a_pod_that_restricted_would_reject_gets_a_sidecar_as_root(loosen):
    pod = a_hardened_pod(restricted=True, users=(None, None))
    loosen(pod)
    decision = decided(pod)
    assert decision.outcome is Outcome.MUTATED, decision.message
    assert container_of(decision.obj, "vram-enforcer")["securityContext"]["runAsUser"] == 0


def test_what_the_pod_says_for_all_its_containers_counts_as_theirs():
    pod = a_full_pod("8Gi")
    for name in EVERYWHERE:
        put_in(
            pod,
            name,
            {
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                }
            },
        )
    pod["spec"]["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    context = container_of(translated(pod), "vram-enforcer")["securityContext"]
    assert context["runAsUser"] == 1000
