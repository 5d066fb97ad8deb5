"""What of a pod is not carried over although its share is: each is named, gone or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.pod.findings import annotation_path
from webhook.core.pod.lenient import as_object
from webhook.core.policy.patterns import matches_any
from webhook.tools.admit.judge.migration.edits import goes, must_go
from webhook.tools.admit.judge.migration.source import amounts
from webhook.tools.admit.judge.migration.values import Note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from webhook.core.pod.views import Container
    from webhook.tools.admit.judge.migration.source import Source
    from webhook.tools.admit.judge.migration.values import Asked, Product

_STAYS: Final = "stays without effect"


def remains(source: Source, product: Product, asked: Asked) -> Iterator[Note]:
    """Yield a note for each name that has no counterpart, in the order of the pod."""
    pod = source.pod
    for key in pod.annotations:
        if key in asked.annotations and key not in source.keys("annotations"):
            yield Note(annotation_path(key), "is of all templates, and stays; remove it there")
        elif key not in asked.annotations and (why := _why(product.annotations, key)):
            yield Note(annotation_path(key), f"{_STAYS}: {why}")
    for key in pod.labels:
        if why := _why(product.labels, key):
            yield Note(f"metadata.labels[{key}]", f"{_STAYS}: {why}")
    scheduler = source.spec.get("schedulerName")
    if product.schedules(scheduler):
        yield Note(
            "spec.schedulerName", f"{scheduler} is removed, so the default scheduler places the pod"
        )
    if product.schedules(common := source.above.get("schedulerName")):
        yield Note(
            "spec.schedulerName", f"{common} is of all templates, and stays; remove it there"
        )
    for key in as_object(source.spec.get("nodeSelector")):
        if why := _why(product.node_labels, key):
            yield Note(f"spec.nodeSelector[{key}]", f"stays: {why}")
    for container in pod.containers:
        yield from _of_container(container, product)


def _of_container(container: Container, product: Product) -> Iterator[Note]:
    names = {**container.resources("limits"), **container.resources("requests")}
    for name in names:
        lost = _why(product.resources, name) if goes(product, name) else ""
        if lost:
            path, amount = next(amounts(container, name))
            yield Note(path, f"{amount} is removed: {lost}")
    for index, entry in enumerate(container.env()):
        path = f"{container.path}.env[{index}]"
        if must_go(entry):
            detail = f"{entry['name']} is removed: vramwarden sets which GPUs a share sees"
            yield Note(path, detail)
        elif why := _why(product.variables, entry["name"]):
            yield Note(path, f"{entry['name']} {_STAYS}: {why}")
    for field in ("command", "args"):
        words = container.raw.get(field)
        text = " ".join(map(str, words)) if isinstance(words, list) else ""
        for pattern, why in product.variables.items():
            if pattern.rstrip("*") in text:
                yield Note(f"{container.path}.{field}", f"{pattern} is read here: {why}")


def _why(known: Mapping[str, str], name: str) -> str:
    """Return what is known of a name, by the first pattern that it matches; empty for nothing."""
    return next((why for pattern, why in known.items() if matches_any(name, (pattern,))), "")
