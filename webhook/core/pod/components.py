"""Pods that an object describes by fields of its own kind: KServe's and Spark's components.

Sources: kserve/kserve pkg/controller/v1beta1/inferenceservice/components (`Reconcile`);
kubeflow/spark-operator api/v1beta2 (SparkPodSpec).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from webhook.core.pod.fields import part
from webhook.core.pod.shapes import Form, Template, are_objects, merged, objects_in, places_above

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        if type(component) is dict:
            common = part(obj, "metadata") if inline.gets_metadata else {}
            found.append(_of_component(component, (*inline.path, field), name, common, inline))
    return found


def _of_component(component: Json, path: Path, name: str, common: Json, inline: Inline) -> Template:
    own = {key: component[key] for key in ("annotations", "labels") if component.get(key)}
    metadata = merged(common, own)
    kept = {key: metadata[key] for key in ("annotations", "labels") if key in metadata}
    places = [*places_above(common, own, ("metadata",)), (("metadata",), path)]
    containers: Any = component.get("containers")
    if not are_objects(containers):
        one = next((key for key in inline.implementations if type(component.get(key)) is dict), "")
        first: Json = component[one] if one else {} if inline.implementations else component
        containers = [{**first, "name": name, **_gpu_of_spark(component)}]
        places.append((("spec", "containers", 0), (*path, one) if one else path))
        containers += objects_in(component.get("sidecars"))
    elif containers[0].get("name") is None:
        containers = [{**containers[0], "name": name}, *containers[1:]]
    places.append((("spec",), path))
    pod = {"metadata": kept, "spec": {**component, "containers": containers}}
    return Template(path, pod, Form.INLINE, places=tuple(places))


def _gpu_of_spark(component: Json) -> Json:
    """Return the GPUs that Spark's operator adds to a container."""
    gpu = component.get("gpu")
    if type(gpu) is not dict or type(gpu.get("name")) is not str:
        return {}
    return {"resources": {"limits": {gpu["name"]: str(gpu.get("quantity"))}}}
