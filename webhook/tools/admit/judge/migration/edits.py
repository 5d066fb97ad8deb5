"""The edits by which a manifest of another product becomes one of ours, and no other edits.

A map of resources, variables or annotations that an edit empties is removed with them, as its
author would do it. Of several keys the last is removed first: the comments above it then stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webhook.core.nvidia.variables import (
    chooses_devices,
    limits_memory,
    sees_no_gpu,
    shows_chosen,
)
from webhook.core.pod.patch import Edits
from webhook.core.policy.patterns import matches_any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from webhook.core.pod.fields import Json
    from webhook.core.pod.patch import Operation
    from webhook.core.pod.views import Container
    from webhook.tools.admit.judge.migration.source import Source
    from webhook.tools.admit.judge.migration.values import Asked, Product


def edits_of(
    source: Source, product: Product, asked: Asked, entries: Mapping[str, str]
) -> tuple[Operation, ...]:
    """Return the edits that set our annotations and remove what asked the product."""
    edits = Edits()
    _edit_metadata(source, asked, entries, edits)
    for container in source.pod.containers:
        _edit_resources(container, source.place(container), product, edits)
    if not edits.operations:  # the rest alone asks nobody, and is its author's choice
        return ()
    for container in source.pod.containers:
        _edit_env(container, source.place(container), edits)
    if product.schedules(source.spec.get("schedulerName")):
        edits.remove(source.spec_place, "schedulerName")
    return tuple(edits.operations)


def must_go(entry: Json) -> bool:
    """Say whether no share is admitted beside a variable: by hand, it shows or limits GPUs."""
    if chooses_devices(entry):
        return not sees_no_gpu(entry) and not shows_chosen(entry)
    return limits_memory(entry)


def goes(product: Product, resource: str) -> bool:
    """Say whether a resource asks the product."""
    return matches_any(resource, tuple(product.resources))


def _edit_metadata(source: Source, asked: Asked, entries: Mapping[str, str], edits: Edits) -> None:
    """Set ours before theirs goes, so that the map is never empty in between."""
    present = source.own_metadata.get("annotations")
    edits.merge("/metadata", "annotations", present, entries)
    theirs = [key for key in source.keys("annotations") if key in asked.annotations]
    labels = [key for key in asked.labels if key in source.keys("labels")]
    if theirs and not entries and len(theirs) == len(source.keys("annotations")):
        edits.remove("/metadata", "annotations")
    else:
        for key in reversed(theirs):
            edits.remove("/metadata/annotations", key)
    if labels and len(labels) == len(source.keys("labels")):
        edits.remove("/metadata", "labels")
    else:
        for key in labels:
            edits.remove("/metadata/labels", key)


def _edit_resources(container: Container, place: str, product: Product, edits: Edits) -> None:
    resources = container.raw.get("resources") or {}
    going = {
        kind: [name for name in container.resources(kind) if goes(product, name)]
        for kind in ("limits", "requests")
    }
    if not any(going.values()):
        return
    emptied = {kind for kind, names in going.items() if names and _is_all(names, resources[kind])}
    if _is_all(emptied, resources):
        edits.remove(place, "resources")
        return
    for kind, names in going.items():
        if kind in emptied:
            edits.remove(f"{place}/resources", kind)
            continue
        for name in reversed(names):
            edits.remove(f"{place}/resources/{kind}", name)


def _edit_env(container: Container, place: str, edits: Edits) -> None:
    env = container.env()
    going = [index for index, entry in enumerate(env) if must_go(entry)]
    if going and len(going) == len(env):
        edits.remove(place, "env")
        return
    for index in reversed(going):
        edits.take(f"{place}/env", index)


def _is_all(some: Iterable[str], holder: Mapping[str, Any]) -> bool:
    return {*some} == {*holder}
