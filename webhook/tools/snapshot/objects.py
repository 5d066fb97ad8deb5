"""Stored objects, their facts, and the kinds of workloads.

Objects may be malformed. Reading a fact never fails; a value of the wrong type counts as empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from sys import intern
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from webhook.core.kinds.nodes import read_time
from webhook.core.kinds.workloads import Workload
from webhook.core.pod.fields import Json, as_objects, find_object, find_string

T = TypeVar("T")


class FactUnavailable(Exception):  # noqa: N818 - no error of the program
    """Raised if a fact could not be read; `why` is the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class NotObservable(FactUnavailable):
    """Raised for a fact that no request shows, whatever the user's permissions."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of an object."""

    reason: str
    message: str
    since: object
    """Time of the last transition, as stored."""


class CachedProperty(Generic[T]):
    """Property computed on first access and stored in the object.

    `functools.cached_property` takes a lock before Python 3.12, which doubles the time per row.
    """

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read
        self._name = read.__name__

    def __get__(self, found: object, _: type) -> T:
        value = vars(found)[self._name] = self._read(found)
        return value


class ClusterObject:
    """Object of the cluster, whose facts are read on first access.

    A cluster may have 20,000 pods, and a command needs few facts of each; see `project`.
    """

    def __init__(self, raw: Json, **facts: Any) -> None:
        """`facts` override facts of the object, for example with cells of a table."""
        self.raw: Json = raw
        vars(self).update(facts)

    def project(self, *facts: str) -> Self:
        """Return an object with only these facts. Access to others raises AttributeError.

        Attributes take half the memory of a dict.
        """
        projected = type(self).__new__(type(self))
        for fact in facts:
            setattr(projected, fact, getattr(self, fact))
        return projected

    @CachedProperty
    def uid(self) -> str:
        """UID; empty if the object is not stored."""
        return self._text("metadata", "uid")

    @CachedProperty
    def namespace(self) -> str:
        """Namespace; empty for cluster-scoped objects. Interned to save memory."""
        return intern(self._text("metadata", "namespace"))

    @CachedProperty
    def name(self) -> str:
        """Name of the object."""
        return self._text("metadata", "name")

    @CachedProperty
    def created_s(self) -> float | None:
        """Creation time as Unix time; None if unknown."""
        return read_time(self.part("metadata").get("creationTimestamp"))

    @CachedProperty
    def labels(self) -> dict[str, str]:
        """Labels whose values are strings."""
        stored = self.part("metadata", "labels")
        return {key: value for key, value in stored.items() if isinstance(value, str)}

    @property
    def annotations(self) -> Json:
        """Annotations as stored; values may have any type."""
        return self.part("metadata", "annotations")

    @CachedProperty
    def owner_uid(self) -> str:
        """UID of the controller; empty without one. Interned to save memory."""
        return intern(str(self._controller().get("uid") or ""))

    @CachedProperty
    def owner(self) -> Workload | None:
        """Controller; None without one."""
        found = self._controller()
        kind, name = find_string(found, "kind"), find_string(found, "name")
        return Workload(kind, name) if kind and name else None

    @CachedProperty
    def owner_version(self) -> str:
        """API version of the controller, such as `apps/v1`."""
        return find_string(self._controller(), "apiVersion")

    def _controller(self) -> Json:
        owners = as_objects(self.part("metadata").get("ownerReferences"))
        return next((owner for owner in owners if owner.get("controller") is True), {})

    def part(self, *keys: str) -> Json:
        """Return a nested object, or an empty one if it is absent."""
        return find_object(self.raw, *keys)

    def condition(self, kind: str, status: str = "") -> Condition | None:
        """Return the condition of a type, or None if it is absent or has another status."""
        for stored in as_objects(self.part("status").get("conditions")):
            if stored.get("type") == kind and status in {"", find_string(stored, "status")}:
                return Condition(
                    find_string(stored, "reason"),
                    find_string(stored, "message"),
                    stored.get("lastTransitionTime"),
                )
        return None

    @CachedProperty
    def ready(self) -> bool:
        """True if the condition `Ready` is true."""
        return self.condition("Ready", "True") is not None

    def _text(self, *keys: str) -> str:
        return find_string(self.raw, *keys)


def meets_requirement(expression: Json, found: str | None) -> bool:
    """Return True if a label's value meets a requirement of a selector.

    An unknown operator is never met.

    | operator | met if the label |
    | --- | --- |
    | In, NotIn | has one of the values; has none of them, or is absent |
    | Exists, DoesNotExist | is present; is absent |
    | Gt, Lt | is an integer, and larger or smaller than the one value |

    Source: LabelSelectorRequirement and NodeSelectorRequirement in Kubernetes.
    """
    values = selector_values(expression)
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


def selector_values(expression: Json) -> list[str]:
    """Return the values of a selector's requirement."""
    values = expression.get("values")
    listed = values if isinstance(values, list) else ()
    return [value for value in listed if isinstance(value, str)]


class WorkloadKind(NamedTuple):
    """Kind and API path of a workload, or of objects that belong to one."""

    name: str
    path: str
    short: str = ""
    """kubectl's short name."""

    @property
    def plural(self) -> str:
        """Plural name in API paths, by Kubernetes' convention."""
        kind = self.name.lower()
        if kind.endswith("y") and kind[-2:-1] not in "aeiou":
            return f"{kind[:-1]}ies"
        return f"{kind}es" if kind.endswith(("s", "x", "ch", "sh")) else f"{kind}s"

    def is_called(self, word: str) -> bool:
        """Return True if kubectl accepts the word for this kind, such as deployments.apps."""
        name, _, group = word.lower().partition(".")
        own, _, version = self.path.removeprefix("/apis/").partition("/")
        names = (self.name.lower(), self.plural, self.short)
        return bool(name) and name in names and group in {"", own, f"{version}.{own}"}


DEPLOYMENT: Final = WorkloadKind("Deployment", "/apis/apps/v1", "deploy")
REPLICA_SET: Final = WorkloadKind("ReplicaSet", "/apis/apps/v1", "rs")
STATEFUL_SET: Final = WorkloadKind("StatefulSet", "/apis/apps/v1", "sts")
DAEMON_SET: Final = WorkloadKind("DaemonSet", "/apis/apps/v1", "ds")
JOB: Final = WorkloadKind("Job", "/apis/batch/v1")
CRON_JOB: Final = WorkloadKind("CronJob", "/apis/batch/v1", "cj")
POD: Final = WorkloadKind("Pod", "/api/v1", "po")
EVENT: Final = WorkloadKind("Event", "/api/v1")
NODE: Final = WorkloadKind("Node", "/api/v1", "no")
KINDS: Final = (POD, DEPLOYMENT, REPLICA_SET, STATEFUL_SET, DAEMON_SET, JOB, CRON_JOB)
"""Kinds whose objects are read. For other kinds, only the owned pods are read."""


def find_kind(word: str) -> WorkloadKind:
    """Return the kind that a word names. Kinds outside `KINDS` have no path."""
    return next((kind for kind in KINDS if kind.is_called(word)), WorkloadKind(word.lower(), ""))
