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
# A problem is followed by advice. A message about a bound states both.
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
# A rule that sets every field that translation writes to a pod.
RICH_RULE = a_rule(
    tolerations=({"key": "gpu", "operator": "Exists"},),
    runtime_class_name="nvidia",
    env=({"name": "XLA_PYTHON_CLIENT_PREALLOCATE", "value": "false"},),
    default_class="a100",
)


def another_policy(*rules: Rule):
    """Return a policy with another digest than the policy that translates pods here."""
    return a_policy(*rules, digest="fedcba9876543210")


def a_full_pod(memory: str | None = "main=8Gi", **fields: Any):
    return a_pod(
        memory,
        containers=[a_container("main"), a_container("second")],
        initContainers=[a_container("init"), a_container("side", restartPolicy="Always")],
        **fields,
    )


def a_hardened_pod(*, restricted: bool, users: tuple[int | None, int | None], pod_user=None):
    pod = a_full_pod("main=4Gi,second=4Gi")
    for name in EVERYWHERE:
        merge_into_container(pod, name, RESTRICTED if restricted else {})
    for name, user in zip(("main", "second"), users, strict=True):
        if user is not None:
            merge_into_container(pod, name, {"securityContext": {"runAsUser": user}})
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
    """Return a pod as stored after its creation."""
    return translate(pod or a_plain_pod(), rule)


def a_bound_pod():
    """Return a stored pod that runs on a GPU, with all vramwarden annotations."""
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


def request_and_limit(resource: str, request: Any, limit: Any):
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


def merge_fields(holder, fields) -> None:
    """Merge fields into an object: objects are merged, lists are extended."""
    for key, value in copy.deepcopy(fields).items():
        if isinstance(value, dict) and isinstance(holder.get(key), dict):
            merge_fields(holder[key], value)
        elif isinstance(value, list) and isinstance(holder.get(key), list):
            holder[key].extend(value)
        else:
            holder[key] = value


def merge_into_container(pod, name: str, fields) -> str:
    """Merge fields into a container; return the container's path."""
    for field in ("containers", "initContainers"):
        for index, container in enumerate(pod["spec"].get(field, [])):
            if container["name"] == name:
                merge_fields(container, fields)
                return f"spec.{field}[{index}]"
    raise LookupError(name)


def resolve_last_index(path: str, holder) -> str:
    """Replace `[-1]` in a path by the index of the list's last item."""
    head, _, tail = path.partition("[-1]")
    if head == path:
        return path
    for key in head.split("."):
        holder = holder[key]
    return f"{head}[{len(holder) - 1}]{tail}"


def find_container(pod, name: str):
    return next(
        container
        for field in ("containers", "initContainers", "ephemeralContainers")
        for container in pod["spec"].get(field, [])
        if container["name"] == name
    )


def decide_pod(
    pod,
    rule: Rule = RULE,
    phase: Phase = Phase.MUTATE,
    *,
    policy=None,
    cluster=UNKNOWN_CLUSTER,
    **fields: Any,
):
    return decide(a_request(copy.deepcopy(pod), **fields), policy or a_policy(rule), cluster, phase)


def decide_update(
    old, new, *, policy=None, cluster=UNKNOWN_CLUSTER, phase=Phase.VALIDATE, **fields: Any
):
    request = a_request(new, operation="UPDATE", old=old, **fields)
    return decide(request, policy or a_policy(), cluster, phase)


def with_debuggers(pod, *debuggers):
    new = copy.deepcopy(pod)
    new["spec"].setdefault("ephemeralContainers", []).extend(copy.deepcopy(debuggers))
    return new


def a_debugger(name: str = "debug", **fields: Any):
    return a_container(name, **fields)


def decide_debugging(old, *debuggers, phase=Phase.VALIDATE, **fields: Any):
    new = with_debuggers(old, *debuggers)
    return decide_update(old, new, subresource="ephemeralcontainers", phase=phase, **fields)


def translate(pod, rule: Rule = RULE):
    decision = decide_pod(pod, rule)
    assert decision.outcome is Outcome.MUTATED, decision.message
    return copy.deepcopy(decision.obj)


def reasons_and_paths(decision):
    return [(finding.reason.value, finding.path) for finding in decision.findings]


def decide_reasons(pod, rule: Rule = RULE, phase: Phase = Phase.MUTATE):
    return reasons_and_paths(decide_pod(pod, rule, phase))


def assert_denied(decision, reason: str, path: str) -> None:
    """Assert that the pod is denied for exactly this finding, with a well-formed message."""
    assert reasons_and_paths(decision) == [(str(reason), path)]
    assert decision.outcome is Outcome.DENIED
    assert decision.patch == ()
    (found,) = decision.findings
    assert decision.message == f"{reason}: {path}: {found.detail}"
    assert decision.reasons == (reason,)
    assert SAYS_WHAT_TO_DO.search(found.detail), found.detail
    assert "\n" not in decision.message


def assert_unchanged(decision) -> None:
    """Assert that there are no findings and the pod is unchanged."""
    assert decision.outcome is Outcome.ALLOWED, decision.message
    assert (decision.findings, decision.patch) == ((), ())


def assert_admitted(pod, rule: Rule = RULE) -> None:
    decision = decide_pod(pod, rule)
    assert decision.allowed, decision.message
    assert decision.findings == ()
    stored = decide_pod(decision.obj, rule, Phase.VALIDATE)
    assert stored.outcome is Outcome.ALLOWED, stored.message


def assert_immutable(decision, *paths: str) -> None:
    assert reasons_and_paths(decision) == [("Immutable", path) for path in paths]
    assert decision.outcome is Outcome.DENIED
    assert decision.patch == ()
    assert decision.message == "\n; ".join(
        f"Immutable: {finding.path}: {finding.detail}" for finding in decision.findings
    )
    assert all("; " in finding.detail for finding in decision.findings)
