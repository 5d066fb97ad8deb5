"""Problems of nodes with GPUs: what they need before they are shared, and whether they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from webhook.core.documentation import Page
from webhook.core.formatting import format_count, join_names
from webhook.core.node.inventory import MODE_FAULT
from webhook.core.node.node_fields import SharingCode
from webhook.core.nvidia.drivers import SIDECAR_FROM, explain_support, supports_sidecar
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.pod.quantity import format_bytes
from webhook.core.policy.model import EnforceBy
from webhook.names import NODE_SHARE_LABEL, NOT_ENFORCED, NVIDIA_RUNTIME_CLASS, VRAM_RESOURCE
from webhook.tools.problems.installation import enforcers, read_logs, upgrade
from webhook.tools.problems.problem import Code, Finding, Problem, ProblemSubject, Severity
from webhook.tools.snapshot.installation import Installation
from webhook.tools.snapshot.node import REPELLING, SAID, ClusterNode, tolerates

_NODE_STATE: Final = "node.kubernetes.io/"
"""Prefix of taints that Kubernetes sets by a node's state."""
_DRAIN: Final = "`kubectl drain {} --ignore-daemonsets --delete-emptydir-data`"


def judge_gpu_nodes(installation: Installation) -> Finding:
    """Return that no node has GPUs, or which of them are not ready or get no agent.

    A label brings the agent, by the chart's default.
    """
    nodes, of_all = installation.nodes, format_count(installation.node_count, "node")
    if not nodes:
        why = f"none of {of_all} shows that it has a GPU"
        fix = "label those that do: `kubectl label node NODE nvidia.com/gpu.present=true`"
        return [Problem(Code.NO_GPU_NODES, Severity.WARNING, why, fix)]
    why, fix = "the node is not ready", "`kubectl describe node {}`"
    down = [one for one in nodes if not one.ready]
    found = _of_nodes(down, Code.NODE_NOT_READY, Severity.WARNING, why, fix)
    why = "the node has no label that brings the agent there"
    fix = "`kubectl label node {} nvidia.com/gpu.present=true`"
    without = [one for one in nodes if not one.brings_agent]
    found += _of_nodes(without, Code.NO_AGENT_LABEL, Severity.WARNING, why, fix)
    have = "has GPUs" if len(nodes) == 1 else "have GPUs"
    return found or f"{len(nodes)} of {of_all} {have}, and labels bring the agent there"


def judge_runtime_class(installation: Installation) -> Finding:
    """Return which nodes lack NVIDIA's container runtime, as RuntimeClass or as the default one.

    | amounts | RuntimeClass | nodes with its handler | problem |
    | --- | --- | --- | --- |
    | set by `agent.vram` | any | any | not judged: pods see no GPU |
    | measured | missing | any | warning |
    | measured | there | all that report handlers | none |
    | measured | there | not all | error |
    """
    nodes = installation.nodes
    agent = None if installation.is_before else installation.attempt(lambda: installation.agent)
    if not nodes or (agent and agent.option("vram")):
        return None
    handler = installation.runtime_handler
    if not handler:
        why = f"there is no RuntimeClass {NVIDIA_RUNTIME_CLASS}, so NVIDIA's runtime must be the "
        why += "default one"
        fix = "nothing if it is; else install NVIDIA's container toolkit and create the "
        fix += f"RuntimeClass ({installation.page(Page.RUNTIME_CLASS)})"
        return [Problem(Code.NO_RUNTIME, Severity.WARNING, why, fix)]
    without = [one for one in nodes if one.handlers is not None and handler not in one.handlers]
    why = f"its container runtime lacks the handler {handler!r} of the RuntimeClass "
    why += NVIDIA_RUNTIME_CLASS
    fix = "install NVIDIA's container toolkit there: "
    fix += "`nvidia-ctk runtime configure --runtime=containerd`, then restart the runtime"
    found = _of_nodes(without, Code.NO_RUNTIME, Severity.ERROR, why, fix)
    return found or (
        f"every pod may name the RuntimeClass {NVIDIA_RUNTIME_CLASS} (handler {handler}), and sees "
        "GPUs unless fence.void is on"
    )


def judge_taints(installation: Installation) -> Finding:
    """Return which nodes have a taint that pods of no rule and class of the policy tolerate."""
    nodes = installation.nodes
    if not nodes:
        return None
    policy = installation.policy
    tolerations = [one for rule in policy.rules for one in rule.tolerations]
    tolerations += [one for given in policy.classes.values() for one in given.tolerations]
    found = []
    for node in nodes:
        keys = {
            taint[0]
            for taint in node.taints
            if taint[2] in REPELLING
            and not taint[0].startswith(_NODE_STATE)
            and not tolerates(tolerations, taint)
        }
        if keys:
            why = f"no rule's pods tolerate its taint {join_names(sorted(keys))}"
            fix = "add it to `tolerations` of the rules in your policy, or let pods bring their own"
            found += _of_nodes([node], Code.TAINT, Severity.WARNING, why, fix)
    return found or "pods of the policy tolerate the nodes' taints"


def judge_sharing(installation: Installation) -> Finding:
    """Return which nodes are not shared, or before an installation would not be, and why.

    Without an agent nothing is judged.
    """
    nodes = installation.nodes
    if not nodes:
        return None
    if not installation.is_before and installation.lacks(lambda: installation.agent):
        return None
    found = [one for node in nodes if (one := sharing_problem(node, installation))]
    if found:
        return found
    codes = [one.sharing.code for one in nodes if one.sharing]
    shared = codes.count(SharingCode.SHARED)
    if not installation.is_before:
        total = format_bytes(sum(node.vram_bytes for node in nodes))
        return f"{total} of GPU memory is shared, on {shared} of {format_count(len(nodes), 'node')}"
    said = f"{shared} of {format_count(len(nodes), 'node')} would be shared"
    unread = installation.failures.get("dra_drivers")
    return f"{said}; DRA drivers are not known: {unread.why}" if unread else said


def sharing_problem(node: ClusterNode, installation: Installation) -> Problem | None:
    """Return why a node is not shared, by its agent's verdict.

    | verdict | label `share` | VRAM is offered | problem |
    | --- | --- | --- | --- |
    | Shared | any | yes, or nothing is installed | none |
    | Shared | any | no | error |
    | SomeGPUsUnfit, NoUsableGPU, InUse or Settling | any | any | warning |
    | NotShared | false | any | none |
    | NotShared | absent or another | any | warning |
    | Draining | false | any | warning |
    | Draining | absent or another | any | error |
    | none that can be read | any | any | warning |
    """
    verdict, is_excluded = node.sharing, node.share == "false"
    subject = ProblemSubject("Node", node.name)
    if verdict is None or verdict.code is SharingCode.SHARED:
        if verdict and (installation.is_before or node.vram_bytes):
            return None
        severity = Severity.ERROR if verdict else Severity.WARNING
        why = f"its agent offers no {VRAM_RESOURCE}"
        fix = f"see why: {read_logs(installation.namespace, 'agent')}"
        return Problem(Code.NOT_ADVERTISED, severity, why, fix, subject)
    if verdict.code is SharingCode.NOT_SHARED and is_excluded:
        return None
    is_failure = verdict.code is SharingCode.DRAINING and not is_excluded
    cause, _, remedy = verdict.sentence.partition("; ")
    label = f"`kubectl label node {node.name}"
    more = {
        SharingCode.NOT_SHARED: f"or leave it so: {label} {NODE_SHARE_LABEL}=false --overwrite`",
        SharingCode.DRAINING: f"or {_DRAIN.format(node.name)}",
        SharingCode.IN_USE: _DRAIN.format(node.name),
    }.get(verdict.code, "see its agent's log" if not remedy else "")
    remedy = re.sub(r"label the node (\S+=\w+)", rf"{label} \1 --overwrite`", remedy)
    severity = Severity.ERROR if is_failure else Severity.WARNING
    fix = "; ".join(filter(None, [remedy, more]))
    drains = verdict.code is SharingCode.DRAINING
    means = ", so no further pod gets GPU memory there" if drains else ""
    return Problem(verdict.code, severity, f"{verdict.code}{means}: {cause}", fix, subject)


def judge_whole_gpu_pods(installation: Installation) -> Finding:
    """Return pods with whole GPUs of a node that is shared, even if they use nothing of them.

    | label `share` of the node | problem |
    | --- | --- |
    | true | warning |
    | absent or another | error |
    """
    shared = {one.name: one for one in installation.nodes if one.advertised}
    if not shared:
        return None
    found = []
    for pod in installation.pods:
        if not pod.whole or pod.node not in shared:
            continue
        why = f"the pod has whole GPUs of {pod.node}, where others have VRAM, so a card may be "
        why += "given twice"
        fix = f"end it, even if it uses nothing now: {_DRAIN.format(pod.node)}"
        severity = Severity.ERROR
        if shared[pod.node].share == "true":
            severity, fix = Severity.WARNING, f"nothing if wanted ({NODE_SHARE_LABEL}=true); {fix}"
        subject = ProblemSubject("Pod", pod.name, pod.namespace)
        found.append(Problem(Code.GIVEN_TWICE, severity, why, fix, subject))
    return found or "no pod has whole GPUs of a node that is shared"


def judge_gpu_health(installation: Installation) -> Finding:
    """Return which GPUs are not healthy, so that no pod is placed on them.

    | GPUs of a node that are not healthy | problem |
    | --- | --- |
    | none | none |
    | some | warning |
    | all of them | error |
    """
    nodes = [one for one in installation.nodes if one.gpus]
    found = []
    for node in nodes:
        broken = [one for one in node.gpus if not one.healthy]
        if broken:
            said = [f"GPU {one.index} ({one.fault or 'is lost or unhealthy'})" for one in broken]
            fix = "`kubectl describe node {}`; drain it, then reset the GPU or reboot the machine"
            if all(one.fault.startswith(MODE_FAULT) for one in broken):
                fix = "run that on the node; its agent sees it within half a minute"
            severity = Severity.ERROR if len(broken) == len(node.gpus) else Severity.WARNING
            why = f"no new pod is placed on {join_names(said)}"
            found += _of_nodes([node], Code.GPU_UNHEALTHY, severity, why, fix)
    total = sum(len(one.gpus) for one in nodes)
    return found or (f"all GPUs are healthy: {total:,}" if nodes else None)


def judge_enforcement(installation: Installation) -> Finding:
    """Return on which shared nodes caps are not enforced as rules of the policy want it.

    | rules by | label | driver | problem |
    | --- | --- | --- | --- |
    | Sidecar, or the policy is unknown | `enforcement` is none | too old | warning |
    | Sidecar, or the policy is unknown | `enforcement` is none | new enough | warning |
    | Sentry | `sentry` is not true | any | warning |
    | any other, or any other label | any | any | none |

    Nodes whose amounts are set by `agent.vram` are left out: nothing can be measured there.
    """
    shared = [one for one in installation.nodes if one.vram_bytes]
    measured = [one for one in shared if not one.said]
    policy = installation.attempt(lambda: installation.policy)
    by = enforcers(policy) if policy else {EnforceBy.SIDECAR}
    if not shared or by.isdisjoint({EnforceBy.SIDECAR, EnforceBy.SENTRY}):
        return None
    if not measured:
        return f"amounts are {SAID} on {join_names(one.name for one in shared)}"
    found, seen = [], []
    if EnforceBy.SIDECAR in by:
        found += _without_sidecar(measured, installation)
        drivers = _tally(one.driver for one in measured)
        seen.append("sidecars can measure memory" + (f" (driver {drivers})" if drivers else ""))
    if EnforceBy.SENTRY in by:
        found += _without_sentry(measured, installation)
        seen.append("sentries enforce caps")
    unread = installation.failures.get("stored_policy")
    if unread and not found:
        raise unread  # rules by Sentry are unknown
    return found or f"{', '.join(seen)} on {format_count(len(measured), 'node')}"


def _without_sidecar(nodes: Iterable[ClusterNode], installation: Installation) -> list[Problem]:
    found = []
    for node in nodes:
        if node.enforcement == NOT_ENFORCED:
            why, fix = (
                "no pod with enforcement.by: Sidecar goes there",
                "or write enforcement.by: Sentry",
            )
            if supports_sidecar(node.driver):
                why += ", though the driver is new enough"
                fix = f"see what its agent says: {read_logs(installation.namespace, 'agent')}"
            else:
                why += f": {explain_support(node.driver)}"
                fix = f"upgrade the driver there to {SIDECAR_FROM} or newer, {fix}"
            found += _of_nodes([node], Code.NO_ENFORCEMENT, Severity.WARNING, why, fix)
    return found


def _without_sentry(nodes: Iterable[ClusterNode], installation: Installation) -> list[Problem]:
    why = "no sentry that acts measures all GPUs there"
    sentry = installation.attempt(lambda: installation.sentry)
    fix = f"see why: {read_logs(installation.sentry_namespace, 'sentry')}"
    if installation.lacks(lambda: installation.sentry):
        fix = upgrade(installation, "sentry.enabled=true")
    elif sentry and "--no-act" in sentry.arguments:
        why, fix = "sentry.act is false", upgrade(installation, "sentry.act=true")
    without = [one for one in nodes if not one.has_sentry]
    why = f"no pod with enforcement.by: Sentry goes there: {why}"
    return _of_nodes(without, Code.NO_SENTRY, Severity.WARNING, why, fix)


def judge_device_names(installation: Installation) -> Finding:
    """Return the shared nodes whose container runtime resolves no name of a GPU."""
    nodes = [one for one in installation.nodes if one.vram_bytes]
    unknown = [one for one in nodes if one.device_names == DeviceNames.NONE]
    why = "no pod gets a GPU there: its container runtime resolves no name of its GPUs"
    fix = "set agent.deviceNames to what it resolves "
    fix += f"({installation.page(Page.HARDENED_TOOLKITS)})"
    found = _of_nodes(unknown, Code.NO_DEVICE_NAMES, Severity.ERROR, why, fix)
    names = _tally(one.device_names for one in nodes)
    seen = "container runtimes resolve names of GPUs" + (f": {names}" if names else "")
    return found or (seen if nodes else None)


def _of_nodes(
    nodes: Iterable[ClusterNode], code: Code, severity: Severity, message: str, fix: str
) -> list[Problem]:
    """Return the same problem of each node; `{}` in the fix is its name."""
    return [
        Problem(code, severity, message, fix.format(one.name), ProblemSubject("Node", one.name))
        for one in nodes
    ]


def _tally(values: Iterable[str]) -> str:
    """Return the different values, the most frequent first, and how often each occurs."""
    counts = Counter(value for value in values if value).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return join_names(
        sorted(f"{value} ({format_count(number, 'node')})" for value, number in counts)
    )
