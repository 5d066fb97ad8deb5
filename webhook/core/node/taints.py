"""The startup taint, which keeps autoscalers waiting for a node until its agent has spoken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = dict[str, Any]


def without_taint(node: Mapping[str, Any], key: str) -> Json | None:
    """Return the merge patch that takes the taints of a key off a node; None where it has none.

    A merge patch replaces the whole list, so it names the version of the node that was read: where
    somebody added a taint since, the API server answers with a conflict.
    """
    taints = (node.get("spec") or {}).get("taints") or []
    left = [taint for taint in taints if taint.get("key") != key]
    if not key or len(left) == len(taints):
        return None
    version = node["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": {"taints": left or None}}
