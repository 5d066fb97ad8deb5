"""Names with vramwarden's prefix on a node, and the patches that remove them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from webhook.core.formatting import format_count, join_names
from webhook.core.node.state import Patches, annotations_of, labels_of
from webhook.core.pod.fields import as_object, as_objects
from webhook.names import PREFIX


@dataclass(frozen=True, slots=True)
class NodeLeftovers:
    """Names with vramwarden's prefix on a node."""

    labels: tuple[str, ...]
    annotations: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: tuple[str, ...]

    def __bool__(self) -> bool:
        return any((self.labels, self.annotations, self.resources, self.conditions))

    def __str__(self) -> str:
        parts = [
            format_count(len(keys), what)
            for keys, what in ((self.labels, "label"), (self.annotations, "annotation"))
            if keys
        ]
        parts += [f"resource {name}" for name in self.resources]
        parts += [f"condition {name}" for name in self.conditions]
        return join_names(parts, len(parts))

    def patches(self) -> Patches:
        """Return the patches that remove these names and change nothing else."""
        metadata = _removed(labels=self.labels, annotations=self.annotations)
        status = _removed(capacity=self.resources, allocatable=self.resources)
        if self.conditions:
            status["conditions"] = [{"type": one, "$patch": "delete"} for one in self.conditions]
        return Patches(
            {"metadata": metadata} if metadata else None, {"status": status} if status else None
        )


def find_leftovers(node: Mapping[str, Any], kept: Collection[str] = ()) -> NodeLeftovers:
    """Return the names with vramwarden's prefix on a node, without the `kept` labels."""
    status = as_object(node.get("status"))
    amounts = {**as_object(status.get("capacity")), **as_object(status.get("allocatable"))}
    types = (str(one.get("type")) for one in as_objects(status.get("conditions")))
    return NodeLeftovers(
        labels=_ours(key for key in labels_of(node) if key not in kept),
        annotations=_ours(annotations_of(node)),
        resources=_ours(amounts),
        conditions=_ours(types),
    )


def _ours(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(key for key in keys if key.startswith(PREFIX)))


def _removed(**parts: tuple[str, ...]) -> dict[str, Any]:
    return {part: dict.fromkeys(keys) for part, keys in parts.items() if keys}
