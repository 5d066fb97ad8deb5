"""Templates of nodes for autoscalers, which must start a node before any of its kind exists.

Pods request the resource and select labels that the agent sets only on existing nodes. Sources:
kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/README.md (tags);
kubernetes-sigs/karpenter, pkg/apis/v1alpha1/nodeoverlay.go (NodeOverlay), and karpenter.sh,
concepts/nodepools (labels and `startupTaints` of the template).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from webhook.core.node.node_fields import is_advertised, node_labels
from webhook.core.node.state import NodeState
from webhook.core.pod.fields import Json
from webhook.core.pod.quantity import format_bytes
from webhook.names import (
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LIMIT_LABEL,
    NODE_ENFORCEMENT_LABEL,
    NODE_GPU_LABEL,
    NODE_GPU_MEMORY_LABEL,
    NODE_SENTRY_LABEL,
    VRAM_RESOURCE,
)

INSTANCE_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
UNKNOWN_TYPE: Final = "INSTANCE-TYPE"

_SELECTED: Final = (
    NODE_GPU_LABEL,
    NODE_GPU_MEMORY_LABEL,
    NODE_ENFORCEMENT_LABEL,
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LIMIT_LABEL,
    NODE_SENTRY_LABEL,
)
_TEMPLATE: Final = "k8s.io/cluster-autoscaler/node-template"
_TAINT_VALUE, _TAINT_EFFECT = "true", "NoSchedule"


def selected_labels(node: Mapping[str, Any], state: NodeState) -> dict[str, str]:
    """Return the labels by which pods select such nodes.

    They are the node's own labels if its GPUs are advertised, otherwise the labels that an agent
    would set. A command started by `kubectl exec` sees the container's configured environment
    variables, not those set by the container runtime, so it would detect other device names than
    the agent.
    """
    labels = node_labels(node)
    first, second = (labels, state.labels) if is_advertised(node) else (state.labels, labels)
    found = {key: first.get(key) or second.get(key) for key in _SELECTED}
    return {key: value for key, value in found.items() if value}


def group_tags(node: Mapping[str, Any], state: NodeState, startup_taint: str) -> dict[str, str]:
    """Return the tags of an AWS Auto Scaling group for cluster-autoscaler."""
    resource = {f"{_TEMPLATE}/resources/{VRAM_RESOURCE}": format_bytes(state.vram_bytes or 0)}
    labels = {
        f"{_TEMPLATE}/label/{key}": value for key, value in selected_labels(node, state).items()
    }
    taint = {f"{_TEMPLATE}/taint/{startup_taint}": f"{_TAINT_VALUE}:{_TAINT_EFFECT}"}
    return resource | labels | (taint if startup_taint else {})


def node_overlay(node: Mapping[str, Any], state: NodeState) -> Json:
    """Return Karpenter's NodeOverlay (`karpenter.sh/v1alpha1`) for the node's instance type."""
    kind = node_labels(node).get(INSTANCE_TYPE_LABEL) or UNKNOWN_TYPE
    name = re.sub(r"[^a-z0-9.-]+", "-", f"vramwarden-{kind}".lower()).strip("-.")
    requirement = {"key": INSTANCE_TYPE_LABEL, "operator": "In", "values": [kind]}
    return {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": name},
        "spec": {
            "requirements": [requirement],
            "capacity": {VRAM_RESOURCE: format_bytes(state.vram_bytes or 0)},
        },
    }


def node_pool_patch(node: Mapping[str, Any], state: NodeState, startup_taint: str) -> Json:
    """Return the merge patch of a Karpenter NodePool whose nodes are like this one."""
    template: Json = {"metadata": {"labels": selected_labels(node, state)}}
    if startup_taint:
        taint = {"key": startup_taint, "value": _TAINT_VALUE, "effect": _TAINT_EFFECT}
        template["spec"] = {"startupTaints": [taint]}
    return {"spec": {"template": template}}
