"""Rewrite a pod template of another product: what asked that product now asks vramwarden.

| the pod | becomes |
| --- | --- |
| asks the product, and all of it can be read | one with our annotations instead |
| asks the product for what has no counterpart | itself, with the reason |
| asks vramwarden already | itself without the product's requests |
| asks neither | itself |

Compute, priorities and the like go with the requests, and a note says so for each. Annotations,
labels, selectors and variables without a counterpart do no harm: they stay, with a note. Only
variables that show GPUs or limit memory go, since no share is admitted beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from webhook.core.admission.rules.near_misses import annotation_line
from webhook.core.nvidia.device_plugin import MIG_PREFIX
from webhook.core.pod.demand import requests_vram
from webhook.core.pod.fields import Json
from webhook.core.pod.findings import annotation_path
from webhook.core.pod.memory_annotation import annotation_value
from webhook.core.pod.other_products import MAX_GPU_BYTES, Product
from webhook.core.pod.patch import Edits, Operation
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.views import Container, effective_amount
from webhook.names import (
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
)
from webhook.tools.admit.judge.migration.foreign_pod import (
    ForeignPod,
    Migration,
    Note,
    Origin,
    PodRequest,
    asks_product,
    is_removed,
    notes_about_pod,
)
from webhook.tools.admit.judge.migration.requests import read_request

_MEMORY_PATH: Final = annotation_path(GPU_MEMORY_ANNOTATION)


def migrate(source: ForeignPod, origin: Origin) -> Migration:
    """Rewrite one pod or pod template."""
    product, asked = origin.product, read_request(source, origin)
    if requests_vram(source.pod.raw):
        return _cleaned(source, product, asked)
    problems = asked.problems or tuple(_impossible(asked))
    if problems:
        return Migration(product.name, problems=problems)
    if not asked.containers:
        return Migration(product.name, notes=tuple(_left(source, product)))
    amounts = {name: format_bytes(one.memory_bytes) for name, one in asked.containers.items()}
    entries = {GPU_MEMORY_ANNOTATION: annotation_value(source.pod, amounts)}
    count = next(iter(asked.containers.values())).gpu_count
    if count > 1:
        entries[GPU_COUNT_ANNOTATION] = str(count)
    return Migration(
        product.name,
        _edits_of(source, product, asked, entries),
        ", ".join(annotation_line(key, value) for key, value in entries.items()),
        (*_shared(source, product, asked), *asked.notes, *notes_about_pod(source, product, asked)),
    )


def _cleaned(source: ForeignPod, product: Product, asked: PodRequest) -> Migration:
    """Take the product's requests off a pod that asks us already."""
    operations = _edits_of(source, product, asked, {})
    if not operations:
        return Migration(product.name)
    detail = f"the pod asks vramwarden already, so what {product.name} read is removed"
    return Migration(
        product.name,
        operations,
        notes=(Note(_MEMORY_PATH, detail), *notes_about_pod(source, product, asked)),
    )


def _impossible(asked: PodRequest) -> Iterator[Note]:
    """Yield what our annotations cannot say."""
    counts = {name: one.gpu_count for name, one in asked.containers.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name}={count}" for name, count in counts.items())
        detail = (
            f"the containers ask for different numbers of GPUs ({said}), and a pod has one number "
            "here; split the pod, or make them agree"
        )
        yield Note("spec.containers", detail)


def _shared(source: ForeignPod, product: Product, asked: PodRequest) -> Iterator[Note]:
    """Yield what it means that all containers of a pod have the same GPUs here."""
    sharing = [one for one in source.pod.containers if one.name in asked.containers]
    if len(sharing) <= 1 or not product.assigns_gpus_per_container:
        return
    amounts = {name: one.memory_bytes for name, one in asked.containers.items()}
    sum_bytes = effective_amount(sharing, amounts, 0)
    names = ", ".join(one.name for one in sharing)
    detail = (
        f"each of {names} could get a GPU of its own; here they share the pod's, which must hold "
        f"{format_bytes(sum_bytes)}"
    )
    if sum_bytes > MAX_GPU_BYTES:
        detail += ", more than any GPU has"
    yield Note("spec.containers", detail)


def _left(source: ForeignPod, product: Product) -> Iterator[Note]:
    """Yield what may surprise about a pod that asks the product for nothing."""
    scheduler = source.spec.get("schedulerName")
    if product.has_scheduler(scheduler):
        detail = f"{scheduler} places this pod, which asks for no share, and is not changed"
        yield Note("spec.schedulerName", detail)
    for container in source.pod.containers:
        for name in container.resources("limits"):
            if name.startswith(MIG_PREFIX):
                path = f"{container.path}.resources.limits[{name}]"
                yield Note(path, f"{name} is a GPU of its own and stays; no share replaces it")


def _edits_of(
    source: ForeignPod, product: Product, asked: PodRequest, entries: Mapping[str, str]
) -> tuple[Operation, ...]:
    """Return the edits that set our annotations and remove what asked the product, and no others.

    A map of resources, variables or annotations that an edit empties is removed with them, as its
    author would do it. Of several keys the last is removed first: the comments above it then stay.
    """
    edits = Edits()
    _edit_metadata(source, asked, entries, edits)
    for container in source.pod.containers:
        _edit_resources(container, source.place(container), product, edits)
    if not edits.operations:  # the rest alone asks nobody, and is its author's choice
        return ()
    for container in source.pod.containers:
        _edit_env(container, source.place(container), edits)
    if product.has_scheduler(source.spec.get("schedulerName")):
        edits.remove(source.spec_place, "schedulerName")
    return tuple(edits.operations)


def _edit_metadata(
    source: ForeignPod, asked: PodRequest, entries: Mapping[str, str], edits: Edits
) -> None:
    """Set ours before theirs goes, so that the map is never empty in between."""
    present = source.own_metadata.get("annotations")
    edits.merge("/metadata", "annotations", present, entries)
    for kind, theirs in (("annotations", asked.annotations), ("labels", asked.labels)):
        keys = source.keys(kind)
        left = {**keys, **entries} if kind == "annotations" else keys
        _remove(edits, "/metadata", kind, [key for key in keys if key in theirs], left)


def _remove(edits: Edits, place: str, kind: str, names: list[str], holder: Json) -> None:
    """Remove keys of a map; the map itself where nothing would be left in it."""
    if names and len(names) == len(holder):
        edits.remove(place, kind)
        return
    for name in reversed(names):
        edits.remove(f"{place}/{kind}", name)


def _edit_resources(container: Container, place: str, product: Product, edits: Edits) -> None:
    resources = container.raw.get("resources") or {}
    removed = {
        kind: [name for name in container.resources(kind) if asks_product(product, name)]
        for kind in ("limits", "requests")
    }
    some = {kind: names for kind, names in removed.items() if names}
    if not some:
        return
    emptied = {kind for kind, names in some.items() if len(names) == len(resources[kind])}
    if emptied == {*resources}:
        edits.remove(place, "resources")
        return
    for kind, names in some.items():
        _remove(edits, f"{place}/resources", kind, names, resources[kind])


def _edit_env(container: Container, place: str, edits: Edits) -> None:
    env = container.env()
    removed = [index for index, entry in enumerate(env) if is_removed(entry)]
    if removed and len(removed) == len(env):
        edits.remove(place, "env")
        return
    for index in reversed(removed):
        edits.remove_item(f"{place}/env", index)
