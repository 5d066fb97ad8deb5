"""`vramwarden agent --once --dry-run -o tags`: what autoscalers need, as YAML to be used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from webhook.core.node.autoscaling import (
    INSTANCE_TYPE_LABEL,
    UNKNOWN_TYPE,
    group_tags,
    node_overlay,
    node_pool_patch,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.core.node.state import NodeState

_TAGS: Final = """\
# For cluster-autoscaler on AWS: tags of the Auto Scaling group whose nodes are like {node}.
# Source: kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/README.md
"""
_OVERLAY: Final = """\
# For Karpenter, with its feature gate NodeOverlay: kubectl apply -f this document.
# Source: karpenter.sh/docs/concepts/nodeoverlays
"""
_POOL: Final = """\
# For Karpenter: kubectl patch nodepool NAME --type merge --patch-file this document. It replaces
# the startup taints that the NodePool has.
# Source: karpenter.sh/docs/concepts/nodepools
"""
_POOL_WITHOUT_TAINT: Final = """\
# For Karpenter: kubectl patch nodepool NAME --type merge --patch-file this document.
# Source: karpenter.sh/docs/concepts/nodepools
"""
_TAINT: Final = """\
# Neither cluster-autoscaler nor AWS puts the taint on a node: let the kubelet do so, by
# --register-with-taints={key}=true:NoSchedule
"""
_NO_TYPE: Final = f"# {UNKNOWN_TYPE}: the node has no label {INSTANCE_TYPE_LABEL}; write yours.\n"


def tags_as_yaml(node: Mapping[str, Any], state: NodeState, startup_taint: str) -> str:
    """Write three documents: tags of an Auto Scaling group, a NodeOverlay, a NodePool's patch."""
    name = (node.get("metadata") or {}).get("name") or "this one"
    taint = _TAINT.format(key=startup_taint) if startup_taint else ""
    overlay = node_overlay(node, state)
    (requirement,) = overlay["spec"]["requirements"]
    no_type = _NO_TYPE if requirement["values"] == [UNKNOWN_TYPE] else ""
    parts = (
        (_TAGS.format(node=name) + taint, group_tags(node, state, startup_taint)),
        (_OVERLAY + no_type, overlay),
        (
            _POOL if startup_taint else _POOL_WITHOUT_TAINT,
            node_pool_patch(node, state, startup_taint),
        ),
    )
    return "---\n".join(
        comment + yaml.safe_dump(content, sort_keys=False, width=10**6)
        for comment, content in parts
    )
