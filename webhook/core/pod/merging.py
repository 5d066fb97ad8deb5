"""Kubernetes' strategic merge of parts of a pod, with the place of each part in its object.

Lists with a merge key are merged by it, others are replaced whole. New items come last, where
Kubernetes may put them first: their order decides nothing that is judged.

Source: the tags `patchStrategy` and `patchMergeKey` in k8s.io/api/core/v1 (PodSpec, Container).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from webhook.core.pod.fields import Json, as_objects
from webhook.core.pod.shapes import CONTAINER_FIELDS, METADATA_FIELDS, Path, are_objects

_MERGE_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("containers", "initContainers", "sidecars", "volumes", "env"), "name"),
    **dict.fromkeys(("imagePullSecrets", "resourceClaims"), "name"),
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}


class DirectiveError(ValueError):
    """A patch holds a directive, such as `$patch: delete`."""


def merge(
    value: Any, other: Any, at: Path, origin: Path, places: dict[Path, Path], *, wins: bool
) -> Any:
    """Return a value with another merged into it, as a patch if it `wins`, else as defaults.

    The value's own path is `at`, the other's in the object is `origin`. What is taken from the
    other gets its place there in `places`. Raises DirectiveError.
    """
    if type(value) is dict and type(other) is dict:
        both = {**value}
        for key, one in other.items():
            if wins and str(key).startswith("$"):
                raise DirectiveError(key)
            here, there = (*at, key), (*origin, key)
            if wins and one is None:
                both.pop(key, None)
            elif both.get(key) is not None:
                both[key] = merge(both[key], one, here, there, places, wins=wins)
            elif one is not None:
                both[key], places[here] = one, there
        return both
    key = _MERGE_KEYS.get(str(at[-1])) if at else None
    if key and are_objects(value) and are_objects(other):
        items = [*value]
        found = {str(one.get(key)): index for index, one in enumerate(items)}
        for index, one in enumerate(other):
            there = (*origin, index)
            mine = found.get(str(one.get(key)))
            if mine is None:
                places[*at, len(items)] = there
                items.append(one)
            else:
                items[mine] = merge(items[mine], one, (*at, mine), there, places, wins=wins)
        return items
    if not wins or value == other:
        return value
    places[at] = origin
    return other


def merge_metadata(own: Any, common: Json, origin: Path, places: dict[Path, Path]) -> Any:
    """Return a pod's own metadata with the annotations and labels of other metadata added.

    The other metadata is at `origin`. Each key that is added gets its place there in `places`.
    """
    added = {key: common[key] for key in METADATA_FIELDS if type(common.get(key)) is dict}
    if type(own) is dict:
        # A place for each key, and none for a whole field.
        own = {**{key: {} for key in added}, **own}
    return merge(own, added, ("metadata",), origin, places, wins=False)


def add_mounted_volumes(spec: Json, volumes: Any, origin: Path, places: dict[Path, Path]) -> None:
    """Add the volumes of a list at `origin` that a pod's containers mount and that it lacks."""
    own = spec.get("volumes") or []
    if type(own) is not list:
        return
    mounted = {
        str(mount.get("name"))
        for field in CONTAINER_FIELDS
        for container in as_objects(spec.get(field))
        for mount in as_objects(container.get("volumeMounts"))
    }
    missing = mounted - {str(one.get("name")) for one in as_objects(own)}
    for index, one in enumerate(volumes if are_objects(volumes) else ()):
        if str(one.get("name")) in missing:
            places["spec", "volumes", len(own)] = (*origin, index)
            own = spec["volumes"] = [*own, one]
