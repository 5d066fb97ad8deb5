"""What findings say: which cause is named first, and the command to type."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.checked import (
    BEFORE,
    INSTALLED,
    a_node,
    a_said_node,
    a_shared_node,
    a_workload,
    checked_pod,
    seen,
)
from tests.support.pods import a_container, a_pod
from webhook.core.node.limits import Proof
from webhook.core.policy.values import EnforceBy
from webhook.tools.check.judge.facts import DryRun, of_interest
from webhook.tools.check.judge.findings import named
from webhook.tools.check.judge.table import run
from webhook.tools.snapshot.objects import Unreadable
from webhook.tools.snapshot.pod import ClusterPod


def having(*nodes, **changes):
    """Return a cluster with a release that works, and with these nodes in place of its own."""
    return replace(INSTALLED, nodes=nodes, **changes)


def verdict(name, written):
    """Return a node of which its agent wrote this."""
    return a_node(name, metadata={"annotations": {"vramwarden.io/sharing": written}})


def with_policy(**changes):
    return {"policy": replace(INSTALLED.policy, **changes)}


def finding(name, facts):
    results = {one.check.id: one.finding for one in run(facts, pre=facts.webhook is None)}
    return results.get(name)


def said(name, facts):
    found = finding(name, facts)
    return found and found.detail


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("v1.30.9", "1.30 is not supported, and Helm rejects the chart"),
        ("v1.31.0", "1.31, https://10.0.0.1:6443; fence.void and podRestart need 1.36"),
        ("v1.35.9", "1.35, https://10.0.0.1:6443; fence.void and podRestart need 1.36"),
        ("v1.36.0", "1.36, https://10.0.0.1:6443"),
    ],
)
def test_what_a_version_lacks_is_said(version, words):
    assert said("kubernetes-version", replace(BEFORE, version=version)) == words


def test_where_amounts_are_said_nothing_of_nvidias_is_missed():
    """As after the chart with deploy/laptop.yaml: no sentry, no driver, no RuntimeClass."""
    agent = a_workload("agent", arguments=("--vram=16Gi",))
    laptop = having(a_said_node(), agent=agent, sentry=None, runtime_class="", gpu_nodes={})
    levels = {one.check.id: one.finding.level.value for one in run(laptop, pre=False)}
    assert [name for name, level in levels.items() if level in {"warning", "failed"}] == []
    assert not {"sentries", "figures", "runtime-class", "gpus-answer"} & levels.keys()


TYPED = "NotShared: a plugin; label the node a.b/c=false, or wait"
LOST = {"uuid": "GPU-b", "index": 1, "healthy": False}
EXCLUSIVE = {
    "healthy": False,
    "fault": "compute mode Exclusive_Process: run nvidia-smi -i GPU-a -c DEFAULT",
}
UNMEASURED = {"vramwarden.io/enforcement": "none"}
OLD = a_shared_node("n1", UNMEASURED | {"vramwarden.io/driver-version": "535.129.03"})
NEW = a_shared_node("n2", UNMEASURED)
HAS_SENTRY = a_shared_node("n1", {"vramwarden.io/sentry": "true"})
BY_SENTRY = replace(INSTALLED.policy, enforcers=frozenset({EnforceBy.SENTRY}))
UNREADY = (
    checked_pod("x/sentry-y", component="sentry", node="n1", not_ready="of the sentry"),
    checked_pod("x/agent-x", component="agent", node="", not_ready="no driver yet"),
)
NAMELESS = checked_pod("a/b", managed=True, pull_failure=("", "no such image"))
NO_DEBUGGERS = INSTALLED.fences - {"vramwarden-debuggers"}
VOID = INSTALLED.fences | {"vramwarden-void"}
FENCES = "secondLine, sidecar, enforcer, exemption, accounts"
BY_US = 'admission webhook "mutate.vramwarden.io" denied the request: TooLarge: no'


def fenced(names):
    return replace(INSTALLED, fences=names, fence_bindings=names)


def figures_of_n1(at_s):
    return replace(INSTALLED, gpu_nodes=seen(n1=INSTALLED.now_s + at_s, n2=INSTALLED.now_s))


def limited(**limits):
    now = dict.fromkeys(("n1", "n2"), INSTALLED.now_s)
    return replace(INSTALLED, gpu_nodes=seen(limits, **now))


UNLIMITED = checked_pod(managed=True, waits_for_limit_s=INSTALLED.now_s - 40)


def tried(answer):
    return replace(INSTALLED, asks=DryRun(created=False, answer=answer))


SAID = {
    "a node whose amount is said": (
        "enforcement", having(a_said_node()),
        {"level": "ok", "detail": "amounts are said, not measured (agent.vram): n1"}),
    "beside one that is measured": (
        "enforcement", having(a_said_node("n2"), OLD), {"level": "warning", "about": ("n1",)}),
    "nodes that are not shared": (
        "sharing",
        having(verdict("n3", TYPED), a_shared_node(), verdict("n2", "NotShared: another; do it")),
        {"level": "warning", "about": ("n3", "n2"), "detail": "n2, n3: NotShared: another",
         "cure": "do it; or leave it so: `kubectl label node n2 vramwarden.io/share=false "
                 "--overwrite`"}),
    "one of them with the command to type": (
        "sharing", having(verdict("n3", TYPED)),
        {"cure has": "`kubectl label node n3 a.b/c=false --overwrite`, or wait; or leave"}),
    "a node that drains, beside others": (
        "sharing", having(verdict("n1", "Settling: it waits; see its log"),
                          verdict("n2", "InUse: x; y"),
                          verdict("n3", "Draining: a plugin; take it off")),
        {"level": "failed", "about": ("n3", "n2", "n1"),
         "detail": "n3: Draining: a plugin. n2: InUse: x. n1: Settling: it waits",
         "cure": "take it off; or `kubectl drain n3 --ignore-daemonsets --delete-emptydir-data`"}),
    "a node without a verdict": (
        "sharing", having(a_node()),
        {"level": "warning", "detail": "n1: its agent offers no vramwarden.io/vram",
         "cure has": "logs -l app.kubernetes.io/component=agent --prefix`"}),
    "nodes that would be shared": ("sharing", BEFORE, {"detail": "2 of 2 nodes"}),
    "and DRA drivers that nobody may see": (
        "sharing", replace(BEFORE, drivers=Unreadable("needs a right")),
        {"level": "ok", "detail": "2 of 2 nodes; DRA drivers: needs a right"}),
    "a GPU that is lost": (
        "gpus-answer", having(a_shared_node(gpus=({}, LOST))),
        {"detail": "nothing new is placed on GPU 1 of n1 (is lost or unhealthy)"}),
    "a GPU in another compute mode": (
        "gpus-answer", having(a_shared_node(gpus=(EXCLUSIVE,))),
        {"level": "failed",
         "detail": f"nothing new is placed on GPU 0 of n1 ({EXCLUSIVE['fault']})",
         "cure": "run that on the node; its agent sees it within half a minute"}),
    "one beside a GPU that is lost": (
        "gpus-answer", having(a_shared_node(gpus=(EXCLUSIVE, LOST))),
        {"detail has": "Exclusive_Process", "cure has": "then reset the GPU"}),
    "a driver that is too old, beside one that is not": (
        "enforcement", having(NEW, OLD),
        {"detail has": "no pod by Sidecar goes to n1, n2: driver 535.129.03 is too old",
         "cure": "upgrade the driver there to 570 or newer, or write enforcement.by: Sentry"}),
    "a node without a sentry": (
        "sentry-label", having(HAS_SENTRY, NEW, policy=BY_SENTRY),
        {"detail": "no pod by Sentry goes to n2: no sentry that acts measures all GPUs there",
         "cure has": "see why: `kubectl -n vramwarden-sentry logs -l ", "about": ("n2",)}),
    "a sentry that only reports": (
        "sentry-label",
        having(NEW, policy=BY_SENTRY, sentry=a_workload(arguments=("sentry", "--no-act"))),
        {"detail": "no pod by Sentry goes to n2: sentry.act is false",
         "cure has": "--set sentry.act=true"}),
    "no sentry at all": (
        "sentry-label", having(NEW, policy=BY_SENTRY, sentry=None),
        {"cure has": "--set sentry.enabled=true"}),
    "a driver that is new enough": (
        "enforcement", having(NEW), {"detail has": "though the driver is new enough"}),
    "no agent": ("agents", having(a_node(), agent=None), {"level": "warning"}),
    "memory that is shown": ("sharing", INSTALLED, {"detail": "160Gi on 2 of 2 nodes"}),
    "an agent that is not ready, by its own reason": (
        "agents", replace(INSTALLED, agent=a_workload("agent", ready=1), own_pods=UNREADY),
        {"detail": "ready: 1 of 2 nodes: no driver yet (node unknown)", "about": (),
         "cure": "`kubectl -n vramwarden-system describe pods agent-x`"}),
    "a replica that is not ready, by its own reason": (
        "webhook-ready",
        replace(
            INSTALLED,
            webhook=a_workload(ready=1),
            own_pods=(checked_pod("x/w-y", component="webhook", node="n1", not_ready="no image"),),
        ),
        {"level": "warning", "detail": "ready: 1 of 2 replicas: no image (node n1)"}),
    "a key that is missing": (
        "replicas-key", replace(INSTALLED, has_key=False),
        {"cure has": "`kubectl -n vramwarden-system create secret generic vramwarden-key "}),
    "figures that are three minutes old": ("figures", figures_of_n1(-180), {"level": "ok"}),
    "figures of a clock that is ahead": (
        "figures", figures_of_n1(181),
        {"about": ("n1",), "cure has": "`kubectl -n vramwarden-sentry logs "}),
    "a driver that holds caps, beside one that does not": (
        "driver-limits", limited(n1=Proof(holds=True), n2=Proof(holds=False, why="it is old")),
        {"detail": "on 1 of 2 nodes; not on n2 (it is old)", "cure": ""}),
    "a driver that holds caps where there is no limiter elsewhere": (
        "driver-limits", limited(n1=Proof(holds=True)), {"detail": "on 1 of 2 nodes"}),
    "drivers that hold none": (
        "driver-limits", limited(n1=Proof(holds=False, why="it is old")),
        {"level": "warning", "detail": "not on n1 (it is old)", "about": ("n1",)}),
    "a pod that waits for the driver's limit": (
        "driver-limits", replace(INSTALLED, pods=(UNLIMITED,)),
        {"level": "warning", "about": ("team-a/eval",),
         "detail": "team-a/eval: nothing starts there before the driver holds the cap",
         "cure": "`vramwarden explain eval -n team-a`"}),
    "a sidecar's image without a name": (
        "sidecar-image", replace(INSTALLED, pods=(NAMELESS,)), {"level": "failed"}),
    "a policy that is missing, by its value": (
        "fence-policies", fenced(NO_DEBUGGERS), {"level": "warning", "about": ("fence.sidecar",)}),
    "a fence": ("fence-policies", INSTALLED, {"detail": FENCES}),
    "a fence with the void": ("fence-policies", fenced(VOID), {"detail": f"{FENCES}, void"}),
    "that we denied a good pod": (
        "pod-asks", tried(BY_US),
        {"detail": f"in namespace default the policy denies it: {BY_US}"}),
    "that others denied it": (
        "pod-asks", tried("exceeded quota"),
        {"detail": "in namespace default it was denied: exceeded quota"}),
    "one problem of a policy": (
        "policy-valid", replace(INSTALLED, **with_policy(problems=("one",))), {"detail": "one"}),
    "a further problem": (
        "policy-valid", replace(INSTALLED, **with_policy(problems=("one", "two"))),
        {"detail": "one and 1 more"}),
    "further problems, counted": (
        "policy-valid", replace(INSTALLED, **with_policy(problems=("one", "two", "three"))),
        {"detail": "one and 2 more"}),
    "a release": ("release", INSTALLED, {"detail": "0.1.0 in namespace vramwarden-system"}),
    "a release without a version": (
        "release", replace(INSTALLED, webhook=a_workload(version="")),
        {"detail has": "of an unknown version in namespace vramwarden-system"}),
    "which no command is of": (
        "release-version", replace(INSTALLED, webhook=a_workload(version="")),
        {"detail has": "the release unknown"}),
}  # fmt: skip
"""A check, what is known, and each part of the finding: all of it, or what it has (not)."""


@pytest.mark.parametrize(("name", "facts", "wanted"), SAID.values(), ids=SAID)
def test_what_is_found_is_said_in_words(name, facts, wanted):
    found = finding(name, facts)
    for key, value in wanted.items():
        part, _, how = key.partition(" ")
        seen = getattr(found, part)
        holds = {"": seen == value, "has": value in seen, "has not": value not in seen}
        assert holds[how], seen


def test_without_an_agent_no_node_is_blamed():
    assert finding("sharing", having(a_node(), agent=None)) is None


def a_pod_on_n1(name, *, limits=None, status=None, **spec):
    containers = [a_container("main", resources={"limits": limits or {}})]
    pod = a_pod(containers=containers, nodeName="n1", **spec)
    pod["metadata"]["name"] = name
    started = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    return {**pod, "status": {**started, **(status or {})}}


def test_pods_that_have_whole_gpus_are_named_with_their_nodes():
    raw = [
        a_pod_on_n1("whole", limits={"nvidia.com/gpu": "1"}),
        a_pod_on_n1("nothing"),
        a_pod_on_n1("over", limits={"nvidia.com/gpu": "1"}, status={"phase": "Succeeded"}),
        a_pod(containers=[a_container("main", resources={"limits": {"nvidia.com/gpu": "1"}})]),
    ]
    pods = tuple(filter(None, map(of_interest, map(ClusterPod, raw))))
    found = finding("whole-gpu-pods", replace(INSTALLED, pods=pods))
    assert found.about == ("team-a/whole",)
    assert found.detail == (
        "pods have whole GPUs where others have VRAM, so a card may be given twice: "
        "team-a/whole on n1"
    )
    assert "`kubectl drain n1 --ignore-daemonsets" in found.cure


CAUSES = {
    "x509: certificate signed by unknown authority": "does not trust its certificate",
    "x509: certificate has expired or is not yet valid": "has expired",
    'no endpoints available for service "vramwarden-webhook"': "no replica is ready",
    "connect: connection refused": "nobody listens",
    "context deadline exceeded": "does not answer in time",
    'service "vramwarden-webhook" not found': "its Service is gone",
    "something new": "the API server does not reach it",
}


@pytest.mark.parametrize(("answer", "why"), CAUSES.items())
def test_why_an_api_server_does_not_reach_it_is_said(answer, why):
    run_dry = DryRun(
        created=False, answer=f'failed calling webhook "mutate.vramwarden.io": {answer}'
    )
    found = finding("pod-asks", replace(INSTALLED, asks=run_dry))
    assert why in found.detail.partition(": failed calling")[0]
    assert found.cure
    assert "{}" not in found.cure


def test_names_and_counts_are_short():
    assert named(["b", "a"]) == "a, b"
    assert named(["d", "c", "b", "a"]) == "a, b, c and 1 more"


@pytest.mark.parametrize(
    ("days", "level"), [(0.0, "failed"), (0.1, "warning"), (7.0, "warning"), (7.1, "ok")]
)
def test_a_certificate_warns_from_a_week_on_and_fails_once_it_has_expired(days, level):
    certificate = replace(INSTALLED.certificate, days_left=days)
    authorities = (replace(INSTALLED.authorities[0], days_left=days),)
    facts = replace(INSTALLED, certificate=certificate, authorities=authorities)
    assert [finding(name, facts).level for name in ("certificate", "ca-bundle")] == [level] * 2


def test_a_ca_of_our_own_is_replaced_by_a_command_alone():
    own = a_workload(arguments=("--cert-secret=gpu/tls",))
    for days, detail in ((-1.0, "its CA has expired"), (200.0, "its CA is valid for 200 days")):
        authorities = (replace(INSTALLED.authorities[0], days_left=days),)
        found = finding("ca-bundle", replace(INSTALLED, webhook=own, authorities=authorities))
        assert found.detail == detail
        assert found.cure == "`vramwarden certs rotate --secret gpu/tls` makes another"
