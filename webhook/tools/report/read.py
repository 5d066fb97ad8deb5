"""Reads what `vramwarden report` judges, with the rights of who runs it.

What may not be read is said; policy and pods have to be readable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from prometheus_client.parser import text_string_to_metric_families

from webhook.adapters.kube.client import KubeError, joined
from webhook.adapters.kube.namespaces import read_labels
from webhook.adapters.policy.files import load_policy
from webhook.core.kinds.nodes import read_time
from webhook.core.pod.fields import as_object, as_objects
from webhook.core.words import named
from webhook.options import NoCluster, default_enforcer_image
from webhook.tools.report.judge import ReplicaCounts, RolloutJudge, RolloutReport
from webhook.tools.snapshot.reading import (
    read_each_pod,
    read_gpu_nodes,
    why_no_figures,
    why_no_pods,
)
from webhook.tools.snapshot.release import POLICIES, read_policy, read_scope, usual_scope

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from webhook.adapters.kube.client import Kube
    from webhook.core.policy.values import Policy
    from webhook.tools.snapshot.release import Scope

    Json = dict[str, Any]

MOST_METRICS_BYTES: Final = 4 * 2**20
"""Maximum size of the metrics of one replica."""
_WEBHOOK_PODS: Final = "app.kubernetes.io/name=vramwarden,app.kubernetes.io/component=webhook"
_FAMILY: Final = "vramwarden_admission_requests"
_DECISIONS: Final = ("denied", "warned", "audited")
_PORT: Final = "operations"


def read_report(
    kube: Kube, policy: Policy, where: str, namespace: str, release: str
) -> RolloutReport:
    """Read what the user may read, and judge it; raises KubeError where pods cannot be read."""
    scope, why_usual = _scope(kube, release)
    wanted = policy.namespace_labels | scope.labels
    labels, why_no_labels = _namespace_labels(kube, wanted, namespace)
    judged, missing = RolloutJudge(policy, scope, labels), []
    try:
        read_each_pod(kube, namespace, judged.add)
    except KubeError as error:
        raise NoCluster(why_no_pods(error, namespace)) from error
    try:
        nodes = read_gpu_nodes(kube)
    except KubeError as error:
        nodes = []
        missing.append(why_no_figures(error))
    now_s = kube.now_s()
    counters, why = read_counters(kube, release)
    if why:
        missing.append(why)
    missing += judged.missing(why_no_labels)
    if why_no_labels and scope.labels:
        keys = named(scope.labels)
        missing.append(f"which namespaces are exempt by their label {keys}, {why_no_labels}")
    return RolloutReport(
        policy=f"{where}, {policy.short_digest}",
        pods=judged.pods,
        denied_pods=judged.denied_pods,
        untranslated=judged.untranslated,
        exempt_pods=judged.exempt_pods,
        exempt_namespaces=judged.exempt_namespaces,
        why_usual=why_usual,
        denied=judged.denied(),
        over_cap=judged.over_cap(nodes),
        idle=judged.idle(nodes, now_s),
        counted=counters,
        missing=missing,
        unjudged=judged.unjudged if why_no_labels else 0,
        now_s=now_s,
    )


def _scope(kube: Kube, release: str) -> tuple[Scope, str]:
    """Return which namespaces count, and why that is by the chart's defaults; raises KubeError."""
    try:
        found = read_scope(kube)
    except KubeError as error:
        if not error.forbidden:
            raise
        return usual_scope(release), "you may not read vramwarden's webhook configuration"
    return (found, "") if found else (usual_scope(release), "there is no webhook configuration")


def _namespace_labels(
    kube: Kube, wanted: frozenset[str], namespace: str
) -> tuple[Mapping[str, Mapping[str, str] | None], str]:
    """Return the wanted labels by namespace, or why they are not known."""
    try:
        return (read_labels(kube, namespace, wanted) if wanted else {}), ""
    except KubeError as error:
        verb = "get" if namespace else "list"
        cure = f"ask an administrator for the right to {verb} namespaces"
        return {}, f"which you may not read; {cure}" if error.forbidden else f"but: {error}"


def choose_policy(kube: Kube, path: Path | None, release: str) -> tuple[Policy, str]:
    """Return the policy and where it is from; raises PolicyInvalidError or KubeError."""
    if path is not None:
        return load_policy(path, enforcer_image=default_enforcer_image()), str(path)
    try:
        found = read_policy(kube, release)
    except KubeError as error:
        if error.forbidden:
            raise NoCluster(f"{error}; name a policy of your own with --policy") from error
        raise
    if found is None:
        raise NoCluster(
            f"there is no policy in force: namespace {release} has no ConfigMap {POLICIES}; name "
            "the namespace of the release with --release, or a policy with --policy"
        )
    return found


def read_counters(kube: Kube, namespace: str) -> tuple[list[ReplicaCounts], str]:
    """Return what each replica counted, and why that is not all of it; never raises KubeError."""
    path = joined("namespaces", namespace, "pods")
    try:
        replicas = kube.list_all(path, _replica, labelSelector=_WEBHOOK_PODS)[0]
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
