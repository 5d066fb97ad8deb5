"""Pod templates: paths of their parts in the object, traversal of an object, and merging.

`merge` is Kubernetes' strategic merge of parts of a pod. The path of each part in the object is
kept. Lists with a merge key are merged by this key; other lists are replaced. New items come last,
while Kubernetes may put them first. Their order does not affect decisions.

Source: the tags `patchStrategy` and `patchMergeKey` in k8s.io/api/core/v1 (PodSpec, Container).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from webhook.core.bounds import MAX_TEMPLATE_DEPTH, MAX_VALUES
from webhook.core.pod.fields import Json, as_objects

Path = tuple[str | int, ...]

CONTAINER_FIELDS: Final = ("containers", "initContainers")
METADATA_FIELDS: Final = ("annotations", "labels")
_HOLD_KEYS: Final = frozenset({"annotations", "labels", "limits", "nodeSelector", "requests"})
"""Fields whose keys are names chosen by users, not field names."""
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_POD_PATH: Final = re.compile(r"(?:metadata|spec)(?![^.\[])[^ ]*")
_FIELD_TO_WRITE: Final = re.compile(r"(?<= under )metadata\.[a-z]+(?=; )")
_KUBELET_REFERENCE: Final = re.compile(r"\$\((VRAMWARDEN_[A-Z_]+)\)")
_PART: Final = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")


class TooMuchToSearchError(ValueError):
    """An object is too large to be searched. The message names the cause and the remedy."""


class Form(Enum):
    """Form of a template. Decides whether the template can be translated."""

    POD = auto()
    """`metadata` and `spec` as in a pod: can be translated in place."""
    CONTAINER = auto()
    """One container from which a pod is created: cannot be translated."""
    INLINE = auto()
    """Parts of a pod among other fields of the kind: cannot be translated."""
    MACHINE = auto()
    """Virtual machine whose pod another controller creates."""
    ELSEWHERE = auto()
    """vramwarden keys without a template. Another controller may create pods from them."""


class UnjudgedField(NamedTuple):
    """Field whose effect on the pods cannot be judged."""

    path: Path
    why: str


@dataclass(frozen=True, slots=True)
class Template:
    """Pod, or template from which pods are created."""

    path: Path
    """Path in the object; empty for a pod."""
    pod: Json | None
    """`metadata` and `spec` of the pods; None if the template is missing."""
    form: Form = Form.POD
    places: Mapping[Path, Path] = field(default_factory=dict)
    """Paths in the object of parts outside of the template's path, keyed by path in the pod.

    The longest matching path wins.
    """
    unjudged: tuple[UnjudgedField, ...] = ()

    def place(self, path: Path) -> Path:
        """Return the path in the object of a field of the pod."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return (*self.places[path[:length]], *path[length:])
        return (*self.path, *path)

    def shown(self, field: str) -> str:
        """Return a pod field's path in the object. Both paths have the form used in messages."""
        return format_path(self.place(parse_path(field)))

    def shown_text(self, text: str) -> str:
        """Return a message about the pod with its leading path replaced by the object's path."""
        path, colon, rest = text.partition(": ")
        is_path = bool(_POD_PATH.fullmatch(path))
        rest = _FIELD_TO_WRITE.sub(lambda found: self.shown(found[0]), rest)
        if path.endswith(".source"):  # a script: only its shell replaces variables
            rest = _KUBELET_REFERENCE.sub(r"$\1", rest)
        return f"{self.shown(path)}{colon}{rest}" if is_path else text

    @property
    def metadata_path(self) -> Path | None:
        """Path of the object with the pod's metadata, if its spec is elsewhere; otherwise None."""
        at = self.place(("metadata",))[:-1]
        return None if self.form is not Form.POD or at == self.path else at

    def named(self, owner: str) -> Json:
        """Return the pod that the API server would receive: this pod or a pod from the template.

        `owner` is the name of the object with the template.
        """
        template = self.pod or {}
        if not self.path:
            return template
        metadata = template.get("metadata")
        if metadata is None or type(metadata) is dict:
            metadata = {"generateName": f"{owner}-", **(metadata or {})}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        return {**pod, "spec": template["spec"]} if "spec" in template else pod

    @property
    def field(self) -> str:
        """Path in the form used in messages: `spec.workerGroupSpecs[0].template`."""
        return format_path(self.path)


def visit_values(obj: Json, enter: Callable[[Any, Path], bool]) -> None:
    """Call `enter` for an object's maps and lists in order; descend if it returns True.

    Uses an explicit stack, so that deep nesting cannot exhaust Python's stack. Raises
    TooMuchToSearchError.
    """
    values_read = 0
    left: list[tuple[Any, Path]] = [(obj, ())]
    while left:
        value, path = left.pop()
        if not enter(value, path):
            continue
        if len(path) >= MAX_TEMPLATE_DEPTH:
            raise TooMuchToSearchError(
                f"nests more than {MAX_TEMPLATE_DEPTH} levels deep; flatten it"
            )
        values_read += len(value)
        if values_read > MAX_VALUES:
            raise TooMuchToSearchError(f"holds more than {MAX_VALUES:,} values; split it")
        inside = [
            (item, (*path, key)) for key, item in iterate_items(value) if type(item) in {dict, list}
        ]
        left += [(item, at) for item, at in reversed(inside) if item]


def iterate_items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a map by key, or of a list by index."""
    return value.items() if type(value) is dict else enumerate(value)


def value_at(obj: Json, path: Path) -> Any:
    """Return the value at a path that exists."""
    value: Any = obj
    for key in path:
        value = value[key]
    return value


def is_object_list(value: object) -> bool:
    """Return True if a value is a non-empty list of objects."""
    return type(value) is list and bool(value) and all(type(item) is dict for item in value)


def as_object_list(value: object) -> list[Json]:
    """Return the value if it is a list of objects, or an empty list."""
    return value if type(value) is list and is_object_list(value) else []


def format_path(path: Path) -> str:
    """Format a path as in Kubernetes' messages."""
    shown = ""
    above: str | int = ""
    for part in path:
        if type(part) is int or above in _HOLD_KEYS or not _PLAIN_KEY.fullmatch(str(part)):
            shown += f"[{part}]"
        else:
            shown += f".{part}" if shown else str(part)
        above = part
    return shown


def parse_path(shown: str) -> Path:
    """Parse a path in the form used in messages: `spec.containers[0].resources.limits[a.io/b]`."""
    return tuple(
        int(inner) if inner.isdecimal() else inner or outer for inner, outer in _PART.findall(shown)
    )


_MERGE_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("containers", "initContainers", "sidecars", "volumes", "env"), "name"),
    **dict.fromkeys(("imagePullSecrets", "resourceClaims"), "name"),
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}


class DirectiveError(ValueError):
    """A patch contains a directive, such as `$patch: delete`."""


def merge(
    value: Any, other: Any, at: Path, origin: Path, places: dict[Path, Path], *, wins: bool
) -> Any:
    """Return `value` merged with `other`: a patch if `wins` is True, otherwise defaults.

    `at` is the path of `value` in the pod, `origin` the path of `other` in the object. Parts taken
    from `other` are recorded in `places`. Raises DirectiveError.
    """
    if type(value) is dict and type(other) is dict:
        both = {**value}
        for key, item in other.items():
            if wins and str(key).startswith("$"):
                raise DirectiveError(key)
            here, there = (*at, key), (*origin, key)
            if wins and item is None:
                both.pop(key, None)
            elif both.get(key) is not None:
                both[key] = merge(both[key], item, here, there, places, wins=wins)
            elif item is not None:
                both[key], places[here] = item, there
        return both
    key = _MERGE_KEYS.get(str(at[-1])) if at else None
    if key and is_object_list(value) and is_object_list(other):
        items = [*value]
        found = {str(item.get(key)): index for index, item in enumerate(items)}
        for index, item in enumerate(other):
            there = (*origin, index)
            mine = found.get(str(item.get(key)))
            if mine is None:
                places[*at, len(items)] = there
                items.append(item)
            else:
                items[mine] = merge(items[mine], item, (*at, mine), there, places, wins=wins)
        return items
    if not wins or value == other:
        return value
    places[at] = origin
    return other


def merge_metadata(own: Any, common: Json, origin: Path, places: dict[Path, Path]) -> Any:
    """Return a pod's metadata with the annotations and labels of `common` added.

    `origin` is the path of `common`. Each added key is recorded in `places`.
    """
    added = {key: common[key] for key in METADATA_FIELDS if type(common.get(key)) is dict}
    if type(own) is dict:
        # Record each key, not the whole field.
        own = {**{key: {} for key in added}, **own}
    return merge(own, added, ("metadata",), origin, places, wins=False)


def add_mounted_volumes(spec: Json, volumes: Any, origin: Path, places: dict[Path, Path]) -> None:
    """Add the volumes of a list at `origin` that containers mount and the pod lacks."""
    own = spec.get("volumes") or []
    if type(own) is not list:
        return
    mounted = {
        str(mount.get("name"))
        for field in CONTAINER_FIELDS
        for container in as_objects(spec.get(field))
        for mount in as_objects(container.get("volumeMounts"))
    }
    missing = mounted - {str(item.get("name")) for item in as_objects(own)}
    for index, volume in enumerate(volumes if is_object_list(volumes) else ()):
        if str(volume.get("name")) in missing:
            places["spec", "volumes", len(own)] = (*origin, index)
            own = spec["volumes"] = [*own, volume]
