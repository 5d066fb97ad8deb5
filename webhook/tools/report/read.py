"""The facts of `vramwarden report`; only policy and pods have to be readable."""

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
from webhook.tools.report.judge import (
    RecreatedPod,
    RolloutReport,
    enforcing,
    find_over_cap,
    group_denied,
    judge_pod,
)
from webhook.tools.snapshot.cluster import ClusterSnapshot
from webhook.tools.snapshot.facts import asking
from webhook.tools.snapshot.kinds import POD
from webhook.tools.snapshot.objects import FactUnavailable
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.reading import NOT_ENDED
from webhook.tools.snapshot.release import (
    POLICIES,
    read_policy,
    read_rules,
    read_scope,
    usual_scope,
)
from webhook.tools.snapshot.workloads import read_denied_workloads


def read_report(
    snapshot: ClusterSnapshot, policy: Policy, where: str, release: str
) -> RolloutReport:
    """Read what the user may read, and judge it; raises FactUnavailable if pods are unreadable."""
    scope, why_usual = None, "there is no webhook configuration"
    try:
        scope = read_scope(snapshot.kube)
    except FactUnavailable as error:
        why_usual = error.why
    used = scope or usual_scope(release)
    rules = read_rules(snapshot.kube, snapshot.namespace, enforcing(policy), used)
    # Each pod is judged while the list is read: whole pods of a cluster are hundreds of MB.
    pods = snapshot.collect(
        POD, lambda raw: judge_pod(ClusterPod(raw), rules), fieldSelector=NOT_ENDED
    )
    nodes = snapshot.attempt(lambda: snapshot.gpu_nodes, "figures of GPUs")
    denied_workloads = read_denied_workloads(snapshot, is_own_denial)
    by_uid, now_s = {one.uid: one for one in pods if one.uid}, snapshot.now_s
    missing = [f"{what}: {why}" for what, why in snapshot.left_out.items()]
    if by_uid and nodes == ():
        missing.append("figures of GPUs: no node has reported yet")
    missing += _not_judged(pods, rules.why_no_labels)
    if rules.why_no_labels and used.labels:
        by_label = f"which namespaces are exempt by their label {join_names(used.labels)}"
        missing.append(f"{by_label}: {rules.why_no_labels}")
    return RolloutReport(
        policy=f"{where}, {policy.short_digest}",
        counts=Counter(one.outcome for one in pods),
        exempt_namespaces=len({one.namespace for one in pods if one.outcome is PodOutcome.EXEMPT}),
        why_usual="" if scope else why_usual,
        denied=group_denied(pods, policy),
        denied_workloads=denied_workloads,
        over_cap=find_over_cap(by_uid, nodes or ()) if nodes or not by_uid else None,
        missing=missing,
        now_s=now_s,
    )


def _not_judged(pods: Sequence[RecreatedPod], why_no_labels: str) -> Iterator[str]:
    """Yield which pods could not be judged, and why."""
    if unread := sum(one.outcome is PodOutcome.UNREAD for one in pods):
        yield f"what becomes of {format_count(unread, 'pod')}: too large to be read"
    unknown = [one.namespace for one in pods if one.outcome is PodOutcome.UNKNOWN]
    if unknown:
        where, why = join_names(sorted({*unknown})), why_no_labels or "these namespaces are new"
        what = f"what becomes of {format_count(len(unknown), 'pod')} in {where}"
        yield f"{what}, by labels of namespaces: {why}"


def choose_policy(kube: Kube, path: Path | None, release: str) -> tuple[Policy, str]:
    """Return the policy and where it is from; raises PolicyInvalidError or NoCluster."""
    if path is not None:
        return load_policy(path, enforcer_image=default_enforcer_image()), str(path)
    try:
        found = asking(f"get configmaps in {release}", lambda: read_policy(kube, release))
    except FactUnavailable as error:
        raise NoCluster(f"{error.why}; name a policy of your own with --policy") from error
    if found is None:
        raise NoCluster(
            f"there is no policy in force: namespace {release} has no ConfigMap {POLICIES}; name "
            "the namespace of the release with --release, or a policy with --policy"
        )
    return found, f"{release}/{POLICIES}"
