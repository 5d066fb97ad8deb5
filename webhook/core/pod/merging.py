"""Kubernetes' strategic merge of parts of a pod, with the place of each part in its object.

Lists with a merge key are merged by it, others are replaced whole. New items come last, where
Kubernetes may put them first: their order decides nothing that is judged.

Source: the tags `patchStrategy` and `patchMergeKey` in k8s.io/api/core/v1 (PodSpec, Container).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from webhook.core.pod.shapes import are_objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.core.pod.shapes import Path

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
