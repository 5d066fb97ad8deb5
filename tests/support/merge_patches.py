"""Merge patches, applied as by an API server."""

from __future__ import annotations

import copy
from typing import Any

MERGED_BY = {
    "webhooks": "name", "containers": "name", "initContainers": "name", "env": "name",
    "ephemeralContainers": "name", "volumes": "name", "conditions": "type", "addresses": "type",
    "volumeMounts": "mountPath", "ownerReferences": "uid",
}  # fmt: skip
"""Keys by which a strategic merge patch identifies list items."""


def merged(found: Any, patch: Any, *, strategic: bool = False, key: str = "") -> Any:
    """Apply a merge patch (RFC 7386) or a strategic merge patch; return the object."""
    if strategic and isinstance(patch, list) and (by := MERGED_BY.get(key)):
        items = {item[by]: item for item in found or ()}
        for item in patch:
            if item.get("$patch") == "delete":
                items.pop(item[by], None)
            else:
                items[item[by]] = merged(items.get(item[by]), item, strategic=True)
        return list(items.values())
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(found) if isinstance(found, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value, strategic=strategic, key=name)
    return result
