"""VRAMHistory objects: reading, writing and following them.

Required verbs: get, list, watch, create, patch, delete on `vramhistories`; get on `gpunodes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.follow import Collection
from webhook.adapters.kube.node_objects import read_figures
from webhook.core.kinds.histories import History, history_name, read_history, write_history
from webhook.core.kinds.nodes import NodeFigures
from webhook.core.kinds.workloads import Workload
from webhook.names import GROUP_VERSION, VRAM_HISTORIES

_API: Final = f"/apis/{GROUP_VERSION}"


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """A stored history."""

    history: History
    version: str
    """`resourceVersion`; empty if the object does not exist yet."""


class HistoriesApi:
    """Access to histories; every method raises KubeError."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.all = Collection(kube=kube, path=_collection(), project=_read_stored)
        """Histories of all namespaces, for `follow`; None for a history that names no workload."""

    def now_s(self) -> float:
        """Return Unix time by the API server's clock; see `Kube.now_s`."""
        return self._kube.now_s()

    def read(self, namespace: str, workload: Workload) -> StoredHistory:
        """Return the stored history of a workload, or an empty one.

        The stored history can name another workload: a forged owner of kind `deployment` results in
        the same object name as a `Deployment`.
        """
        found = self._kube.find(_path(namespace, workload))
        empty = History(namespace, workload.kind, workload.name)
        if found is None:
            return StoredHistory(empty, "")
        return StoredHistory(read_history(found) or empty, found["metadata"]["resourceVersion"])

    def store(self, history: History, version: str) -> None:
        """Write a history by a patch, which keeps labels of other writers.

        Raises a conflict if the stored version differs from `version`.
        """
        written = write_history(history)
        if version:
            written["metadata"]["resourceVersion"] = version
            workload = Workload(history.kind, history.workload)
            self._kube.merge(_path(history.namespace, workload), written)
        else:
            self._kube.create(_collection(history.namespace), written)

    def remove(self, stored: StoredHistory) -> None:
        """Delete a history; raises a conflict if the stored version is another one."""
        history = stored.history
        path = _path(history.namespace, Workload(history.kind, history.workload))
        self._kube.delete(path, version=stored.version)

    def list_sorted(self, namespace: str = "") -> list[History]:
        """Return the sorted histories of a namespace, or of all namespaces if empty."""
        found = self._kube.list_all(_collection(namespace), read_history)
        return sorted(
            found, key=lambda history: (history.namespace, history.kind, history.workload)
        )

    def figures(self, node: str) -> NodeFigures | None:
        """Return the GPUNode that the node's sentry wrote, or None if there is none."""
        return read_figures(self._kube, node)


def _read_stored(raw: Json) -> StoredHistory | None:
    history = read_history(raw)
    if history is None:
        return None
    return StoredHistory(history, str((raw.get("metadata") or {}).get("resourceVersion", "")))


def _collection(namespace: str = "") -> str:
    within = ("namespaces", namespace) if namespace else ()
    return _api_path(*within, VRAM_HISTORIES)


def _path(namespace: str, workload: Workload) -> str:
    return _api_path("namespaces", namespace, VRAM_HISTORIES, history_name(workload))


def _api_path(*parts: str) -> str:
    return "/".join((_API, *(quote(part, safe="") for part in parts)))
