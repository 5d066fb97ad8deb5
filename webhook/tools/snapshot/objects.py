"""Facts of stored objects, or the reason why they could not be read.

Objects are others': no fact is read with an error, and what is not of its type is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from sys import intern
from typing import Any, Generic, Self, TypeVar

from webhook.core.kinds.nodes import read_time
from webhook.core.kinds.workloads import Workload
from webhook.core.pod.fields import Json, as_objects, find_object, find_string

T = TypeVar("T")


class FactUnavailable(Exception):  # noqa: N818 - no error of the program
    """A fact could not be read, and why."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class NotObservable(FactUnavailable):
    """A fact that no request shows, whatever the user's rights: not yet, or never."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of an object."""

    reason: str
    message: str
    since: object
    """Time of the last transition, as it is stored."""


class LazyFact(Generic[T]):
    """Reads a fact when it is first asked for, and keeps it in the object.

    `functools.cached_property` takes a lock before Python 3.12, which doubles the time of a row.
    """

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read
        self._name = read.__name__

    def __get__(self, found: object, _: type) -> T:
        value = vars(found)[self._name] = self._read(found)
        return value


class ClusterObject:
    """Object of the cluster; each fact is read when it is first asked for.

    A cluster may have 20,000 pods, and a command needs few facts of each: see `keep`.
    """

    def __init__(self, raw: Json, **given: Any) -> None:
        """`given`: facts that replace those of the object, such as the cells of a table."""
        self.raw: Json = raw
        vars(self).update(given)

    def keep(self, *facts: str) -> Self:
        """Return an object with only these facts: any other one raises AttributeError.

        They are set as attributes, which takes half the memory of a dict.
        """
        kept = type(self).__new__(type(self))
        for fact in facts:
            setattr(kept, fact, getattr(self, fact))
        return kept

    @LazyFact
    def uid(self) -> str:
        """UID; empty if the object is not stored."""
        return self._text("metadata", "uid")

    @LazyFact
    def namespace(self) -> str:
        """Namespace, one text for all objects in it; empty for objects without one."""
        return intern(self._text("metadata", "namespace"))

    @LazyFact
    def name(self) -> str:
        """Name within its namespace."""
        return self._text("metadata", "name")

    @LazyFact
    def created_s(self) -> float | None:
        """Time of its creation (Unix time); None if unknown."""
        return read_time(self.part("metadata").get("creationTimestamp"))

    @LazyFact
    def labels(self) -> dict[str, str]:
        """Labels, without values that Kubernetes would not store."""
        stored = self.part("metadata", "labels")
        return {key: value for key, value in stored.items() if isinstance(value, str)}

    @property
    def annotations(self) -> Json:
        """Annotations as they are stored."""
        return self.part("metadata", "annotations")

    @LazyFact
    def owner_uid(self) -> str:
        """UID of its controller, one text for all that it owns; empty without one."""
        return intern(str(self._controller().get("uid") or ""))

    @LazyFact
    def owner(self) -> Workload | None:
        """Controller; None without one."""
        found = self._controller()
        kind, name = find_string(found, "kind"), find_string(found, "name")
        return Workload(kind, name) if kind and name else None

    @LazyFact
    def owner_version(self) -> str:
        """API version of its controller, such as `apps/v1`."""
        return find_string(self._controller(), "apiVersion")

    def _controller(self) -> Json:
        owners = as_objects(self.part("metadata").get("ownerReferences"))
        return next((one for one in owners if one.get("controller") is True), {})

    def part(self, *keys: str) -> Json:
        """Return an object within it; an empty one if there is none."""
        return find_object(self.raw, *keys)

    def condition(self, kind: str, status: str = "") -> Condition | None:
        """Return its condition of a type; None without one, or with another than this status."""
        for one in as_objects(self.part("status").get("conditions")):
            if one.get("type") == kind and status in {"", find_string(one, "status")}:
                return Condition(
                    find_string(one, "reason"),
                    find_string(one, "message"),
                    one.get("lastTransitionTime"),
                )
        return None

    @LazyFact
    def ready(self) -> bool:
        """True if its condition `Ready` is."""
        return self.condition("Ready", "True") is not None

    def _text(self, *keys: str) -> str:
        return find_string(self.raw, *keys)


def holds(expression: Json, found: str | None) -> bool:
    """Evaluate a requirement of a selector for a label's value; an unknown operator never holds.

    | operator | holds if the label |
    | --- | --- |
    | In, NotIn | has one of the values; has none of them, or is absent |
    | Exists, DoesNotExist | is there; is absent |
    | Gt, Lt | is an integer, and larger or smaller than the one value |

    Source: LabelSelectorRequirement and NodeSelectorRequirement in Kubernetes.
    """
    values = values_of(expression)
    operator = expression.get("operator")
    if operator in {"Gt", "Lt"}:
        try:
            mine, limit = int(found or ""), int(values[0])
        except (ValueError, IndexError):
            return False
        return mine > limit if operator == "Gt" else mine < limit
    return {
        "In": found in values,
        "NotIn": found not in values,
        "Exists": found is not None,
        "DoesNotExist": found is None,
    }.get(str(operator), False)


def values_of(expression: Json) -> list[str]:
    """Return the values of a selector's requirement."""
    values = expression.get("values")
    listed = values if isinstance(values, list) else ()
    return [one for one in listed if isinstance(one, str)]
