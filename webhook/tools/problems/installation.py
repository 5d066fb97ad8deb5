"""Problems of a release: cluster, replicas, DaemonSets and their pods."""

from __future__ import annotations

import re
from typing import Final

from webhook.core.documentation import Page
from webhook.core.formatting import format_count, join_names
from webhook.core.policy.model import Action, EnforceBy, Policy
from webhook.tools.problems.problem import Code, Finding, Problem, ProblemSubject, Severity
from webhook.tools.snapshot.installation import Installation
from webhook.tools.snapshot.objects import NotObservable
from webhook.tools.snapshot.pod import LIMIT_GRACE_S, ClusterPod
from webhook.tools.snapshot.release import OwnWorkload

OLDEST_KUBERNETES: Final = (1, 31)
MUTATING_POLICIES_FROM: Final = (1, 36)
"""First Kubernetes version with mutating admission policies and `RestartAllContainers`."""
_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})")
_ENFORCE_LABEL: Final = "pod-security.kubernetes.io/enforce"


def upgrade_command(installation: Installation, *values: str) -> str:
    """Return the command that upgrades the release with these chart values."""
    options = "".join(f" --set {value}" for value in values)
    return (
        f"`helm upgrade vramwarden CHART --namespace {installation.namespace} "
        f"--reset-then-reuse-values{options}`, with the CHART of `helm install`"
    )


def logs_command(namespace: str, component: str = "webhook") -> str:
    """Return the kubectl command that shows the logs of a component."""
    prefix = "" if component == "webhook" else " --prefix"
    return f"`kubectl -n {namespace} logs -l app.kubernetes.io/component={component}{prefix}`"


def check_kubernetes_version(installation: Installation) -> Finding:
    """Check that the Kubernetes version is supported.

    | version | problem |
    | --- | --- |
    | before 1.31 | error |
    | 1.31 and newer | none |
    | unreadable | warning |
    """
    match = _VERSION.match(installation.version)
    oldest, code = ".".join(map(str, OLDEST_KUBERNETES)), Code.KUBERNETES_VERSION
    if not match:
        why = f"the version of Kubernetes cannot be read: {installation.version!r}"
        fix = f"see that it is {oldest} or newer: `kubectl version`"
        return [Problem(code, Severity.WARNING, why, fix)]
    minor = (int(match[1]), int(match[2]))
    if minor < OLDEST_KUBERNETES:
        why = f"Kubernetes {match[1]}.{match[2]} is not supported, and Helm rejects the chart"
        return [Problem(code, Severity.ERROR, why, f"upgrade Kubernetes to {oldest} or newer")]
    newest = ".".join(map(str, MUTATING_POLICIES_FROM))
    lacks = f"; fence.void and podRestart need {newest}" if minor < MUTATING_POLICIES_FROM else ""
    return f"Kubernetes is {match[1]}.{match[2]}, at {installation.kube.url}{lacks}"


def check_sentry_namespace(installation: Installation) -> Finding:
    """Check that Pod Security allows the sentry's pods in their namespace.

    | namespace | Pod Security's label | made by Helm | before installing | afterwards |
    | --- | --- | --- | --- | --- |
    | missing | - | - | none | error |
    | there | privileged | - | none | none |
    | there | none | no | warning | none |
    | there | none | yes | none | none |
    | there | baseline or restricted | - | error | error |

    Without a label, the cluster's default applies, which no object shows. After the installation,
    the sentry's pods show its effect. A release without a sentry is not checked.
    """
    if not installation.is_before and installation.is_missing(lambda: installation.sentry):
        return None
    found, name = installation.namespace_of_sentry, installation.sentry_namespace
    allow = f"`kubectl label namespace {name} {_ENFORCE_LABEL}=privileged --overwrite`"
    code, subject = Code.SENTRY_DENIED, ProblemSubject("Namespace", name)
    if found is None:
        fix = f"`kubectl create namespace {name}`, {allow}"
        why = "the sentry's namespace does not exist"
        problem = Problem(code, Severity.ERROR, why, fix, subject)
        return (
            f"the chart makes the sentry's namespace {name}"
            if installation.is_before
            else [problem]
        )
    level = found.labels.get(_ENFORCE_LABEL, "")
    if level in {"baseline", "restricted"}:
        why = f"Pod Security of the namespace, {level}, denies the sentry's pods"
        fix = f"{allow}, or install with --set sentry.enabled=false"
        return [Problem(code, Severity.ERROR, why, fix, subject)]
    by_helm = found.labels.get("app.kubernetes.io/managed-by") == "Helm"
    if installation.is_before and not (level or by_helm):
        why = "the sentry's namespace exists, and has no Pod Security level"
        fix = f"{allow}, and install with --set sentry.createNamespace=false"
        return [Problem(code, Severity.WARNING, why, fix, subject)]
    return f"the sentry's namespace {name} allows hostPID"


def check_release(installation: Installation) -> Finding:
    """Check that there is a release of this command's version."""
    webhook, namespace = installation.webhook, installation.namespace
    if webhook is None:
        why = f"there is no Deployment vramwarden-webhook in namespace {namespace}"
        fix = f"install it ({installation.page(Page.INSTALL)}): `helm install "
        fix += f"vramwarden CHART --namespace {namespace} --create-namespace "
        fix += "--set image.repository=IMAGE,enforcer.repository=SIDECAR`, or name its namespace "
        fix += "by -n; --pre says what this cluster lacks"
        return [Problem(Code.NOT_INSTALLED, Severity.ERROR, why, fix)]
    ours = installation.command_version
    if webhook.version != ours:
        release = webhook.version or "of an unknown version"
        why = f"this command is {ours}, the release in namespace {namespace} {release}: some of "
        why += "what the command expects may differ"
        fix = f"use the release's: `kubectl -n {namespace} exec deploy/vramwarden-webhook "
        fix += "-- vramwarden --version`"
        return [Problem(Code.OTHER_VERSION, Severity.WARNING, why, fix)]
    return f"this command and the release in namespace {namespace} are of version {ours}"


def check_replicas(installation: Installation) -> Finding:
    """Check that all replicas of the webhook are ready.

    | ready | problem |
    | --- | --- |
    | all | none |
    | some | warning |
    | none | error |
    """
    webhook = installation.webhook
    if webhook is None:
        return None
    seen = (
        f"{webhook.ready_pods} of {format_count(webhook.desired, 'replica')} of the webhook "
        "are ready"
    )
    if webhook.ready_pods >= webhook.desired > 0:
        return seen
    severity = Severity.WARNING if webhook.ready_pods else Severity.ERROR
    return [_not_ready(installation, severity, f"only {seen}", webhook)]


def _not_ready(
    installation: Installation, severity: Severity, seen: str, workload: OwnWorkload
) -> Problem:
    pods = installation.attempt(lambda: installation.unready_pods) or ()
    component = workload.name.removeprefix("vramwarden-")
    broken = next((pod for pod in pods if pod.component == component), None)
    why = f": {broken.not_ready} (node {broken.node or 'unknown'})" if broken else ""
    kind = "deployment" if component == "webhook" else "daemonset"
    which = f"pod {broken.name}" if broken else f"{kind} {workload.name}"
    fix = f"`kubectl -n {workload.namespace} describe {which}`"
    return Problem(Code.NOT_READY, severity, f"{seen}{why}", fix)


def check_daemon_sets(installation: Installation) -> Finding:
    """Check that agent, sentry and limiter are ready on their nodes.

    | DaemonSet | nodes | ready | problem |
    | --- | --- | --- | --- |
    | agent | it is missing | - | warning |
    | agent | none | - | warning |
    | sentry, and `agent.vram` is set | it is missing | - | none: amounts are not measured |
    | sentry | it is missing | - | warning |
    | limiter | it is missing | - | none |
    | sentry or limiter | none | - | none |
    | any | some | all | none |
    | any | some | not all | error |
    """
    agent, sentry, limiter = installation.agent, installation.sentry, installation.limiter
    problems, seen = [], []
    if agent is None:
        why = "there is no agent, so nothing reports how much memory a node's GPUs have"
        fix = upgrade_command(installation, "agent.enabled=true")
        problems.append(Problem(Code.NO_AGENT, Severity.WARNING, why, fix))
    elif not agent.desired:
        why = "no node has a label that brings the agent there"
        fix = "label nodes with GPUs: `kubectl label node NODE nvidia.com/gpu.present=true`"
        problems.append(Problem(Code.NO_AGENT, Severity.WARNING, why, fix))
    if sentry is None and not (agent and agent.option("vram")):
        why = "there is no sentry: no figures, and a pod that stops its sidecar keeps its memory"
        fix = upgrade_command(installation, "sentry.enabled=true")
        problems.append(Problem(Code.NO_SENTRY, Severity.WARNING, why, fix))
    for workload in filter(None, (agent, sentry, limiter)):
        component = workload.name.removeprefix("vramwarden-")
        nodes = format_count(workload.desired, "node")
        on = f"the {component} is ready on {workload.ready_pods} of {nodes}"
        if workload.ready_pods < workload.desired:
            problems.append(_not_ready(installation, Severity.ERROR, on, workload))
        elif workload.desired:
            seen.append(on)
    return problems or ", ".join(seen)


def check_sidecar_image(installation: Installation) -> Finding:
    """Check that nodes can pull the sidecar's image.

    | a sidecar waits for its image | one has started | rules by `Sidecar` | problem |
    | --- | --- | --- | --- |
    | yes | any | any | error |
    | no | yes | any | none |
    | no | no | none | not judged |
    | no | no | some, or the policy is unknown | not observable |
    """
    pods = [pod for pod in installation.pods if pod.managed]
    fix = "push it, or give the namespace a pull secret "
    fix += f"({installation.page(Page.PULL_SECRETS)})"
    found = []
    for pod in pods:
        if pod.pull_failure:
            image, message = pod.pull_failure
            why = f"the sidecar's image {image} cannot be pulled: {message}"
            found.append(pod_problem(pod, Code.CONTAINER_WAITS, Severity.ERROR, why, fix))
    if found or any(pod.healthy for pod in pods):
        return found or "the sidecar's image can be pulled"
    policy = installation.attempt(lambda: installation.policy)
    if policy and EnforceBy.SIDECAR not in enforcement_modes(policy):
        return None
    raise NotObservable("no pod has a sidecar that has started; the first one will show it")


def check_waiting_pods(installation: Installation) -> Finding:
    """Check that no bound pod waits for a GPU."""
    return [
        pod_problem(
            pod, Code.WAITS_FOR_GPU, Severity.WARNING, pod.waiting_reason, explain_command(pod)
        )
        for pod in installation.pods
        if pod.managed and pod.waiting_reason
    ] or "no pod is bound and waits for a GPU"


def pod_problem(pod: ClusterPod, code: Code, severity: Severity, why: str, fix: str) -> Problem:
    """Return a problem whose subject is the pod."""
    return Problem(code, severity, why, fix, ProblemSubject("Pod", pod.name, pod.namespace))


def explain_command(pod: ClusterPod) -> str:
    """Return the `vramwarden explain` command for a pod."""
    return f"`vramwarden explain {pod.name} -n {pod.namespace}`"


def enforcement_modes(policy: Policy) -> set[EnforceBy]:
    """Return the `enforcement.by` values of all rules that do not ignore their pods."""
    judging = (rule for rule in policy.rules if rule.action is not Action.IGNORE)
    return {rule.for_class(None).enforcement.by for rule in judging}


def check_driver_limits(installation: Installation) -> Finding:
    """Check that drivers enforce caps if the limiter is enabled.

    | a pod waits | a limiter reports a shared node | its driver enforces caps | problem |
    | --- | --- | --- | --- |
    | for more than `LIMIT_GRACE_S` | any | any | warning |
    | no | no | any | not checked |
    | no | yes | on one or more nodes | none |
    | no | yes | on no node | warning |
    """
    problems = []
    for pod in installation.attempt(lambda: installation.pods) or ():
        since_s = pod.waits_for_limit_s if pod.managed else None
        if since_s and installation.now_s - since_s > LIMIT_GRACE_S:
            why = "nothing of the pod starts before the driver holds its cap"
            problems.append(
                pod_problem(pod, Code.NO_DRIVER_LIMIT, Severity.WARNING, why, explain_command(pod))
            )
    if problems:
        return problems
    figures = installation.gpu_nodes or {}
    shared = {
        name: figures_of_node.limit
        for name, figures_of_node in figures.items()
        if not figures_of_node.not_shared
    }
    proofs = {name: proof for name, proof in sorted(shared.items()) if proof}
    unable = {name: proof.why for name, proof in proofs.items() if not proof.holds}
    if not proofs:
        return None
    if len(unable) < len(proofs):
        able, of_all = len(proofs) - len(unable), format_count(len(shared), "node")
        without = [f"{name} ({why})" if why else name for name, why in unable.items()]
        seen = f"drivers hold caps on {able} of {of_all}"
        return f"{seen}, not on {join_names(without)}" if unable else seen
    fix = "upgrade the driver there to r615; until then their sidecars hold pods to their caps"
    return [
        Problem(
            Code.NO_DRIVER_LIMIT,
            Severity.WARNING,
            "its driver holds no caps" + (f": {why}" if why else ""),
            fix,
            ProblemSubject("Node", name),
        )
        for name, why in unable.items()
    ]
