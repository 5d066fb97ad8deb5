"""Pods and pod templates in any object, found by their shape: whatever makes pods has one.

| shape | found in |
| --- | --- |
| `spec.containers` beside `metadata` | whatever holds a PodTemplateSpec: PyTorchJob, ... |
| the same, without `metadata` of its own | Notebook of Kubeflow: its pods get its own metadata |
| an item of `templates` with `container`, `script` or `containerSet` | Workflow of Argo |
| `spec.domain.devices` beside `metadata` | VirtualMachine of KubeVirt, whose pods get it as well |
| parts of a pod beside `annotations` | kinds of KServe, NIM and Spark: by name |

Kubernetes' own kinds are known by name, and so is where their template stands: it is judged there
whatever it holds, and searched nowhere else. A kind of anybody else's may leave out the names of
containers: its controller gives them, Knative's `user-container`.

Objects of no such shape can still hold keys of ours. `search_stray_keys` finds them, and their
author reads that they were not judged.

Sources: PodTemplateSpec in k8s.io/api/core/v1; kubeflow/kubeflow notebook_controller.go
(`generateStatefulSet`); kubeflow/trainer pkg/apis/trainer/v1alpha1 (TrainJobSpec); kubevirt.io/api
core/v1 (VirtualMachineInstanceTemplateSpec); knative/serving pkg/apis/serving/v1
(`applyDefault`); kserve/kserve pkg/controller/v1beta1/inferenceservice/components (`Reconcile`);
kubeflow/spark-operator api/v1beta2 (SparkPodSpec).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from webhook.core.bounds import LONGEST_STORED, MOST_TEMPLATES
from webhook.core.formatting import join_names, shorten
from webhook.core.pod.components import KSERVE_CONTAINER, of_components
from webhook.core.pod.fields import Json, part, text_of
from webhook.core.pod.shapes import (
    CONTAINER_FIELDS,
    Form,
    Path,
    Template,
    TooMuchToSearchError,
    Unjudged,
    are_objects,
    objects_in,
    walk,
)
from webhook.core.pod.workflows import ARGO_GROUP, ReadText, of_workflow, references
from webhook.names import API_GROUP


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
_KUBERNETES: Final = re.compile(
    r"(?:(?:apps|autoscaling|batch|policy|(?:admissionregistration|apiextensions|networking|node"
    r"|rbac\.authorization|resource|scheduling|storage)\.k8s\.io)/)?v[0-9a-z]+"
)
"""Versions of Kubernetes' own kinds."""
_BY_LOWER_CASE: Final = {kind.lower(): kind for kind in _OWN_KINDS}
_NOTEBOOK: Final = ("Notebook", "kubeflow.org")
_REVISION: Final = ("Revision", "serving.knative.dev")
_TRAIN_JOB: Final = ("TrainJob", "trainer.kubeflow.org")
_SETTING: Final = re.compile(
    "accelerator_type|engine_kwargs|gpu_memory_utilization|tensor_parallel_size"
)
"""Settings of programs in a text."""
_FIRST_CONTAINER: Final = {
    "serving.knative.dev": "user-container",
    "serving.kserve.io": KSERVE_CONTAINER,
}
"""How a group's controllers call a container without a name; others are called what we like."""


def is_own_kind(kind: str, version: str) -> bool:
    """Say whether a kind with a pod template is Kubernetes' own; no version counts as its own."""
    shape = _OWN_KINDS.get(kind)
    return shape is not None and (not version or version.rpartition("/")[0] in shape.groups)


def makes_no_pods(kind: str, version: str) -> bool:
    """Return True for Kubernetes' own kinds without a pod template."""
    return bool(_KUBERNETES.fullmatch(version)) and not is_own_kind(kind, version)


def kind_meant(kind: str, version: str) -> str:
    """Return the kind of Kubernetes that differs by upper and lower case alone; empty for none."""
    meant = _BY_LOWER_CASE.get(kind.lower(), "")
    return meant if meant != kind and is_own_kind(meant, version) else ""


def find_templates(
    obj: Json, kind: str, version: str, read: ReadText | None = None
) -> list[Template]:
    """Return the pod and the pod templates of one object of a kind and version.

    A workload of Kubernetes' own kinds has one, without a pod where its template is missing. `read`
    reads YAML that a field holds; without it such a field is not judged. Raises
    TooMuchToSearchError: nothing that somebody wrote may take others' time.
    """
    if is_own_kind(kind, version):
        path = _OWN_KINDS[kind].path
        found: Any = obj
        for key in path:
            found = found.get(key) if type(found) is dict else None
        return [Template(path, found if type(found) is dict else None)]
    group = version.rpartition("/")[0]
    if group == API_GROUP:
        return []
    if (kind, group) == _TRAIN_JOB:
        return []  # its patches of a runtime have the shape of pod templates
    templates = of_components(obj, kind, group)
    if templates is None:
        templates = _search(obj, read)
    if (kind, group) == _NOTEBOOK:
        templates = [_of_notebook(obj, template) for template in templates]
    elif (kind, group) == _REVISION:
        templates = [Template((), obj)]
    return [_with_names(one, _FIRST_CONTAINER.get(group, "container")) for one in templates]


def _of_notebook(obj: Json, template: Template) -> Template:
    """Return a Notebook's template with the metadata that its controller copies to the pod."""
    pod = {"metadata": obj.get("metadata"), "spec": (template.pod or {}).get("spec")}
    return replace(template, pod=pod, places={("metadata",): ("metadata",)})


def _with_names(template: Template, name: str) -> Template:
    """Return a template in which each container has a name, as its controller will give it one."""
    spec, given = part(template.pod, "spec"), {}
    for field in CONTAINER_FIELDS:
        containers = objects_in(spec.get(field))
        if any(one.get("name") is None for one in containers):
            called = name if field == "containers" else f"{name}-init"
            given[field] = [
                one
                if one.get("name") is not None
                else {**one, "name": f"{called}-{index}" if index else called}
                for index, one in enumerate(containers)
            ]
    pod = {**(template.pod or {}), "spec": {**spec, **given}}
    return replace(template, pod=pod) if given else template


def made_elsewhere(obj: Json, kind: str, version: str) -> list[Unjudged]:
    """Return the fields by which an object's pods are made of other objects.

    Raises TooMuchToSearchError.
    """
    group = version.rpartition("/")[0]
    if group == ARGO_GROUP:
        return list(references(obj))
    if group == "ray.io":
        found = _SETTING.findall(text_of(obj, "spec", "serveConfigV2"))
        why = f"it sets {join_names(dict.fromkeys(found))}"
        return [Unjudged(("spec", "serveConfigV2"), why)] if found else []
    if (kind, group) != _TRAIN_JOB:
        return []
    spec = part(obj, "spec")
    runtime = part(spec, "runtimeRef")
    which = f"{runtime.get('kind') or 'ClusterTrainingRuntime'} {runtime.get('name')}"
    return [Unjudged(("spec", "runtimeRef"), shorten(which, LONGEST_STORED))]


def _search(obj: Json, read: ReadText | None) -> list[Template]:
    """Return the templates of an object; what is inside of one is not read: a pod holds no pods."""
    found: list[Template] = []

    def enter(value: Any, path: Path) -> bool:
        template = _template(value, path, obj, read) if type(value) is dict else None
        if template is not None:
            found.append(template)
        if len(found) > MOST_TEMPLATES:
            raise TooMuchToSearchError(f"has more than {MOST_TEMPLATES:,} pod templates; split it")
        return template is None

    walk(obj, enter)
    return found


def _template(value: Json, path: Path, obj: Json, read: ReadText | None) -> Template | None:
    """Return the template that a mapping is; None where it is none.

    An object of another kind is no pod although it may resemble one: in `spec.containers` of a
    Prometheus stand parts of containers, and no pod gets its annotations.
    """
    spec = value.get("spec")
    if type(spec) is dict:
        if path and are_objects(spec.get("containers")):
            return Template(path, value)
        domain = spec.get("domain")
        if type(domain) is dict and type(domain.get("devices")) is dict:
            metadata = {"metadata": value.get("metadata")}
            return Template(path, metadata, Form.MACHINE)
    is_listed = len(path) > 1 and path[-2] == "templates" and type(path[-1]) is int
    return of_workflow(value, path, obj, read) if is_listed else None
