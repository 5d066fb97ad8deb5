"""Build pods, put something into them, judge them, and say what must come of it."""

from __future__ import annotations

import copy
import re
from typing import Any

from tests.support.pods import RULE, a_container, a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.model import EnforceBy, Rule

VRAM = "vramwarden.io/vram"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
GI = 2**30
CONFIG_MAP = {"configMapKeyRef": {"name": "settings", "key": "gpus"}}
# What is wrong, then what to do; or a bound, which says both.
SAYS_WHAT_TO_DO = re.compile("; |must be greater than|is less than .*, the smallest")
EVERYWHERE = ["main", "second", "init", "side"]
WITHOUT_SIDECAR = a_rule(enforcement={"by": EnforceBy.NONE})
BY_SENTRY = a_rule(enforcement={"by": EnforceBy.SENTRY})
RESTRICTED = {
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
}
# A rule that gives a pod all that a rule can give.
RICH_RULE = a_rule(
    tolerations=({"key": "gpu", "operator": "Exists"},),
    runtime_class_name="nvidia",
    env=({"name": "XLA_PYTHON_CLIENT_PREALLOCATE", "value": "false"},),
    default_class="a100",
)


def another_policy(*rules: Rule):
    """Return a policy with another digest than that of the policy which translates pods here."""
    return a_policy(*rules, digest="fedcba9876543210")


def a_full_pod(memory: str | None = "main=8Gi", **fields: Any):
    """Return a pod with a container at each place where one can stand."""
    return a_pod(
        memory,
        containers=[a_container("main"), a_container("second")],
        initContainers=[a_container("init"), a_container("side", restartPolicy="Always")],
        **fields,
    )


def a_hardened_pod(*, restricted: bool, users: tuple[int | None, int | None], pod_user=None):
    pod = a_full_pod("main=4Gi,second=4Gi")
    for name in EVERYWHERE:
        put_in(pod, name, RESTRICTED if restricted else {})
    for name, user in zip(("main", "second"), users, strict=True):
        if user is not None:
            put_in(pod, name, {"securityContext": {"runAsUser": user}})
    if pod_user is not None:
        pod["spec"]["securityContext"] = {"runAsUser": pod_user}
    return pod


def a_plain_pod():
    return a_pod(
        "main=8Gi",
        containers=[a_container("main"), a_container("second")],
        initContainers=[a_container("init")],
    )


def stored_pod(rule: Rule = RULE, pod=None):
    """Return a pod as it is after its creation."""
    return translated(pod or a_plain_pod(), rule)


def a_bound_pod():
    """Return a stored pod that runs on a GPU, with every mark of ours."""
    pod = stored_pod()
    notes = pod["metadata"]["annotations"]
    notes.update({"vramwarden.io/gpu": "GPU-1", "vramwarden.io/gpu-count": "1"})
    notes.update({"vramwarden.io/visible-devices": "GPU-1", "vramwarden.io/gpu-waits": "none"})
    notes["vramwarden.io/gpu-memory-fraction"] = "0.1000"
    notes["vramwarden.io/gpu-class"] = "a100"
    pod["spec"]["nodeName"] = "node-1"
    return pod


def variable(name: str, value: str | None = None, **source: Any):
    entry: dict[str, Any] = {"name": name}
    if value is not None:
        entry["value"] = value
    if source:
        entry["valueFrom"] = source
    return {"env": [entry]}


def limits(resource: str, amount: Any):
    return {"resources": {"limits": {resource: amount}}}


def both(resource: str, request: Any, limit: Any):
    resources = {"requests": {resource: request}, "limits": {resource: limit}}
    return {
        "resources": {
            kind: amounts
            for kind, amounts in resources.items()
            if next(iter(amounts.values())) is not None
        }
    }


def capability(name: str):
    return {"securityContext": {"capabilities": {"add": [name]}}}


def host_path(path: str):
    return {"volumes": [{"name": "v", "hostPath": {"path": path}}]}


def put(holder, fields) -> None:
    """Merge fields into an object: objects are merged, lists grow at their end."""
    for key, value in copy.deepcopy(fields).items():
        if isinstance(value, dict) and isinstance(holder.get(key), dict):
            put(holder[key], value)
        elif isinstance(value, list) and isinstance(holder.get(key), list):
            holder[key].extend(value)
        else:
            holder[key] = value


def put_in(pod, name: str, fields) -> str:
    """Merge fields into a container; return the container's path."""
    for field in ("containers", "initContainers"):
        for index, container in enumerate(pod["spec"].get(field, [])):
            if container["name"] == name:
                put(container, fields)
                return f"spec.{field}[{index}]"
    raise LookupError(name)


def ended(path: str, holder) -> str:
    """Replace `[-1]` in a path by the index of the list's last item."""
    head, _, tail = path.partition("[-1]")
    if head == path:
        return path
    for key in head.split("."):
        holder = holder[key]
    return f"{head}[{len(holder) - 1}]{tail}"


def container_of(pod, name: str):
    return next(
        container
        for field in ("containers", "initContainers", "ephemeralContainers")
        for container in pod["spec"].get(field, [])
        if container["name"] == name
    )


def decided(
    pod,
    rule: Rule = RULE,
    phase: Phase = Phase.MUTATE,
    *,
    policy=None,
    cluster=UNKNOWN_CLUSTER,
    **fields: Any,
):
    return decide(a_request(copy.deepcopy(pod), **fields), policy or a_policy(rule), cluster, phase)


def updated(old, new, *, policy=None, cluster=UNKNOWN_CLUSTER, phase=Phase.VALIDATE, **fields: Any):
    request = a_request(new, operation="UPDATE", old=old, **fields)
    return decide(request, policy or a_policy(), cluster, phase)


def with_debuggers(pod, *debuggers):
    new = copy.deepcopy(pod)
    new["spec"].setdefault("ephemeralContainers", []).extend(copy.deepcopy(debuggers))
    return new


def a_debugger(name: str = "debug", **fields: Any):
    return a_container(name, **fields)


def debugged(old, *debuggers, phase=Phase.VALIDATE, **fields: Any):
    new = with_debuggers(old, *debuggers)
    return updated(old, new, subresource="ephemeralcontainers", phase=phase, **fields)


def translated(pod, rule: Rule = RULE):
    decision = decided(pod, rule)
    assert decision.outcome is Outcome.MUTATED, decision.message
    return copy.deepcopy(decision.obj)


def found_in(decision):
    return [(finding.reason.value, finding.path) for finding in decision.findings]


def findings_of(pod, rule: Rule = RULE, phase: Phase = Phase.MUTATE):
    return found_in(decided(pod, rule, phase))


def assert_denied(decision, reason: str, path: str) -> None:
    """Assert that this alone is found, in the words of the contract."""
    assert found_in(decision) == [(str(reason), path)]
    assert decision.outcome is Outcome.DENIED
    assert decision.patch == ()
    (found,) = decision.findings
    assert decision.message == f"{reason}: {path}: {found.detail}"
    assert decision.reasons == (reason,)
    assert SAYS_WHAT_TO_DO.search(found.detail), found.detail
    assert "\n" not in decision.message


def assert_left(decision) -> None:
    """Assert that nothing is found, and that the pod stays as it is."""
    assert decision.outcome is Outcome.ALLOWED, decision.message
    assert (decision.findings, decision.patch) == ((), ())


def assert_fine(pod, rule: Rule = RULE) -> None:
    """Assert that a pod is admitted and then stored."""
    decision = decided(pod, rule)
    assert decision.allowed, decision.message
    assert decision.findings == ()
    stored = decided(decision.obj, rule, Phase.VALIDATE)
    assert stored.outcome is Outcome.ALLOWED, stored.message


def assert_immutable(decision, *paths: str) -> None:
    assert found_in(decision) == [("Immutable", path) for path in paths]
    assert decision.outcome is Outcome.DENIED
    assert decision.patch == ()
    assert decision.message == "\n; ".join(
        f"Immutable: {finding.path}: {finding.detail}" for finding in decision.findings
    )
    assert all("; " in finding.detail for finding in decision.findings)
