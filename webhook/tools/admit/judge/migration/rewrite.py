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

from typing import TYPE_CHECKING, Final

from webhook.core.nvidia.mig import SLICE_PREFIX
from webhook.core.pod.demand import asks_for_vram
from webhook.core.pod.findings import annotation_path
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.units import MOST_GIBIBYTES
from webhook.core.pod.views import effective_amount
from webhook.names import (
    DEFAULT_CONTAINER_ANNOTATION,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
)
from webhook.tools.admit.judge.migration.edits import edits_of
from webhook.tools.admit.judge.migration.remains import remains
from webhook.tools.admit.judge.migration.values import Asked, Migration, Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.pod.views import Container
    from webhook.tools.admit.judge.migration.source import Source
    from webhook.tools.admit.judge.migration.values import Product, Scale

_MEMORY_PATH: Final = annotation_path(GPU_MEMORY_ANNOTATION)


def migrate(source: Source, product: Product, scale: Scale) -> Migration:
    """Rewrite one pod or pod template."""
    asked = product.read(source, scale)
    if asks_for_vram(source.pod.raw):
        return _cleaned(source, product, asked)
    problems = asked.problems or tuple(_impossible(asked))
    if problems:
        return Migration(product.name, problems=problems)
    if not asked.shares:
        return Migration(product.name, notes=tuple(_left(source, product)))
    entries = {GPU_MEMORY_ANNOTATION: _memory(source, asked)}
    count = next(iter(asked.shares.values())).gpu_count
    if count > 1:
        entries[GPU_COUNT_ANNOTATION] = str(count)
    return Migration(
        product.name,
        edits_of(source, product, asked, entries),
        ", ".join(_line(key, value) for key, value in entries.items()),
        (*_shared(source, product, asked), *asked.notes, *remains(source, product, asked)),
    )


def _cleaned(source: Source, product: Product, asked: Asked) -> Migration:
    """Take the product's requests off a pod that asks us already."""
    operations = edits_of(source, product, asked, {})
    if not operations:
        return Migration(product.name)
    detail = f"the pod asks vramwarden already, so what {product.name} read is removed"
    return Migration(
        product.name,
        operations,
        notes=(Note(_MEMORY_PATH, detail), *remains(source, product, asked)),
    )


def _impossible(asked: Asked) -> Iterator[Note]:
    """Yield what our annotations cannot say."""
    counts = {name: share.gpu_count for name, share in asked.shares.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name}={count}" for name, count in counts.items())
        detail = (
            f"the containers ask for different numbers of GPUs ({said}), and a pod has one number "
            "here; split the pod, or make them agree"
        )
        yield Note("spec.containers", detail)


def _memory(source: Source, asked: Asked) -> str:
    """Return the annotation's value: one amount where it reaches the right container."""
    shares = asked.shares
    written = {name: format_bytes(share.memory_bytes) for name, share in shares.items()}
    first = next((one.name for one in source.pod.containers if one.field == "containers"), "")
    default = source.pod.annotations.get(DEFAULT_CONTAINER_ANNOTATION, first)
    if [*written] == [default]:
        return written[default]
    return ", ".join(f"{name}={amount}" for name, amount in written.items())


def _shared(source: Source, product: Product, asked: Asked) -> Iterator[Note]:
    """Yield what it means that all containers of a pod have the same GPUs here."""
    sharing = [one for one in source.pod.containers if one.name in asked.shares]
    if len(sharing) <= 1 or not product.gives_gpus_by_container:
        return
    amounts = {name: share.memory_bytes for name, share in asked.shares.items()}
    sum_bytes = effective_amount(sharing, amounts, 0)
    names = ", ".join(one.name for one in sharing)
    detail = (
        f"each of {names} could get a GPU of its own; here they share the pod's, which must hold "
        f"{format_bytes(sum_bytes)}"
    )
    if sum_bytes > MOST_GIBIBYTES * 2**30:
        detail += ", more than any GPU has"
    yield Note("spec.containers", detail)


def _left(source: Source, product: Product) -> Iterator[Note]:
    """Yield what may surprise about a pod that asks the product for nothing."""
    scheduler = source.spec.get("schedulerName")
    if product.schedules(scheduler):
        detail = f"{scheduler} places this pod, which asks for no share, and is not changed"
        yield Note("spec.schedulerName", detail)
    for container in source.pod.containers:
        for path, name in _slices(container):
            yield Note(path, f"{name} is a GPU of its own and stays; no share replaces it")


def _slices(container: Container) -> Iterator[tuple[str, str]]:
    for name in container.resources("limits"):
        if name.startswith(SLICE_PREFIX):
            yield f"{container.path}.resources.limits[{name}]", name


def _line(key: str, value: str) -> str:
    return f'{key}: "{value}"' if value.isdigit() else f"{key}: {value}"
