"""Pods that an object describes by fields of its own kind: those of KServe, NIM and Spark.

A SparkApplication's `sparkConf` names annotations, labels and GPUs of its pods as well, and its
`volumes` and `nodeSelector` are of both. What KServe takes from a ServingRuntime of the cluster,
and Spark from a file, is not judged.

Sources: kserve/kserve pkg/controller/v1beta1/inferenceservice/components (`Reconcile`),
pkg/controller/v1alpha2/llmisvc (`propagateDeploymentMetadata`: of its own metadata pods get no key
of ours); NVIDIA/k8s-nim-operator api/apps/v1alpha1/nimservice_types.go (`GetDeploymentParams`);
kubeflow/spark-operator api/v1beta2 (SparkPodSpec), internal/webhook/sparkpod_defaulter.go; Spark's
"Running on Kubernetes" (spark.kubernetes.*, and `resource.gpu.vendor`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from webhook.core.bounds import LONGEST_STORED
from webhook.core.formatting import shorten
from webhook.core.pod.fields import Json, part, text_of
from webhook.core.pod.merging import add_mounted_volumes, merge, merge_metadata
from webhook.core.pod.shapes import (
    METADATA_FIELDS,
    Form,
    Path,
    Template,
    Unjudged,
    are_objects,
    objects_in,
)

KSERVE_CONTAINER: Final = "kserve-container"
"""Name of the first container of a component of KServe."""
_KSERVE_COMPONENTS: Final = ("predictor", "transformer", "explainer")
_IMPLEMENTATIONS: Final = (
    *("model", "huggingface", "lightgbm", "onnx", "paddle", "pmml", "pytorch", "sklearn"),
    *("tensorflow", "triton", "xgboost", "art"),
)
"""Fields of a component that are its first container if it has no `containers`."""
_WORKERS: Final = "workerSpec"
_LLM_KINDS: Final = ("LLMInferenceService", "LLMInferenceServiceConfig")
_NIM_CONTAINER: Final = frozenset({"args", "command", "env", "resources"})
_NIM_POD: Final = frozenset({"nodeSelector", "runtimeClassName", "schedulerName", "tolerations"})
_SPARK_PATHS: Final = {
    "SparkApplication": ("spec",),
    "ScheduledSparkApplication": ("spec", "template"),
}
"""Path of the components in each kind of Spark's operator."""
_SPARK_CONTAINERS: Final = {
    "driver": "spark-kubernetes-driver",
    "executor": "spark-kubernetes-executor",
}
"""Name of the first container of each component of Spark."""


def of_components(obj: Json, kind: str, group: str) -> list[Template] | None:
    """Return the pods that an object describes by fields of its own kind; None for other kinds."""
    if (kind, group) == ("InferenceService", "serving.kserve.io"):
        components = part(obj, "spec")
        return [
            _of_kserve(components[name], ("spec", name), part(obj, "metadata"))
            for name in _KSERVE_COMPONENTS
            if type(components.get(name)) is dict
        ]
    if group == "serving.kserve.io" and kind in _LLM_KINDS:
        return [
            _of_llm(part(obj, *path), path, name)
            for path in (("spec",), ("spec", "prefill"))
            for name in ("template", "worker")
            if are_objects(part(obj, *path, name).get("containers"))
        ]
    if (kind, group) == ("NIMService", "apps.nvidia.com"):
        return [_of_nim(part(obj, "spec"), text_of(obj, "metadata", "name"))]
    if group == "sparkoperator.k8s.io" and kind in _SPARK_PATHS:
        path = _SPARK_PATHS[kind]
        application = part(obj, *path)
        return [
            _of_spark(application, role, path)
            for role in _SPARK_CONTAINERS
            if type(application.get(role)) is dict
        ]
    return None


def _own_metadata(component: Json) -> Json:
    return {key: component[key] for key in METADATA_FIELDS if component.get(key)}


def _of_kserve(component: Json, path: Path, common: Json) -> Template:
    places: dict[Path, Path] = {("metadata",): path, ("spec",): path}
    metadata = merge_metadata(_own_metadata(component), common, ("metadata",), places)
    spec, unjudged = {**component}, []
    if not are_objects(component.get("containers")):
        one = next((key for key in _IMPLEMENTATIONS if type(component.get(key)) is dict), "")
        runtime = text_of(component, one, "runtime")
        # KServe's own runtime for the format runs vLLM.
        served = (one, text_of(component, one, "modelFormat", "name"))
        is_own = runtime in {"", "kserve-huggingfaceserver"} and "huggingface" in served
        image = {"image": "huggingfaceserver"} if is_own else {}
        spec["containers"] = [{**image, **part(component, one), "name": KSERVE_CONTAINER}]
        places["spec", "containers", 0] = (*path, one) if one else path
        if one:
            named = f"ServingRuntime {shorten(runtime, LONGEST_STORED)}"
            unjudged.append(
                Unjudged((*path, one), f"{named if runtime else 'a ServingRuntime'} adds to it")
            )
    if type(component.get(_WORKERS)) is dict:
        unjudged.append(Unjudged((*path, _WORKERS), "its pods are further ones"))
    pod = {"metadata": metadata, "spec": spec}
    return Template(path, pod, Form.INLINE, places=places, unjudged=tuple(unjudged))


def _of_llm(workload: Json, above: Path, name: str) -> Template:
    path = (*above, name)
    pod = {"metadata": _own_metadata(workload), "spec": workload[name]}
    unjudged = (Unjudged(path, "an LLMInferenceServiceConfig adds to it"),)
    places: dict[Path, Path] = {("metadata",): above, ("spec",): path}
    return Template(path, pod, Form.INLINE, places=places, unjudged=unjudged)


def _of_nim(service: Json, name: str) -> Template:
    path: Path = ("spec",)
    image = f"{text_of(service, 'image', 'repository')}:{text_of(service, 'image', 'tag')}"
    own = {key: service[key] for key in service if key in _NIM_CONTAINER}
    container = {"name": f"{name}-ctr", "image": image, **own}
    spec = {key: service[key] for key in service if key in _NIM_POD}
    first = ("spec", "containers", 0)
    places: dict[Path, Path] = {("metadata",): path, ("spec",): path, first: path}
    pod = {"metadata": _own_metadata(service), "spec": {**spec, "containers": [container]}}
    return Template(path, pod, Form.INLINE, places=places)


def _of_spark(application: Json, role: str, above: Path) -> Template:
    component, name = application[role], _SPARK_CONTAINERS[role]
    conf = part(application, "sparkConf")
    path, conf_path = (*above, role), (*above, "sparkConf")
    first = ("spec", "containers", 0)
    places: dict[Path, Path] = {("metadata",): path, ("spec",): path, first: path}
    metadata = _own_metadata(component)
    for field in METADATA_FIELDS:
        begin = f"spark.kubernetes.{role}.{field.removesuffix('s')}."
        keys = {key.removeprefix(begin): one for key, one in conf.items() if key.startswith(begin)}
        metadata = merge_metadata(metadata, {field: keys} if keys else {}, (), {})
        for key in keys:
            places["metadata", field, key] = (*conf_path, begin + key)
    container = {**component, "name": name}
    for resource, amount, origin in _gpus(component, conf, path, conf_path):
        limits = {"resources": {"limits": {resource: str(amount)}}}
        container = merge(container, limits, first, (), {}, wins=False)
        places[*first, "resources", "limits", resource] = origin
    sidecars = objects_in(component.get("sidecars"))
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
    common = {"nodeSelector": part(application, "nodeSelector")}
    spec = merge(spec, common, ("spec",), above, places, wins=False)
    pod = {"metadata": metadata, "spec": spec}
    template = component.get("template")
    if type(template) is dict:
        pod = merge(pod, _named(template, name), (), (*path, "template"), places, wins=False)
    key = f"spark.kubernetes.{role}.podTemplateFile"
    unjudged = (Unjudged((*conf_path, key), "it is a file"),) if conf.get(key) else ()
    return Template(path, pod, Form.INLINE, places=places, unjudged=unjudged)


def _gpus(
    component: Json, conf: Json, path: Path, conf_path: Path
) -> Iterator[tuple[str, object, Path]]:
    """Yield each resource for GPUs that a component gets, its amount, and its path."""
    begin = f"spark.{path[-1]}.resource.gpu."
    amount, vendor = conf.get(f"{begin}amount"), conf.get(f"{begin}vendor")
    if amount and type(vendor) is str:
        yield f"{vendor}/gpu", amount, (*conf_path, f"{begin}amount")
    gpu = part(component, "gpu")
    if type(gpu.get("name")) is str:
        yield gpu["name"], gpu.get("quantity"), (*path, "gpu")


def _named(template: Json, name: str) -> Json:
    """Return a pod template whose first container has the name that Spark gives it."""
    containers = objects_in(part(template, "spec").get("containers"))
    if not containers:
        return template
    named = [{**containers[0], "name": name}, *containers[1:]]
    return {**template, "spec": {**template["spec"], "containers": named}}
