"""Reads what `explain` goes by of an object of any kind: its pods, found by their owners."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from webhook.tools.explain.judge.explain import newest_in_trouble
from webhook.tools.explain.judge.report import WorkloadFacts
from webhook.tools.explain.kinds import POD, WorkloadKind
from webhook.tools.explain.read.reader import ExplainReader, pod_row
from webhook.tools.snapshot.pod import ClusterPod

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from webhook.adapters.kube.client import Kube
    from webhook.core.kinds.workloads import Workload

MOST_BETWEEN: Final = 16
"""Maximum number of owners that are read between pods and the object."""
MOST_READ: Final = 20
"""Maximum number of pods that are read whole, the newest."""
_DEEPEST: Final = 5
"""Owners above each other."""
_VERSION: Final = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?v[a-z0-9]{1,30}")


def read_owned_facts(
    kube: Kube, word: str, namespace: str, name: str
) -> tuple[WorkloadFacts, ClusterPod | None]:
    """Read what is to be known of an object of any kind by its pods; raises KubeError.

    The object itself is not read: rights to kinds of others are rare. Whose a pod is, its owner
    says, and the owner of that.
    """
    reader = ExplainReader(kube, namespace)
    kinds = {word.partition(".")[0], *_singular(word.partition(".")[0])}
    rows = reader.pod_rows(must=True)
    owners = _Owners(reader, kinds, name)
    found = [row for row in rows if owners.have(row)]
    seen = {
        one.name: one.kind
        for row in rows
        for one in (row.owner, row.workload)
        if one and one.kind.lower() in kinds
    }
    refusals = () if found else reader.refusals_of(kinds, name)
    newest = sorted(found, key=lambda one: one.created_s or 0.0, reverse=True)[:MOST_READ]
    read = (reader.tried(partial(kube.find, reader.path(POD, one.name))) for one in newest)
    pods = [ClusterPod(raw) for raw in read if raw]
    running = [one for one in pods if not one.ended]
    facts = WorkloadFacts(
        kind=owners.kind or seen.get(name) or next(iter(seen.values()), min(kinds, key=len)),
        namespace=namespace,
        name=name,
        exists=bool(found or refusals),
        by_owner=True,
        refusals=refusals,
        pods=len(running) if len(found) <= MOST_READ else len(found),
        others=tuple(seen),
        left_out=tuple(reader.left_out),
    )
    return facts, newest_in_trouble(running or pods)


def _singular(word: str) -> Iterator[str]:
    """Yield what may be one of a plural: `pytorchjobs`, `classes`, `policies`."""
    for ending, one in (("s", ""), ("es", ""), ("ies", "y")):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            yield word.removesuffix(ending) + one


class _Owners:
    """Finds an object among the owners of others."""

    def __init__(self, reader: ExplainReader, kinds: Collection[str], name: str) -> None:
        self._reader = reader
        self._kinds = kinds
        self._name = name
        self._between: dict[str, ClusterPod | None] = {}
        self.kind = ""
        """Of the object, as Kubernetes writes it, once it was found."""

    def have(self, found: ClusterPod) -> bool:
        """Say whether the object owns this one, or an owner of it.

        Owners in between are read where they begin with that name, as nearly all do.
        """
        for _ in range(_DEEPEST):
            named = [one for one in (found.owner, found.workload) if one and self._is_of_kind(one)]
            for owner in named:
                if owner.name == self._name:
                    self.kind = owner.kind
                    return True
            above = None if named else self._owner_of(found)
            if above is None:
                return False
            found = above
        return False

    def _is_of_kind(self, owner: Workload) -> bool:
        return owner.kind.lower() in self._kinds

    def _owner_of(self, found: ClusterPod) -> ClusterPod | None:
        """Read the owner of an object, each once and few in all; None where that fails."""
        version, owner = found.owner_version, found.owner
        if owner is None or not owner.name.startswith(self._name):
            return None
        if not _VERSION.fullmatch(version):
            return None
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        path = self._reader.path(WorkloadKind(owner.kind, root), owner.name)
        if path not in self._between and len(self._between) < MOST_BETWEEN:
            raw = self._reader.tried(lambda: self._reader.kube.find(path))
            self._between[path] = None if raw is None else pod_row(raw)
        return self._between.get(path)
