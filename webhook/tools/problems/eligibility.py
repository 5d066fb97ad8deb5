"""Nodes that a pod may run on, by its selectors and as far as the user may read nodes.

Nodes are not in the role `view`. Without them GPUNode stands in for the labels that the node agent
writes; everything else is unknown, which never counts as a mismatch.

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
from webhook.tools.snapshot.node import CORDONED, REPELLING, ClusterNode, tolerates
from webhook.tools.snapshot.objects import holds, values_of
from webhook.tools.snapshot.pod import ClusterPod

Mismatch = tuple[Code, str]
"""Reason why a pod may not run on a node, with a sentence."""

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME_FIELD: Final = "metadata.name"
NO_SENTRY: Final = "no sentry that acts measures all GPUs there (no label vramwarden.io/sentry)"


def find_mismatch(
    pod: ClusterPod, figures: NodeFigures, node: ClusterNode | None, now_s: float
) -> Mismatch | None:
    """Return why a pod may not run on a node; None if nothing that can be read forbids it.

    `node` is None if the user may not read nodes: then labels that follow from its figures are
    judged, and no others. The size of GPUs (label `gpu-memory-mib`) is judged from the GPUs.
    """
    written = {
        NODE_DRIVER_LIMIT_LABEL: "true" if driver_enforces_caps(figures) else "",
        NODE_SENTRY_LABEL: "" if find_sentry_fault(figures, figures.gpus, now_s) else "true",
    }
    written |= {NODE_ENFORCEMENT_LABEL: figures.enforcement} if figures.enforcement else {}
    labels = node.labels if node else written
    for key, value in as_object(pod.part("spec").get("nodeSelector")).items():
        if (node or key in labels) and labels.get(key) != value:
            return _mismatch(key, f"{key}={value}", labels.get(key), figures)
    failing = [_failing(term, labels, figures.name, has_all=bool(node)) for term in _terms(pod)]
    if failing and all(failing):
        key, wanted = failing[0] or ("", "")
        return _mismatch(key, wanted, labels.get(key), figures)
    if closed := node.closed if node else figures.held:  # figures follow within a minute
        return Code.DRAINING, f"no further pod gets GPU memory there: {closed}"
    tolerations = as_objects(pod.part("spec").get("tolerations"))
    if node and node.unschedulable and not tolerates(tolerations, CORDONED):
        return Code.CORDONED, "is cordoned (kubectl uncordon)"
    for taint in node.taints if node else ():
        if taint[2] in REPELLING and not tolerates(tolerations, taint):
            shown = f"{taint[0]}={taint[1]}" if taint[1] else taint[0]
            return Code.TAINT, f"has the taint {shown}, which the pod does not tolerate"
    return None


def _failing(
    term: Json, labels: Mapping[str, str], name: str, *, has_all: bool
) -> tuple[str, str] | None:
    """Return key and text of the first expression of a term that does not hold."""
    expressions = [
        (find_string(one, "key"), one) for one in as_objects(term.get("matchExpressions"))
    ]
    found = [
        (key, one, labels.get(key))
        for key, one in expressions
        if key != NODE_GPU_MEMORY_LABEL and (has_all or key in labels)
    ]
    found += [
        (_NAME_FIELD, one, name)
        for one in as_objects(term.get("matchFields"))
        if find_string(one, "key") == _NAME_FIELD
    ]
    for key, one, value in found:
        if not holds(one, value):
            listed = ", ".join(values_of(one)[:3])
            return key, f"{key} {find_string(one, 'operator')} {listed}".rstrip()
    return None


def _terms(pod: ClusterPod) -> list[Json]:
    required = pod.part("spec", "affinity", "nodeAffinity", _REQUIRED)
    return as_objects(required.get("nodeSelectorTerms"))


def requires_sentry(pod: ClusterPod) -> bool:
    """Return True if only the node's sentry holds a pod to its cap.

    Such pods have no sidecar, and run only on nodes with the label `sentry`.
    """
    expressions = (one for term in _terms(pod) for one in as_objects(term.get("matchExpressions")))
    asks = any(find_string(one, "key") == NODE_SENTRY_LABEL for one in expressions)
    return asks and not pod.has_sidecar


def driver_enforces_caps(node: NodeFigures) -> bool:
    """Return True if the node's limiter proved that the driver holds caps."""
    return node.limit is not None and node.limit.holds


def why_no_limit(node: NodeFigures) -> str:
    """Return why the node's driver does not hold caps, for pods that require it."""
    if node.limit is None:
        return "no limiter reports there (limiter.enabled)"
    if node.limit.holds:
        return "it proved that its driver holds caps, and its agent has not labelled it yet"
    return "its driver holds no caps" + (f": {node.limit.why}" if node.limit.why else "")


def _mismatch(key: str, wanted: str, found: str | None, node: NodeFigures) -> Mismatch:
    if key == NODE_DEVICE_NAMES_LABEL and found == DeviceNames.NONE:
        detail = "its container runtime resolves no name of its GPUs (label device-names is none)"
        return Code.NO_DEVICE_NAMES, detail
    if key == NODE_ENFORCEMENT_LABEL and found in {None, NOT_ENFORCED}:
        return Code.NO_ENFORCEMENT, "no sidecar can measure there (enforcement: none)"
    if key == NODE_SENTRY_LABEL and found in {None, ""}:
        return Code.NO_SENTRY, NO_SENTRY
    if key == NODE_DRIVER_LIMIT_LABEL:
        return Code.NO_DRIVER_LIMIT, why_no_limit(node)
    has = "has no such label" if found is None else f"has {found}"
    return Code.NODE_SELECTOR, f"the pod wants {wanted}, and it {has}"
