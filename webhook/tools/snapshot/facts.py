"""Facts of a cluster: each is read when it is first asked for, and kept with its failure."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NamedTuple, TypeVar

from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.core.pod.fields import Json, find_object
from webhook.tools.snapshot.objects import FactUnavailable, LazyFact
from webhook.tools.snapshot.pod import ClusterPod

T = TypeVar("T")

NEEDS_RIGHT: Final = "needs the right to "
"""Beginning of the reason why a fact is unavailable if a right is missing."""
_LONGEST_PREFIX: Final = 50


class DryRunAnswer(NamedTuple):
    """Answer of the API server to a pod that was created as a dry run."""

    pod: ClusterPod | None
    """The pod as it would be stored; None if it was denied."""
    denial: str = ""
    """The API server's message if it was denied."""
    warnings: tuple[str, ...] = ()


class ClusterFacts:
    """Facts that are read from one API server with the user's own rights."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.failures: dict[str, FactUnavailable] = {}
        """Failures by the name of the fact, so that no request is sent twice."""
        self.left_out: dict[str, str] = {}
        """Facts that `attempt` could not read, in words, and why."""

    @property
    def now_s(self) -> float:
        """Unix time by the API server's clock, as of its last answer."""
        return self.kube.now_s()

    def attempt(self, read: Callable[[], T], what: str = "") -> T | None:
        """Return the result of `read`; None if it is unavailable, noted under `what` if given."""
        try:
            return read()
        except FactUnavailable as error:
            if what:
                self.left_out.setdefault(what, error.why)
            return None

    def try_create(self, namespace: str, name: str, pod: Json) -> DryRunAnswer:
        """Create a pod like this one as a dry run; raises FactUnavailable if that is impossible."""
        metadata = {key: find_object(pod, "metadata", key) for key in ("labels", "annotations")}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "generateName": f"{name[:_LONGEST_PREFIX]}-"},
            "spec": find_object(pod, "spec"),
        }
        try:
            made, warnings = self.kube.dry_run_create(
                core_path("namespaces", namespace, "pods"), body
            )
        except KubeError as error:
            if not error.code:
                raise
            if error.lacks_right:
                raise FactUnavailable(f"{NEEDS_RIGHT}create pods in {namespace}") from error
            if error.unauthorized or (error.retryable and not error.lacks_webhook):
                raise FactUnavailable(str(error)) from error
            return DryRunAnswer(None, error.api_message or str(error))
        return DryRunAnswer(ClusterPod(made), warnings=warnings)


def fact(right: str) -> Callable[[Callable[[Any], T]], LazyFact[T]]:
    """Decorate a method of `ClusterFacts` that reads one fact.

    `right` is as in "list nodes"; `{0}` in it is the object, as in `str.format`.
    The fact raises FactUnavailable if it cannot be read, and KubeError if nothing answers at all.
    """

    def decorate(read: Callable[[Any], T]) -> LazyFact[T]:
        @wraps(read)
        def once(found: ClusterFacts) -> T:
            name = read.__name__
            if name not in found.failures:
                try:
                    return asking(right.format(found), lambda: read(found))
                except FactUnavailable as error:
                    found.failures[name] = error
            raise found.failures[name]

        return LazyFact(once)

    return decorate


def asking(right: str, read: Callable[[], T]) -> T:
    """Return the result of `read`; raises FactUnavailable for a KubeError with an answer."""
    try:
        return read()
    except KubeError as error:
        if not error.code or error.unauthorized:
            raise
        why = f"{NEEDS_RIGHT}{right}" if error.forbidden else f"{right}: {error}"
        raise FactUnavailable(why) from error
