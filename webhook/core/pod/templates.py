"""Pods and pod templates in any object, found by their shape: whatever makes pods has one.

| shape | found in |
| --- | --- |
| `spec.containers` beside `metadata` | whatever holds a PodTemplateSpec: PyTorchJob, ... |
| the same, without `metadata` of its own | Notebook of Kubeflow: its pods get its own metadata |
| an item of `templates` with `container`, `script` or `containerSet` | Workflow of Argo |
| `spec.domain.devices` beside `metadata` | VirtualMachine of KubeVirt, whose pods get it as well |

Kubernetes' own kinds are known by name, and so is where their template stands: it is judged there
whatever it holds, and searched nowhere else.

Sources: PodTemplateSpec in k8s.io/api/core/v1; kubeflow/kubeflow notebook_controller.go
(`generateStatefulSet`); argoproj/argo-workflows workflow/controller/workflowpod.go; kubevirt.io/api
core/v1 (VirtualMachineInstanceTemplateSpec).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from webhook.core.bounds import DEEPEST_TEMPLATE, MOST_TEMPLATES, MOST_VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from webhook.core.pod.fields import Json

Path = tuple[str | int, ...]


class TooMuchToSearchError(ValueError):
    """An object is too large to be searched; the message says what and what to do."""


class Form(Enum):
    """What a template is made of, and so what admission can do with it."""

    POD = auto()
    """`metadata` and `spec`, as a pod has them: it can be translated where it stands."""
    CONTAINER = auto()
    """One container, from which a pod is made: it has no place for a translation."""
    MACHINE = auto()
    """A virtual machine, whose pod is made elsewhere."""


@dataclass(frozen=True, slots=True)
class Template:
    """A pod, or what pods are made from."""

    path: Path
    """Where it stands in its object; empty for a pod."""
    pod: Json | None
    """`metadata` and `spec` as its pods get them; None where a workload has no template."""
    form: Form = Form.POD
    metadata_path: Path | None = None
    """Where the metadata of its pods stands, if not beside the spec."""

    def named(self, owner: str) -> Json:
        """Return the pod that the API server would be sent: itself, or one made of the template.

        `owner` is the name of the object that makes it.
        """
        template = self.pod or {}
        if not self.path:
            return template
        metadata = template.get("metadata")
        if metadata is None or type(metadata) is dict:
            metadata = {"generateName": f"{owner}-", **(metadata or {})}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        return {**pod, "spec": template["spec"]} if "spec" in template else pod

    @property
    def field(self) -> str:
        """The path as messages write it: `spec.workerGroupSpecs[0].template`."""
        return shown_path(self.path)

    @property
    def annotations_field(self) -> str:
        """Where its annotations belong, as messages write it."""
        at = self.path if self.metadata_path is None else self.metadata_path
        return shown_path((*at, "metadata", "annotations"))


class _Shape(NamedTuple):
    """Which API groups a kind belongs to, and where its pod or pod template stands."""

    groups: frozenset[str]
    path: tuple[str, ...]


_APPS: Final = _Shape(frozenset({"apps", "extensions"}), ("spec", "template"))
_OWN_KINDS: Final[Mapping[str, _Shape]] = {
    "Pod": _Shape(frozenset({""}), ()),
    "PodTemplate": _Shape(frozenset({""}), ("template",)),
    "ReplicationController": _Shape(frozenset({""}), ("spec", "template")),
    "DaemonSet": _APPS,
    "Deployment": _APPS,
    "ReplicaSet": _APPS,
    "StatefulSet": _APPS,
    "Job": _Shape(frozenset({"batch"}), ("spec", "template")),
    "CronJob": _Shape(frozenset({"batch"}), ("spec", "jobTemplate", "spec", "template")),
}
_BY_LOWER_CASE: Final = {kind.lower(): kind for kind in _OWN_KINDS}
_ALONE: Final = ("container", "script")
"""Where the one container of a Workflow's template stands."""
_NOTEBOOK: Final = ("Notebook", "kubeflow.org")


def is_own_kind(kind: str, version: str) -> bool:
    """Say whether a kind with a pod template is Kubernetes' own; no version counts as its own."""
    shape = _OWN_KINDS.get(kind)
    return shape is not None and (not version or version.rpartition("/")[0] in shape.groups)


def kind_meant(kind: str, version: str) -> str:
    """Return the kind of Kubernetes that differs by upper and lower case alone; empty for none."""
    meant = _BY_LOWER_CASE.get(kind.lower(), "")
    return meant if meant != kind and is_own_kind(meant, version) else ""


def find_templates(obj: Json, kind: str, version: str) -> list[Template]:
    """Return the pod and the pod templates of one object of a kind and version.

    A workload of Kubernetes' own kinds has one, without a pod where its template is missing. Raises
    TooMuchToSearchError: nothing that somebody wrote may take others' time.
    """
    if is_own_kind(kind, version):
        path = _OWN_KINDS[kind].path
        found: Any = obj
        for part in path:
            found = found.get(part) if type(found) is dict else None
        return [Template(path, found if type(found) is dict else None)]
    templates = list(islice(_search(obj), MOST_TEMPLATES + 1))
    if len(templates) > MOST_TEMPLATES:
        raise TooMuchToSearchError(f"has more than {MOST_TEMPLATES:,} pod templates; split it")
    if (kind, version.rpartition("/")[0]) == _NOTEBOOK:
        return [_of_notebook(obj, template) for template in templates]
    return templates


def _of_notebook(obj: Json, template: Template) -> Template:
    """Return a Notebook's template with the metadata that its controller copies to the pod."""
    pod = {"metadata": obj.get("metadata"), "spec": (template.pod or {}).get("spec")}
    return Template(template.path, pod, template.form, ())


def _search(obj: Json) -> Iterator[Template]:
    """Yield the templates of an object, in the order in which they stand there.

    By a stack of what is left to read, which no depth can exhaust. What is inside of a template
    is not read: a pod holds no pods.
    """
    values_read = 0
    left: list[tuple[Any, Path]] = [(obj, ())]
    while left:
        value, path = left.pop()
        template = _template(value, path, obj) if type(value) is dict else None
        if template is not None:
            yield template
            continue
        if len(path) >= DEEPEST_TEMPLATE:
            raise TooMuchToSearchError(
                f"nests more than {DEEPEST_TEMPLATE} levels deep; flatten it"
            )
        values_read += len(value)
        if values_read > MOST_VALUES:
            raise TooMuchToSearchError(f"holds more than {MOST_VALUES:,} values; split it")
        pairs = value.items() if type(value) is dict else enumerate(value)
        inner = [(one, (*path, key)) for key, one in pairs if type(one) in {dict, list} and one]
        left += reversed(inner)


def _template(value: Json, path: Path, obj: Json) -> Template | None:
    """Return the template that a mapping is; None where it is none.

    An object of another kind is no pod although it may resemble one: in `spec.containers` of a
    Prometheus stand parts of containers, and no pod gets its annotations.
    """
    spec = value.get("spec")
    if type(spec) is dict:
        if path and _are_objects(spec.get("containers")):
            return Template(path, value)
        domain = spec.get("domain")
        if type(domain) is dict and type(domain.get("devices")) is dict:
            metadata = {"metadata": value.get("metadata")}
            return Template(path, metadata, Form.MACHINE)
    is_listed = len(path) > 1 and path[-2] == "templates" and type(path[-1]) is int
    return _of_workflow(value, path, obj) if is_listed else None


def container_path(value: Json, form: Form, field: str, index: int) -> Path:
    """Return where a container of a template's pod stands, within what stands at its place."""
    if form is not Form.CONTAINER:
        return ("spec", field, index)
    if field != "containers":
        return (field, index)
    alone = next((key for key in _ALONE if value.get(key)), "")
    many = 1 if alone else len(value["containerSet"]["containers"])
    if index >= many:
        return ("sidecars", index - many)
    return (alone,) if alone else ("containerSet", "containers", index)


def _of_workflow(value: Json, path: Path, obj: Json) -> Template | None:
    """Return an item of a Workflow's `templates` as the pod that is made from it.

    The pods' metadata is that of the Workflow's `podMetadata`, and on top of it the template's.
    """
    containers: list[Json]
    one = value.get("container") or value.get("script")
    many = value.get("containerSet")
    if type(one) is dict and one:
        containers = [{**one, "name": "main"}]
    elif type(many) is dict and _are_objects(many.get("containers")):
        containers = many["containers"]
    else:
        return None
    above: Any = obj
    for part in path[:-2]:
        above = above[part]
    metadata: Any = value.get("metadata")
    common = above.get("podMetadata")
    if type(common) is dict and (metadata is None or type(metadata) is dict):
        metadata = _merged(common, metadata or {})
    spec: Json = {"containers": [*containers, *_objects(value.get("sidecars"))]}
    for key in ("initContainers", "volumes", "nodeSelector", "securityContext"):
        if value.get(key) is not None:
            spec[key] = value[key]
    return Template(path, {"metadata": metadata, "spec": spec}, Form.CONTAINER)


def _merged(common: Json, own: Json) -> Json:
    merged = {**common, **own}
    for key in ("annotations", "labels"):
        both = (common.get(key), own.get(key))
        if all(type(one) is dict for one in both):
            merged[key] = {**common[key], **own[key]}
    return merged


def _are_objects(value: object) -> bool:
    return type(value) is list and bool(value) and all(type(one) is dict for one in value)


def _objects(value: object) -> list[Json]:
    return value if type(value) is list and _are_objects(value) else []


def shown_path(path: Path) -> str:
    """Write a path as Kubernetes' own messages do."""
    shown = ""
    for part in path:
        shown += f"[{part}]" if type(part) is int else f".{part}" if shown else str(part)
    return shown
