"""Pod templates: values, paths of their parts in the object, search of an object, and merging.

`merge` is Kubernetes' strategic merge of parts of a pod. It keeps the path of each part in the
object. Lists with a merge key are merged by it, others are replaced. New items come last, where
Kubernetes may put them first: their order decides nothing that is judged.

Source: the tags `patchStrategy` and `patchMergeKey` in k8s.io/api/core/v1 (PodSpec, Container).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from webhook.core.bounds import DEEPEST_TEMPLATE, MOST_VALUES
from webhook.core.pod.fields import Json, as_objects

Path = tuple[str | int, ...]

CONTAINER_FIELDS: Final = ("containers", "initContainers")
METADATA_FIELDS: Final = ("annotations", "labels")
_HOLD_KEYS: Final = frozenset({"annotations", "labels", "limits", "nodeSelector", "requests"})
"""Fields whose keys are not fields themselves."""
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_POD_PATH: Final = re.compile(r"(?:metadata|spec)(?![^.\[])[^ ]*")
_FIELD_TO_WRITE: Final = re.compile(r"(?<= under )metadata\.[a-z]+(?=; )")
_KUBELET_REFERENCE: Final = re.compile(r"\$\((VRAMWARDEN_[A-Z_]+)\)")
_PART: Final = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")


class TooMuchToSearchError(ValueError):
    """An object is too large to be searched; the message says what and what to do."""


class Form(Enum):
    """What a template is made of, and so what admission can do with it."""

    POD = auto()
    """`metadata` and `spec`, as a pod has them: it can be translated where it stands."""
    CONTAINER = auto()
    """One container, from which a pod is made: it has no place for a translation."""
    INLINE = auto()
    """Parts of a pod among fields of its kind's own: it has no place for a translation either."""
    MACHINE = auto()
    """A virtual machine, whose pod is made elsewhere."""
    ELSEWHERE = auto()
    """No template but keys of ours: somebody else makes pods of them, or nobody does."""


class UnjudgedField(NamedTuple):
    """A field whose additions to the pods cannot be judged here."""

    path: Path
    """Its place in the object."""
    why: str


@dataclass(frozen=True, slots=True)
class Template:
    """A pod, or what pods are made from."""

    path: Path
    """Its place in the object; empty for a pod."""
    pod: Json | None
    """`metadata` and `spec` as its pods get them; None where a workload has no template."""
    form: Form = Form.POD
    places: Mapping[Path, Path] = field(default_factory=dict)
    """Paths in the object of parts of the pod that are not below the template's path.

    Each is kept by its path in the pod. The longest path counts.
    """
    unjudged: tuple[UnjudgedField, ...] = ()

    def place(self, path: Path) -> Path:
        """Return where a field of the pod stands in the object."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return (*self.places[path[:length]], *path[length:])
        return (*self.path, *path)

    def shown(self, field: str) -> str:
        """Return the path in the object of a field of the pod, both as messages write them."""
        return format_path(self.place(parse_path(field)))

    def shown_text(self, text: str) -> str:
        """Return a text that begins with a path of the pod, with the paths in the object."""
        path, colon, rest = text.partition(": ")
        is_path = bool(_POD_PATH.fullmatch(path))
        rest = _FIELD_TO_WRITE.sub(lambda found: self.shown(found[0]), rest)
        if path.endswith(".source"):  # a script, in which only its shell replaces variables
            rest = _KUBELET_REFERENCE.sub(r"$\1", rest)
        return f"{self.shown(path)}{colon}{rest}" if is_path else text

    @property
    def metadata_path(self) -> Path | None:
        """The path of the object with the pod's metadata, if that is apart from its spec."""
        at = self.place(("metadata",))[:-1]
        return None if self.form is not Form.POD or at == self.path else at

    def named(self, owner: str) -> Json:
        """Return the pod that the API server would be sent: itself, or one made of the template.

        `owner` is the name of the object that makes it.
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
        """The path as messages write it: `spec.workerGroupSpecs[0].template`."""
        return format_path(self.path)


def visit_values(obj: Json, enter: Callable[[Any, Path], bool]) -> None:
    """Read the maps and lists of an object in their order; `enter` says whether what is inside too.

    By a stack of what is left to read, which no depth can exhaust. Raises TooMuchToSearchError.
    """
    values_read = 0
    left: list[tuple[Any, Path]] = [(obj, ())]
    while left:
        value, path = left.pop()
        if not enter(value, path):
            continue
        if len(path) >= DEEPEST_TEMPLATE:
            raise TooMuchToSearchError(
                f"nests more than {DEEPEST_TEMPLATE} levels deep; flatten it"
            )
        values_read += len(value)
        if values_read > MOST_VALUES:
            raise TooMuchToSearchError(f"holds more than {MOST_VALUES:,} values; split it")
        inside = [
            (one, (*path, key)) for key, one in iterate_items(value) if type(one) in {dict, list}
        ]
        left += [(one, at) for one, at in reversed(inside) if one]


def iterate_items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a map or a list, by keys or positions."""
    return value.items() if type(value) is dict else enumerate(value)


def value_at(obj: Json, path: Path) -> Any:
    """Return the value at a path that the object has."""
    value: Any = obj
    for key in path:
        value = value[key]
    return value


def is_object_list(value: object) -> bool:
    """Return True if a value is a list of objects, and not an empty one."""
    return type(value) is list and bool(value) and all(type(one) is dict for one in value)


def as_object_list(value: object) -> list[Json]:
    """Return a list of objects; what is none as an empty one."""
    return value if type(value) is list and is_object_list(value) else []


def format_path(path: Path) -> str:
    """Write a path as Kubernetes' own messages do."""
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
    """Read a field path as messages write it: `spec.containers[0].resources.limits[a.io/b]`."""
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
    if key and is_object_list(value) and is_object_list(other):
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
    for index, one in enumerate(volumes if is_object_list(volumes) else ()):
        if str(one.get("name")) in missing:
            places["spec", "volumes", len(own)] = (*origin, index)
            own = spec["volumes"] = [*own, one]
