"""Pods that an object describes by fields of its own kind: KServe's and Spark's components.

A SparkApplication's `sparkConf` names annotations, labels and GPUs of its pods as well, and its
`volumes` and `nodeSelector` are of both. What KServe takes from a ServingRuntime of the cluster,
and Spark from a file, is not judged.

Sources: kserve/kserve pkg/controller/v1beta1/inferenceservice/components (`Reconcile`);
kubeflow/spark-operator api/v1beta2 (SparkPodSpec), internal/webhook/sparkpod_defaulter.go; Spark's
"Running on Kubernetes" (spark.kubernetes.*, and `resource.gpu.vendor`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from webhook.core.bounds import LONGEST_STORED
from webhook.core.pod.fields import as_objects, part, text_of
from webhook.core.pod.merging import merge
from webhook.core.pod.shapes import (
    Form,
    Template,
    Unjudged,
    are_objects,
    merged,
    objects_in,
    places_above,
)
from webhook.core.words import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from webhook.core.pod.fields import Json
    from webhook.core.pod.shapes import Path


class Inline(NamedTuple):
    """Where a kind has parts of its pods, and whether they get its own metadata as well."""

    path: tuple[str, ...]
    components: Mapping[str, str]
    """The fields below the path, each with the name of its first container."""
    gets_metadata: bool
    implementations: tuple[str, ...]
    """Fields of a component that are its first container, where no `containers` stand."""


_KSERVE: Final = "kserve-container"
_WORKERS: Final = "workerSpec"
_TEMPLATE_FILE: Final = "podTemplateFile"
_SPARK: Final = {"driver": "spark-kubernetes-driver", "executor": "spark-kubernetes-executor"}
INLINE: Final = {
    ("InferenceService", "serving.kserve.io"): Inline(
        ("spec",),
        dict.fromkeys(("predictor", "transformer", "explainer"), _KSERVE),
        gets_metadata=True,
        implementations=(
            *("model", "huggingface", "lightgbm", "onnx", "paddle", "pmml", "pytorch", "sklearn"),
            *("tensorflow", "triton", "xgboost", "art"),
        ),
    ),
    ("SparkApplication", "sparkoperator.k8s.io"): Inline(("spec",), _SPARK, False, ()),
    ("ScheduledSparkApplication", "sparkoperator.k8s.io"): Inline(
        ("spec", "template"), _SPARK, False, ()
    ),
}


def of_components(obj: Json, inline: Inline) -> list[Template]:
    """Return the pods that an object describes by fields of its own kind, with their metadata."""
    above, found = part(obj, *inline.path), []
    for field, name in inline.components.items():
        component: Any = above.get(field)
        if type(component) is not dict:
            continue
        path = (*inline.path, field)
        if inline.implementations:
            found.append(_of_kserve(component, path, name, part(obj, "metadata"), inline))
        else:
            found.append(_of_spark(component, path, name, above))
    return found


def _of_kserve(component: Json, path: Path, name: str, common: Json, inline: Inline) -> Template:
    own = {key: component[key] for key in ("annotations", "labels") if component.get(key)}
    metadata = merged(common, own)
    kept = {key: metadata[key] for key in ("annotations", "labels") if key in metadata}
    places = [*places_above(common, own, ("metadata",)), (("metadata",), path)]
    containers: Any = component.get("containers")
    unjudged = []
    if not are_objects(containers):
        one = next((key for key in inline.implementations if type(component.get(key)) is dict), "")
        containers = [{**(component[one] if one else {}), "name": name}]
        places.append((("spec", "containers", 0), (*path, one) if one else path))
        if one:
            runtime = text_of(component, one, "runtime")
            named = f"ServingRuntime {shortened(runtime, LONGEST_STORED)}"
            unjudged.append(
                Unjudged((*path, one), f"{named if runtime else 'a ServingRuntime'} adds to it")
            )
    elif containers[0].get("name") is None:
        containers = [{**containers[0], "name": name}, *containers[1:]]
    if type(component.get(_WORKERS)) is dict:
        unjudged.append(Unjudged((*path, _WORKERS), "its pods are further ones"))
    places.append((("spec",), path))
    pod = {"metadata": kept, "spec": {**component, "containers": containers}}
    return Template(path, pod, Form.INLINE, places=tuple(places), unjudged=tuple(unjudged))


def _of_spark(component: Json, path: Path, name: str, above: Json) -> Template:
    role, conf_path = str(path[-1]), (*path[:-1], "sparkConf")
    conf = part(above, "sparkConf")
    places: dict[Path, Path] = {("metadata",): path, ("spec", "containers", 0): path}
    metadata: Json = {
        key: component[key] for key in ("annotations", "labels") if component.get(key)
    }
    spec = {**component, "containers": [{**component, "name": name}]}
    spec["containers"] += objects_in(component.get("sidecars"))
    for index, _ in enumerate(spec["containers"][1:]):
        places["spec", "containers", 1 + index] = (*path, "sidecars", index)
    for field, theirs in (
        ("securityContext", "podSecurityContext"),
        ("serviceAccountName", "serviceAccount"),
    ):
        spec.pop(field, None)
        if component.get(theirs) is not None:
            spec[field], places["spec", field] = component[theirs], (*path, theirs)
    mounted = {str(one.get("name")) for one in as_objects(component.get("volumeMounts"))}
    volumes = [
        (index, one)
        for index, one in enumerate(objects_in(above.get("volumes")))
        if str(one.get("name")) in mounted
    ]
    if volumes:
        spec["volumes"] = [one for _, one in volumes]
    for at, (index, _) in enumerate(volumes):
        places["spec", "volumes", at] = (*path[:-1], "volumes", index)
    pod: Json = {"metadata": metadata, "spec": spec}
    common = {"spec": {"nodeSelector": part(above, "nodeSelector")}}
    pod = merge(pod, common, (), path[:-1], places, wins=False)
    for own in (
        *_of_conf(conf, role, name, conf_path, places),
        *_of_gpu(component, name, path, places),
    ):
        pod = merge(pod, own, (), conf_path, {}, wins=False)
    template = component.get("template")
    if type(template) is dict:
        pod = merge(pod, _named(template, name), (), (*path, "template"), places, wins=False)
    key = f"spark.kubernetes.{role}.{_TEMPLATE_FILE}"
    unjudged = (Unjudged((*conf_path, key), "it is a file"),) if conf.get(key) else ()
    found = (*sorted(places.items(), key=lambda one: -len(one[0])), (("spec",), path))
    return Template(path, pod, Form.INLINE, places=found, unjudged=unjudged)


def _of_conf(
    conf: Json, role: str, name: str, conf_path: Path, places: dict[Path, Path]
) -> Iterator[Json]:
    """Yield the parts of a pod that properties of Spark's configuration give it."""
    for field in ("annotations", "labels"):
        begin = f"spark.kubernetes.{role}.{field.removesuffix('s')}."
        keys = {
            key.removeprefix(begin): value for key, value in conf.items() if key.startswith(begin)
        }
        for key in keys:
            places["metadata", field, key] = (*conf_path, begin + key)
        if keys:
            yield {"metadata": {field: keys}}
    begin = f"spark.{role}.resource.gpu."
    amount, vendor = conf.get(f"{begin}amount"), conf.get(f"{begin}vendor")
    if amount and type(vendor) is str:
        yield _limit(name, f"{vendor}/gpu", amount, (*conf_path, f"{begin}amount"), places)


def _of_gpu(component: Json, name: str, path: Path, places: dict[Path, Path]) -> Iterator[Json]:
    """Yield the GPUs that Spark's operator adds to a container."""
    gpu = component.get("gpu")
    if type(gpu) is dict and type(gpu.get("name")) is str:
        yield _limit(name, gpu["name"], gpu.get("quantity"), (*path, "gpu"), places)


def _limit(
    container: str, resource: str, amount: object, origin: Path, places: dict[Path, Path]
) -> Json:
    places["spec", "containers", 0, "resources", "limits", resource] = origin
    limits = {"limits": {resource: str(amount)}}
    return {"spec": {"containers": [{"name": container, "resources": limits}]}}


def _named(template: Json, name: str) -> Json:
    """Return a pod template whose first container has the name that Spark gives it."""
    containers = objects_in(part(template, "spec").get("containers"))
    if not containers:
        return template
    named = [{**containers[0], "name": name}, *containers[1:]]
    return {**template, "spec": {**template["spec"], "containers": named}}
