"""Each check, row by row of the table in its docstring: the row says what is to be found."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.support.checked import (
    BEFORE,
    IMAGE,
    INSTALLED,
    NOW_S,
    a_node,
    a_said_node,
    a_shared_node,
    a_stored_node,
    a_workload,
    checked_pod,
    rules,
    seen,
)
from tests.support.documents import table_of
from webhook.core.node.limits import Proof
from webhook.core.node.verdict import SharingCode
from webhook.core.policy.values import EnforceBy
from webhook.names import NODE_SHARING_ANNOTATION as SHARING
from webhook.tools.check.judge.facts import (
    SOUND,
    Certificate,
    DryRun,
    Namespace,
    PolicyFacts,
    judge_without_agent,
)
from webhook.tools.check.judge.findings import Level
from webhook.tools.check.judge.table import GROUPS, When, run
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.objects import Unreadable

CHECKS = {check.id: check for group in GROUPS.values() for check in group}
LEVELS = {
    "ok": Level.OK,
    "warning": Level.WARNING,
    "failed": Level.FAILED,
    "nothing": None,
    "not checked": Level.NOT_CHECKED,
}


def before(**changes):
    return replace(BEFORE, **changes)


def installed(**changes):
    return replace(INSTALLED, **changes)


def nodes(*found, **changes):
    return before(nodes=found, **changes)


def shared(*found, **changes):
    return installed(nodes=found, **changes)


def one(*node, **changes):
    """Return a cluster with one node that is not shared."""
    return nodes(a_node(*node, **changes))


def one_shared(*node, **changes):
    return shared(a_shared_node(*node, **changes))


def verdict(code, **node):
    """Return a node of which its agent wrote this."""
    written = {SHARING: f"{code}: the cause; the remedy"}
    return a_node(metadata={"annotations": written}, **node)


def judged(claimed_by=(), **node):
    """Return a node as `check --pre` judges it."""
    raw = a_stored_node(**node)
    return ClusterNode(raw, sharing=judge_without_agent(raw, claimed_by, float("inf")))


def tried_by(action):
    """Return a policy whose rule for the pods that are tried has this action."""
    return replace(INSTALLED.policy, tried_by=("looking", action))


def ours(name, **changes):
    """Change one of our webhooks."""
    return installed(
        own_webhooks=tuple(
            replace(hook, **changes) if hook.name == name else hook
            for hook in INSTALLED.own_webhooks
        )
    )


def authority(**changes):
    first, *rest = INSTALLED.authorities
    return installed(authorities=(replace(first, **changes), *rest))


def own_authority(**changes):
    own = a_workload(arguments=("--cert-secret=vramwarden-system/vramwarden-certificate",))
    return replace(authority(**changes), webhook=own)


def policy(**changes):
    return installed(policy=replace(INSTALLED.policy, **changes))


SENTRY = "vramwarden.io/sentry"
BY_SENTRY = policy(enforcers=frozenset({EnforceBy.SENTRY}))
HAS_SENTRY = a_shared_node(labels={SENTRY: "true"})
NO_SIDECAR = a_shared_node(labels={"vramwarden.io/enforcement": "none"})


def denied(words):
    return DryRun(created=False, answer=words)


def sentry(*, there, level="", helms=False, release=None):
    namespace = Namespace("vramwarden-sentry", there, level, helms)
    if release is None:
        return before(sentry_namespace=namespace)
    return installed(sentry_namespace=namespace)


def own_pod(node, why):
    return checked_pod("x/agent-x", component="agent", node=node, not_ready=why)


def waits_for_limit(age_s):
    return checked_pod(managed=True, waits_for_limit_s=NOW_S - age_s)


def limited(**limits):
    return installed(gpu_nodes=seen(limits, n1=NOW_S, n2=NOW_S))


HOLDS, CANNOT = Proof(holds=True, back_end="misc"), Proof(holds=False, why="it is old")
WHOLE = {"nvidia.com/gpu": "8"}
SHARE, KEEP = ({"vramwarden.io/share": value} for value in ("true", "false"))
UNREACHED = 'failed calling webhook "mutate.vramwarden.io": no endpoints available'
BY_US = 'admission webhook "mutate.vramwarden.io" denied the request: TooLarge: 1Gi'
BY_SECOND_LINE = "ValidatingAdmissionPolicy 'vramwarden-second-line' denied request: no"
BY_OTHERS = 'pods "x" is forbidden: exceeded quota'
WAITS = checked_pod(managed=True, waits="no GPU of n1 has 8Gi free")
PULLS = checked_pod(managed=True, pull_failure=(IMAGE, "not found"))
VALIDATING = replace(INSTALLED, validators=frozenset({"gpu"}))
UNBOUND = INSTALLED.fences - {"vramwarden-second-line"}


def has_whole(node="n1"):
    return checked_pod("ml/whole", node=node, whole=True)


WHOLE_POD = (has_whole(),)
LOST = {"uuid": "GPU-b", "index": 1, "healthy": False}
NO_FENCE = frozenset({"vramwarden-agent"})

CASES = {
    "kubernetes-version": [
        before(version="v1.30.14+k3s1"),
        (before(version="v1.31.0"), before(version="v1.36.2"), before(version="v1.40.1")),
        before(version=""),
    ],
    "sentry-namespace": [
        (sentry(there=False), sentry(there=False, release=True)),
        (sentry(there=True, level="privileged"), sentry(there=True, level="privileged", release=1)),
        (sentry(there=True), sentry(there=True, release=True)),
        (sentry(there=True, helms=True), sentry(there=True, helms=True, release=True)),
        (
            sentry(there=True, level="baseline"),
            sentry(there=True, level="restricted", release=True),
        ),
    ],
    "gpu-nodes": [nodes(), before(), one(conditions=[{"type": "Ready", "status": "False"}])],
    "agent-labels": [
        (
            before(),
            one(labels={"feature.node.kubernetes.io/pci-10de.present": "true"}),
            one(labels={"nvidia.com/gpu.present": None, "vramwarden.io/share": "true"}),
            one(labels={"nvidia.com/gpu.present": None, "nvidia.com/gpu.count": "2"}),
        ),
        (
            one(labels={"nvidia.com/gpu.present": None}, allocatable=WHOLE),
            one(
                labels={
                    "nvidia.com/gpu.present": "false",
                    "cloud.google.com/gke-accelerator": "nvidia-l4",
                }
            ),
        ),
    ],
    "runtime-class": [
        before(runtime_class=""),
        (before(), one(runtimeHandlers=None)),
        one(runtimeHandlers=[{"name": "runc"}]),
    ],
    "taints": [
        (
            before(),
            one(taints=[{"key": "nvidia.com/gpu", "value": "1", "effect": "NoSchedule"}]),
            one(taints=[{"key": "a", "effect": "PreferNoSchedule"}]),
            nodes(
                a_node(taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}]),
                policy=replace(BEFORE.policy, tolerations=({"key": "team", "value": "a"},)),
            ),
            one(taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]),
        ),
        (
            one(taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}]),
            one(taints=[{"key": "nvidia.com/gpu", "effect": "NoExecute"}]),
        ),
        (policy(problems=("no",)), installed(policy=None)),
    ],
    "sharing": [
        (before(), installed(), one_shared(allocatable=WHOLE, labels=SHARE)),
        (shared(verdict(SharingCode.SHARED)), one_shared(vram="0")),
        tuple(
            shared(verdict(code))
            for code in (
                *(SharingCode.SOME_UNFIT, SharingCode.NONE_FIT),
                *(SharingCode.IN_USE, SharingCode.SETTLING),
            )
        ),
        (shared(verdict(SharingCode.NOT_SHARED, labels=KEEP)), nodes(judged(labels=KEEP))),
        (
            shared(verdict(SharingCode.NOT_SHARED)),
            shared(verdict(SharingCode.NOT_SHARED, labels={"vramwarden.io/share": "yes"})),
            nodes(judged(allocatable=WHOLE)),
            nodes(judged(claimed_by=("gpu.nvidia.com",))),
            nodes(judged(labels={"vramwarden.io/share": "yes"})),
        ),
        shared(verdict(SharingCode.DRAINING, labels=KEEP)),
        (
            shared(verdict(SharingCode.DRAINING)),
            shared(a_shared_node(), verdict(SharingCode.DRAINING)),
        ),
        (shared(a_node()), shared(a_node(metadata={"annotations": {SHARING: "what"}}))),
    ],
    "whole-gpu-pods": [
        (installed(), shared(a_shared_node(), a_node("n2"), pods=(has_whole("n2"),))),
        shared(a_shared_node(labels=SHARE), pods=WHOLE_POD),
        (installed(pods=WHOLE_POD), shared(a_shared_node(labels=KEEP), pods=WHOLE_POD)),
    ],
    "other-products": [
        one(labels={"nvidia.com/gpu.present": None}, allocatable={"vramwarden.io/vram": 1}),
        before(groups=frozenset({"kai.scheduler"})),
        (before(), installed()),
    ],
    "gpus-answer": [
        installed(),
        one_shared(gpus=({}, LOST)),
        shared(a_shared_node("n2", gpus=({}, LOST)), a_shared_node(gpus=(LOST,))),
    ],
    "enforcement": [
        replace(BY_SENTRY, nodes=(NO_SIDECAR,)),
        (installed(), installed(policy=None), installed(policy=Unreadable("x"))),
        shared(a_said_node()),
        one_shared(
            labels={
                "vramwarden.io/enforcement": "none",
                "vramwarden.io/driver-version": "535.129.03",
            }
        ),
        (
            shared(NO_SIDECAR),
            shared(NO_SIDECAR, policy=Unreadable("x")),
            shared(NO_SIDECAR, policy=PolicyFacts(problems=("x",))),
        ),
    ],
    "sentry-label": [
        installed(policy=Unreadable("x")),
        (installed(), installed(policy=None), installed(policy=PolicyFacts(problems=("x",)))),
        (
            replace(BY_SENTRY, nodes=(a_said_node(),)),
            replace(BY_SENTRY, nodes=(a_node(),)),
        ),
        replace(BY_SENTRY, nodes=(HAS_SENTRY, a_node("n2"))),
        (
            BY_SENTRY,
            replace(BY_SENTRY, nodes=(HAS_SENTRY, a_shared_node("n2"))),
            replace(BY_SENTRY, nodes=(a_shared_node(labels={SENTRY: "false"}),)),
        ),
    ],
    "device-names": [
        one_shared(labels={"vramwarden.io/device-names": "none"}),
        (installed(), one_shared(labels={"vramwarden.io/device-names": None})),
    ],
    "release": [installed(), installed(webhook=None)],
    "release-version": [installed(), installed(webhook=a_workload(version="0.2.0"))],
    "webhook-ready": [
        installed(),
        installed(webhook=a_workload(ready=1)),
        (installed(webhook=a_workload(ready=0)), installed(webhook=a_workload(desired=0, ready=0))),
    ],
    "configurations": [
        ours("bind.vramwarden.io", configuration="vramwarden"),
        installed(),
        (installed(own_webhooks=INSTALLED.own_webhooks[1:]), installed(own_webhooks=())),
        (
            ours("mutate.vramwarden.io", failure_policy="Ignore"),
            ours("validate.vramwarden.io", failure_policy="Ignore"),
        ),
        (
            ours("bind.vramwarden.io", failure_policy="Fail"),
            ours("advise.vramwarden.io", failure_policy="Fail"),
        ),
    ],
    "webhook-order": [installed(), installed(later_configurations=("zzz-other",))],
    "bind-path": [installed(), ours("bind.vramwarden.io", path="")],
    "ca-bundle": [
        authority(problem="caBundle is empty"),
        authority(trusts=False),
        authority(days_left=-1.0),
        (authority(days_left=7.0), authority(days_left=0.5, trusts=None)),
        own_authority(days_left=365.0),
        (installed(), authority(trusts=None), authority(days_left=8), own_authority(days_left=366)),
    ],
    "certificate": [
        installed(certificate=None),
        installed(certificate=Certificate("a/b", problem="there is none in it")),
        installed(certificate=Certificate("a/b", days_left=-3.0)),
        installed(certificate=Certificate("a/b", days_left=6.9)),
        installed(),
    ],
    "pod-asks": [
        (installed(), installed(asks=DryRun(created=True, admitted=True, rule="trusted"))),
        installed(asks=DryRun(created=True), policy=tried_by("Audit")),
        installed(asks=DryRun(created=True), policy=Unreadable("x")),
        (
            installed(asks=DryRun(created=True)),
            installed(asks=DryRun(created=True), policy=tried_by("Warn")),
        ),
        installed(asks=denied(UNREACHED)),
        installed(asks=denied(BY_SECOND_LINE)),
        installed(asks=denied(BY_US)),
        installed(asks=denied(BY_OTHERS)),
    ],
    "pod-wrong": [
        installed(),
        tuple(
            installed(wrong=DryRun(created=True), policy=tried_by(action))
            for action in ("Audit", "Warn")
        ),
        installed(wrong=DryRun(created=True), policy=Unreadable("x")),
        (
            installed(wrong=DryRun(created=True)),
            installed(wrong=DryRun(created=True), policy=tried_by("Enforce")),
        ),
        installed(wrong=denied(UNREACHED)),
        (installed(wrong=denied(BY_OTHERS)), installed(wrong=denied(BY_SECOND_LINE))),
    ],
    "pod-plain": [
        installed(),
        (
            installed(plain=DryRun(created=True, admitted=True)),
            installed(plain=DryRun(created=True, has_sidecar=True)),
        ),
        (installed(plain=denied(BY_US)), installed(plain=denied(UNREACHED))),
        installed(plain=denied(BY_OTHERS)),
    ],
    "policy-valid": [
        installed(policy=None),
        policy(problems=("x/a.yaml:3: spec: unknown field", "x/b.yaml:4: no")),
        policy(rules=0),
        installed(),
    ],
    "policy-in-force": [
        installed(),
        installed(asks=DryRun(created=True, admitted=True, rule="a", digest="ffffffffffff")),
        (policy(problems=("no",)), policy(fence={}), installed(policy=None)),
    ],
    "fence-policies": [
        installed(),
        installed(fence_bindings=UNBOUND),
        installed(fences=UNBOUND, fence_bindings=UNBOUND),
    ],
    "fence-rules": [
        installed(fences=NO_FENCE),
        installed(fence_rules=None),
        installed(fence_rules=rules("^(a)$ translated\n")),
        (installed(), policy(fence={})),
    ],
    "replicas-key": [installed(), installed(has_key=False)],
    "validators": [
        installed(),
        VALIDATING,
        replace(VALIDATING, policy=replace(INSTALLED.policy, validated=("gpu",))),
    ],
    "agents": [
        installed(agent=None),
        installed(agent=a_workload("agent", desired=0, ready=0, present=0)),
        installed(),
        (
            installed(agent=a_workload("agent", ready=1)),
            installed(
                agent=a_workload("agent", ready=1), own_pods=(own_pod("n2", "no driver yet"),)
            ),
        ),
    ],
    "sentries": [
        installed(sentry=None, agent=a_workload("agent", arguments=("--vram=48Gi",))),
        installed(sentry=None),
        installed(sentry=a_workload("sentry", desired=0, ready=0, present=0)),
        installed(),
        installed(sentry=a_workload("sentry", ready=1)),
        installed(sentry=a_workload("sentry", ready=0, present=0)),
    ],
    "limiters": [
        installed(),
        installed(limiter=a_workload("limiter", desired=0, ready=0, present=0)),
        installed(limiter=a_workload("limiter")),
        installed(limiter=a_workload("limiter", ready=1)),
        installed(limiter=a_workload("limiter", ready=0, present=0)),
    ],
    "figures": [
        (installed(sentry=None), installed(nodes=(a_node(),))),
        installed(),
        (
            installed(gpu_nodes=seen(n1=NOW_S)),
            installed(gpu_nodes=seen(n1=NOW_S, n2=NOW_S - 181)),
        ),
        installed(gpu_nodes=None),
    ],
    "driver-limits": [
        (
            installed(pods=(waits_for_limit(40),)),
            replace(limited(n1=HOLDS), pods=(SOUND, waits_for_limit(40))),
        ),
        (
            installed(pods=(waits_for_limit(20),)),
            installed(),
            installed(gpu_nodes=seen({"n9": HOLDS}, "offered whole", n9=NOW_S)),
        ),
        (limited(n1=HOLDS), limited(n1=HOLDS, n2=HOLDS), limited(n1=CANNOT, n2=HOLDS)),
        (limited(n1=CANNOT), limited(n1=CANNOT, n2=CANNOT)),
    ],
    "sidecar-image": [
        (installed(pods=(PULLS,)), installed(pods=(SOUND, PULLS))),
        (installed(), installed(pods=(WAITS, SOUND))),
        replace(BY_SENTRY, pods=(WAITS,)),
        (installed(pods=()), installed(pods=(WAITS,))),
    ],
    "pods-without-gpu": [installed(pods=(WAITS,)), (installed(), installed(pods=(PULLS,)))],
}


def expected(cell):
    return next(level for word, level in LEVELS.items() if cell.startswith(word))


def rows():
    for name, check in CHECKS.items():
        for number, cells in enumerate(table_of(check.find)):
            yield pytest.param(name, number, cells, id=f"{name}: {' | '.join(cells)}")


def finding(name, facts):
    results = {one.check.id: one.finding for one in run(facts, pre=facts.webhook is None)}
    return results.get(name)


def test_each_check_has_a_case_for_each_row_of_its_table():
    wanted = {name: len(table_of(check.find)) for name, check in CHECKS.items()}
    assert {name: len(cases) for name, cases in CASES.items()} == wanted
    assert min(wanted.values()) >= 1


@pytest.mark.parametrize(("name", "number", "cells"), list(rows()))
def test_each_row_of_each_table_holds(name, number, cells):
    cases = CASES[name][number]
    # The namespace's table has a column for each of the two moments.
    columns = cells[-2:] if name == "sentry-namespace" else cells[-1:] * 99
    for facts, cell in zip(cases if isinstance(cases, tuple) else (cases,), columns, strict=False):
        found = CHECKS[name].find if name == "release" else None
        found = found(facts) if found else finding(name, facts)
        assert (found and found.level) == expected(cell), found
        if found and found.level in {Level.WARNING, Level.FAILED}:
            assert found.cure
            assert found.detail
        elif found:
            assert not found.cure


def test_names_of_checks_are_their_own():
    names = [check.id for group in GROUPS.values() for check in group]
    assert len(names) == len(set(names))


def test_where_all_is_well_all_is_well():
    for facts in (BEFORE, INSTALLED):
        found = {one.finding.level for one in run(facts, pre=facts is BEFORE)}
        assert found == {Level.OK}


@pytest.mark.parametrize("facts", [BEFORE, INSTALLED], ids=["before", "installed"])
def test_what_could_not_be_seen_neither_passes_nor_fails(facts):
    blind = {
        one.name: Unreadable("needs the right to see")
        for one in fields(facts)
        if "Unreadable" in str(one.type)
    }
    pre = facts is BEFORE
    results = run(replace(facts, **blind), pre=pre)
    seen = {one.check.id for one in results if one.finding.level is not Level.NOT_CHECKED}
    assert seen == {"kubernetes-version"}
    assert {one.check.id for one in results} == {
        check.id for check in CHECKS.values() if check.when in ({When.BOTH} if pre else {*When})
    }


def test_of_many_nodes_three_are_named_and_all_are_known():
    found = finding("sharing", nodes(*(
        verdict(SharingCode.NOT_SHARED, name=f"n{number:04}") for number in range(5000)
    )))  # fmt: skip
    assert found.detail == "n0000, n0001, n0002 and 4,997 more: NotShared: the cause"
    assert len(found.about) == 5000
