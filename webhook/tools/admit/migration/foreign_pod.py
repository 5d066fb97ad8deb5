"""A pod template for another product, its requests and the result of its migration.

Everything that is not migrated is reported, and only pods are changed. Kubernetes counts the
requests of an extended resource in a quota, and HAMi counts the limits itself
(pkg/device/quota.go). Kubernetes counts the vramwarden resource.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from webhook.core.admission.rules.near_misses import MAX_HINTS
from webhook.core.nvidia.variables import (
    chooses_devices,
    hides_gpus,
    limits_memory,
    shows_bound_gpus,
)
from webhook.core.pod.fields import Json, as_object
from webhook.core.pod.findings import annotation_path
from webhook.core.pod.other_products import WHOLE_GPU, Product
from webhook.core.pod.patch import Operation
from webhook.core.pod.pod_templates import Form, Path, Template, format_path, value_at, visit_values
from webhook.core.pod.template_search import is_builtin_without_pods
from webhook.core.pod.views import Container, Pod, read_pod
from webhook.core.policy.match import matches_any
from webhook.names import GPU_MEMORY_ANNOTATION, VRAM_RESOURCE


@dataclass(frozen=True, slots=True)
class Note:
    """A note about a field, for the author of the manifest."""

    path: str
    """Path of the field within the pod."""
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


class NotCarriedError(ValueError):
    """Raised if a request is unreadable or has no vramwarden equivalent."""

    def __init__(self, path: str, detail: str) -> None:
        """`path` is the field within the pod. `detail` states the problem and its fix."""
        super().__init__(detail)
        self.note = Note(path, detail)


class ContainerRequest(NamedTuple):
    """GPU request of one container."""

    memory_bytes: int
    """Memory on each GPU of the container, in bytes; whole MiB."""
    gpu_count: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The product of the manifests, and settings that only the product's configuration has."""

    product: Product
    gpu_bytes: int | None = None
    """Memory that replaces a whole GPU, in bytes. Percentages and fractions refer to it."""
    unit_bytes: int | None = None
    """Size of the product's memory unit, in bytes; None for the product's default."""


@dataclass(frozen=True, slots=True)
class PodRequest:
    """Requests of a pod to the other product."""

    containers: Mapping[str, ContainerRequest] = field(default_factory=dict)
    """Requests keyed by container name."""
    problems: tuple[Note, ...] = ()
    """Reasons why requests are unreadable. If there are any, no request is migrated."""
    notes: tuple[Note, ...] = ()
    """Notes on requests whose meaning changes in the migration."""
    annotations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Keys of the pod labels that vramwarden annotations replace."""


@dataclass(frozen=True, slots=True)
class Migration:
    """Result of migrating one pod or pod template."""

    product: str
    operations: tuple[Operation, ...] = ()
    """Edits; their JSON pointers are relative to the template."""
    asks: str = ""
    """vramwarden annotations, one per line; empty if the pod requests no VRAM."""
    notes: tuple[Note, ...] = ()
    problems: tuple[Note, ...] = ()
    """Reasons why the pod is not changed."""


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A pod as its product would receive it, and its source in the manifest."""

    pod: Pod
    template: Template
    raw: Json
    """Template in the manifest."""
    above: Json
    """Workflow object with fields shared by all its templates; empty for any other template."""
    own_metadata: Json
    """Metadata that may be edited: that of the pod, not that of a Workflow."""

    def place(self, container: Container) -> str:
        """Return the JSON pointer to a container, relative to the template."""
        path = self.template.place(("spec", container.field, container.index))
        return "".join(f"/{part}" for part in path[len(self.template.path) :])

    @property
    def spec_place(self) -> str:
        """Return the JSON pointer to the pod's spec, relative to the template."""
        return "/spec" if self.template.form is Form.POD else ""

    @property
    def spec(self) -> Json:
        """Spec in the manifest."""
        is_pod = self.template.form is Form.POD
        return as_object(self.raw.get("spec")) if is_pod else self.raw

    def keys(self, kind: str) -> Json:
        """Return the annotations or labels that may be edited."""
        return as_object(self.own_metadata.get(kind))


def read_foreign_pod(pod: Json, template: Template, owner: Json) -> ForeignPod:
    """Read the pod of a template in `owner`. Raises MalformedObjectError."""
    is_item = template.form is Form.CONTAINER
    raw = value_at(owner, template.path)
    above = value_at(owner, template.path[:-2]) if is_item else {}
    own = raw if is_item else template.pod or {}
    return ForeignPod(read_pod(pod), template, raw, above, as_object(own.get("metadata")))


def amounts(container: Container, name: str) -> Iterator[tuple[str, str]]:
    """Yield path and amount of a container's limit for a resource, then of its request."""
    for kind in ("limits", "requests"):
        resources = container.resources(kind)
        if name in resources:
            yield f"{container.path}.resources.{kind}[{name}]", resources[name]


_STAYS: Final = "stays without effect"


def is_removed(entry: Json) -> bool:
    """Return True if an environment variable exposes GPUs or limits their memory.

    Admission denies a share to a pod with such a variable.
    """
    if chooses_devices(entry):
        return not hides_gpus(entry) and not shows_bound_gpus(entry)
    return limits_memory(entry)


def asks_product(product: Product, resource: str) -> bool:
    """Return True if the product reads a resource as a request."""
    return matches_any(resource, tuple(product.resources))


def notes_about_pod(source: ForeignPod, product: Product, asked: PodRequest) -> Iterator[Note]:
    """Yield a note for each name without a vramwarden equivalent, in the order of the pod."""
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
    if product.has_scheduler(scheduler):
        yield Note(
            "spec.schedulerName", f"{scheduler} is removed, so the default scheduler places the pod"
        )
    if product.has_scheduler(common := source.above.get("schedulerName")):
        yield Note(
            "spec.schedulerName", f"{common} is of all templates, and stays; remove it there"
        )
    for key in as_object(source.spec.get("nodeSelector")):
        if why := _why(product.node_labels, key):
            yield Note(f"spec.nodeSelector[{key}]", f"stays: {why}")
    for container in pod.containers:
        yield from _container_notes(container, product)


def _container_notes(container: Container, product: Product) -> Iterator[Note]:
    lost_by_name = {name: resource.loss for name, resource in product.resources.items()}
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
    for name in ("command", "args"):
        words = container.raw.get(name)
        text = " ".join(map(str, words)) if isinstance(words, list) else ""
        for pattern, why in product.variables.items():
            if pattern.rstrip("*") in text:
                yield Note(f"{container.path}.{name}", f"{pattern} is read here: {why}")


def _why(known: Mapping[str, str], name: str) -> str:
    """Return the explanation of the first pattern that matches a name, or "" if none matches."""
    return next((why for pattern, why in known.items() if matches_any(name, (pattern,))), "")


def notes_about_object(obj: Json, kind: str, version: str, product: Product) -> Iterator[Note]:
    """Yield a note for each name that the product reads from an object without a pod."""
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


def requests_without_pod(obj: Json, kind: str, version: str, product: Product) -> tuple[Note, ...]:
    """Return a note for each request to a product in an object without pods.

    NVIDIA's DynamoGraphDeployment calls a whole GPU `gpu`.
    """
    found: list[Path] = []

    def enter(value: Any, path: Path) -> bool:
        is_amounts = type(value) is dict and path[-1:] in {("limits",), ("requests",)}
        names = map(str, value) if is_amounts else ()
        theirs = (
            name for name in names if asks_product(product, WHOLE_GPU if name == "gpu" else name)
        )
        found.extend((*path, name) for name in theirs)
        return True

    if not is_builtin_without_pods(kind, version):
        visit_values(obj, enter)
    how = f"by hand, remove it and give the pods the annotation {GPU_MEMORY_ANNOTATION}"
    why = f"{kind or 'an object without a kind'} is not rewritten"
    return tuple(Note(format_path(path), f"{how}; {why}") for path in found[:MAX_HINTS])
