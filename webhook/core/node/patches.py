"""Patches of a Node: to its desired state, without its startup taint, or without leftovers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from webhook.core.formatting import format_count, join_names
from webhook.core.node.node_fields import node_annotations, node_labels, read_vram_amount
from webhook.core.node.state import FREE_LABELS, Conditions, NodeState
from webhook.core.pod.fields import Json, as_object, as_objects
from webhook.core.pod.quantity import format_bytes
from webhook.names import PREFIX, VRAM_RESOURCE

_CONDITION: Final = ("status", "reason", "message")


@dataclass(frozen=True, slots=True)
class Patches:
    """Patches of a node; None for a part without changes."""

    metadata: Json | None = None
    """JSON merge patch (RFC 7386) of the node."""
    status: Json | None = None
    """Patch of the subresource `status`: a strategic merge patch if it has conditions, otherwise
    either."""

    def __bool__(self) -> bool:
        return self.metadata is not None or self.status is not None

    def in_order(self) -> Iterator[tuple[Json, bool]]:
        """Return the patches in sending order, each with True if it is for `status`.

        Labels come before capacity, so a node with capacity always has labels. When capacity is
        removed, it comes first: without the label the DaemonSet may delete the agent before the
        removal.
        """
        parts = [(self.metadata, False), (self.status, True)]
        if self.status and self.status["status"].get("capacity", {}).get(VRAM_RESOURCE) == "0":
            parts.reverse()
        return ((patch, is_status) for patch, is_status in parts if patch is not None)


def build_patches(node: Mapping[str, Any], state: NodeState) -> Patches:
    """Return the patches that turn the node into the state, without parts that are already equal.

    Allocatable is set with capacity. The kubelet derives it from capacity (setters.go, MachineInfo)
    only every 10 s, and scheduler and kubelet would use the old amount until then.
    """
    parts = (
        ("labels", state.labels, node_labels(node)),
        ("annotations", state.annotations, node_annotations(node)),
    )
    differing = {
        part: {key: value for key, value in wanted.items() if carried.get(key) != value}
        for part, wanted, carried in parts
    }
    differing = {part: values for part, values in differing.items() if values}
    return Patches({"metadata": differing} if differing else None, _status_patch(node, state))


def describe_changes(node: Mapping[str, Any], patches: Patches) -> Iterator[str]:
    """Yield a line for each change, such as `labels[vramwarden.io/gpu]: absent -> true`."""
    for top in (patches.metadata or {}, patches.status or {}):
        for section, parts in top.items():
            for part, values in parts.items():
                before = _by_key((node.get(section) or {}).get(part))
                for key, value in _by_key(values).items():
                    old, new = map(_shown, (before.get(key), value))
                    yield f"{part}[{key}]: {old} -> {new}"


def is_free_memory_only(patches: Patches) -> bool:
    """Return True if only labels of free memory change, which is too frequent for a log."""
    parts = (patches.metadata or {}).get("metadata", {})
    labels_only = patches.status is None and set(parts) <= {"labels"}
    return labels_only and set(parts.get("labels", ())) <= set(FREE_LABELS)


def _shown(value: object) -> str:
    return "absent" if value is None else str(value)


def _by_key(part: Any) -> Json:
    """Return a part of a node as a mapping; conditions by type, with status and reason."""
    if not isinstance(part, list):
        return as_object(part)
    return {
        condition["type"]: condition.get("status")
        and f"{condition['status']}, {condition.get('reason')}"
        for condition in part
    }


def _status_patch(node: Mapping[str, Any], state: NodeState) -> Json | None:
    status, differing = node.get("status") or {}, Json()
    if state.vram_bytes or (state.vram_bytes == 0 and read_vram_amount(status, "capacity")):
        amount = format_bytes(state.vram_bytes)
        for part in ("capacity", "allocatable"):
            if read_vram_amount(status, part) != state.vram_bytes:
                differing[part] = {VRAM_RESOURCE: amount}
    if conditions := list(_condition_patches(status, state.conditions)):
        differing["conditions"] = conditions
    return {"status": differing} if differing else None


def _condition_patches(status: Mapping[str, Any], wanted: Conditions) -> Iterator[Json]:
    """Yield the conditions that differ, for a strategic merge patch.

    The transition time is unchanged if the status is.
    """
    conditions = as_objects(status.get("conditions"))
    carried = {condition.get("type"): condition for condition in conditions}
    for kind, condition in wanted.items():
        before = carried.get(kind)
        if condition is None:
            if before is not None:
                yield {"type": kind, "$patch": "delete"}
        elif before is None or before.get("status") != condition["status"]:
            yield {"type": kind, **condition}
        elif any(before.get(key) != condition[key] for key in _CONDITION):
            yield {"type": kind, **{key: condition[key] for key in _CONDITION}}


STALE_REPORT_S: Final = 5.0
"""Time after a patch within which the watch may report older states of the node, in seconds."""


def is_stale_report(
    node: Mapping[str, Any], known: Mapping[str, Any] | None, since_patch_s: float
) -> bool:
    """Return True if a reported node is older than the known one.

    | last patch | resource versions | stale |
    | --- | --- | --- |
    | a moment ago | lower than the known one's | yes |
    | a moment ago | equal or higher | no |
    | a moment ago | one of them is not a decimal number, or no node is known | no |
    | longer ago, or never | any: a backup may have been restored | no |

    Resource versions are decimal numbers that grow (KEP-5504). A node with another form is not
    stale.
    """
    if known is None or since_patch_s >= STALE_REPORT_S:
        return False
    before, now = (version["metadata"]["resourceVersion"] for version in (known, node))
    return before.isdecimal() and now.isdecimal() and int(now) < int(before)


def build_taint_removal(node: Mapping[str, Any], key: str) -> Json | None:
    """Return the merge patch that removes the taints with a key, or None if there are none.

    The startup taint makes autoscalers wait for the node's agent. A merge patch replaces the whole
    list, so it contains the node's resource version: if a taint was added since, the API server
    responds with a conflict.
    """
    taints = (node.get("spec") or {}).get("taints") or []
    left = [taint for taint in taints if taint.get("key") != key]
    if not key or len(left) == len(taints):
        return None
    version = node["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": {"taints": left or None}}


@dataclass(frozen=True, slots=True)
class NodeLeftovers:
    """Names on a node with vramwarden's prefix."""

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
            status["conditions"] = [{"type": kind, "$patch": "delete"} for kind in self.conditions]
        return Patches(
            {"metadata": metadata} if metadata else None, {"status": status} if status else None
        )


def find_leftovers(node: Mapping[str, Any], kept: Collection[str] = ()) -> NodeLeftovers:
    """Return the names on a node with vramwarden's prefix, except the labels in `kept`."""
    status = as_object(node.get("status"))
    amounts = {**as_object(status.get("capacity")), **as_object(status.get("allocatable"))}
    types = (str(condition.get("type")) for condition in as_objects(status.get("conditions")))
    return NodeLeftovers(
        labels=_ours(key for key in node_labels(node) if key not in kept),
        annotations=_ours(node_annotations(node)),
        resources=_ours(amounts),
        conditions=_ours(types),
    )


def _ours(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(key for key in keys if key.startswith(PREFIX)))


def _removed(**parts: tuple[str, ...]) -> dict[str, Any]:
    return {part: dict.fromkeys(keys) for part, keys in parts.items() if keys}
