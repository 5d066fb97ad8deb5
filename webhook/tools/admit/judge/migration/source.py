"""A pod template of another product, and where its parts stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from webhook.core.pod.lenient import as_object
from webhook.core.pod.templates import Form, container_path
from webhook.core.pod.views import read_pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.pod.fields import Json
    from webhook.core.pod.templates import Path, Template
    from webhook.core.pod.views import Container, Pod


@dataclass(frozen=True, slots=True)
class Source:
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


def read_source(pod: Json, template: Template, owner: Json) -> Source:
    """Read a pod, which the template of an owner makes; raises MalformedObjectError."""
    is_item = template.form is Form.CONTAINER
    raw = _at(owner, template.path)
    above = _at(owner, template.path[:-2]) if is_item else {}
    own = raw if is_item else template.pod or {}
    return Source(read_pod(pod), template.form, raw, above, as_object(own.get("metadata")))


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
