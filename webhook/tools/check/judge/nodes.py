"""Nodes with GPUs: what they need before they are shared, and whether they are."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from webhook.core.node.inventory import MODE_FAULT
from webhook.core.node.sharing import DEPLOY_PLUGIN_LABEL, Shared
from webhook.core.nvidia.device_names import DeviceNames
from webhook.core.nvidia.drivers import SIDECAR_FROM, explain_support, supports_sidecar
from webhook.core.pod.quantity import format_bytes
from webhook.core.policy.values import EnforceBy
from webhook.core.words import counted
from webhook.names import (
    NODE_SENTRY_LABEL,
    NODE_SHARE_LABEL,
    NOT_ENFORCED,
    NVIDIA_RUNTIME_CLASS,
    VRAM_RESOURCE,
)
from webhook.tools.check.judge.facts import Facts, OwnWorkload
from webhook.tools.check.judge.findings import CheckFinding, failed, named, ok, warning
from webhook.tools.check.judge.webhook import upgrade
from webhook.tools.snapshot.node import REPELLING, SAID, ClusterNode, tolerates
from webhook.tools.snapshot.objects import Unreadable, known

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from webhook.tools.snapshot.pod import ClusterPod


_OWN_TAINTS: Final = "node.kubernetes.io/"
"""How those of a node's state begin."""
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


def whole_gpus(facts: Facts) -> CheckFinding | None:
    """No device plugin offers their GPUs whole: one card has one allocator.

    | offered whole | label `share` | shared already | result |
    | --- | --- | --- | --- |
    | no | any | any | ok |
    | yes | false | any | ok |
    | yes | true | any | warning |
    | yes | absent | no | warning |
    | yes | absent | yes | failed |
    """
    nodes = known(facts.nodes)
    whole = [node for node in nodes if node.whole and node.share != "false"]
    both = [node.name for node in whole if node.advertised and node.share != "true"]
    if both:
        why = f"offered whole while pods have VRAM, so a card may be given twice: {named(both)}"
        return failed(why, _removal(both[0], whole), both)
    resources = sorted({name for node in whole for name in node.whole})
    kept = [node.name for node in whole if node.share != "true"]
    if kept:
        why = f"{named(resources)} is offered, so these are not shared: {named(kept)}"
        return warning(why, f"to share one, {_removal(kept[0], whole)}", kept)
    asked = [node.name for node in whole]
    if asked:
        why = f"{named(asked)} offers {named(resources)} and is shared as well ({NODE_SHARE_LABEL}"
        cure = "keep pods with whole GPUs away by a taint, or take the device plugin off"
        return warning(f"{why}=true)", cure, asked)
    return ok() if nodes else None


def _removal(name: str, nodes: Iterable[ClusterNode]) -> str:
    cure = next(node.cure for node in nodes if node.name == name)
    label, labeling = f"{DEPLOY_PLUGIN_LABEL}=false", f"kubectl label node {name}"
    cure = cure.replace(f"label the node {label}", f"`{labeling} {label} --overwrite`")
    whole = f"or leave it whole by `{labeling} {NODE_SHARE_LABEL}=false --overwrite`"
    return f"drain its whole-GPU pods, then {cure}; {whole}"


def whole_gpu_pods(facts: Facts) -> CheckFinding | None:
    """No pod has whole GPUs on a node that is shared, also where it uses nothing of them now.

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
    return _given_twice(found, [shared[pod.node] for pod in found], "whole GPUs") or ok()


def resource_claims(facts: Facts) -> CheckFinding | None:
    """No DRA driver gives away GPUs of a node that is shared.

    | ResourceSlices with its GPUs, or pods there with claims of GPUs | its label `share` | result |
    | --- | --- | --- |
    | none | any | ok |
    | some, of a node that is not shared | any | ok |
    | some | true | warning |
    | some | absent or another | failed |
    """
    nodes = known(facts.nodes)
    if not nodes:
        return None
    known(facts.slices)
    shared = {node.name: node for node in nodes if node.advertised}
    offered = [node for node in nodes if node.claimed_by]
    both = [node for node in offered if node.name in shared]
    names = [node.name for node in both if node.share != "true"] or [node.name for node in both]
    if both:
        drivers = named({one for node in both for one in node.claimed_by})
        why = f"the DRA driver {drivers} offers GPUs that pods with VRAM get, too: {named(names)}"
        cure = next(node.cure for node in both if node.name == names[0])
        asked = all(node.share == "true" for node in both)
        return (warning if asked else failed)(why, cure, names)
    claims = known(facts.claimed)
    pods = known(facts.pods) if claims else ()
    found = [pod for pod in pods if pod.node in shared and not claims.isdisjoint(pod.claims)]
    where = f"of {named([node.name for node in offered])} alone, not shared" if offered else ""
    return _given_twice(found, [shared[pod.node] for pod in found], "GPUs by claims") or ok(where)


def _given_twice(
    pods: Sequence[ClusterPod], nodes: Sequence[ClusterNode], what: str
) -> CheckFinding | None:
    """Return the finding of pods that have GPUs of these nodes, which we share; None for none."""
    both = [pod for pod, node in zip(pods, nodes, strict=True) if node.share != "true"]
    about = both or pods
    if not about:
        return None
    names, where = [pod.path for pod in about], sorted({pod.node for pod in about})
    why = f"pods have {what} where others have VRAM, so a card may be given twice: "
    why += f"{named(names)} on {named(where)}"
    cure = "end them, also where they use nothing now: "
    cure += f"`kubectl drain {where[0]} --ignore-daemonsets --delete-emptydir-data`"
    if both:
        return failed(why, cure, names)
    why += f" ({NODE_SHARE_LABEL}=true)"
    return warning(why, f"nothing where that is wanted; else {cure}", names)


def share_label(facts: Facts) -> CheckFinding | None:
    """Their label `vramwarden.io/share` is true or false, where they have one.

    | label | result |
    | --- | --- |
    | absent, true, false | ok |
    | anything else | failed |
    """
    nodes = known(facts.nodes)
    wrong = [node for node in nodes if node.share not in {None, "true", "false"}]
    if wrong:
        names = [node.name for node in wrong]
        why = f"{NODE_SHARE_LABEL} is neither true nor false, so these are not shared: "
        cure = f"`kubectl label node {names[0]} {NODE_SHARE_LABEL}=true --overwrite`, or false"
        return failed(why + named(names), cure, names)
    return ok() if nodes else None


def other_products(facts: Facts) -> CheckFinding:
    """Nobody else shares their GPUs, and nobody else offers our resource.

    | seen | result |
    | --- | --- |
    | another product's plugin on a node that is shared, or is to be | failed |
    | such a plugin on a node that is not shared | warning |
    | the same, where the label `share` is false | ok |
    | our resource on a node without a label that brings the agent | warning |
    | KAI's API group | warning |
    | none of them | ok |
    """
    nodes, groups = known(facts.nodes), known(facts.groups)
    taken = [node for node in nodes if node.others and (node.advertised or node.share != "false")]
    both = [node for node in taken if node.advertised or node.sharing.shared is not Shared.NO]
    if taken:
        names = [node.name for node in both or taken]
        who = {one for node in both or taken for one in node.others}
        why = f"{named(who)} gives GPUs away on {named(names)}"
        cure = f"take it off, or keep us off by `kubectl label node {names[0]} "
        cure += f"{NODE_SHARE_LABEL}=false --overwrite`"
        if both:
            return failed(why, cure, names)
        return warning(f"{why}, so these are not shared", cure, names)
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


def advertised(facts: Facts) -> CheckFinding | None:
    """Each that is to be shared shows its memory to the scheduler.

    | to be shared, by label and plugin | resource | an Event that it is in use | result |
    | --- | --- | --- | --- |
    | no | - | - | ok |
    | yes | there | - | ok |
    | yes | missing | yes | warning |
    | yes | missing | no, and its agent asks, or it is younger than ten minutes | warning |
    | yes | missing | no | failed |
    | yes | any | none of these, and it has GPUs without memory of their own | warning |
    """
    nodes = known(facts.nodes)
    if not nodes or facts.agent is None:
        return None
    shared = [node for node in nodes if node.sharing.shared is not Shared.NO]
    unshared = [node for node in shared if node.unshared]
    missing = [node for node in shared if not node.vram_bytes and not node.unshared]
    events = {} if isinstance(facts.events, Unreadable) else facts.events
    in_use = [node.name for node in missing if node.name in events]
    waiting = [node for node in missing if node.agent_waits and node.name not in events]
    broken = [node.name for node in missing if not node.agent_waits and node.name not in events]
    cure = f"see why: `kubectl -n {facts.namespace} logs -l app.kubernetes.io/component=agent "
    cure += "--prefix`, `kubectl describe node {}`"
    if broken:
        why = f"{VRAM_RESOURCE} is missing on {named(broken)}"
        return failed(why, cure.format(broken[0]), broken)
    if in_use:
        cure = f"`kubectl drain {in_use[0]} --ignore-daemonsets --delete-emptydir-data`"
        return warning(f"{in_use[0]}: {events[in_use[0]]}", cure, in_use)
    if waiting:
        name = waiting[0].name
        why = f"{name}: its agent waits {waiting[0].agent_waits}"
        cure = f"wait; if {VRAM_RESOURCE} is missing in ten minutes, {cure.format(name)}"
        return warning(why, cure, [node.name for node in waiting])
    if unshared:
        name = unshared[0].name
        cure = "nothing for such a GPU; if the node has no other: "
        cure += f"`kubectl label node {name} {NODE_SHARE_LABEL}=false`"
        return warning(f"{name}: {unshared[0].unshared}", cure, [node.name for node in unshared])
    if not shared:
        return ok("none is to be shared")
    total = format_bytes(sum(node.vram_bytes for node in nodes))
    return ok(f"{total} on {len(shared)} of {counted(len(nodes), 'node')}")


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
    names = [node.name for node in nodes if node.labels.get(NODE_SENTRY_LABEL) != "true"]
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
