"""Problems of what is installed: the webhook, its certificate, agents, sentries, limiters, pods."""

from __future__ import annotations

import re
from typing import Final

from webhook.core.documentation import Page
from webhook.core.formatting import format_count, join_names
from webhook.core.kinds.nodes import STALE_S
from webhook.core.policy.match import NamespaceUnknownError, Subject
from webhook.core.policy.model import Action, EnforceBy, Policy
from webhook.tools.problems.problem import Code, Finding, Problem, ProblemSubject, Severity
from webhook.tools.snapshot.installation import MUTATING, VALIDATING, Installation, OwnWorkload
from webhook.tools.snapshot.objects import NotObservable
from webhook.tools.snapshot.pod import LIMIT_COMES_S, ClusterPod

OLDEST_KUBERNETES: Final = (1, 31)
MUTATING_POLICIES_FROM: Final = (1, 36)
"""First version with mutating admission policies and `RestartAllContainers`."""
EXPECTED: Final = {
    (MUTATING, "mutate.vramwarden.io"): "Fail",
    (MUTATING, "advise.vramwarden.io"): "Ignore",
    (MUTATING, "bind.vramwarden.io"): "Ignore",
    (VALIDATING, "validate.vramwarden.io"): "Fail",
    (VALIDATING, "advise.vramwarden.io"): "Ignore",
}
"""The chart's webhooks and their `failurePolicy`, which is `Ignore` for all others."""
SOON_DAYS: Final = 7
"""Days left at which the alert `VramwardenCertificateExpires` fires."""
ROTATE_DAYS: Final = 365
"""Days left at which `VramwardenCAExpires` fires; only `certs rotate` replaces such a CA."""
_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})")
_ENFORCE_LABEL: Final = "pod-security.kubernetes.io/enforce"


def upgrade(installation: Installation, *values: str) -> str:
    """Return the command that restores what the chart wrote, with these values."""
    options = "".join(f" --set {value}" for value in values)
    return (
        f"`helm upgrade vramwarden CHART --namespace {installation.namespace} "
        f"--reset-then-reuse-values{options}`, with the CHART of `helm install`"
    )


def read_logs(namespace: str, component: str = "webhook") -> str:
    """Return the command that shows the logs of a component."""
    prefix = "" if component == "webhook" else " --prefix"
    return f"`kubectl -n {namespace} logs -l app.kubernetes.io/component={component}{prefix}`"


def judge_kubernetes_version(installation: Installation) -> Finding:
    """Return that Kubernetes is too old; if it is not, what it lacks.

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


def judge_sentry_namespace(installation: Installation) -> Finding:
    """Return that Pod Security may deny the sentry's pods in their namespace.

    | namespace | Pod Security's label | made by Helm | before installing | afterwards |
    | --- | --- | --- | --- | --- |
    | missing | - | - | none | error |
    | there | privileged | - | none | none |
    | there | none | no | warning | none |
    | there | none | yes | none | none |
    | there | baseline or restricted | - | error | error |

    Without a label the cluster's default counts, which nothing shows; afterwards the sentry's pods
    do. A release without a sentry is not judged.
    """
    if not installation.is_before and installation.lacks(lambda: installation.sentry):
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


def judge_release(installation: Installation) -> Finding:
    """Return that there is no release, or one of another version than this command's."""
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


def judge_replicas(installation: Installation) -> Finding:
    """Return that not all replicas of the webhook are ready.

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
    """Return that pods of a workload are missing or not ready, with the reason of the first one."""
    pods = installation.attempt(lambda: installation.unready_pods) or ()
    component = workload.name.removeprefix("vramwarden-")
    broken = next((one for one in pods if one.component == component), None)
    why = f": {broken.not_ready} (node {broken.node or 'unknown'})" if broken else ""
    kind = "deployment" if component == "webhook" else "daemonset"
    which = f"pod {broken.name}" if broken else f"{kind} {workload.name}"
    fix = f"`kubectl -n {workload.namespace} describe {which}`"
    return Problem(Code.NOT_READY, severity, f"{seen}{why}", fix)


def judge_registration(installation: Installation) -> Finding:
    """Return the first fault of our webhook configurations, or that another comes after them.

    | our webhooks | `failurePolicy` | another webhook sorts after ours | problem |
    | --- | --- | --- | --- |
    | also in a configuration of another name | any | any | error |
    | one is missing | any | any | error |
    | all | Fail in place of Ignore | any | error |
    | all | Ignore in place of Fail | any | warning |
    | all | as the chart has it | yes | warning |
    | all | as the chart has it | no | none |
    """
    hooks, restore = installation.own_webhooks, upgrade(installation)
    release = installation.attempt(lambda: installation.webhook)
    current = release.option("webhook-configuration") if release else ""
    code = Code.NOT_REGISTERED
    old = sorted({one.configuration for one in hooks} - {current})
    if current and old:
        why = (
            f"left from an earlier webhook.configurationName, without a CA kept: {join_names(old)}"
        )
        kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
        return [Problem(code, Severity.ERROR, why, f"`kubectl delete {kinds} {' '.join(old)}`")]
    found = {(one.kind, one.name): one.failure_policy for one in hooks}
    missing = sorted(f"{name} ({kind})" for kind, name in EXPECTED if (kind, name) not in found)
    if missing:
        why = f"not registered with the API server: {join_names(missing)}"
        return [Problem(code, Severity.ERROR, why, restore)]
    expected = {key: EXPECTED.get(key, "Ignore") for key in found}
    strict = sorted(key[1] for key in found if found[key] == "Fail" != expected[key])
    if strict:
        why = (
            f"{join_names(strict)} has failurePolicy Fail, so pods without VRAM wait for vramwarden"
        )
        return [Problem(code, Severity.ERROR, why, restore)]
    lax = sorted(key[1] for key in EXPECTED if found[key] != "Fail" == expected[key])
    if lax:
        why = (
            f"{join_names(lax)} has failurePolicy Ignore: while no replica answers, only the fence "
        )
        why += "denies pods that were not translated"
        fix = "set webhook.failurePolicy to Fail"
        return [Problem(code, Severity.WARNING, why, fix)]
    if later := installation.later_configurations:
        why = (
            f"{join_names(later)} changes new pods after vramwarden: a demand added there is denied"
        )
        fix = "set webhook.configurationName to a name that sorts after these"
        return [Problem(Code.LATER_WEBHOOK, Severity.WARNING, why, fix)]
    count = format_count(len(found), "webhook")
    return f"{count} are registered, and no other changes pods after them"


def judge_bind_path(installation: Installation) -> Finding:
    """Return that no replica has written the path for bindings, or that replicas have no key.

    | path of `bind.vramwarden.io` | Secret `vramwarden-key` | problem |
    | --- | --- | --- |
    | any | missing | warning; error if the path is empty |
    | empty | there, or unknown | error |
    | written | there | none |
    """
    hooks = [one for one in installation.own_webhooks if one.name == "bind.vramwarden.io"]
    namespace, is_empty = installation.namespace, any(not one.path.strip("/") for one in hooks)
    has_key = installation.attempt(lambda: installation.has_key)
    late = "no replica has written the path for bindings, so pods get their GPU late"
    severity = Severity.ERROR if is_empty else Severity.WARNING
    if has_key is False:
        why = "there is no Secret vramwarden-key: "
        why += late if is_empty else "the webhook's token suffices to forge what the fence reads"
        fix = f"`kubectl -n {namespace} create secret generic vramwarden-key "
        fix += '--from-literal=key="$(openssl rand -hex 32)"`, then '
        fix += f"`kubectl -n {namespace} rollout restart deployment vramwarden-webhook`"
        return [Problem(Code.NO_BIND_PATH, severity, why, fix)]
    if is_empty:
        return [Problem(Code.NO_BIND_PATH, severity, late, read_logs(namespace))]
    if not hooks or not installation.has_key:  # raises FactUnavailable if the key is unknown
        return None
    return "the path for bindings is written, and the replicas have their key"


def judge_ca_bundle(installation: Installation) -> Finding:
    """Return that the API server does not trust the webhook's certificate, or will not for long.

    | caBundle | of the webhook's certificate | days left | problem |
    | --- | --- | --- | --- |
    | empty or unreadable | any | any | error |
    | readable | no | any | error |
    | readable | yes or unknown | none | error |
    | readable | yes or unknown | up to 7 | warning |
    | readable | yes or unknown | up to 365, in mode `self` | warning |
    | readable | yes or unknown | more | none |
    """
    hooks, code = installation.own_webhooks, Code.CERTIFICATE
    if not hooks:
        return None  # see judge_registration
    trusted = {f"{one.name} ({one.kind})": installation.ca_days_left(one) for one in hooks}
    days_left = [one for one in trusted.values() if one is not None]
    fix = f"in mode `self` a replica restores it: {read_logs(installation.namespace)}; "
    fix += "else write it again"
    if without := [name for name, days in trusted.items() if days is None]:
        why = f"caBundle of {join_names(sorted(without))} has no readable certificate"
        return [Problem(code, Severity.ERROR, why, fix)]
    if strange := [f"{one.name} ({one.kind})" for one in hooks if installation.lacks_ca(one)]:
        why = f"caBundle of {join_names(sorted(strange))} holds another CA than the certificate's"
        return [Problem(code, Severity.ERROR, why, fix)]
    release = installation.attempt(lambda: installation.webhook)
    own_secret = release.option("cert-secret") if release else ""
    if own_secret:
        fix = f"`vramwarden certs rotate --secret {own_secret}` makes another"
    days = min(days_left)
    found = expiry("the webhook's CA", days, ROTATE_DAYS if own_secret else SOON_DAYS, fix)
    return (
        found or f"the API server trusts the webhook, by a CA for {format_count(int(days), 'day')}"
    )


def judge_certificate(installation: Installation) -> Finding:
    """Return that the webhook's certificate has expired, expires soon, or cannot be read."""
    if installation.certificate is None:
        return None
    what, days = f"Secret {installation.certificate.title}", installation.certificate.days_left
    fix = f"in mode `self` the replicas renew it: {read_logs(installation.namespace)}; "
    fix += "else renew it"
    if days is None:
        why = f"{what} has no readable certificate"
        return [Problem(Code.CERTIFICATE, Severity.ERROR, why, fix)]
    what = f"the certificate in {what}"
    found = expiry(what, days, SOON_DAYS, fix)
    return found or f"{what} is valid for {format_count(int(days), 'day')}"


def expiry(what: str, days: float, soon_days: int, fix: str) -> list[Problem]:
    """Return that a certificate has expired, or will within `soon_days`."""
    if days > soon_days:
        return []
    severity = Severity.WARNING if days > 0 else Severity.ERROR
    when = f"expires in {format_count(int(days), 'day')}" if days > 0 else "has expired"
    return [Problem(Code.CERTIFICATE, severity, f"{what} {when}", fix)]


def judge_daemon_sets(installation: Installation) -> Finding:
    """Return which of agent, sentry and limiter is missing, or not ready on its nodes.

    | DaemonSet | nodes | ready | problem |
    | --- | --- | --- | --- |
    | agent | it is missing | - | warning |
    | agent | none | - | warning |
    | sentry, and `agent.vram` is set | it is missing | - | none: no driver is asked |
    | sentry | it is missing | - | warning |
    | limiter | it is missing | - | none |
    | sentry or limiter | none | - | none |
    | any | some | all | none |
    | any | some | not all | error |
    """
    agent, sentry, limiter = installation.agent, installation.sentry, installation.limiter
    found, seen = [], []
    if agent is None:
        why = "there is no agent, so nothing reports how much memory a node's GPUs have"
        fix = upgrade(installation, "agent.enabled=true")
        found.append(Problem(Code.NO_AGENT, Severity.WARNING, why, fix))
    elif not agent.desired:
        why = "no node has a label that brings the agent there"
        fix = "label nodes with GPUs: `kubectl label node NODE nvidia.com/gpu.present=true`"
        found.append(Problem(Code.NO_AGENT, Severity.WARNING, why, fix))
    if sentry is None and not (agent and agent.option("vram")):
        why = "there is no sentry: no figures, and a pod that stops its sidecar keeps its memory"
        fix = upgrade(installation, "sentry.enabled=true")
        found.append(Problem(Code.NO_SENTRY, Severity.WARNING, why, fix))
    for one in filter(None, (agent, sentry, limiter)):
        component = one.name.removeprefix("vramwarden-")
        on = f"the {component} is ready on {one.ready_pods} of {format_count(one.desired, 'node')}"
        if one.ready_pods < one.desired:
            found.append(_not_ready(installation, Severity.ERROR, on, one))
        elif one.desired:
            seen.append(on)
    return found or ", ".join(seen)


def judge_figures(installation: Installation) -> Finding:
    """Return which shared nodes have no figures, or old ones.

    | sentry, shared nodes | GPUNode | problem |
    | --- | --- | --- |
    | one of them missing | any | not judged |
    | both there | seen in the last 180 s | none |
    | both there | missing, older, or of so far in the future | warning |
    | both there | the kind is not served | warning |
    """
    shared = [one for one in installation.nodes if one.vram_bytes] if installation.sentry else []
    if not shared:
        return None
    written = installation.gpu_nodes
    if written is None:
        why, fix = "the kind GPUNode is not served", upgrade(installation, "crds.install=true")
        return [Problem(Code.NO_FIGURES, Severity.WARNING, why, fix)]
    fix = read_logs(installation.sentry_namespace, "sentry")
    found = []
    for node in shared:
        figures, subject = written.get(node.name), ProblemSubject("Node", node.name)
        if figures is None or abs(installation.now_s - figures.observed_s) > STALE_S:
            why = f"its sentry wrote no figures in the last {STALE_S:.0f} s"
            found.append(Problem(Code.STALE_FIGURES, Severity.WARNING, why, fix, subject))
    return found or f"sentries write figures of {format_count(len(shared), 'node')}"


def judge_driver_limits(installation: Installation) -> Finding:
    """Return which pods and nodes lack the driver's limit, if the limiter was switched on.

    | a pod waits | a limiter reports of a shared node | its driver holds caps | problem |
    | --- | --- | --- | --- |
    | for more than `LIMIT_COMES_S` | any | any | warning |
    | no | no | any | not judged |
    | no | yes | on one or more | none, and which do not |
    | no | yes | on none | warning |
    """
    found = []
    for pod in installation.attempt(lambda: installation.pods) or ():
        since_s = pod.waits_for_limit_s if pod.managed else None
        if since_s and installation.now_s - since_s > LIMIT_COMES_S:
            why = "nothing of the pod starts before the driver holds its cap"
            found.append(_of_pod(pod, Code.NO_DRIVER_LIMIT, Severity.WARNING, why, _explain(pod)))
    if found:
        return found
    figures = installation.gpu_nodes or {}
    shared = {name: one.limit for name, one in figures.items() if not one.not_shared}
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


def judge_sidecar_image(installation: Installation) -> Finding:
    """Return which pods cannot pull the sidecar's image.

    | a sidecar waits for its image | one has it | rules by `Sidecar` | problem |
    | --- | --- | --- | --- |
    | yes | any | any | error |
    | no | yes | any | none |
    | no | no | none | not judged |
    | no | no | some, or the policy is unknown | not observable |
    """
    pods = [one for one in installation.pods if one.managed]
    fix = "push it, or give the namespace a pull secret "
    fix += f"({installation.page(Page.PULL_SECRETS)})"
    found = []
    for pod in pods:
        if pod.pull_failure:
            image, said = pod.pull_failure
            why = f"the sidecar's image {image} cannot be pulled: {said}"
            found.append(_of_pod(pod, Code.CONTAINER_WAITS, Severity.ERROR, why, fix))
    if found or any(one.healthy for one in pods):
        return found or "the sidecar's image can be pulled"
    policy = installation.attempt(lambda: installation.policy)
    if policy and EnforceBy.SIDECAR not in enforcers(policy):
        return None
    raise NotObservable("no pod has a sidecar that has started; the first one will show it")


def judge_validators(installation: Installation) -> Finding:
    """Return in which namespaces the policy denies the validator pods of NVIDIA's operator.

    The operator creates them with `spec.nodeName` and a whole GPU.

    | such pods, in namespaces that are not exempt | the rule there | problem |
    | --- | --- | --- |
    | none | any | not judged |
    | some | none, or its action is Ignore | none |
    | some | another | warning |
    """
    namespaces = sorted(installation.validated_namespaces)
    if not namespaces or installation.lacks(lambda: installation.stored_policy):
        return None
    policy = installation.policy
    why = "rollout Enforce denies pods nvidia-device-plugin-validator of NVIDIA's operator here"
    fix = "add the namespace to a rule with action: Ignore, before all others, as `system` in "
    fix += "policies/default.yaml"
    return [
        Problem(Code.VALIDATOR_DENIED, Severity.WARNING, why, fix, ProblemSubject("Namespace", one))
        for one in namespaces
        if action_for(policy, one)[1] not in {None, Action.IGNORE}
    ] or f"the policy leaves NVIDIA's validator pods in {join_names(namespaces)} alone"


def judge_waiting_pods(installation: Installation) -> Finding:
    """Return the pods that are bound and wait for a GPU."""
    return [
        _of_pod(one, Code.WAITS_FOR_GPU, Severity.WARNING, one.waits, _explain(one))
        for one in installation.pods
        if one.managed and one.waits
    ] or "no pod is bound and waits for a GPU"


def _of_pod(pod: ClusterPod, code: Code, severity: Severity, why: str, fix: str) -> Problem:
    return Problem(code, severity, why, fix, ProblemSubject("Pod", pod.name, pod.namespace))


def _explain(pod: ClusterPod) -> str:
    return f"`vramwarden explain {pod.name} -n {pod.namespace}`"


def action_for(policy: Policy, namespace: str) -> tuple[str, Action | None]:
    """Return the name and action of the rule for pods of a namespace.

    None if there is no rule, or it depends on more than the namespace's name.
    """
    try:
        rule = policy.rule_for(Subject(namespace=namespace, namespace_labels=None))
    except NamespaceUnknownError:
        return "", None
    return (rule.name, rule.action) if rule else ("", None)


def enforcers(policy: Policy) -> set[EnforceBy]:
    """Return the values of `enforcement.by` in rules that do not ignore their pods."""
    judging = (rule for rule in policy.rules if rule.action is not Action.IGNORE)
    return {rule.for_class(None).enforcement.by for rule in judging}
