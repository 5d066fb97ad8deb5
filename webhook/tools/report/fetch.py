"""Read the facts of `vramwarden report`. Only policy and pods must be readable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from webhook.adapters.kube.client import Kube
from webhook.adapters.policy.files import load_policy
from webhook.core.formatting import format_count, join_names
from webhook.core.policy.model import Policy
from webhook.options import NoCluster, default_enforcer_image
from webhook.tools.problems.creation import is_own_denial
from webhook.tools.problems.recreation import PodOutcome
from webhook.tools.report.report import (
    RecreatedPod,
    RolloutReport,
    enforce_all_rules,
    find_over_cap,
    group_denied,
    recreate_pod,
)
from webhook.tools.snapshot.admission_rules import (
    POLICIES,
    default_scope,
    read_policy,
    read_rules,
    read_scope,
)
from webhook.tools.snapshot.cluster import NOT_ENDED, read_with_right
from webhook.tools.snapshot.namespace import NamespaceSnapshot
from webhook.tools.snapshot.objects import POD, FactUnavailable
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.workloads import read_denied_workloads


def read_report(
    snapshot: NamespaceSnapshot, policy: Policy, where: str, release: str
) -> RolloutReport:
    """Return the report. Raises FactUnavailable if pods are unreadable."""
    scope, why_default_scope = None, "there is no webhook configuration"
    try:
        scope = read_scope(snapshot.kube)
    except FactUnavailable as error:
        why_default_scope = error.why
    scope_used = scope or default_scope(release)
    rules = read_rules(snapshot.kube, snapshot.namespace, enforce_all_rules(policy), scope_used)
    # Each pod is judged while the list is read, because a cluster's pods need hundreds of MB.
    pods = snapshot.list_objects(
        POD, lambda raw: recreate_pod(ClusterPod(raw), rules), fieldSelector=NOT_ENDED
    )
    nodes = snapshot.attempt(lambda: snapshot.gpu_nodes, "figures of GPUs")
    denied_workloads = read_denied_workloads(snapshot, is_own_denial)
    by_uid, now_s = {pod.uid: pod for pod in pods if pod.uid}, snapshot.now_s
    missing = [f"{what}: {why}" for what, why in snapshot.left_out.items()]
    if by_uid and nodes == ():
        missing.append("figures of GPUs: no node has reported yet")
    missing += _not_judged(pods, rules.why_no_labels)
    if rules.why_no_labels and scope_used.labels:
        by_label = f"which namespaces are exempt by their label {join_names(scope_used.labels)}"
        missing.append(f"{by_label}: {rules.why_no_labels}")
    return RolloutReport(
        policy=f"{where}, {policy.short_digest}",
        counts=Counter(pod.outcome for pod in pods),
        exempt_namespaces=len({pod.namespace for pod in pods if pod.outcome is PodOutcome.EXEMPT}),
        why_default_scope="" if scope else why_default_scope,
        denied=group_denied(pods, policy),
        denied_workloads=denied_workloads,
        over_cap=find_over_cap(by_uid, nodes or ()) if nodes or not by_uid else None,
        missing=missing,
        now_s=now_s,
    )


def _not_judged(pods: Sequence[RecreatedPod], why_no_labels: str) -> Iterator[str]:
    """Yield messages about pods that could not be judged, with the reason."""
    if unread := sum(pod.outcome is PodOutcome.UNREAD for pod in pods):
        yield f"what becomes of {format_count(unread, 'pod')}: too large to be read"
    unknown = [pod.namespace for pod in pods if pod.outcome is PodOutcome.UNKNOWN]
    if unknown:
        where, why = join_names(sorted({*unknown})), why_no_labels or "these namespaces are new"
        what = f"what becomes of {format_count(len(unknown), 'pod')} in {where}"
        yield f"{what}, by labels of namespaces: {why}"


def choose_policy(kube: Kube, path: Path | None, release: str) -> tuple[Policy, str]:
    """Return the policy and its source. Raises PolicyInvalidError or NoCluster."""
    if path is not None:
        return load_policy(path, enforcer_image=default_enforcer_image()), str(path)
    try:
        found = read_with_right(f"get configmaps in {release}", lambda: read_policy(kube, release))
    except FactUnavailable as error:
        raise NoCluster(f"{error.why}; name a policy of your own with --policy") from error
    if found is None:
        raise NoCluster(
            f"there is no policy in force: namespace {release} has no ConfigMap {POLICIES}; name "
            "the namespace of the release with --release, or a policy with --policy"
        )
    return found, f"{release}/{POLICIES}"
