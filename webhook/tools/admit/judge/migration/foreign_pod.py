"""A pod template of another product, what it asks for, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from webhook.core.pod.fields import as_object
from webhook.core.pod.templates import Form, container_path
from webhook.core.pod.views import read_pod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from webhook.core.pod.fields import Json
    from webhook.core.pod.patch import Operation
    from webhook.core.pod.templates import Path, Template
    from webhook.core.pod.views import Container, Pod


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
class Scale:
    """What manifests leave open, and a cluster's configuration says."""

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
    form: Form
    raw: Json
    """What stands at the template's place."""
    above: Json
    """What holds it, of a Workflow's template: fields that are of all its templates."""
    own_metadata: Json
    """The metadata that may be edited: the pod's own, without what a Workflow adds to it."""

    def place(self, container: Container) -> str:
        """Return the pointer to a container, from the template's place."""
        path = container_path(self.raw, self.form, container.field, container.index)
        return "".join(f"/{part}" for part in path)

    @property
    def spec_place(self) -> str:
        """Return the pointer to the pod's specification."""
        return "/spec" if self.form is Form.POD else ""

    @property
    def spec(self) -> Json:
        """Return the specification as it stands in the manifest."""
        return as_object(self.raw.get("spec")) if self.form is Form.POD else self.raw

    def keys(self, kind: str) -> Json:
        """Return the annotations or labels that may be edited."""
        return as_object(self.own_metadata.get(kind))


def read_foreign_pod(pod: Json, template: Template, owner: Json) -> ForeignPod:
    """Read a pod, which the template of an owner makes; raises MalformedObjectError."""
    is_item = template.form is Form.CONTAINER
    raw = _at(owner, template.path)
    above = _at(owner, template.path[:-2]) if is_item else {}
    own = raw if is_item else template.pod or {}
    return ForeignPod(read_pod(pod), template.form, raw, above, as_object(own.get("metadata")))


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def amounts(container: Container, name: str) -> Iterator[tuple[str, str]]:
    """Yield an amount of a resource with its path: the limit, then the request."""
    for kind in ("limits", "requests"):
        resources = container.resources(kind)
        if name in resources:
            yield f"{container.path}.resources.{kind}[{name}]", resources[name]
