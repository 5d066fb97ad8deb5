"""Agents, sentries and limiters on each node, and pods with VRAM that do not start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.core.kinds.nodes import STALE_S
from webhook.core.node.limits import LIMIT_COMES_S
from webhook.core.words import counted
from webhook.tools.check.judge.findings import (
    CheckFinding,
    NobodySees,
    failed,
    named,
    ok,
    warning,
)
from webhook.tools.check.judge.webhook import not_ready, upgrade
from webhook.tools.snapshot.objects import known

if TYPE_CHECKING:
    from webhook.tools.check.judge.facts import Facts, OwnWorkload


def agents(facts: Facts) -> CheckFinding:
    """An agent is ready on each of its nodes.

    | DaemonSet | nodes | ready | result |
    | --- | --- | --- | --- |
    | missing | - | - | warning |
    | there | none | - | warning |
    | there | some | all | ok |
    | there | some | not all | failed |
    """
    found = known(facts.agent)
    if found is None:
        why = "there is no agent, so nobody says how much memory a node's GPUs have"
        return warning(why, upgrade(facts, "agent.enabled=true"))
    if not found.desired:
        cure = "label nodes with GPUs: `kubectl label node NODE nvidia.com/gpu.present=true`"
        return warning("no node has a label that brings it there", cure)
    return _ready(facts, found, "agent")


def sentries(facts: Facts) -> CheckFinding | None:
    """A sentry is ready on each of its nodes.

    | DaemonSet | nodes | pods | ready | result |
    | --- | --- | --- | --- | --- |
    | missing, and a fixed amount is advertised | - | - | - | nothing |
    | missing | - | - | - | warning |
    | there | none | - | - | nothing |
    | there | some | all | all | ok |
    | there | some | all | not all | failed |
    | there | some | none | - | failed: something denies them |
    """
    found = known(facts.sentry)
    if found is None:
        if (agent := known(facts.agent)) is not None and agent.option("vram"):
            return None  # no driver is asked there
        why = "there is no sentry: who stops their sidecar keeps what they hold, and no figures"
        return warning(why, upgrade(facts, "sentry.enabled=true"))
    return _ready_on_each(facts, found, "sentry")


def limiters(facts: Facts) -> CheckFinding | None:
    """A limiter is ready on each of its nodes.

    | DaemonSet | nodes | pods | ready | result |
    | --- | --- | --- | --- | --- |
    | missing | - | - | - | nothing |
    | there | none | - | - | nothing |
    | there | some | all | all | ok |
    | there | some | all | not all | failed |
    | there | some | none | - | failed: something denies them |
    """
    found = known(facts.limiter)
    return _ready_on_each(facts, found, "limiter") if found else None


def _ready_on_each(facts: Facts, found: OwnWorkload, component: str) -> CheckFinding | None:
    if not found.desired:
        return None
    if not found.present:
        name = f"vramwarden-{component}"
        why = f"none of {counted(found.desired, 'pod')} could be created in {found.namespace}"
        return failed(why, f"`kubectl -n {found.namespace} describe daemonset {name}`")
    return _ready(facts, found, component)


def _ready(facts: Facts, found: OwnWorkload, component: str) -> CheckFinding:
    said = f"{found.ready} of {counted(found.desired, 'node')}"
    if found.ready >= found.desired:
        return ok(said)
    why, cure, nodes = not_ready(facts, found.namespace, component)
    return failed(f"ready: {said}{why}", cure, nodes)


def figures(facts: Facts) -> CheckFinding | None:
    """Each node that is shared has figures that are not old.

    | sentry, shared nodes | GPUNode | result |
    | --- | --- | --- |
    | one of them missing | - | nothing |
    | both there | seen in the last 180 s | ok |
    | both there | missing, older, or of so far in the future | warning |
    | both there | the kind is not served | warning |
    """
    if not known(facts.sentry):
        return None
    shared = [node.name for node in known(facts.nodes) if node.vram_bytes]
    if not shared:
        return None
    found = known(facts.gpu_nodes)
    if found is None:
        return warning("GPUNode is not served", upgrade(facts, "crds.install=true"))
    written = {name: one.observed_s for name, one in found.items()}
    old = [name for name in shared if abs(facts.now_s - written.get(name, 0.0)) > STALE_S]
    if old:
        sentry = known(facts.sentry)
        where = sentry.namespace if sentry else facts.namespace
        cure = f"`kubectl -n {where} logs -l app.kubernetes.io/component=sentry --prefix`"
        return warning(f"none of the last 180 s: {named(old)}", cure, old)
    return ok(counted(len(shared), "node"))


def driver_limits(facts: Facts) -> CheckFinding | None:
    """The driver holds pods to their caps, where the limiter was switched on.

    | a pod waits | a limiter reports of a shared node | its driver holds caps | result |
    | --- | --- | --- | --- |
    | for more than `LIMIT_COMES_S` | - | - | warning |
    | no | no | - | nothing |
    | no | yes | on one or more | ok, and where not |
    | no | yes | on none | warning |
    """
    if isinstance(facts.pods, tuple):
        began = {pod.path: pod.waits_for_limit_s for pod in facts.pods if pod.managed}
        waiting = sorted(
            path for path, at_s in began.items() if at_s and facts.now_s - at_s > LIMIT_COMES_S
        )
        if waiting:
            namespace, _, name = waiting[0].partition("/")
            why = f"{named(waiting)}: nothing starts there before the driver holds the cap"
            return warning(why, f"`vramwarden explain {name} -n {namespace}`", waiting)
    figures = known(facts.gpu_nodes) or {}
    shared = {name: one.limit for name, one in figures.items() if not one.not_shared}
    proofs = {name: proof for name, proof in sorted(shared.items()) if proof}
    if not proofs:
        return None
    able = [name for name, proof in proofs.items() if proof.holds]
    unable = {name: proof.why for name, proof in proofs.items() if not proof.holds}
    said = [f"{name} ({why})" if why else name for name, why in unable.items()]
    where = f"not on {named(said)}" if unable else ""
    if able:
        on = f"on {len(able)} of {counted(len(shared), 'node')}"
        return ok(f"{on}; {where}" if where else on)
    cure = "upgrade the driver there to r615; until then their sidecars hold pods to their caps"
    return warning(where, cure, unable)


def sidecar_image(facts: Facts) -> CheckFinding | None:
    """The sidecar's image can be pulled in the namespaces of users.

    | a sidecar waits for its image | one has it | rules by `Sidecar` | result |
    | --- | --- | --- | --- |
    | yes | any | - | failed |
    | no | yes | - | ok |
    | no | no | none | nothing |
    | no | no | some, or the policy is unknown | not checked |
    """
    pods = [pod for pod in known(facts.pods) if pod.managed]
    waiting = [(pod.path, *pod.pull_failure) for pod in pods if pod.pull_failure]
    if waiting:
        names, (_, image, said) = [name for name, _, _ in waiting], waiting[0]
        why = f"{image} for {named(names)}: {said}"
        cure = (
            "push it, or give the namespace a pull secret (deploy/install.md#pull-secrets in the "
            "documentation)"
        )
        return failed(why, cure, names)
    if not any(pod.sound for pod in pods):
        if not facts.may_have_sidecars:
            return None
        raise NobodySees("no pod has a sidecar that has started; the first one will tell")
    return ok()


def validators(facts: Facts) -> CheckFinding | None:
    """Pods by which NVIDIA's operator validates its device plugin are left alone by the policy.

    The operator creates them with `spec.nodeName` and a whole GPU.

    | such pods, in namespaces that are not exempt | the rule there | result |
    | --- | --- | --- |
    | none | - | nothing |
    | some | none, or its action is Ignore | ok |
    | some | another | warning |
    """
    policy = facts.policy
    if not known(facts.validators) or policy is None:
        return None
    names = known(policy).validated
    if names:
        why = (
            f"rollout Enforce denies NVIDIA's pods nvidia-device-plugin-validator in {named(names)}"
        )
        cure = "add the namespace to a rule with action: Ignore, before all others, as `system` "
        return warning(why, f"{cure}in policies/default.yaml", names)
    return ok()


def pods_without_gpu(facts: Facts) -> CheckFinding:
    """No pod is bound and waits for a GPU.

    | annotation `gpu-waits` | result |
    | --- | --- |
    | on a pod | warning |
    | on none | ok |
    """
    waiting = [pod for pod in known(facts.pods) if pod.managed and pod.waits]
    if waiting:
        names = [pod.path for pod in waiting]
        namespace, _, name = names[0].partition("/")
        why = f"{counted(len(names), 'pod')}, {named(names)}: {waiting[0].waits}"
        return warning(why, f"`vramwarden explain {name} -n {namespace}`", names)
    return ok()
