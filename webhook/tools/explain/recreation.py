"""The answer to a pod like one that exists, if it is created now: tried, and by the policy."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from webhook.adapters.kube.namespaces import read_labels
from webhook.adapters.policy.files import PolicyInvalidError
from webhook.core.admission.decide import Phase, decide_anew
from webhook.core.admission.templates import creation_of
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.match import NamespaceUnknownError
from webhook.names import DEFAULT_NAMESPACE
from webhook.tools.snapshot.facts import asking
from webhook.tools.snapshot.release import read_policy, read_scope

if TYPE_CHECKING:
    from webhook.core.admission.decide import Decision
    from webhook.tools.snapshot.cluster import ClusterSnapshot
    from webhook.tools.snapshot.facts import DryRunAnswer
    from webhook.tools.snapshot.pod import ClusterPod


def judge_recreation(
    snapshot: ClusterSnapshot, pod: ClusterPod
) -> tuple[DryRunAnswer | None, Decision | None, bool]:
    """Return a dry run, the decision of the policy, and True if the webhook exempts the namespace.

    None for what cannot be tried or read, and if the rule depends on labels that are unknown.
    """
    kube, namespace, created = snapshot.kube, snapshot.namespace, pod.as_created()
    trial = snapshot.attempt(
        partial(snapshot.try_create, namespace, pod.name, created),
        "whether a pod like it gets its GPU memory",
    )
    scope = snapshot.attempt(lambda: asking("list webhooks", lambda: read_scope(kube)))
    release = scope.release if scope else DEFAULT_NAMESPACE
    policy = None
    with suppress(PolicyInvalidError):
        read_it = partial(asking, "get configmaps", partial(read_policy, kube, release))
        policy = snapshot.attempt(read_it)
    keys = {*(scope.labels if scope else ()), *(policy.namespace_labels if policy else ())}
    read = partial(asking, "get namespaces", lambda: read_labels(kube, namespace, keys))
    labels = (snapshot.attempt(read) if keys else None) or {}
    exempt = scope is not None and scope.exempts(namespace, labels.get(namespace))
    decision = None
    if policy:
        creation, cluster = creation_of(created, namespace), Cluster(namespaces=labels)
        with suppress(NamespaceUnknownError):
            decision = decide_anew(creation, policy, cluster, Phase.MUTATE)
    return trial, decision, exempt
