"""What of a manifest is not carried over: each is named, gone or not.

Of what is beside pods nothing is changed. Kubernetes counts an extended resource in a quota by its
requests alone, and HAMi counts the limits itself (pkg/device/quota.go); our resource is counted by
Kubernetes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.nvidia.variables import (
    chooses_devices,
    limits_memory,
    sees_no_gpu,
    shows_chosen,
)
from webhook.core.pod.fields import as_object
from webhook.core.pod.findings import annotation_path
from webhook.core.policy.match import matches_any
from webhook.names import VRAM_RESOURCE
from webhook.tools.admit.judge.migration.foreign_pod import Note, amounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from webhook.core.pod.fields import Json
    from webhook.core.pod.foreign import Product
    from webhook.core.pod.views import Container
    from webhook.tools.admit.judge.migration.foreign_pod import ForeignPod, PodRequest

_STAYS: Final = "stays without effect"


def is_removed(entry: Json) -> bool:
    """Say whether no share is admitted beside a variable: by hand, it shows or limits GPUs."""
    if chooses_devices(entry):
        return not sees_no_gpu(entry) and not shows_chosen(entry)
    return limits_memory(entry)


def asks_product(product: Product, resource: str) -> bool:
    """Say whether a resource asks the product."""
    return matches_any(resource, tuple(product.resources))


def notes_about_pod(source: ForeignPod, product: Product, asked: PodRequest) -> Iterator[Note]:
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
    lost_by_name = {name: resource.lost for name, resource in product.resources.items()}
    for name in {**container.resources("limits"), **container.resources("requests")}:
        if lost := _why(lost_by_name, name):
            path, amount = next(amounts(container, name))
            yield Note(path, f"{amount} is removed: {lost}")
    for index, entry in enumerate(container.env()):
        path = f"{container.path}.env[{index}]"
        if is_removed(entry):
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


def notes_about_object(obj: Json, kind: str, version: str, product: Product) -> Iterator[Note]:
    """Yield a note for each name that the product reads of an object that holds no pod."""
    if kind == "ResourceQuota" and version in {"v1", ""}:
        for name, amount in as_object(as_object(obj.get("spec")).get("hard")).items():
            if asks_product(product, name.partition(".")[2]):
                detail = (
                    f"{amount} bounds no share; add requests.{VRAM_RESOURCE} with the bytes that "
                    "the namespace may ask for, e.g. 80Gi"
                )
                yield Note(f"spec.hard[{name}]", detail)
    elif why := product.objects.get(f"{version.partition('/')[0]}/{kind}"):
        yield Note("kind", why)
