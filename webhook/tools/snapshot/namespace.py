"""Objects, Events, logs and histories of one namespace, read with the user's permissions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import quote

from webhook.adapters.kube.errors import KubeError
from webhook.core.kinds.histories import History
from webhook.core.pod.fields import Json, find_object, find_string
from webhook.names import ENFORCER_CONTAINER
from webhook.tools.snapshot.cluster import ClusterSnapshot, fact, read_if_served, read_with_right
from webhook.tools.snapshot.objects import EVENT, POD, WorkloadKind
from webhook.tools.snapshot.pod import ClusterPod

T = TypeVar("T")
K = TypeVar("K")
MOST_LOG_BYTES: Final = 2**20
"""Maximum size of a log that is read, in bytes."""
MOST_LOG_LINES: Final = 500
"""Maximum number of log lines read per container run: the current and the previous one."""
_IN_ALL: Final = " in all namespaces; name one of yours with -n"


class NamespaceSnapshot(ClusterSnapshot):
    """Facts of a cluster, and the objects of one namespace or of all."""

    @fact("list vramhistories")
    def histories(self) -> tuple[History, ...]:
        """Histories of the namespace's workloads, sorted."""
        from webhook.adapters.kube.histories import HistoriesApi  # noqa: PLC0415 - not for `top`

        return read_if_served(
            "VRAMHistory", lambda: HistoriesApi(self.kube).list_sorted(self.namespace)
        )

    @fact("list pods")
    def pod_rows(self) -> list[ClusterPod]:
        """Names, workloads and owners of all pods of the namespace."""
        return self.kube.list_rows(self.path(POD), read_owner_row)

    def path(self, kind: WorkloadKind, *rest: str) -> str:
        """Return the API path of the namespace's objects of a kind, extended by `rest`."""
        within = ("namespaces", self.namespace) if self.namespace else ()
        parts = (*within, kind.plural, *rest)
        return "/".join((kind.path, *(quote(part, safe="") for part in parts)))

    def find(self, kind: WorkloadKind, name: str) -> Json | None:
        """Return an object, or None if it does not exist. Raises FactUnavailable."""
        path = self.path(kind, name)
        return read_with_right(f"get {kind.plural}", lambda: self.kube.find(path))

    def find_pod(self, name: str) -> ClusterPod | None:
        """Return a pod, or None if it does not exist. Raises FactUnavailable."""
        raw = self.find(POD, name)
        return None if raw is None else ClusterPod(raw)

    def list_objects(
        self, kind: WorkloadKind, keep: Callable[[Json], T | None], **query: str
    ) -> list[T]:
        """Return the results of `keep` for the objects of a kind, without None.

        Raises FactUnavailable if the objects cannot be listed.
        """
        right = f"list {kind.plural}" + ("" if self.namespace else _IN_ALL)
        return read_with_right(right, lambda: self.kube.list_all(self.path(kind), keep, **query))

    def list_names(self, kind: WorkloadKind) -> list[str]:
        """Return the names of all objects of a kind. Raises FactUnavailable."""
        read = self.path(kind)
        return read_with_right(f"list {kind.plural}", lambda: self.kube.list_names(read))

    def list_owned(
        self, kind: WorkloadKind, owners: Sequence[str], labels: str = ""
    ) -> list[ClusterPod]:
        """Return the objects of a kind whose controller has one of the given UIDs.

        Raises FactUnavailable if the objects cannot be listed.
        """

        def is_owned(raw: Json) -> ClusterPod | None:
            found = ClusterPod(raw)
            return found if found.owner_uid in owners else None

        return self.list_objects(kind, is_owned, labelSelector=labels)

    def newest_event_messages(self, fields: str, group: Callable[[Json], K | None]) -> dict[K, str]:
        """Return the message of the newest Event per group. Raises FactUnavailable.

        `fields` is a field selector. Events whose group is None are ignored.
        """
        newest: dict[K, tuple[str, str]] = {}

        def add(event: Json) -> None:
            if (key := group(event)) is not None:
                time = find_string(event, "lastTimestamp") or find_string(event, "eventTime")
                found = time, find_string(event, "message")
                newest[key] = max(newest.get(key, found), found)

        self.list_objects(EVENT, add, fieldSelector=fields)
        return {key: message for key, (_, message) in newest.items()}

    def read_enforcer_log(self, pod: ClusterPod) -> list[str]:
        """Return the newest lines of the sidecar's log, after those from before its last restart.

        Raises FactUnavailable if the log is unreadable.
        """
        status = next(
            (
                status
                for status in pod.container_statuses()
                if status.get("name") == ENFORCER_CONTAINER
            ),
            {},
        )
        restarted = bool(status.get("restartCount"))
        if not (restarted or find_object(status, "state").keys() & {"running", "terminated"}):
            return []

        def read(**query: str) -> list[str]:
            path = self.path(POD, pod.name, "log")
            query |= {"container": ENFORCER_CONTAINER, "tailLines": str(MOST_LOG_LINES)}
            return self.kube.read_text(path, MOST_LOG_BYTES, **query).splitlines()

        def previous() -> list[str]:
            try:
                return read(previous="true") if restarted else []
            except KubeError:  # the previous log may no longer exist
                return []

        return read_with_right("get pods/log", lambda: [*previous(), *read()])


def read_owner_row(row: Json) -> ClusterPod:
    """Parse name and owners from a row of a table or from a whole object."""
    metadata = find_object(row, "object", "metadata") or find_object(row, "metadata")
    pod = ClusterPod({"metadata": metadata})
    return pod.project("uid", "name", "workload", "owner", "owner_version", "created_s")
