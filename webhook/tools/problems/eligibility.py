"""Reasons why a pod may not run on a node: labels, taints and the driver's features.

The role `view` does not include nodes. If the user may not read nodes, the labels that the node
agent writes are derived from GPUNode. Everything else is unknown, and never counts as a mismatch.

Source: Kubernetes, "Assigning Pods to Nodes" and "Taints and Tolerations".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from webhook.core.kinds.nodes import NodeFigures, find_sentry_fault
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.pod.fields import Json, as_object, as_objects, find_string
from webhook.names import (
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LIMIT_LABEL,
    NODE_ENFORCEMENT_LABEL,
    NODE_GPU_MEMORY_LABEL,
    NODE_SENTRY_LABEL,
    NOT_ENFORCED,
)
from webhook.tools.problems.problem import Code
from webhook.tools.snapshot.node import CORDON_TAINT, REPELLING_EFFECTS, ClusterNode, tolerates
from webhook.tools.snapshot.objects import meets_requirement, selector_values
from webhook.tools.snapshot.pod import ClusterPod

Mismatch = tuple[Code, str]
"""Code and message of the reason why a pod may not run on a node."""

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME_FIELD: Final = "metadata.name"
NO_SENTRY: Final = "no sentry that acts measures all GPUs there (no label vramwarden.io/sentry)"


def find_mismatch(
    pod: ClusterPod, figures: NodeFigures, node: ClusterNode | None, now_s: float
) -> Mismatch | None:
    """Return why a pod may not run on a node, or None if no readable fact prevents it.

    `node` is None if the user may not read nodes. Only labels derived from the figures are compared
    then. The label `gpu-memory-mib` is ignored, because `capacity` compares the GPUs.
    """
    written = {
        NODE_DRIVER_LIMIT_LABEL: "true" if driver_enforces_caps(figures) else "",
        NODE_SENTRY_LABEL: "" if find_sentry_fault(figures, figures.gpus, now_s) else "true",
    }
    written |= {NODE_ENFORCEMENT_LABEL: figures.enforcement} if figures.enforcement else {}
    labels = node.labels if node else written
    for key, value in as_object(pod.part("spec").get("nodeSelector")).items():
        if (node or key in labels) and labels.get(key) != value:
            return _describe_mismatch(key, f"{key}={value}", labels.get(key), figures)
    failing = [
        _unmet_expression(term, labels, figures.name, has_all=bool(node))
        for term in _node_terms(pod)
    ]
    if failing and all(failing):
        key, wanted = failing[0] or ("", "")
        return _describe_mismatch(key, wanted, labels.get(key), figures)
    if closed := node.closed_reason if node else figures.held:  # figures are up to a minute old
        return Code.DRAINING, f"no further pod gets GPU memory there: {closed}"
    tolerations = as_objects(pod.part("spec").get("tolerations"))
    if node and node.unschedulable and not tolerates(tolerations, CORDON_TAINT):
        return Code.CORDONED, "is cordoned (kubectl uncordon)"
    for taint in node.taints if node else ():
        if taint[2] in REPELLING_EFFECTS and not tolerates(tolerations, taint):
            shown = f"{taint[0]}={taint[1]}" if taint[1] else taint[0]
            return Code.TAINT, f"has the taint {shown}, which the pod does not tolerate"
    return None


def _unmet_expression(
    term: Json, labels: Mapping[str, str], name: str, *, has_all: bool
) -> tuple[str, str] | None:
    """Return key and message of the first unmet expression of a term, or None."""
    expressions = [
        (find_string(match_expression, "key"), match_expression)
        for match_expression in as_objects(term.get("matchExpressions"))
    ]
    checked = [
        (key, expression, labels.get(key))
        for key, expression in expressions
        if key != NODE_GPU_MEMORY_LABEL and (has_all or key in labels)
    ]
    checked += [
        (_NAME_FIELD, match_field, name)
        for match_field in as_objects(term.get("matchFields"))
        if find_string(match_field, "key") == _NAME_FIELD
    ]
    for key, expression, value in checked:
        if not meets_requirement(expression, value):
            listed = ", ".join(selector_values(expression)[:3])
            return key, f"{key} {find_string(expression, 'operator')} {listed}".rstrip()
    return None


def _node_terms(pod: ClusterPod) -> list[Json]:
    required = pod.part("spec", "affinity", "nodeAffinity", _REQUIRED)
    return as_objects(required.get("nodeSelectorTerms"))


def requires_sentry(pod: ClusterPod) -> bool:
    """Return True if only the node's sentry can enforce a pod's cap.

    Such a pod has no sidecar and runs only on nodes with the label `sentry`.
    """
    expressions = (
        match_expression
        for term in _node_terms(pod)
        for match_expression in as_objects(term.get("matchExpressions"))
    )
    asks = any(find_string(expression, "key") == NODE_SENTRY_LABEL for expression in expressions)
    return asks and not pod.has_sidecar


def driver_enforces_caps(node: NodeFigures) -> bool:
    """Return True if the node's limiter has verified that the driver enforces caps."""
    return node.limit is not None and node.limit.holds


def explain_missing_limit(node: NodeFigures) -> str:
    """Return why the node's driver does not enforce caps."""
    if node.limit is None:
        return "no limiter reports there (limiter.enabled)"
    if node.limit.holds:
        return "it proved that its driver holds caps, and its agent has not labelled it yet"
    return "its driver holds no caps" + (f": {node.limit.why}" if node.limit.why else "")


def _describe_mismatch(key: str, wanted: str, found: str | None, node: NodeFigures) -> Mismatch:
    if key == NODE_DEVICE_NAMES_LABEL and found == DeviceNames.NONE:
        detail = "its container runtime resolves no name of its GPUs (label device-names is none)"
        return Code.NO_DEVICE_NAMES, detail
    if key == NODE_ENFORCEMENT_LABEL and found in {None, NOT_ENFORCED}:
        return Code.NO_ENFORCEMENT, "no sidecar can measure there (enforcement: none)"
    if key == NODE_SENTRY_LABEL and found in {None, ""}:
        return Code.NO_SENTRY, NO_SENTRY
    if key == NODE_DRIVER_LIMIT_LABEL:
        return Code.NO_DRIVER_LIMIT, explain_missing_limit(node)
    has = "has no such label" if found is None else f"has {found}"
    return Code.NODE_SELECTOR, f"the pod wants {wanted}, and it {has}"
