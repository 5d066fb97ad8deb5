"""Rewrite another product's pod template so that it requests memory from vramwarden.

| the pod | becomes |
| --- | --- |
| requests the product's GPUs, and all requests are readable | has vramwarden annotations instead |
| has a request to the product without an equivalent | unchanged, with the reason |
| already requests VRAM from vramwarden | loses the product's requests |
| does neither | unchanged |

Settings such as compute and priority are removed with the requests, with a note for each.
Annotations, labels, selectors and environment variables without an equivalent stay, with a note.
Only variables that expose GPUs or limit memory are removed, since admission denies them.
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
from webhook.names import GPU_COUNT_ANNOTATION, GPU_MEMORY_ANNOTATION
from webhook.tools.admit.migration.foreign_pod import (
    ForeignPod,
    Migration,
    Note,
    Origin,
    PodRequest,
    asks_product,
    is_removed,
    notes_about_pod,
)
from webhook.tools.admit.migration.requests import read_request

_MEMORY_PATH: Final = annotation_path(GPU_MEMORY_ANNOTATION)


def migrate(source: ForeignPod, origin: Origin) -> Migration:
    """Rewrite one pod or pod template."""
    product, asked = origin.product, read_request(source, origin)
    if requests_vram(source.pod.raw):
        return _remove_product_requests(source, product, asked)
    problems = asked.problems or tuple(_find_unsupported(asked))
    if problems:
        return Migration(product.name, problems=problems)
    if not asked.containers:
        return Migration(product.name, notes=tuple(_note_unmigrated(source, product)))
    amounts = {
        name: format_bytes(container.memory_bytes) for name, container in asked.containers.items()
    }
    entries = {GPU_MEMORY_ANNOTATION: annotation_value(source.pod, amounts)}
    count = next(iter(asked.containers.values())).gpu_count
    if count > 1:
        entries[GPU_COUNT_ANNOTATION] = str(count)
    return Migration(
        product.name,
        _build_edits(source, product, asked, entries),
        ", ".join(annotation_line(key, value) for key, value in entries.items()),
        (
            *_note_shared_gpus(source, product, asked),
            *asked.notes,
            *notes_about_pod(source, product, asked),
        ),
    )


def _remove_product_requests(source: ForeignPod, product: Product, asked: PodRequest) -> Migration:
    operations = _build_edits(source, product, asked, {})
    if not operations:
        return Migration(product.name)
    detail = f"the pod asks vramwarden already, so what {product.name} read is removed"
    return Migration(
        product.name,
        operations,
        notes=(Note(_MEMORY_PATH, detail), *notes_about_pod(source, product, asked)),
    )


def _find_unsupported(asked: PodRequest) -> Iterator[Note]:
    """Yield a problem for each request that vramwarden annotations cannot express."""
    counts = {name: container.gpu_count for name, container in asked.containers.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name}={count}" for name, count in counts.items())
        detail = (
            f"the containers ask for different numbers of GPUs ({said}), and a pod has one number "
            "here; split the pod, or make them agree"
        )
        yield Note("spec.containers", detail)


def _note_shared_gpus(source: ForeignPod, product: Product, asked: PodRequest) -> Iterator[Note]:
    """Yield a note if containers would share GPUs: in vramwarden, a pod's containers all do."""
    sharing = [
        container for container in source.pod.containers if container.name in asked.containers
    ]
    if len(sharing) <= 1 or not product.assigns_gpus_per_container:
        return
    amounts = {name: container.memory_bytes for name, container in asked.containers.items()}
    sum_bytes = effective_amount(sharing, amounts, 0)
    names = ", ".join(item.name for item in sharing)
    detail = (
        f"each of {names} could get a GPU of its own; here they share the pod's, which must hold "
        f"{format_bytes(sum_bytes)}"
    )
    if sum_bytes > MAX_GPU_BYTES:
        detail += ", more than any GPU has"
    yield Note("spec.containers", detail)


def _note_unmigrated(source: ForeignPod, product: Product) -> Iterator[Note]:
    """Yield notes on a pod that requests nothing from the product."""
    scheduler = source.spec.get("schedulerName")
    if product.has_scheduler(scheduler):
        detail = f"{scheduler} places this pod, which asks for no share, and is not changed"
        yield Note("spec.schedulerName", detail)
    for container in source.pod.containers:
        for name in container.resources("limits"):
            if name.startswith(MIG_PREFIX):
                path = f"{container.path}.resources.limits[{name}]"
                yield Note(path, f"{name} is a GPU of its own and stays; no share replaces it")


def _build_edits(
    source: ForeignPod, product: Product, asked: PodRequest, entries: Mapping[str, str]
) -> tuple[Operation, ...]:
    """Build the edits that add vramwarden annotations and remove the product's requests.

    A map that becomes empty is removed too. Of several keys, the last is removed first, which keeps
    the comments above it.
    """
    edits = Edits()
    _edit_metadata(source, asked, entries, edits)
    for container in source.pod.containers:
        _edit_resources(container, source.place(container), product, edits)
    if not edits.operations:  # the other fields request nothing, so they are kept
        return ()
    for container in source.pod.containers:
        _edit_env(container, source.place(container), edits)
    if product.has_scheduler(source.spec.get("schedulerName")):
        edits.remove(source.spec_place, "schedulerName")
    return tuple(edits.operations)


def _edit_metadata(
    source: ForeignPod, asked: PodRequest, entries: Mapping[str, str], edits: Edits
) -> None:
    """Add vramwarden keys before removing the product's, so that the map never becomes empty."""
    present = source.own_metadata.get("annotations")
    edits.merge("/metadata", "annotations", present, entries)
    for kind, theirs in (("annotations", asked.annotations), ("labels", asked.labels)):
        keys = source.keys(kind)
        left = {**keys, **entries} if kind == "annotations" else keys
        _remove(edits, "/metadata", kind, [key for key in keys if key in theirs], left)


def _remove(edits: Edits, place: str, kind: str, names: list[str], holder: Json) -> None:
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
