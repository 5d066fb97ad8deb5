"""VRAMHistory objects in the API server, and the figures of nodes beside them.

Rights: get, list, watch, create, patch, delete on `vramhistories`; get on `gpunodes`.
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
from webhook.names import SEEING_API_VERSION, VRAM_HISTORIES

_API: Final = f"/apis/{SEEING_API_VERSION}"


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """A history as it is stored."""

    history: History
    version: str
    """Its `resourceVersion`; empty where it does not exist yet."""


class HistoriesApi:
    """The API server as far as histories are concerned; every method raises KubeError."""

    def __init__(self, kube: Kube) -> None:
        """Send no request yet."""
        self._kube = kube
        self.all = Collection(kube=kube, path=_collection(), project=_keep)
        """Those of all namespaces, for `follow`; None for one that does not say whose it is."""

    def now_s(self) -> float:
        """Return Unix time by the API server's clock; see `Kube.now_s`."""
        return self._kube.now_s()

    def read(self, namespace: str, workload: Workload) -> StoredHistory:
        """Read the history of a workload: an empty one where none exists yet.

        It may say that it is of another: `deployment` of a forged owner is named as `Deployment`.
        """
        found = self._kube.find(_path(namespace, workload))
        empty = History(namespace, workload.kind, workload.name)
        if found is None:
            return StoredHistory(empty, "")
        return StoredHistory(read_history(found) or empty, found["metadata"]["resourceVersion"])

    def store(self, history: History, version: str) -> None:
        """Write a history, if the stored one is still of that version; a conflict where it is not.

        By a patch, so that labels of others stay.
        """
        written = write_history(history)
        if version:
            written["metadata"]["resourceVersion"] = version
            workload = Workload(history.kind, history.workload)
            self._kube.merge(_path(history.namespace, workload), written)
        else:
            self._kube.create(_collection(history.namespace), written)

    def remove(self, stored: StoredHistory) -> None:
        """Delete a history, if it is still of that version."""
        history = stored.history
        path = _path(history.namespace, Workload(history.kind, history.workload))
        self._kube.delete(path, version=stored.version)

    def of(self, namespace: str = "") -> list[History]:
        """Read the histories of a namespace, or of all, sorted."""
        found = self._kube.list_all(_collection(namespace), read_history)
        return sorted(found, key=lambda one: (one.namespace, one.kind, one.workload))

    def figures(self, node: str) -> NodeFigures | None:
        """Read what the node's sentry says of it; None where it says nothing."""
        return read_figures(self._kube, node)


def _keep(raw: Json) -> StoredHistory | None:
    history = read_history(raw)
    if history is None:
        return None
    return StoredHistory(history, str((raw.get("metadata") or {}).get("resourceVersion", "")))


def _collection(namespace: str = "") -> str:
    within = ("namespaces", namespace) if namespace else ()
    return _joined(*within, VRAM_HISTORIES)


def _path(namespace: str, workload: Workload) -> str:
    return _joined("namespaces", namespace, VRAM_HISTORIES, history_name(workload))


def _joined(*parts: str) -> str:
    return "/".join((_API, *(quote(part, safe="") for part in parts)))
