"""Which nodes a pod may run on, by what it selects: as far as the user may read that.

Nodes are not in the role `view`. Without them, what `GPUNode` says stands in for the labels that
the node agent writes, and everything else is unknown, which is never taken for a mismatch.

Source: Kubernetes, "Assigning Pods to Nodes" and "Taints and Tolerations".
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from webhook.core.kinds.nodes import sentry_fault
from webhook.core.nvidia.device_names import DeviceNames
from webhook.core.pod.fields import as_object, as_objects, text_of
from webhook.names import (
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LIMIT_LABEL,
    NODE_ENFORCEMENT_LABEL,
    NODE_GPU_MEMORY_LABEL,
    NODE_SENTRY_LABEL,
    NOT_ENFORCED,
)
from webhook.tools.snapshot.node import CORDONED, REPELLING, ClusterNode, tolerates
from webhook.tools.snapshot.objects import holds, values_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.core.kinds.nodes import NodeFigures
    from webhook.core.pod.fields import Json
    from webhook.tools.snapshot.pod import ClusterPod

    NotHere = tuple["Mismatch", str]
    """Why a pod may not run on a node, and that in words."""

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME_FIELD: Final = "metadata.name"
NO_SENTRY: Final = "no sentry that acts measures all GPUs there (no label vramwarden.io/sentry)"


class Mismatch(StrEnum):
    """Why a node is none that the pod may run on."""

    NOT_SHARED = "NotShared"
    """It lacks our label: its GPUs are measured, and offered to nobody."""
    NODE_SELECTOR = "NodeSelector"
    """It lacks a label that the pod selects, by selector or affinity, so also by class."""
    HELD = "Held"
    """Somebody else gives its GPUs away, too: what pods have stays, and no other gets any."""
    NO_DEVICE_NAMES = "NoDeviceNames"
    """Its container runtime resolves no name of its GPUs."""
    NO_ENFORCEMENT = "NoEnforcement"
    """No sidecar can measure there."""
    NO_SENTRY = "NoSentry"
    """It has no sentry that acts, which alone holds the pod to its cap."""
    NO_DRIVER_LIMIT = "NoDriverLimit"
    """The driver is to hold the pod to its cap, and does not, there or any more."""
    TAINT = "Taint"
    """It repels pods that do not tolerate its taint."""
    CORDONED = "Cordoned"
    """Somebody took it out of scheduling."""


def why_not(
    pod: ClusterPod, node: NodeFigures, seen: ClusterNode | None, now_s: float
) -> NotHere | None:
    """Return why a pod may not run on a node; None where nothing that can be read forbids it.

    | what is known | counts as |
    | --- | --- |
    | the node, as it is stored | its labels, taints and whether it is cordoned |
    | its figures alone | the labels that follow from them; others are not judged |

    The size of GPUs (`gpu-memory-mib`) is left out: it depends on the amount, and is judged from
    the GPUs themselves.
    """
    spec = pod.part("spec")
    written = {
        NODE_DRIVER_LIMIT_LABEL: "true" if holds_caps(node) else "",
        NODE_SENTRY_LABEL: "" if sentry_fault(node, node.gpus, now_s) else "true",
    }
    written |= {NODE_ENFORCEMENT_LABEL: node.enforcement} if node.enforcement else {}
    labels, has_all = (seen.labels, True) if seen else (written, False)
    for key, value in as_object(spec.get("nodeSelector")).items():
        if (has_all or key in labels) and labels.get(key) != value:
            return _mismatch(key, f"{key}={value}", labels, node)
    failing = [_failing(term, labels, node.name, has_all=has_all) for term in _terms(pod)]
    if failing and all(failing):
        key, wanted = failing[0] or ("", "")
        return _mismatch(key, wanted, labels, node)
    if node.held:
        return Mismatch.HELD, node.held
    if seen is None:
        return None
    tolerations = as_objects(spec.get("tolerations"))
    if seen.unschedulable and not tolerates(tolerations, CORDONED):
        return Mismatch.CORDONED, "is cordoned (kubectl uncordon)"
    for taint in seen.taints:
        if taint[2] in REPELLING and not tolerates(tolerations, taint):
            shown = f"{taint[0]}={taint[1]}" if taint[1] else taint[0]
            return Mismatch.TAINT, f"has the taint {shown}, which the pod does not tolerate"
    return None


def _failing(
    term: Json, labels: Mapping[str, str], name: str, *, has_all: bool
) -> tuple[str, str] | None:
    """Return key and words of the first expression of a term that does not hold."""
    for one in as_objects(term.get("matchExpressions")):
        key = text_of(one, "key")
        is_read = key != NODE_GPU_MEMORY_LABEL and (has_all or key in labels)
        if is_read and not holds(one, labels.get(key)):
            return key, _words(one)
    for one in as_objects(term.get("matchFields")):
        if text_of(one, "key") == _NAME_FIELD and not holds(one, name):
            return _NAME_FIELD, _words(one)
    return None


def _terms(pod: ClusterPod) -> list[Json]:
    required = pod.part("spec", "affinity", "nodeAffinity", _REQUIRED)
    return as_objects(required.get("nodeSelectorTerms"))


def requires_sentry(pod: ClusterPod) -> bool:
    """Return True if only the node's sentry holds a pod to its cap.

    Such pods have no sidecar, and run only on nodes with the label `sentry`.
    """
    expressions = (one for term in _terms(pod) for one in as_objects(term.get("matchExpressions")))
    asks = any(text_of(one, "key") == NODE_SENTRY_LABEL for one in expressions)
    return asks and not pod.has_sidecar


def holds_caps(node: NodeFigures) -> bool:
    """Say whether it was proved that a node's driver holds caps."""
    return node.limit is not None and node.limit.holds


def why_no_limit(node: NodeFigures) -> str:
    """Say why pods that require it do not find a node's driver to hold their caps."""
    if node.limit is None:
        return "no limiter reports there (limiter.enabled)"
    if node.limit.holds:
        return "it proved that its driver holds caps, and its agent has not labelled it yet"
    return "its driver holds no caps" + (f": {node.limit.why}" if node.limit.why else "")


def _mismatch(key: str, wanted: str, labels: Mapping[str, str], node: NodeFigures) -> NotHere:
    found = labels.get(key)
    if key == NODE_DEVICE_NAMES_LABEL and found == DeviceNames.NONE:
        detail = "its container runtime resolves no name of its GPUs (label device-names is none)"
        return Mismatch.NO_DEVICE_NAMES, detail
    if key == NODE_ENFORCEMENT_LABEL and found in {None, NOT_ENFORCED}:
        return Mismatch.NO_ENFORCEMENT, "no sidecar can measure there (enforcement: none)"
    if key == NODE_SENTRY_LABEL and found in {None, ""}:
        return Mismatch.NO_SENTRY, NO_SENTRY
    if key == NODE_DRIVER_LIMIT_LABEL:
        return Mismatch.NO_DRIVER_LIMIT, why_no_limit(node)
    has = "has no such label" if found is None else f"has {found}"
    return Mismatch.NODE_SELECTOR, f"the pod wants {wanted}, and it {has}"


def _words(expression: Json) -> str:
    listed = ", ".join(values_of(expression)[:3])
    return f"{text_of(expression, 'key')} {text_of(expression, 'operator')} {listed}".rstrip()
