"""What becomes of a pod like one that exists: tried as the user, and by the policy in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.adapters.kube.namespaces import read_labels
from webhook.adapters.policy.files import PolicyInvalidError
from webhook.core.admission.decide import Phase, decide
from webhook.core.admission.templates import creation_of
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.match import NamespaceUnknownError
from webhook.names import DEFAULT_NAMESPACE
from webhook.tools.explain.judge.report import Anew, Ruling
from webhook.tools.snapshot.release import read_policy, read_scope

if TYPE_CHECKING:
    from webhook.core.policy.cluster import Namespaces
    from webhook.core.policy.values import Policy
    from webhook.tools.explain.read.reader import ExplainReader
    from webhook.tools.snapshot.pod import ClusterPod


def read_anew(reader: ExplainReader, pod: ClusterPod) -> Anew:
    """Return what becomes of a pod like this one that is created now, as far as that is known."""
    kube, namespace = reader.kube, reader.namespace
    what = "a pod like it gets its GPU memory"
    trial = reader.try_create(pod.name, pod.as_created(), what)
    scope = reader.tried(lambda: read_scope(kube))
    policy = _policy(reader, scope.release if scope else DEFAULT_NAMESPACE)
    keys = (scope.labels if scope else frozenset()) | (
        policy.namespace_labels if policy else frozenset()
    )
    labels = (reader.tried(lambda: read_labels(kube, namespace, keys)) if keys else None) or {}
    ruling = _ruling(pod, policy, labels) if policy else None
    exempt = scope is not None and scope.exempts(namespace, labels.get(namespace))
    return Anew(trial=trial, ruling=ruling, exempt=exempt)


def _policy(reader: ExplainReader, release: str) -> Policy | None:
    try:
        found = reader.tried(lambda: read_policy(reader.kube, release))
    except PolicyInvalidError:
        return None
    return found[0] if found else None


def _ruling(pod: ClusterPod, policy: Policy, labels: Namespaces) -> Ruling | None:
    """Decide the pod's creation; return None if its rule depends on unknown labels."""
    creation = creation_of(pod.as_created(), pod.namespace)
    try:
        decision = decide(creation, policy, Cluster(namespaces=labels), Phase.MUTATE)
    except NamespaceUnknownError:
        return None
    action = next((rule.action for rule in policy.rules if rule.name == decision.rule), None)
    return Ruling(decision.rule, action, decision.findings, decision.malformed)
