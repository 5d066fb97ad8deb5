"""Pods that are denied because they are too large to be judged.

Other users' pods are never denied for their size. Each function makes one cheap pass, since its
input has no size limit. All functions raise MalformedObjectError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from webhook.core.nvidia.injection import find_device_mounts, read_injections
from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV, hides_gpus
from webhook.core.pod.demand import requests_vram
from webhook.core.pod.fields import Json, get_object, get_objects, get_string, get_string_map
from webhook.core.pod.request import Request
from webhook.core.policy.model import Rule, VisibleDevices
from webhook.names import ENFORCER_CONTAINER, MANAGED_LABEL, OUR_ANNOTATIONS, OUR_VOLUMES

_RUN: Final = ("containers", "initContainers")
_DEBUG: Final = ("ephemeralContainers",)


def has_unjudgeable_parts(request: Request, rule: Rule) -> bool:
    """Return True if a request must be judged although its pod is too large.

    | request | content that needs it |
    | --- | --- |
    | CREATE | a demand, our marks and names; what shows a GPU, unless visibleDevices is Ignore |
    | UPDATE | our marks, annotations that show GPUs; with a demand containers, pod-level amounts |
    | UPDATE of debugging containers | with a demand any new one, else those that show a GPU |
    """
    new, old = request.obj, request.old
    devices = rule.visible_devices is not VisibleDevices.IGNORE
    if request.operation == "CREATE":
        return (
            requests_vram(new)
            or any(mark is not None for mark in _marks(new))
            or _has_our_volumes(new)
            or (devices and _is_injected(new, {}))
            or any(
                _shows_gpus_or_is_reserved(container, devices=devices)
                for container in _containers(new, _RUN)
            )
        )
    if request.subresource == "ephemeralcontainers":
        existing = set(map(_name, _containers(old, _DEBUG)))
        added = (
            container for container in _containers(new, _DEBUG) if _name(container) not in existing
        )
        managed = is_managed(old)
        return any(
            managed or _shows_gpus_or_is_reserved(container, devices=devices) for container in added
        )
    if _marks(new) != _marks(old):
        return True
    if devices and _is_injected(new, _annotations(old)):
        return True
    same = all(_spec(new).get(field) == _spec(old).get(field) for field in (*_RUN, "resources"))
    return not same and (requests_vram(new) or requests_vram(old))


def is_managed(pod: Json) -> bool:
    """Return True if a stored pod has a demand, or the label of managed pods."""
    labels = get_object(_metadata(pod), "labels", "metadata")
    return labels.get(MANAGED_LABEL) == "true" or requests_vram(pod)


def _marks(pod: Json) -> tuple[str | None, ...]:
    labels, annotations = get_object(_metadata(pod), "labels", "metadata"), _annotations(pod)
    return (labels.get(MANAGED_LABEL), *(annotations.get(key) for key in OUR_ANNOTATIONS))


def _has_our_volumes(pod: Json) -> bool:
    return any(
        volume.get("name") in OUR_VOLUMES for volume in get_objects(_spec(pod), "volumes", "spec")
    )


def _shows_gpus_or_is_reserved(container: Json, *, devices: bool) -> bool:
    """Return True if the rules judge a container in a pod without a demand."""
    path = "spec.containers[*]"
    if container.get("name") == ENFORCER_CONTAINER:
        return True
    mounts = get_objects(container, "volumeMounts", path)
    if mounts and [mount for mount in mounts if mount.get("name") in OUR_VOLUMES]:
        return True
    if not devices:
        return False
    chosen = [
        entry
        for entry in get_objects(container, "env", path)
        if entry.get("name") == VISIBLE_DEVICES_ENV
    ]
    has_device_mount = next(find_device_mounts(mounts), None) is not None
    return has_device_mount or not all(map(hides_gpus, chosen))


def _is_injected(pod: Json, before: Mapping[str, str]) -> bool:
    return any(named.shows_gpus for _, named in read_injections(_annotations(pod), before))


def _name(container: Json) -> str:
    return get_string(container, "name", "spec.ephemeralContainers[*]")


def _containers(pod: Json, fields: tuple[str, ...]) -> Iterator[Json]:
    spec = _spec(pod)
    return (container for field in fields for container in get_objects(spec, field, "spec"))


def _annotations(pod: Json) -> Mapping[str, str]:
    return get_string_map(_metadata(pod), "annotations", "metadata")


def _metadata(pod: Json) -> Mapping[str, Any]:
    return get_object(pod, "metadata", "")


def _spec(pod: Json) -> Mapping[str, Any]:
    return get_object(pod, "spec", "")
