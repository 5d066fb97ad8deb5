"""Verdicts that depend only on the node and the pod, or on a failed request."""

from __future__ import annotations

from webhook.adapters.kube.placement import GpuNode
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.placement.assignments import FindTerms
from webhook.core.placement.binding_review import BindingOutcome, BindingReason, BindingVerdict
from webhook.core.placement.fit import (
    Denial,
    deny_unknown_gpus,
    deny_unnamed_gpus,
    deny_without_driver_limit,
    deny_without_sentry,
)
from webhook.core.placement.pod_state import PodState
from webhook.core.pod.gpus import DriverLimit, EnforceBy


def denied(reason: BindingReason, denial: Denial) -> BindingVerdict:
    """Return the verdict for a denial."""
    return BindingVerdict(outcome=BindingOutcome.DENIED, reason=reason, message=denial.sentence)


def node_denial(name: str, node: GpuNode | None) -> BindingVerdict | None:
    """Return the denial for all pods if a node lists no GPUs, or only GPUs without names."""
    if node is None or not node.gpus:
        return denied(BindingReason.GPUS_UNKNOWN, deny_unknown_gpus(name))
    if node.device_names is None or node.device_names is DeviceNames.NONE:
        return denied(BindingReason.NO_DEVICE_NAMES, deny_unnamed_gpus(name, node.device_names))
    return None


def pod_denial(
    name: str, node: GpuNode | None, pod: PodState, find_terms: FindTerms
) -> BindingVerdict | None:
    """Return the denial for a pod that cannot run on a node, whatever GPUs are free, or None."""
    denial = node_denial(name, node)
    if denial or node is None:
        return denial
    if pod.limit is DriverLimit.REQUIRE and not node.driver_limit:
        return denied(BindingReason.NO_DRIVER_LIMIT, deny_without_driver_limit(name))
    if not node.sentry_acts:
        terms = find_terms(pod)
        if terms and terms.by is EnforceBy.SENTRY:
            return denied(BindingReason.NO_SENTRY, deny_without_sentry(name, terms.cap_bytes))
    return None


def unavailable(node: str, why: str) -> BindingVerdict:
    """Return the verdict on a pod that needs a GPU while the node's list is unavailable."""
    return BindingVerdict(
        outcome=BindingOutcome.UNAVAILABLE,
        reason=BindingReason.API_SERVER_AWAY,
        message=f"no GPU of node {node} can be chosen for this pod now: {why}; "
        "the scheduler retries",
    )


def list_unavailable_verdict(node: str, why: str) -> BindingVerdict:
    """Return the verdict on a pod that sees all GPUs while the node's list is unavailable."""
    return BindingVerdict(
        outcome=BindingOutcome.UNTOUCHED,
        reason=BindingReason.API_SERVER_AWAY,
        message=f"this pod sees all GPUs of node {node} and could not be entered in its list: "
        f"{why}",
    )
