"""A pod template of another product, what it asks for, and what becomes of it.

What of a manifest is not carried over is named, gone or not. Of what is beside pods nothing is
changed. Kubernetes counts an extended resource in a quota by its requests alone, and HAMi counts
the limits itself (pkg/device/quota.go); our resource is counted by Kubernetes.
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
    """One thing that its author should know, and the field that it is about."""

    path: str
    """Within the pod."""
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


class NotCarriedError(ValueError):
    """What a pod asks for has no counterpart, or cannot be read."""

    def __init__(self, path: str, detail: str) -> None:
        """Take the field's path within the pod, and what is wrong and what to do."""
        super().__init__(detail)
        self.note = Note(path, detail)


class ContainerRequest(NamedTuple):
    """What one container asks for."""

    memory_bytes: int
    """On each of its GPUs, in whole MiB."""
    gpu_count: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The product that manifests are for, and what they leave open: its configuration says that."""

    product: Product
    gpu_bytes: int | None = None
    """What a whole GPU becomes, and what percentages and fractions are parts of."""
    unit_bytes: int | None = None
    """What one of the product's units of memory is; None for the product's own default."""


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod asks the other product for."""

    containers: Mapping[str, ContainerRequest] = field(default_factory=dict)
    """By name."""
    problems: tuple[Note, ...] = ()
    """Why they could not be read; none is carried over then."""
    notes: tuple[Note, ...] = ()
    """What of it is carried over in another way."""
    annotations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Which of the pod's keys ours replace."""


@dataclass(frozen=True, slots=True)
class Migration:
    """What becomes of one pod or pod template."""

    product: str
    operations: tuple[Operation, ...] = ()
    """The edits, by pointers into what stands at the template's place."""
    asks: str = ""
    """Our annotations, as lines; empty where the pod asks for none."""
    notes: tuple[Note, ...] = ()
    problems: tuple[Note, ...] = ()
    """Why it stays as it was."""


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A pod as its product was sent it, and what stands in the manifest."""

    pod: Pod
    template: Template
    raw: Json
    """What stands at the template's place."""
    above: Json
    """What holds it, of a Workflow's template: fields that are of all its templates."""
    own_metadata: Json
    """The metadata that may be edited: the pod's own, without what a Workflow adds to it."""

    def place(self, container: Container) -> str:
        """Return the pointer to a container, from the template's place."""
        path = self.template.place(("spec", container.field, container.index))
        return "".join(f"/{part}" for part in path[len(self.template.path) :])

    @property
    def spec_place(self) -> str:
        """Return the pointer to the pod's specification."""
        return "/spec" if self.template.form is Form.POD else ""

    @property
    def spec(self) -> Json:
        """Return the specification as it stands in the manifest."""
        is_pod = self.template.form is Form.POD
        return as_object(self.raw.get("spec")) if is_pod else self.raw

    def keys(self, kind: str) -> Json:
        """Return the annotations or labels that may be edited."""
        return as_object(self.own_metadata.get(kind))


def read_foreign_pod(pod: Json, template: Template, owner: Json) -> ForeignPod:
    """Read a pod, which the template of an owner makes; raises MalformedObjectError."""
    is_item = template.form is Form.CONTAINER
    raw = value_at(owner, template.path)
    above = value_at(owner, template.path[:-2]) if is_item else {}
    own = raw if is_item else template.pod or {}
    return ForeignPod(read_pod(pod), template, raw, above, as_object(own.get("metadata")))


def amounts(container: Container, name: str) -> Iterator[tuple[str, str]]:
    """Yield an amount of a resource with its path: the limit, then the request."""
    for kind in ("limits", "requests"):
        resources = container.resources(kind)
        if name in resources:
            yield f"{container.path}.resources.{kind}[{name}]", resources[name]


_STAYS: Final = "stays without effect"


def is_removed(entry: Json) -> bool:
    """Say whether no share is admitted beside a variable: by hand, it shows or limits GPUs."""
    if chooses_devices(entry):
        return not hides_gpus(entry) and not shows_bound_gpus(entry)
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
        yield from _of_container(container, product)


def _of_container(container: Container, product: Product) -> Iterator[Note]:
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


def requests_without_pod(obj: Json, kind: str, version: str, product: Product) -> tuple[Note, ...]:
    """Return a note for each resource of a product in an object whose pods are made elsewhere.

    A DynamoGraphDeployment of NVIDIA calls a whole GPU `gpu`.
    """
    found: list[Path] = []

    def enter(value: Any, path: Path) -> bool:
        is_amounts = type(value) is dict and path[-1:] in {("limits",), ("requests",)}
        names = map(str, value) if is_amounts else ()
        theirs = (one for one in names if asks_product(product, WHOLE_GPU if one == "gpu" else one))
        found.extend((*path, name) for name in theirs)
        return True

    if not is_builtin_without_pods(kind, version):
        visit_values(obj, enter)
    how = f"by hand, remove it and give the pods the annotation {GPU_MEMORY_ANNOTATION}"
    why = f"{kind or 'an object without a kind'} is not rewritten"
    return tuple(Note(format_path(path), f"{how}; {why}") for path in found[:MAX_HINTS])
