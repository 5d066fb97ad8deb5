"""Reads a pod for `vramwarden explain`, and remembers what could not be read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.histories import HistoriesApi
from webhook.core.placement.assignments import read_pod_state
from webhook.core.pod.fields import part
from webhook.names import ENFORCER_CONTAINER
from webhook.tools.explain.judge.report import PodFacts, TriedPod
from webhook.tools.explain.judge.untranslated import seems_to_ask
from webhook.tools.explain.kinds import EVENT, POD
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.reading import (
    read_gpu_nodes,
    read_pods,
    read_shared_nodes,
    why_no_figures,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from webhook.adapters.kube.client import Kube
    from webhook.tools.explain.kinds import WorkloadKind

    Json = dict[str, Any]

MOST_LOG_BYTES: Final = 2**20
"""Maximum size of a log that is read."""
MOST_LOG_LINES: Final = 500
"""Maximum number of log lines that are read, the newest; as many of the previous container."""
T = TypeVar("T")

_LONGEST_PREFIX: Final = 50
_DENIED: Final = " denied the request: "


class ExplainReader:
    """Reads objects of a namespace, and remembers what could not be read, with why."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace
        self.left_out: list[str] = []

    def pod_rows(self, *, must: bool = False) -> list[ClusterPod]:
        """Return names, workloads and owners of all pods; raises KubeError only if `must`."""
        read = partial(self.kube.list_rows, self.path(POD), pod_row)
        return read() if must else self.tried(read) or []

    def refusals_of(self, kinds: Collection[str], name: str) -> tuple[str, ...]:
        """Return the newest Event by which a pod of an object was denied."""

        def denied(event: Json) -> tuple[str, str]:
            about, said = part(event, "involvedObject"), _said(event)
            of_it = str(about.get("kind")).lower() in kinds and _DENIED in said[1]
            return said if of_it else ("", "")

        fields = f"involvedObject.name={name},type=Warning"
        found = self._events(denied, fields)
        newest = max(found or [("", "")])[1]
        return (newest,) if newest else ()

    def path(self, kind: WorkloadKind, *rest: str) -> str:
        """Return the path of the namespace's objects of a kind, or of what is below it."""
        parts = ("namespaces", self.namespace, kind.plural, *rest)
        return "/".join((kind.path, *(quote(one, safe="") for one in parts)))

    def tried(
        self, read: Callable[[], T], why: Callable[[KubeError], str] | None = None
    ) -> T | None:
        """Return what was read; None where that failed, which `why` says where it matters."""
        try:
            return read()
        except KubeError as error:
            if why is not None:
                self.left_out.append(why(error))
            return None

    def names(self, kind: WorkloadKind) -> dict[str, str]:
        """Return the names of all objects of a kind, by UID."""
        return dict(self.tried(lambda: self.kube.list_rows(self.path(kind), _row)) or ())

    def owned(
        self, kind: WorkloadKind, what: str, owners: Sequence[str], labels: str = ""
    ) -> list[ClusterPod]:
        """Return the objects of a kind that these own, none of which has to be a pod."""

        def of_ours(raw: Json) -> ClusterPod | None:
            found = ClusterPod(raw)
            return found if found.owner_uid in owners else None

        found = self.tried(
            lambda: self.kube.list_all(self.path(kind), of_ours, labelSelector=labels)[0],
            lambda error: f"{what}: {error}",
        )
        return [one for one in found or () if one]

    def log(self, pod: ClusterPod, name: str) -> list[str]:
        """Return the newest lines of the enforcer's log, with those before its last restart."""
        status = next((one for one in pod.statuses() if one.get("name") == ENFORCER_CONTAINER), {})
        ran = part(status, "state").keys() & {"running", "terminated"}
        if not ran and not status.get("restartCount"):
            return []

        def read(**query: str) -> list[str]:
            path = self.path(POD, name, "log")
            query |= {"container": ENFORCER_CONTAINER, "tailLines": str(MOST_LOG_LINES)}
            return self.kube.text(path, MOST_LOG_BYTES, **query).splitlines()

        before = self.tried(lambda: read(previous="true")) if status.get("restartCount") else None
        return [*(before or ()), *(self.tried(read, _why_no_log) or ())]

    def events(self, uids: Sequence[str]) -> list[str]:
        """Return the newest message of FailedCreate: no condition of others says it."""
        found: list[tuple[str, str]] = []
        for uid in uids[-3:]:
            fields = f"involvedObject.uid={uid},reason=FailedCreate"
            found += self._events(_said, fields) or []
        return [max(found)[1]] if found else []

    def _events(
        self, keep: Callable[[Json], tuple[str, str]], fields: str
    ) -> list[tuple[str, str]] | None:
        return self.tried(
            lambda: self.kube.list_all(self.path(EVENT), keep, fieldSelector=fields)[0],
            lambda error: f"Events: {error}",
        )

    def try_create(self, name: str, pod: Json, what: str) -> TriedPod | None:
        """Return what the API server answers to such a pod; None where it cannot be tried."""
        metadata = {key: part(pod, "metadata", key) for key in ("labels", "annotations")}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "generateName": f"{name[:_LONGEST_PREFIX]}-"},
            "spec": part(pod, "spec"),
        }
        try:
            made, warnings = self.kube.try_create(self.path(POD), body)
        except KubeError as error:
            if error.lacks_right or error.unauthorized or error.retryable:
                why = "you may not try one (create pods)" if error.lacks_right else str(error)
                self.left_out.append(f"whether {what}: {why}")
                return None
            return TriedPod(denial=error.said)
        return TriedPod(translated=ClusterPod(made).managed, warnings=warnings)


def read_pod_facts(
    kube: Kube, namespace: str, name: str, pod: ClusterPod | None = None
) -> PodFacts:
    """Read what is to be known of a pod, which may have been read already; raises KubeError."""
    reader = ExplainReader(kube, namespace)
    if pod is None:
        raw = kube.find(reader.path(POD, name))
        pod = None if raw is None else ClusterPod(raw)
    nodes = histories = None
    if pod is None or pod.managed:
        nodes = reader.tried(lambda: tuple(read_gpu_nodes(kube)), why_no_figures)
        histories = reader.tried(lambda: HistoriesApi(kube).of(namespace))
    seen: dict[str, ClusterNode] | None = None
    names: dict[str, str] = {}
    workloads: set[str] = set()
    log: list[str] = []
    pods = anew = None
    if pod is None:
        rows = reader.pod_rows()
        names = {one.uid: one.name for one in rows}
        made = (one.workload for one in rows if one.owner is not None)
        workloads = {f"{one.kind.lower()}/{one.name}" for one in made}
    elif pod.managed and not pod.node:
        found = reader.tried(lambda: read_shared_nodes(kube))
        seen = None if found is None else {one.name: one for one in found}
        own = reader.tried(lambda: read_pods(kube, namespace))
        names = {one.uid: one.name for one in own or ()}
        if not read_pod_state(pod.raw).at_binding and seen:
            pods = reader.tried(lambda: tuple(read_pods(kube, "")))
    elif pod.managed:
        log = reader.log(pod, name)
        if nodes is not None and all(one.name != pod.node for one in nodes):
            node = reader.tried(lambda: kube.node(pod.node))
            seen = None if node is None else {pod.node: ClusterNode(node)}
    elif not pod.ended and seems_to_ask(pod):
        # Imported here: few need policies, which are slow to load.
        from webhook.tools.explain.read.anew import read_anew  # noqa: PLC0415

        anew = read_anew(reader, pod)
    return PodFacts(
        namespace=namespace,
        name=name,
        now_s=kube.now_s(),
        pod=pod,
        nodes=nodes,
        seen=seen,
        pods=pods,
        names=names,
        workloads=tuple(sorted(workloads)),
        anew=anew,
        log=tuple(log),
        histories=tuple(histories or ()),
        left_out=tuple(reader.left_out),
    )


def _why_no_log(error: KubeError) -> str:
    if error.forbidden:
        return "the log of container vram-enforcer: you may not read pods/log here"
    return f"the log of container vram-enforcer: {error}"


def _said(event: Json) -> tuple[str, str]:
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    return str(at), str(event.get("message") or "")


def pod_row(row: Json) -> ClusterPod:
    """Return little of a row of a table, or of a whole object."""
    metadata = part(row, "object", "metadata") or part(row, "metadata")
    one = ClusterPod({"metadata": metadata})
    return one.keep("uid", "name", "workload", "owner", "owner_version", "created_s")


def _row(row: Json) -> tuple[str, str]:
    """Return UID and name of a row of a table, or of a whole object."""
    metadata = part(row, "object", "metadata") or part(row, "metadata")
    return str(metadata.get("uid")), str(metadata.get("name"))
