"""Problems of GPU nodes: prerequisites, sharing, health, enforcement and figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from webhook.core.documentation import Page
from webhook.core.formatting import format_count, join_names
from webhook.core.kinds.nodes import STALE_S
from webhook.core.node.inventory import MODE_FAULT
from webhook.core.node.node_fields import SharingCode
from webhook.core.nvidia.drivers import SIDECAR_FROM, explain_support, supports_sidecar
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.pod.quantity import format_bytes
from webhook.core.policy.model import EnforceBy
from webhook.names import NODE_SHARE_LABEL, NOT_ENFORCED, NVIDIA_RUNTIME_CLASS, VRAM_RESOURCE
from webhook.tools.problems.installation import enforcement_modes, logs_command, upgrade_command
from webhook.tools.problems.problem import Code, Finding, Problem, ProblemSubject, Severity
from webhook.tools.snapshot.installation import Installation
from webhook.tools.snapshot.node import CONFIGURED, REPELLING_EFFECTS, ClusterNode, tolerates

_NODE_STATE: Final = "node.kubernetes.io/"
"""Prefix of the taints that Kubernetes sets for node conditions."""
_DRAIN: Final = "`kubectl drain {} --ignore-daemonsets --delete-emptydir-data`"


def check_gpu_nodes(installation: Installation) -> Finding:
    """Check that the cluster has GPU nodes that are ready and run an agent.

    By the chart's default, a label selects the nodes that run the agent.
    """
    nodes, of_all = installation.nodes, format_count(installation.node_count, "node")
    if not nodes:
        why = f"none of {of_all} shows that it has a GPU"
        fix = "label those that do: `kubectl label node NODE nvidia.com/gpu.present=true`"
        return [Problem(Code.NO_GPU_NODES, Severity.WARNING, why, fix)]
    why, fix = "the node is not ready", "`kubectl describe node {}`"
    not_ready = [node for node in nodes if not node.ready]
    problems = _node_problems(not_ready, Code.NODE_NOT_READY, Severity.WARNING, why, fix)
    why = "the node has no label that brings the agent there"
    fix = "`kubectl label node {} nvidia.com/gpu.present=true`"
    without = [node for node in nodes if not node.selects_agent]
    problems += _node_problems(without, Code.NO_AGENT_LABEL, Severity.WARNING, why, fix)
    have = "has GPUs" if len(nodes) == 1 else "have GPUs"
    return problems or f"{len(nodes)} of {of_all} {have}, and labels bring the agent there"


def check_runtime_class(installation: Installation) -> Finding:
    """Check that nodes have NVIDIA's container runtime, by RuntimeClass or by default.

    | amounts | RuntimeClass | nodes with its handler | problem |
    | --- | --- | --- | --- |
    | set by `agent.vram` | any | any | not checked: pods see no GPU |
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
    without = [
        node
        for node in nodes
        if node.runtime_handlers is not None and handler not in node.runtime_handlers
    ]
    why = f"its container runtime lacks the handler {handler!r} of the RuntimeClass "
    why += NVIDIA_RUNTIME_CLASS
    fix = "install NVIDIA's container toolkit there: "
    fix += "`nvidia-ctk runtime configure --runtime=containerd`, then restart the runtime"
    problems = _node_problems(without, Code.NO_RUNTIME, Severity.ERROR, why, fix)
    return problems or (
        f"every pod may name the RuntimeClass {NVIDIA_RUNTIME_CLASS} (handler {handler}), and sees "
        "GPUs unless fence.void is on"
    )


def check_taints(installation: Installation) -> Finding:
    """Check that a rule or GPU class tolerates the taints of each GPU node."""
    nodes = installation.nodes
    if not nodes:
        return None
    policy = installation.policy
    tolerations = [toleration for rule in policy.rules for toleration in rule.tolerations]
    tolerations += [
        toleration for gpu_class in policy.classes.values() for toleration in gpu_class.tolerations
    ]
    found = []
    for node in nodes:
        keys = {
            taint[0]
            for taint in node.taints
            if taint[2] in REPELLING_EFFECTS
            and not taint[0].startswith(_NODE_STATE)
            and not tolerates(tolerations, taint)
        }
        if keys:
            why = f"no rule's pods tolerate its taint {join_names(sorted(keys))}"
            fix = "add it to `tolerations` of the rules in your policy, or let pods bring their own"
            found += _node_problems([node], Code.TAINT, Severity.WARNING, why, fix)
    return found or "pods of the policy tolerate the nodes' taints"


def check_sharing(installation: Installation) -> Finding:
    """Check that nodes are shared or, before an installation, would be.

    An installation without an agent is not checked.
    """
    nodes = installation.nodes
    if not nodes:
        return None
    if not installation.is_before and installation.is_missing(lambda: installation.agent):
        return None
    problems = [problem for node in nodes if (problem := sharing_problem(node, installation))]
    if problems:
        return problems
    codes = [node.sharing.code for node in nodes if node.sharing]
    shared = codes.count(SharingCode.SHARED)
    if not installation.is_before:
        total = format_bytes(sum(node.vram_bytes for node in nodes))
        return f"{total} of GPU memory is shared, on {shared} of {format_count(len(nodes), 'node')}"
    sentence = f"{shared} of {format_count(len(nodes), 'node')} would be shared"
    unread = installation.failures.get("dra_drivers")
    return f"{sentence}; DRA drivers are not known: {unread.why}" if unread else sentence


def sharing_problem(node: ClusterNode, installation: Installation) -> Problem | None:
    """Return the problem of a node that its agent does not share.

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
    verdict, is_excluded = node.sharing, node.share_label == "false"
    subject = ProblemSubject("Node", node.name)
    if verdict is None or verdict.code is SharingCode.SHARED:
        if verdict and (installation.is_before or node.vram_bytes):
            return None
        severity = Severity.ERROR if verdict else Severity.WARNING
        why = f"its agent offers no {VRAM_RESOURCE}"
        fix = f"see why: {logs_command(installation.namespace, 'agent')}"
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


def check_whole_gpu_pods(installation: Installation) -> Finding:
    """Check that no pod has whole GPUs of a shared node, even unused ones.

    | label `share` of the node | problem |
    | --- | --- |
    | true | warning |
    | absent or another | error |
    """
    shared = {node.name: node for node in installation.nodes if node.advertised}
    if not shared:
        return None
    problems = []
    for pod in installation.pods:
        if not pod.has_whole_gpus or pod.node not in shared:
            continue
        why = f"the pod has whole GPUs of {pod.node}, where others have VRAM, so a card may be "
        why += "given twice"
        fix = f"end it, even if it uses nothing now: {_DRAIN.format(pod.node)}"
        severity = Severity.ERROR
        if shared[pod.node].share_label == "true":
            severity, fix = Severity.WARNING, f"nothing if wanted ({NODE_SHARE_LABEL}=true); {fix}"
        subject = ProblemSubject("Pod", pod.name, pod.namespace)
        problems.append(Problem(Code.GIVEN_TWICE, severity, why, fix, subject))
    return problems or "no pod has whole GPUs of a node that is shared"


def check_gpu_health(installation: Installation) -> Finding:
    """Check that GPUs are healthy. No pod is placed on unhealthy GPUs.

    | GPUs of a node that are not healthy | problem |
    | --- | --- |
    | none | none |
    | some | warning |
    | all of them | error |
    """
    nodes = [node for node in installation.nodes if node.gpus]
    problems = []
    for node in nodes:
        broken = [gpu for gpu in node.gpus if not gpu.healthy]
        if broken:
            descriptions = [
                f"GPU {gpu.index} ({gpu.fault or 'is lost or unhealthy'})" for gpu in broken
            ]
            fix = "`kubectl describe node {}`; drain it, then reset the GPU or reboot the machine"
            if all(gpu.fault.startswith(MODE_FAULT) for gpu in broken):
                fix = "run that on the node; its agent sees it within half a minute"
            severity = Severity.ERROR if len(broken) == len(node.gpus) else Severity.WARNING
            why = f"no new pod is placed on {join_names(descriptions)}"
            problems += _node_problems([node], Code.GPU_UNHEALTHY, severity, why, fix)
    total = sum(len(node.gpus) for node in nodes)
    return problems or (f"all GPUs are healthy: {total:,}" if nodes else None)


def check_enforcement(installation: Installation) -> Finding:
    """Check that shared nodes can enforce caps as the policy's rules require.

    | rules by | label | driver | problem |
    | --- | --- | --- | --- |
    | Sidecar, or the policy is unknown | `enforcement` is none | too old | warning |
    | Sidecar, or the policy is unknown | `enforcement` is none | new enough | warning |
    | Sentry | `sentry` is not true | any | warning |
    | any other, or any other label | any | any | none |

    Nodes with amounts set by `agent.vram` are skipped, because they cannot measure memory.
    """
    shared = [node for node in installation.nodes if node.vram_bytes]
    measured = [node for node in shared if not node.is_configured]
    policy = installation.attempt(lambda: installation.policy)
    by = enforcement_modes(policy) if policy else {EnforceBy.SIDECAR}
    if not shared or by.isdisjoint({EnforceBy.SIDECAR, EnforceBy.SENTRY}):
        return None
    if not measured:
        return f"amounts are {CONFIGURED} on {join_names(node.name for node in shared)}"
    problems, seen = [], []
    if EnforceBy.SIDECAR in by:
        problems += _without_sidecar(measured, installation)
        drivers = _tally(node.driver for node in measured)
        seen.append("sidecars can measure memory" + (f" (driver {drivers})" if drivers else ""))
    if EnforceBy.SENTRY in by:
        problems += _without_sentry(measured, installation)
        seen.append("sentries enforce caps")
    unread = installation.failures.get("stored_policy")
    if unread and not problems:
        raise unread  # rules with `enforcement.by: Sentry` are unknown
    return problems or f"{', '.join(seen)} on {format_count(len(measured), 'node')}"


def _without_sidecar(nodes: Iterable[ClusterNode], installation: Installation) -> list[Problem]:
    found = []
    for node in nodes:
        if node.enforcement == NOT_ENFORCED:
            why = "no pod with enforcement.by: Sidecar goes there"
            fix = "or write enforcement.by: Sentry"
            if supports_sidecar(node.driver):
                why += ", though the driver is new enough"
                fix = f"see what its agent says: {logs_command(installation.namespace, 'agent')}"
            else:
                why += f": {explain_support(node.driver)}"
                fix = f"upgrade the driver there to {SIDECAR_FROM} or newer, {fix}"
            found += _node_problems([node], Code.NO_ENFORCEMENT, Severity.WARNING, why, fix)
    return found


def _without_sentry(nodes: Iterable[ClusterNode], installation: Installation) -> list[Problem]:
    why = "no sentry that acts measures all GPUs there"
    sentry = installation.attempt(lambda: installation.sentry)
    fix = f"see why: {logs_command(installation.sentry_namespace, 'sentry')}"
    if installation.is_missing(lambda: installation.sentry):
        fix = upgrade_command(installation, "sentry.enabled=true")
    elif sentry and "--no-act" in sentry.arguments:
        why, fix = "sentry.act is false", upgrade_command(installation, "sentry.act=true")
    without = [node for node in nodes if not node.has_sentry]
    why = f"no pod with enforcement.by: Sentry goes there: {why}"
    return _node_problems(without, Code.NO_SENTRY, Severity.WARNING, why, fix)


def check_device_names(installation: Installation) -> Finding:
    """Check that the container runtimes of shared nodes resolve GPU names."""
    nodes = [node for node in installation.nodes if node.vram_bytes]
    unknown = [node for node in nodes if node.device_names == DeviceNames.NONE]
    why = "no pod gets a GPU there: its container runtime resolves no name of its GPUs"
    fix = "set agent.deviceNames to what it resolves "
    fix += f"({installation.page(Page.HARDENED_TOOLKITS)})"
    problems = _node_problems(unknown, Code.NO_DEVICE_NAMES, Severity.ERROR, why, fix)
    names = _tally(node.device_names for node in nodes)
    seen = "container runtimes resolve names of GPUs" + (f": {names}" if names else "")
    return problems or (seen if nodes else None)


def _node_problems(
    nodes: Iterable[ClusterNode], code: Code, severity: Severity, message: str, fix: str
) -> list[Problem]:
    """Return the same problem for each node, with the node's name for `{}` in the fix."""
    return [
        Problem(code, severity, message, fix.format(node.name), ProblemSubject("Node", node.name))
        for node in nodes
    ]


def _tally(values: Iterable[str]) -> str:
    """Return the distinct values with counts, or only the value if all are equal."""
    counts = Counter(value for value in values if value).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return join_names(
        sorted(f"{value} ({format_count(number, 'node')})" for value, number in counts)
    )


def check_figures(installation: Installation) -> Finding:
    """Check that shared nodes have current figures.

    | sentry, shared nodes | GPUNode | problem |
    | --- | --- | --- |
    | one of them is missing | any | not checked |
    | both exist | written in the last 180 s | none |
    | both exist | missing, or its time differs by more than 180 s | warning |
    | both exist | the kind is not served | warning |
    """
    shared = [node for node in installation.nodes if node.vram_bytes] if installation.sentry else []
    if not shared:
        return None
    figures_by_node = installation.gpu_nodes
    if figures_by_node is None:
        why = "the kind GPUNode is not served"
        fix = upgrade_command(installation, "crds.install=true")
        return [Problem(Code.NO_FIGURES, Severity.WARNING, why, fix)]
    fix = logs_command(installation.sentry_namespace, "sentry")
    problems = []
    for node in shared:
        figures, subject = figures_by_node.get(node.name), ProblemSubject("Node", node.name)
        if figures is None or abs(installation.now_s - figures.observed_s) > STALE_S:
            why = f"its sentry wrote no figures in the last {STALE_S:.0f} s"
            problems.append(Problem(Code.STALE_FIGURES, Severity.WARNING, why, fix, subject))
    return problems or f"sentries write figures of {format_count(len(shared), 'node')}"
