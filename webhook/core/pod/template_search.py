"""Search for pods and pod templates in objects of any kind, by structure.

| structure | objects |
| --- | --- |
| `spec.containers` and `metadata` | all with a PodTemplateSpec: PyTorchJob, ... |
| `spec.containers` without `metadata` | Notebook of Kubeflow: pods get the object's metadata |
| an item of `templates` with `container`, `script` or `containerSet` | Workflow of Argo |
| `spec.domain.devices` and `metadata` | VirtualMachine of KubeVirt: pods get this metadata |
| parts of a pod and `annotations` | kinds of KServe, NIM and Spark, by name |

The path of the template is known for Kubernetes' own kinds. This template is judged whatever it
contains, and the rest of the object is not searched. Other kinds may leave out container names.
Their controllers add the names, such as Knative's `user-container`.

Pods of KServe, NIM and Spark are described by fields of the object's kind. A SparkApplication's
`sparkConf` also sets annotations, labels and GPUs of its pods, and its `volumes` and `nodeSelector`
apply to driver and executors. Fields that KServe takes from a ServingRuntime, or Spark from a file,
are not judged.

`search_stray_keys` finds vramwarden keys in other objects, whose author gets a warning.

Sources: PodTemplateSpec in k8s.io/api/core/v1; kubeflow/kubeflow notebook_controller.go
(`generateStatefulSet`); kubeflow/trainer pkg/apis/trainer/v1alpha1 (TrainJobSpec); kubevirt.io/api
core/v1 (VirtualMachineInstanceTemplateSpec); knative/serving pkg/apis/serving/v1 (`applyDefault`);
kserve/kserve pkg/controller/v1beta1/inferenceservice/components (`Reconcile`),
pkg/controller/v1alpha2/llmisvc (`propagateDeploymentMetadata`: pods get no vramwarden keys from the
object's own metadata); NVIDIA/k8s-nim-operator api/apps/v1alpha1/nimservice_types.go
(`GetDeploymentParams`); kubeflow/spark-operator api/v1beta2 (SparkPodSpec),
internal/webhook/sparkpod_defaulter.go; Spark's "Running on Kubernetes" (spark.kubernetes.*, and
`resource.gpu.vendor`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from webhook.core.bounds import MAX_STRING_LENGTH, MAX_TEMPLATES
from webhook.core.formatting import join_names, shorten
from webhook.core.pod.argo_workflows import (
    ARGO_GROUP,
    ReadText,
    find_references,
    read_workflow_template,
)
from webhook.core.pod.fields import Json, find_object, find_string
from webhook.core.pod.pod_templates import (
    CONTAINER_FIELDS,
    METADATA_FIELDS,
    Form,
    Path,
    Template,
    TooMuchToSearchError,
    UnjudgedField,
    add_mounted_volumes,
    as_object_list,
    is_object_list,
    merge,
    merge_metadata,
    visit_values,
)
from webhook.names import API_GROUP


class _BuiltinKind(NamedTuple):
    groups: frozenset[str]
    path: tuple[str, ...]


_APPS: Final = _BuiltinKind(frozenset({"apps", "extensions"}), ("spec", "template"))
_BUILTIN_KINDS: Final[Mapping[str, _BuiltinKind]] = {
    "Pod": _BuiltinKind(frozenset({""}), ()),
    "PodTemplate": _BuiltinKind(frozenset({""}), ("template",)),
    "ReplicationController": _BuiltinKind(frozenset({""}), ("spec", "template")),
    "DaemonSet": _APPS,
    "Deployment": _APPS,
    "ReplicaSet": _APPS,
    "StatefulSet": _APPS,
    "Job": _BuiltinKind(frozenset({"batch"}), ("spec", "template")),
    "CronJob": _BuiltinKind(frozenset({"batch"}), ("spec", "jobTemplate", "spec", "template")),
}
_BUILTIN_VERSION: Final = re.compile(
    r"(?:(?:apps|autoscaling|batch|policy|(?:admissionregistration|apiextensions|networking|node"
    r"|rbac\.authorization|resource|scheduling|storage)\.k8s\.io)/)?v[0-9a-z]+"
)
"""Regular expression that matches API versions of Kubernetes' built-in kinds."""
_KINDS_BY_LOWER_CASE: Final = {kind.lower(): kind for kind in _BUILTIN_KINDS}
_NOTEBOOK: Final = ("Notebook", "kubeflow.org")
_REVISION: Final = ("Revision", "serving.knative.dev")
_TRAIN_JOB: Final = ("TrainJob", "trainer.kubeflow.org")
_PROGRAM_SETTING: Final = re.compile(
    "accelerator_type|engine_kwargs|gpu_memory_utilization|tensor_parallel_size"
)
"""Regular expression that matches settings of inference programs in a string."""
KSERVE_CONTAINER: Final = "kserve-container"
"""Name of the first container of a KServe component."""
_CONTAINER_NAMES: Final = {
    "serving.knative.dev": "user-container",
    "serving.kserve.io": KSERVE_CONTAINER,
}
"""Name that a group's controller gives to an unnamed container; other groups use `container`."""


def is_builtin_kind(kind: str, version: str) -> bool:
    """Return True for a built-in kind with a pod template. An empty version counts as built-in."""
    shape = _BUILTIN_KINDS.get(kind)
    return shape is not None and (not version or version.rpartition("/")[0] in shape.groups)


def is_builtin_without_pods(kind: str, version: str) -> bool:
    """Return True for a built-in kind without a pod template."""
    return bool(_BUILTIN_VERSION.fullmatch(version)) and not is_builtin_kind(kind, version)


def find_kind_ignoring_case(kind: str, version: str) -> str:
    """Return the built-in kind whose name differs only in case, or an empty string."""
    meant = _KINDS_BY_LOWER_CASE.get(kind.lower(), "")
    return meant if meant != kind and is_builtin_kind(meant, version) else ""


def find_templates(
    obj: Json, kind: str, version: str, read: ReadText | None = None
) -> list[Template]:
    """Return the pods and pod templates in one object of a kind and version.

    A built-in workload always has one template; its `pod` is None if the object lacks the template.
    `read` parses YAML in a string field; without `read` such fields are not judged. Raises
    TooMuchToSearchError, so that no object delays other reviews.
    """
    if is_builtin_kind(kind, version):
        path = _BUILTIN_KINDS[kind].path
        found: Any = obj
        for key in path:
            found = found.get(key) if type(found) is dict else None
        return [Template(path, found if type(found) is dict else None)]
    group = version.rpartition("/")[0]
    if group == API_GROUP:
        return []
    if (kind, group) == _TRAIN_JOB:
        return []  # patches of a runtime in this object look like pod templates
    templates = find_component_templates(obj, kind, group)
    if templates is None:
        templates = _search_templates(obj, read)
    if (kind, group) == _NOTEBOOK:
        templates = [_notebook_template(obj, template) for template in templates]
    elif (kind, group) == _REVISION:
        templates = [Template((), obj)]
    return [
        _name_containers(template, _CONTAINER_NAMES.get(group, "container"))
        for template in templates
    ]


def _notebook_template(obj: Json, template: Template) -> Template:
    """Return a Notebook's template with the metadata that the controller copies to the pod."""
    pod = {"metadata": obj.get("metadata"), "spec": (template.pod or {}).get("spec")}
    return replace(template, pod=pod, places={("metadata",): ("metadata",)})


def _name_containers(template: Template, name: str) -> Template:
    spec, given = find_object(template.pod, "spec"), {}
    for field in CONTAINER_FIELDS:
        containers = as_object_list(spec.get(field))
        if any(container.get("name") is None for container in containers):
            called = name if field == "containers" else f"{name}-init"
            given[field] = [
                container
                if container.get("name") is not None
                else {**container, "name": f"{called}-{index}" if index else called}
                for index, container in enumerate(containers)
            ]
    pod = {**(template.pod or {}), "spec": {**spec, **given}}
    return replace(template, pod=pod) if given else template


def find_unjudged_fields(obj: Json, kind: str, version: str) -> list[UnjudgedField]:
    """Return the fields that refer to other objects from which pods are created.

    Raises TooMuchToSearchError.
    """
    group = version.rpartition("/")[0]
    if group == ARGO_GROUP:
        return list(find_references(obj))
    if group == "ray.io":
        found = _PROGRAM_SETTING.findall(find_string(obj, "spec", "serveConfigV2"))
        why = f"it sets {join_names(dict.fromkeys(found))}"
        return [UnjudgedField(("spec", "serveConfigV2"), why)] if found else []
    if (kind, group) != _TRAIN_JOB:
        return []
    spec = find_object(obj, "spec")
    runtime = find_object(spec, "runtimeRef")
    which = f"{runtime.get('kind') or 'ClusterTrainingRuntime'} {runtime.get('name')}"
    return [UnjudgedField(("spec", "runtimeRef"), shorten(which, MAX_STRING_LENGTH))]


def _search_templates(obj: Json, read: ReadText | None) -> list[Template]:
    """Return the templates in an object. A template is not searched for further templates."""
    found: list[Template] = []

    def enter(value: Any, path: Path) -> bool:
        template = _read_template(value, path, obj, read) if type(value) is dict else None
        if template is not None:
            found.append(template)
        if len(found) > MAX_TEMPLATES:
            raise TooMuchToSearchError(f"has more than {MAX_TEMPLATES:,} pod templates; split it")
        return template is None

    visit_values(obj, enter)
    return found


def _read_template(value: Json, path: Path, obj: Json, read: ReadText | None) -> Template | None:
    """Return a mapping as a template, or None if it is not a template.

    A top-level object is not a template, although it may resemble a pod: `spec.containers` of a
    Prometheus contains parts of containers, and its annotations do not reach the pods.
    """
    spec = value.get("spec")
    if type(spec) is dict:
        if path and is_object_list(spec.get("containers")):
            return Template(path, value)
        domain = spec.get("domain")
        if type(domain) is dict and type(domain.get("devices")) is dict:
            metadata = {"metadata": value.get("metadata")}
            return Template(path, metadata, Form.MACHINE)
    is_listed = len(path) > 1 and path[-2] == "templates" and type(path[-1]) is int
    return read_workflow_template(value, path, obj, read) if is_listed else None


_KSERVE_COMPONENTS: Final = ("predictor", "transformer", "explainer")
_IMPLEMENTATIONS: Final = (
    *("model", "huggingface", "lightgbm", "onnx", "paddle", "pmml", "pytorch", "sklearn"),
    *("tensorflow", "triton", "xgboost", "art"),
)
"""Fields that define a component's first container if the component has no `containers`."""
_WORKERS: Final = "workerSpec"
_LLM_KINDS: Final = ("LLMInferenceService", "LLMInferenceServiceConfig")
_NIM_CONTAINER: Final = frozenset({"args", "command", "env", "resources"})
_NIM_POD: Final = frozenset({"nodeSelector", "runtimeClassName", "schedulerName", "tolerations"})
_SPARK_PATHS: Final = {
    "SparkApplication": ("spec",),
    "ScheduledSparkApplication": ("spec", "template"),
}
"""Paths of the Spark components, keyed by kind."""
_SPARK_CONTAINERS: Final = {
    "driver": "spark-kubernetes-driver",
    "executor": "spark-kubernetes-executor",
}
"""Names of the first container, keyed by Spark component."""


def find_component_templates(obj: Json, kind: str, group: str) -> list[Template] | None:
    """Return the pods that KServe, NIM or Spark create from an object; None for other kinds."""
    if (kind, group) == ("InferenceService", "serving.kserve.io"):
        components = find_object(obj, "spec")
        return [
            _kserve_template(components[name], ("spec", name), find_object(obj, "metadata"))
            for name in _KSERVE_COMPONENTS
            if type(components.get(name)) is dict
        ]
    if group == "serving.kserve.io" and kind in _LLM_KINDS:
        return [
            _llm_template(find_object(obj, *path), path, name)
            for path in (("spec",), ("spec", "prefill"))
            for name in ("template", "worker")
            if is_object_list(find_object(obj, *path, name).get("containers"))
        ]
    if (kind, group) == ("NIMService", "apps.nvidia.com"):
        return [_nim_template(find_object(obj, "spec"), find_string(obj, "metadata", "name"))]
    if group == "sparkoperator.k8s.io" and kind in _SPARK_PATHS:
        path = _SPARK_PATHS[kind]
        application = find_object(obj, *path)
        return [
            _spark_template(application, role, path)
            for role in _SPARK_CONTAINERS
            if type(application.get(role)) is dict
        ]
    return None


def _own_metadata(component: Json) -> Json:
    return {key: component[key] for key in METADATA_FIELDS if component.get(key)}


def _kserve_template(component: Json, path: Path, common: Json) -> Template:
    places: dict[Path, Path] = {("metadata",): path, ("spec",): path}
    metadata = merge_metadata(_own_metadata(component), common, ("metadata",), places)
    spec, unjudged = {**component}, []
    if not is_object_list(component.get("containers")):
        one = next((key for key in _IMPLEMENTATIONS if type(component.get(key)) is dict), "")
        runtime = find_string(component, one, "runtime")
        # KServe's built-in runtime for this format runs vLLM.
        served = (one, find_string(component, one, "modelFormat", "name"))
        is_own = runtime in {"", "kserve-huggingfaceserver"} and "huggingface" in served
        image = {"image": "huggingfaceserver"} if is_own else {}
        spec["containers"] = [{**image, **find_object(component, one), "name": KSERVE_CONTAINER}]
        places["spec", "containers", 0] = (*path, one) if one else path
        if one:
            named = f"ServingRuntime {shorten(runtime, MAX_STRING_LENGTH)}"
            unjudged.append(
                UnjudgedField(
                    (*path, one), f"{named if runtime else 'a ServingRuntime'} adds to it"
                )
            )
    if type(component.get(_WORKERS)) is dict:
        unjudged.append(UnjudgedField((*path, _WORKERS), "its pods are further ones"))
    pod = {"metadata": metadata, "spec": spec}
    return Template(path, pod, Form.INLINE, places=places, unjudged=tuple(unjudged))


def _llm_template(workload: Json, above: Path, name: str) -> Template:
    path = (*above, name)
    pod = {"metadata": _own_metadata(workload), "spec": workload[name]}
    unjudged = (UnjudgedField(path, "an LLMInferenceServiceConfig adds to it"),)
    places: dict[Path, Path] = {("metadata",): above, ("spec",): path}
    return Template(path, pod, Form.INLINE, places=places, unjudged=unjudged)


def _nim_template(service: Json, name: str) -> Template:
    path: Path = ("spec",)
    image = f"{find_string(service, 'image', 'repository')}:{find_string(service, 'image', 'tag')}"
    own = {key: service[key] for key in service if key in _NIM_CONTAINER}
    container = {"name": f"{name}-ctr", "image": image, **own}
    spec = {key: service[key] for key in service if key in _NIM_POD}
    first = ("spec", "containers", 0)
    places: dict[Path, Path] = {("metadata",): path, ("spec",): path, first: path}
    pod = {"metadata": _own_metadata(service), "spec": {**spec, "containers": [container]}}
    return Template(path, pod, Form.INLINE, places=places)


def _spark_template(application: Json, role: str, above: Path) -> Template:
    component, name = application[role], _SPARK_CONTAINERS[role]
    conf = find_object(application, "sparkConf")
    path, conf_path = (*above, role), (*above, "sparkConf")
    first = ("spec", "containers", 0)
    places: dict[Path, Path] = {("metadata",): path, ("spec",): path, first: path}
    metadata = _own_metadata(component)
    for field in METADATA_FIELDS:
        begin = f"spark.kubernetes.{role}.{field.removesuffix('s')}."
        keys = {
            key.removeprefix(begin): item for key, item in conf.items() if key.startswith(begin)
        }
        metadata = merge_metadata(metadata, {field: keys} if keys else {}, (), {})
        for key in keys:
            places["metadata", field, key] = (*conf_path, begin + key)
    container = {**component, "name": name}
    for resource, amount, origin in _spark_gpus(component, conf, path, conf_path):
        limits = {"resources": {"limits": {resource: str(amount)}}}
        container = merge(container, limits, first, (), {}, wins=False)
        places[*first, "resources", "limits", resource] = origin
    sidecars = as_object_list(component.get("sidecars"))
    spec = {**component, "containers": [container, *sidecars]}
    for index, _ in enumerate(sidecars):
        places["spec", "containers", 1 + index] = (*path, "sidecars", index)
    for field, theirs in (
        ("securityContext", "podSecurityContext"),
        ("serviceAccountName", "serviceAccount"),
    ):
        spec.pop(field, None)
        if component.get(theirs) is not None:
            spec[field], places["spec", field] = component[theirs], (*path, theirs)
    add_mounted_volumes(spec, application.get("volumes"), (*above, "volumes"), places)
    common = {"nodeSelector": find_object(application, "nodeSelector")}
    spec = merge(spec, common, ("spec",), above, places, wins=False)
    pod = {"metadata": metadata, "spec": spec}
    template = component.get("template")
    if type(template) is dict:
        pod = merge(
            pod,
            _rename_first_container(template, name),
            (),
            (*path, "template"),
            places,
            wins=False,
        )
    key = f"spark.kubernetes.{role}.podTemplateFile"
    unjudged = (UnjudgedField((*conf_path, key), "it is a file"),) if conf.get(key) else ()
    return Template(path, pod, Form.INLINE, places=places, unjudged=unjudged)


def _spark_gpus(
    component: Json, conf: Json, path: Path, conf_path: Path
) -> Iterator[tuple[str, object, Path]]:
    begin = f"spark.{path[-1]}.resource.gpu."
    amount, vendor = conf.get(f"{begin}amount"), conf.get(f"{begin}vendor")
    if amount and type(vendor) is str:
        yield f"{vendor}/gpu", amount, (*conf_path, f"{begin}amount")
    gpu = find_object(component, "gpu")
    if type(gpu.get("name")) is str:
        yield gpu["name"], gpu.get("quantity"), (*path, "gpu")


def _rename_first_container(template: Json, name: str) -> Json:
    containers = as_object_list(find_object(template, "spec").get("containers"))
    if not containers:
        return template
    named = [{**containers[0], "name": name}, *containers[1:]]
    return {**template, "spec": {**template["spec"], "containers": named}}
