"""Pods of Argo workflows: the fields of a template and the fields that the controller adds.

| field of the pod | source |
| --- | --- |
| metadata | the template's, then `podMetadata`; `main` is the default container |
| nodeSelector, affinity, tolerations, ... | the template, else the workflow |
| hostNetwork, dnsPolicy, dnsConfig | the workflow |
| volumes | the template's, and those of the workflow that a container mounts |
| all fields in `podSpecPatch` | the workflow's patch, then the template's |

`templateDefaults` apply to fields that a template leaves out. Workflow parameters are filled in if
the workflow contains their values. A patch with any other expression is not judged.

Source: argoproj/argo-workflows workflow/controller/workflowpod.go (`build`,
`addSchedulingConstraints`, `setupServiceAccount`, `addVolumeReferences`), operator.go
(`mergedTemplateDefaultsInto`), workflow/util/util.go (`ApplyPodSpecPatch`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from webhook.core.bounds import MAX_ENTRIES, MAX_STRING_LENGTH, MAX_TEXT_LENGTH
from webhook.core.formatting import shorten
from webhook.core.pod.fields import Json, as_objects, find_object
from webhook.core.pod.pod_templates import (
    DirectiveError,
    Form,
    Path,
    Template,
    UnjudgedField,
    add_mounted_volumes,
    as_object_list,
    is_object_list,
    merge,
    merge_metadata,
    value_at,
    visit_values,
)
from webhook.names import DEFAULT_CONTAINER_ANNOTATION, PREFIX

ReadText = Callable[[str], Any]
"""Function that parses YAML from a string field. Raises ValueError."""

ARGO_GROUP: Final = "argoproj.io"
_SINGLE_CONTAINER_TYPES: Final = ("container", "script")
"""Fields of a template that contain its only container."""
_TYPES: Final = (*_SINGLE_CONTAINER_TYPES, "containerSet")
_INHERITED_FIELDS: Final = (
    *("affinity", "automountServiceAccountToken", "dnsConfig", "dnsPolicy", "hostNetwork"),
    *("nodeSelector", "podPriorityClassName", "podResources", "priorityClassName"),
    *("resourceClaims", "schedulerName", "securityContext", "serviceAccountName", "tolerations"),
)
"""Fields that a pod gets from its template or, if the template lacks them, from the workflow."""
_RENAMED: Final = {"podPriorityClassName": "priorityClassName", "podResources": "resources"}
"""Pod fields with another name in workflows, keyed by workflow field."""
_PATCH: Final = "podSpecPatch"
_PARAMETER: Final = re.compile(r"\{\{\s*workflow\.parameters\.([A-Za-z0-9_-]+)\s*\}\}")
_EXPRESSION: Final = re.compile(r"\{\{.*?(?:\}\}|$)", re.DOTALL)
_REFERENCES: Final = ("templateRef", "workflowTemplateRef")


def read_workflow_template(
    item: Json, path: Path, obj: Json, read: ReadText | None
) -> Template | None:
    """Return the pod of an item of a workflow's `templates`, or None if it creates no pod."""
    above = value_at(obj, path[:-2])
    kind = next((key for key in _TYPES if item.get(key)), "")
    if type(item.get(kind)) is not dict:
        return None
    places: dict[Path, Path] = {}
    defaults = above.get("templateDefaults")
    if type(defaults) is dict:
        known = {
            key: default for key, default in defaults.items() if key not in _TYPES or key == kind
        }
        item = merge(item, known, (), (*path[:-2], "templateDefaults"), places, wins=False)
    if kind not in _SINGLE_CONTAINER_TYPES and not is_object_list(item[kind].get("containers")):
        return None
    draft = _PodBuilder(item, path, above, places)
    default = draft.add_containers(kind)
    draft.add_fields()
    metadata = draft.metadata(default)
    parameters = _read_parameters(above)
    unjudged = tuple(draft.apply_patches(read, parameters))
    pod = _fill_parameters({"metadata": metadata, "spec": draft.spec}, parameters)
    return Template(path, pod, Form.CONTAINER, places=draft.places, unjudged=unjudged)


class _PodBuilder:
    """Builder of a pod, which records the path of each part in the workflow object."""

    def __init__(self, item: Json, path: Path, above: Json, defaults: Mapping[Path, Path]) -> None:
        self._item = item
        self._path = path
        self._above = above
        self._defaults = defaults
        self.spec: Json = {}
        self.places: dict[Path, Path] = {("spec",): path}

    def _place(self, at: Path, *inside: str | int) -> None:
        """Record the path of a pod field: in the template, or in the template defaults."""
        self.places[at] = (*self._path, *inside)
        for part_of_item, place in self._defaults.items():
            if part_of_item[: len(inside)] == inside:
                self.places[*at, *part_of_item[len(inside) :]] = place

    def add_containers(self, kind: str) -> str:
        """Add the containers and the sidecars; return the name of the default container."""
        one, sidecars = self._item[kind], as_object_list(self._item.get("sidecars"))
        if kind in _SINGLE_CONTAINER_TYPES:
            containers: list[Json] = [{**one, "name": "main"}]
            places: list[Path] = [(kind,)]
        else:
            containers = [_add_set_mounts(each, one) for each in one["containers"]]
            places = [(kind, "containers", index) for index, _ in enumerate(containers)]
        places += [("sidecars", index) for index, _ in enumerate(sidecars)]
        for index, place in enumerate(places):
            self._place(("spec", "containers", index), *place)
        self.spec["containers"] = [*containers, *sidecars]
        names = [str(container.get("name") or "") for container in containers]
        return "main" if "main" in names else names[-1]

    def add_fields(self) -> None:
        """Add the template's fields and volumes, then the workflow's."""
        for name in _INHERITED_FIELDS:
            field = _RENAMED.get(name, name)
            if self._item.get(name):
                self.spec[field] = self._item[name]
                self._place(("spec", field), name)
            elif self._above.get(name) is not None and field not in self.spec:
                self.spec[field] = self._above[name]
                self.places["spec", field] = (*self._path[:-2], name)
        for name in ("initContainers", "volumes"):
            if self._item.get(name) is not None:
                self.spec[name] = self._item[name]
                self._place(("spec", name), name)
        origin = (*self._path[:-2], "volumes")
        add_mounted_volumes(self.spec, self._above.get("volumes"), origin, self.places)

    def metadata(self, default: str) -> Any:
        """Return the pod's metadata; `default` is the name of its default container."""
        self._place(("metadata",), "metadata")
        own, origin = self._item.get("metadata"), (*self._path[:-2], "podMetadata")
        common = find_object(self._above, "podMetadata")
        metadata = merge_metadata({} if own is None else own, common, origin, self.places)
        known = {"annotations": {DEFAULT_CONTAINER_ANNOTATION: default}} if default else {}
        return merge_metadata(metadata, known, (), {})

    def apply_patches(
        self, read: ReadText | None, parameters: Mapping[str, str]
    ) -> Iterator[UnjudgedField]:
        """Apply the patches of workflow and template; yield those that cannot be judged."""
        place = self._defaults.get((_PATCH,), (*self._path, _PATCH))
        for holder, origin in (
            (self._above, (*self._path[:-2], _PATCH)),
            (self._item, place),
        ):
            text = holder.get(_PATCH)
            if type(text) is not str or not text.strip():
                continue
            try:
                patch = _read_patch(_fill_parameters(text, parameters), read)
                places: dict[Path, Path] = {}
                spec = merge(self.spec, patch, ("spec",), origin, places, wins=True)
            except DirectiveError as error:
                yield UnjudgedField(origin, f"it holds {error}")
            except ValueError as error:
                yield UnjudgedField(origin, str(error))
            else:
                self.spec = spec
                self.places |= places


def _add_set_mounts(container: Json, container_set: Json) -> Json:
    mounts = as_objects(container_set.get("volumeMounts"))
    own = as_objects(container.get("volumeMounts"))
    return {**container, "volumeMounts": [*own, *mounts]} if mounts else container


def _read_patch(text: str, read: ReadText | None) -> Json:
    """Parse a patch. Raises ValueError if the patch cannot be judged."""
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError(f"it has more than {MAX_TEXT_LENGTH:,} characters")
    if expression := _EXPRESSION.search(text):
        raise ValueError(f"it holds {shorten(expression[0], 64)}")
    patch = read(text) if read else None
    if type(patch) is not dict:
        raise ValueError("it is no YAML that holds fields of a pod's spec")
    return patch


def _read_parameters(above: Json) -> dict[str, str]:
    """Return the parameters whose values are in the workflow and short enough."""
    found = as_objects(find_object(above, "arguments").get("parameters"), MAX_ENTRIES)
    return {
        str(item.get("name")): str(item["value"])
        for item in found
        if type(item.get("value")) in (str, int) and len(str(item["value"])) <= MAX_STRING_LENGTH
    }


def _fill_parameters(value: Any, parameters: Mapping[str, str]) -> Any:
    if not parameters:
        return value
    if type(value) is dict:
        return {key: _fill_parameters(item, parameters) for key, item in value.items()}
    if type(value) is list:
        return [_fill_parameters(item, parameters) for item in value]
    if type(value) is str and "{{" in value:
        return _PARAMETER.sub(lambda found: parameters.get(found[1], found[0]), value)
    return value


def find_references(obj: Json) -> Iterator[UnjudgedField]:
    """Yield fields that refer to another object's templates or contain a manifest as a string."""
    found: list[UnjudgedField] = []

    def enter(value: Any, path: Path) -> bool:
        if type(value) is not dict:
            return True
        for key in _REFERENCES:
            one = value.get(key)
            if type(one) is dict and one.get("name"):
                kind = "ClusterWorkflowTemplate" if one.get("clusterScope") else "WorkflowTemplate"
                name = shorten(str(one["name"]), MAX_STRING_LENGTH)
                found.append(UnjudgedField((*path, key), f"{kind} {name}"))
        text = value.get("manifest") if path[-1:] == ("resource",) else ""
        if type(text) is str and PREFIX in text:
            found.append(UnjudgedField((*path, "manifest"), "it is a text"))
        return True

    visit_values(obj, enter)
    yield from found
