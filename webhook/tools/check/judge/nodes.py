"""Nodes with GPUs: what they need before they are shared, and whether they are."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from webhook.core.node.inventory import MODE_FAULT
from webhook.core.node.verdict import SharingCode
from webhook.core.nvidia.device_names import DeviceNames
from webhook.core.nvidia.drivers import SIDECAR_FROM, explain_support, supports_sidecar
from webhook.core.pod.quantity import format_bytes
from webhook.core.policy.values import EnforceBy
from webhook.core.words import counted
from webhook.names import (
    NODE_SHARE_LABEL,
    NOT_ENFORCED,
    NVIDIA_RUNTIME_CLASS,
    VRAM_RESOURCE,
)
from webhook.tools.check.judge.facts import NOT_ASKED, Facts, OwnWorkload
from webhook.tools.check.judge.findings import CheckFinding, Level, failed, named, ok, warning
from webhook.tools.check.judge.webhook import upgrade
from webhook.tools.snapshot.node import REPELLING, SAID, ClusterNode, tolerates
from webhook.tools.snapshot.objects import Unreadable, known

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_OWN_TAINTS: Final = "node.kubernetes.io/"
"""How those of a node's state begin."""
_DRAIN: Final = "`kubectl drain {} --ignore-daemonsets --delete-emptydir-data`"
OTHER_GROUPS: Final = {
    "scheduling.run.ai": "KAI Scheduler",
    "kai.scheduler": "KAI Scheduler",
}
"""API groups by which products that share GPUs are known."""


def gpu_nodes(facts: Facts) -> CheckFinding:
    """There are nodes with GPUs.

    | nodes with GPUs | all ready | result |
    | --- | --- | --- |
    | none | - | warning |
    | some | yes | ok |
    | some | no | warning |
    """
    nodes = known(facts.nodes)
    if not nodes:
        why = f"none of {counted(facts.node_count, 'node')} shows that it has a GPU"
        return warning(
            why, "label those that do: `kubectl label node NODE nvidia.com/gpu.present=true`"
        )
    down = [node.name for node in nodes if not node.ready]
    if down:
        return warning(f"not ready: {named(down)}", f"`kubectl describe node {down[0]}`", down)
    return ok(f"{len(nodes)} of {counted(facts.node_count, 'node')}")


def agent_labels(facts: Facts) -> CheckFinding | None:
    """Each has a label that brings the agent there, by the chart's default.

    | labels | result |
    | --- | --- |
    | `nvidia.com/gpu.present`, `nvidia.com/gpu.count`, `feature...pci-10de.present`, ours | ok |
    | only others that speak of a GPU, or a plugin's resource | warning |
    """
    nodes = known(facts.nodes)
    missing = [node.name for node in nodes if not node.brings_agent]
    if missing:
        cure = f"`kubectl label node {missing[0]} nvidia.com/gpu.present=true`"
        return warning(f"no agent goes to {named(missing)}", cure, missing)
    return ok() if nodes else None


def runtime_class(facts: Facts) -> CheckFinding | None:
    """NVIDIA's container runtime can be had: by the RuntimeClass `nvidia`, or as the default one.

    Nothing where all amounts are said (`agent.vram`): nobody is shown a GPU there.

    | RuntimeClass | nodes with its handler | result |
    | --- | --- | --- |
    | missing | - | warning |
    | there | all that say | ok |
    | there | not all | failed |
    """
    nodes, agent = known(facts.nodes), facts.agent
    if not nodes or (isinstance(agent, OwnWorkload) and agent.option("vram")):
        return None
    handler = known(facts.runtime_class)
    if not handler:
        why = f"there is no RuntimeClass {NVIDIA_RUNTIME_CLASS}, so NVIDIA's runtime must be the "
        cure = "nothing where it is; else install NVIDIA's container toolkit and create the "
        return warning(
            f"{why}default one",
            f"{cure}RuntimeClass (deploy/nodes.md#runtimeclass in the documentation)",
        )
    without = [
        node.name for node in nodes if node.handlers is not None and handler not in node.handlers
    ]
    if without:
        why = (
            f"the RuntimeClass {NVIDIA_RUNTIME_CLASS} needs the handler {handler!r}, which is not "
        )
        cure = "install NVIDIA's container toolkit there: "
        cure += "`nvidia-ctk runtime configure --runtime=containerd`, then restart the runtime"
        return failed(f"{why}configured on {named(without)}", cure, without)
    return ok(f"handler {handler}; every pod may name it, and sees GPUs unless fence.void is on")


def taints(facts: Facts) -> CheckFinding | None:
    """Pods with VRAM tolerate their taints, by some rule or class of the policy.

    | taint | result |
    | --- | --- |
    | none, or one that a rule or class tolerates | ok |
    | another | warning |
    | any, while the policy is missing or not valid | not checked |
    """
    nodes = known(facts.nodes)
    if not nodes:
        return None
    policy = known(facts.policy)
    if policy is None or policy.problems:
        raise Unreadable("needs a policy that is valid")
    kept = {
        node.name: [
            taint
            for taint in node.taints
            if taint[2] in REPELLING
            and not taint[0].startswith(_OWN_TAINTS)
            and not tolerates(policy.tolerations, taint)
        ]
        for node in nodes
    }
    names = [name for name, found in kept.items() if found]
    if names:
        keys = sorted({key for found in kept.values() for key, _, _ in found})
        why = f"no rule's pods tolerate {named(keys)}, on {named(names)}"
        cure = "add it to `tolerations` of the rules in your policy, or let pods bring their own"
        return warning(why, cure, names)
    return ok()


def sharing(facts: Facts) -> CheckFinding | None:
    """Each is shared, by its agent's verdict; before an installation, each would be.

    | verdict | label `share` | VRAM is offered | result |
    | --- | --- | --- | --- |
    | Shared | any | yes, or nothing is installed | ok |
    | Shared | any | no | failed |
    | SomeGPUsUnfit, NoUsableGPU, InUse or Settling | any | any | warning |
    | NotShared | false | any | ok |
    | NotShared | absent or another | any | warning |
    | Draining | false | any | warning |
    | Draining | absent or another | any | failed |
    | none that can be read | any | any | warning |
    """
    nodes, is_before = known(facts.nodes), facts.agent is NOT_ASKED
    if not nodes or facts.agent is None:
        return None
    found: dict[tuple[Level, str], list[ClusterNode]] = {}
    for node in nodes:
        code = node.sharing.code if node.sharing else ""
        found.setdefault((_level(node, code, is_before=is_before), code), []).append(node)
    problems = [(*key, found[key]) for key in sorted(found) if key[0] is not Level.OK]
    if problems:
        words = [_verdict_words(code, some, facts.namespace) for _, code, some in problems]
        about = tuple(node.name for *_, some in problems for node in some)
        detail = ". ".join(cause for cause, _ in words)
        return CheckFinding(problems[0][0], detail, words[0][1], about)
    said = f"{len(found.get((Level.OK, SharingCode.SHARED), ()))} of {counted(len(nodes), 'node')}"
    if not is_before:
        return ok(f"{format_bytes(sum(node.vram_bytes for node in nodes))} on {said}")
    blind = isinstance(facts.drivers, Unreadable)
    return ok(f"{said}; DRA drivers: {facts.drivers}" if blind else said)


def _level(node: ClusterNode, code: str, *, is_before: bool) -> Level:
    match code, node.share == "false":
        case SharingCode.SHARED, _:
            return Level.OK if is_before or node.vram_bytes else Level.FAILED
        case SharingCode.NOT_SHARED, True:
            return Level.OK
        case SharingCode.DRAINING, False:
            return Level.FAILED
    return Level.WARNING


def _verdict_words(code: str, nodes: Sequence[ClusterNode], namespace: str) -> tuple[str, str]:
    """Return the agent's own cause and remedy for the first node, with the command to type."""
    names = named([node.name for node in nodes])
    first = min(nodes, key=lambda node: node.name)
    if not first.sharing or code == SharingCode.SHARED:
        logs = f"`kubectl -n {namespace} logs -l app.kubernetes.io/component=agent --prefix`"
        return f"{names}: its agent offers no {VRAM_RESOURCE}", f"see why: {logs}"
    cause, _, remedy = first.sharing.sentence.partition("; ")
    label = f"`kubectl label node {first.name}"
    more = {
        SharingCode.NOT_SHARED: f"or leave it so: {label} {NODE_SHARE_LABEL}=false --overwrite`",
        SharingCode.DRAINING: f"or {_DRAIN.format(first.name)}",
        SharingCode.IN_USE: _DRAIN.format(first.name),
    }.get(first.sharing.code, "see its agent's log" if not remedy else "")
    remedy = re.sub(r"label the node (\S+=\w+)", rf"{label} \1 --overwrite`", remedy)
    return f"{names}: {code}: {cause}", "; ".join(filter(None, [remedy, more]))


def whole_gpu_pods(facts: Facts) -> CheckFinding | None:
    """No pod has whole GPUs on a node that is shared, even if it uses nothing of them now.

    | pods with whole GPUs on a node that is shared | its label `share` | result |
    | --- | --- | --- |
    | none | any | ok |
    | some | true | warning |
    | some | absent or another | failed |
    """
    shared = {node.name: node for node in known(facts.nodes) if node.advertised}
    if not shared:
        return None
    found = [pod for pod in known(facts.pods) if pod.whole and pod.node in shared]
    unasked = [pod for pod in found if shared[pod.node].share != "true"]
    about = unasked or found
    if not about:
        return ok()
    names, where = [pod.path for pod in about], sorted({pod.node for pod in about})
    why = "pods have whole GPUs where others have VRAM, so a card may be given twice: "
    why += f"{named(names)} on {named(where)}"
    remedy = f"end them, even if they use nothing now: {_DRAIN.format(where[0])}"
    if unasked:
        return failed(why, remedy, names)
    return warning(f"{why} ({NODE_SHARE_LABEL}=true)", f"nothing if wanted; else {remedy}", names)


def other_products(facts: Facts) -> CheckFinding:
    """No other product offers our resource, or gives GPUs away by its own scheduler.

    | seen | result |
    | --- | --- |
    | our resource on a node without a label that brings the agent | warning |
    | KAI's API group | warning |
    | none of them | ok |
    """
    nodes, groups = known(facts.nodes), known(facts.groups)
    strange = [node.name for node in nodes if node.vram_bytes and not node.brings_agent]
    if strange:
        why = f"{VRAM_RESOURCE} is offered on {named(strange)}, which has no label of ours"
        cure = f"see who writes it: `kubectl get node {strange[0]} -o yaml --show-managed-fields`"
        return warning(why, cure, strange)
    products = {product for group, product in OTHER_GROUPS.items() if group in groups}
    if products:
        cure = "let it give away GPUs of other nodes alone: neither knows what the other gives"
        return warning(f"installed: {named(products)}", cure)
    return ok()


def gpus_answer(facts: Facts) -> CheckFinding | None:
    """Their GPUs are healthy: new pods are given them.

    | GPUs of a node that are not healthy | result |
    | --- | --- |
    | none | ok |
    | some | warning |
    | all of them | failed |
    """
    nodes = [node for node in known(facts.nodes) if node.gpus]
    broken = [(node, gpu) for node in nodes for gpu in node.gpus if not gpu.healthy]
    if not broken:
        return ok(counted(sum(len(node.gpus) for node in nodes), "GPU")) if nodes else None
    gone = [node for node in nodes if not any(gpu.healthy for gpu in node.gpus)]
    if gone:
        broken = [(node, gpu) for node, gpu in broken if node in gone]
    said = [
        f"GPU {gpu.index} of {node.name} ({gpu.fault or 'is lost or unhealthy'})"
        for node, gpu in broken
    ]
    why = f"nothing new is placed on {named(said)}"
    name = broken[0][0].name
    cure = f"`kubectl describe node {name}`; drain it, then reset the GPU or reboot the machine"
    if all(gpu.fault.startswith(MODE_FAULT) for _, gpu in broken):
        cure = "run that on the node; its agent sees it within half a minute"
    names = list(dict.fromkeys(node.name for node, _ in broken))
    return (failed if gone else warning)(why, cure, names)


def enforcement(facts: Facts) -> CheckFinding | None:
    """A sidecar can measure on each that is shared, unless no rule is by `Sidecar`.

    | rules by `Sidecar` | label `enforcement` | driver | result |
    | --- | --- | --- | --- |
    | none | - | - | nothing |
    | some, or the policy is unknown | sidecar | - | ok |
    | some, or the policy is unknown | none | unknown: the amount is set by `agent.vram` | ok |
    | some, or the policy is unknown | none | too old | warning |
    | some, or the policy is unknown | none | works | warning |
    """
    shared, nodes = _measured(facts)
    if not facts.may_have_sidecars:
        return None
    if shared and not nodes:
        return ok(f"amounts are {SAID}: {named([node.name for node in shared])}")
    blind = [node for node in nodes if node.enforcement == NOT_ENFORCED]
    if not blind:
        return ok(_tally(node.driver for node in nodes)) if nodes else None
    names = [node.name for node in blind]
    nobody = "no pod by Sidecar goes to"
    old = [node for node in blind if not supports_sidecar(node.driver)]
    if old:
        why = f"{nobody} {named(names)}: {explain_support(old[0].driver)}"
        cure = f"upgrade the driver there to {SIDECAR_FROM} or newer"
        return warning(why, f"{cure}, or write enforcement.by: Sentry", names)
    why = f"{nobody} {named(names)}, though the driver is new enough"
    cure = f"see what its agent says: `kubectl -n {facts.namespace} logs -l "
    return warning(why, f"{cure}app.kubernetes.io/component=agent --prefix`", names)


def sentry_label(facts: Facts) -> CheckFinding | None:
    """A sentry holds caps on each that is shared, if rules are by `Sentry`.

    | rules by `Sentry` | shared nodes | label `sentry` | result |
    | --- | --- | --- | --- |
    | unknown: the policy cannot be read | some | - | not checked |
    | none, or the policy is not valid | - | - | nothing |
    | some | none, or their amount is set by `agent.vram` | - | nothing |
    | some | some | true on all | ok |
    | some | some | missing | warning |
    """
    _, nodes = _measured(facts)
    policy = known(facts.policy)
    if not nodes or policy is None or EnforceBy.SENTRY not in policy.enforcers:
        return None
    names = [node.name for node in nodes if not node.has_sentry]
    if not names:
        return ok(counted(len(nodes), "node"))
    why = "no sentry that acts measures all GPUs there"
    sentry = facts.sentry if isinstance(facts.sentry, OwnWorkload) else None
    where = sentry.namespace if sentry else facts.namespace
    cure = f"see why: `kubectl -n {where} logs -l app.kubernetes.io/component=sentry --prefix`"
    if facts.sentry is None:
        cure = upgrade(facts, "sentry.enabled=true")
    elif sentry and "--no-act" in sentry.arguments:
        why, cure = "sentry.act is false", upgrade(facts, "sentry.act=true")
    return warning(f"no pod by Sentry goes to {named(names)}: {why}", cure, names)


def _measured(facts: Facts) -> tuple[list[ClusterNode], list[ClusterNode]]:
    """Return the nodes that are shared, and those of them whose GPUs a driver reports."""
    shared = [node for node in known(facts.nodes) if node.vram_bytes]
    return shared, [node for node in shared if not node.said]


def device_names(facts: Facts) -> CheckFinding | None:
    """The container runtime of each that is shared resolves some name of its GPUs.

    | label `device-names` | result |
    | --- | --- |
    | none | failed |
    | any other, or absent | ok |
    """
    nodes = [node for node in known(facts.nodes) if node.vram_bytes]
    unknown = [node.name for node in nodes if node.device_names == DeviceNames.NONE]
    if unknown:
        why = f"no pod is given a GPU on {named(unknown)}: nobody knows by which name"
        cure = "set agent.deviceNames to what its runtime resolves "
        return failed(
            why,
            f"{cure}(deploy/nodes.md#hardened-container-toolkits in the documentation)",
            unknown,
        )
    return ok(_tally(node.device_names for node in nodes)) if nodes else None


def _tally(values: Iterable[str]) -> str:
    """Return the different values, the most frequent first, and how often each occurs."""
    counts = Counter(value for value in values if value).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return named([f"{value} ({counted(number, 'node')})" for value, number in counts])
