"""A managed pod as a user sees it: what its metadata says, and a word of its status."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from webhook.core.kinds.nodes import read_time
from webhook.core.kinds.workloads import workload_of
from webhook.core.placement.pods import counted_need, named_gpus
from webhook.core.pod.findings import MalformedObjectError
from webhook.core.pod.lenient import as_object
from webhook.core.pod.quantity import QuantityError, parse_vram
from webhook.core.pod.views import annotations_of, labels_of, read_pod
from webhook.names import (
    GPU_ANNOTATION,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    GPU_WAITS_ANNOTATION,
    MANAGED_LABEL,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.core.pod.fields import Json

_LONGEST: Final = 300
"""Characters of a sentence that somebody wrote into a pod."""
_LONGEST_COUNT: Final = 4


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod that the user may list."""

    uid: str
    namespace: str
    name: str
    status: str = ""
    """As `kubectl get pods` says it: `Running`, `Pending`, `Init:0/1`, `Terminating`."""
    node: str = ""
    """Empty while it is bound to none."""
    created_s: float | None = None
    """Unix time."""
    gpus: tuple[str, ...] = ()
    """UUIDs, by its annotation `gpu`."""
    asked_bytes: int | None = None
    """Per GPU; None where its metadata alone does not say it."""
    gpu_count: int = 1
    waits: str = ""
    """Why it is bound and has no GPU yet: its annotation `gpu-waits`."""
    unscheduled: str = ""
    """What the scheduler says of it."""
    managed: bool = True
    kind: str = ""
    """Of its workload, such as `Deployment`."""
    workload: str = ""


def seen_pod(metadata: Mapping[str, Any], status: str = "", node: str = "") -> SeenPod | None:
    """Return what a pod's metadata says; None where it is none.

    Its annotations are its owner's, and are shown, never counted. Of `gpu-memory` one quantity is
    read: what a list by container comes to depends on the containers.
    """
    raw: Json = {"metadata": metadata}
    uid, namespace, name = (metadata.get(key) for key in ("uid", "namespace", "name"))
    if not (isinstance(uid, str) and isinstance(namespace, str) and isinstance(name, str)):
        return None
    try:
        annotations, labels = annotations_of(raw), labels_of(raw)
    except MalformedObjectError:
        annotations, labels = {}, {}
    workload = workload_of(metadata)
    return SeenPod(
        uid,
        namespace,
        name,
        status,
        node,
        read_time(metadata.get("creationTimestamp")),
        _gpus(annotations),
        _asked(annotations.get(GPU_MEMORY_ANNOTATION, "")),
        _count(annotations.get(GPU_COUNT_ANNOTATION, "")),
        annotations.get(GPU_WAITS_ANNOTATION, "")[:_LONGEST],
        managed=labels.get(MANAGED_LABEL) == "true",
        kind=workload.kind,
        workload=workload.name,
    )


def seen_whole(raw: Json) -> SeenPod | None:
    """Return what a whole pod says: exactly what it asks for, and what the scheduler says of it."""
    metadata, spec, status = (as_object(raw.get(key)) for key in ("metadata", "spec", "status"))
    phase, node = status.get("phase"), spec.get("nodeName")
    said = "Terminating" if metadata.get("deletionTimestamp") else phase
    seen = seen_pod(
        metadata, said if isinstance(said, str) else "", node if isinstance(node, str) else ""
    )
    if seen is None:
        return None
    try:
        need, _ = counted_need(read_pod(raw))
    except MalformedObjectError:
        need = None
    if need is not None:
        seen = replace(seen, asked_bytes=need.memory_bytes, gpu_count=need.gpu_count)
    return replace(seen, unscheduled=_unscheduled(status))


def _unscheduled(status: Mapping[str, Any]) -> str:
    conditions = status.get("conditions")
    for one in conditions if isinstance(conditions, list) else []:
        condition = as_object(one)
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "")[:_LONGEST]
    return ""


def _gpus(annotations: Mapping[str, str]) -> tuple[str, ...]:
    if GPU_ANNOTATION not in annotations:
        return ()
    return named_gpus(read_pod({"metadata": {"annotations": dict(annotations)}, "spec": {}}))


def _asked(written: str) -> int | None:
    try:
        return parse_vram(written)
    except QuantityError:
        return None


def _count(written: str) -> int:
    good = written.isascii() and written.isdecimal() and len(written) <= _LONGEST_COUNT
    return max(1, int(written)) if good else 1
