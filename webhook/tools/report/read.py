"""What `vramwarden report` alone reads: the replicas' counters, with the rights of who runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from prometheus_client.parser import text_string_to_metric_families

from webhook.adapters.kube.client import KubeError, joined
from webhook.core.kinds.nodes import read_time
from webhook.core.pod.fields import as_object, as_objects
from webhook.tools.shared.bounds import MOST_METRICS_BYTES, MOST_REPLICAS

if TYPE_CHECKING:
    from webhook.adapters.kube.client import Kube

    Json = dict[str, Any]

_WEBHOOK_PODS: Final = "app.kubernetes.io/name=vramwarden,app.kubernetes.io/component=webhook"
_FAMILY: Final = "vramwarden_admission_requests"
_DECISIONS: Final = ("denied", "warned", "audited")
_PORT: Final = "operations"


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """What a replica has counted since it started."""

    replica: str
    since_s: float | None
    """Unix time."""
    reviews: dict[str, dict[str, int]]
    """Of new pods, by decision and reason."""


def read_counters(kube: Kube, namespace: str) -> tuple[list[ReplicaCounts], str]:
    """Return what each replica counted, and why that is not all of it; never raises KubeError."""
    path = joined("namespaces", namespace, "pods")
    try:
        replicas = kube.list_first(path, _replica, MOST_REPLICAS, labelSelector=_WEBHOOK_PODS)
        return [
            ReplicaCounts(
                name,
                since_s,
                _counts(kube.text(f"{path}/{where}/proxy/metrics", MOST_METRICS_BYTES)),
            )
            for name, where, since_s in replicas
        ], ""
    except KubeError as error:
        if error.forbidden:
            what = "list pods, and get pods/proxy,"
            return [], f"no counters of the replicas: you may not {what} in namespace {namespace}"
        return [], f"no counters of the replicas: {error}"
    except ValueError as error:
        return [], f"no counters of the replicas: their metrics cannot be read ({error})"


def _replica(raw: Json) -> tuple[str, str, float | None]:
    metadata, spec, status = (as_object(raw.get(key)) for key in ("metadata", "spec", "status"))
    ports = [
        port.get("containerPort")
        for container in as_objects(spec.get("containers"))
        for port in as_objects(container.get("ports"))
        if port.get("name") == _PORT
    ]
    port = ports[0] if ports and isinstance(ports[0], int) else 0
    name = str(metadata.get("name"))
    return name, f"{quote(name, safe='')}:{port}", read_time(status.get("startTime"))


def _counts(text: str) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    families = text_string_to_metric_families(text)
    samples = (one for family in families if family.name == _FAMILY for one in family.samples)
    for _, labels, value, *_ in (one for one in samples if one.name.endswith("_total")):
        decision, reason = labels.get("decision", ""), labels.get("reason", "")
        asks = labels.get("webhook") == "mutate" and labels.get("operation") == "CREATE"
        if asks and decision in _DECISIONS and value >= 1:
            by_reason = counts.setdefault(decision, {})
            by_reason[reason] = by_reason.get(reason, 0) + int(value)
    return counts
