"""The fate of a stored pod that is created again, by the rules of its cluster."""

from __future__ import annotations

from enum import Enum, auto

from webhook.core.admission.decide import evaluate
from webhook.core.admission.decision import Decision, Phase
from webhook.core.admission.workload_review import creation_of
from webhook.core.pod.demand import requests_vram
from webhook.core.policy.match import NamespaceUnknownError
from webhook.names import MIRROR_POD_ANNOTATION
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.release import AdmissionRules


class PodOutcome(Enum):
    """Fate of a stored pod that is created again."""

    EXEMPT = auto()
    """The API server sends vramwarden nothing of its namespace."""
    UNREAD = auto()
    """Unknown: it is too large to be read."""
    UNKNOWN = auto()
    """Unknown: the policy, or labels of its namespace for which its rule asks."""
    NO_RULE = auto()
    """No rule applies to it, or it is a static pod."""
    DENIED = auto()
    TRANSLATED = auto()
    """It requests GPU memory, has none today, and gets it."""
    ALLOWED = auto()


def judge_recreation(pod: ClusterPod, rules: AdmissionRules) -> tuple[PodOutcome, Decision | None]:
    """Judge a stored pod as if it were created now; without a decision if the policy is not asked.

    A static pod is not asked about either: its kubelet starts it whatever is decided.
    """
    if rules.exempts(pod.namespace):
        return PodOutcome.EXEMPT, None
    if not isinstance(pod.raw.get("spec"), dict):
        return PodOutcome.UNREAD, None
    if MIRROR_POD_ANNOTATION in pod.annotations:
        return PodOutcome.NO_RULE, None
    if rules.policy is None:
        return PodOutcome.UNKNOWN, None
    creation = creation_of(pod.as_created(), pod.namespace)
    try:
        decision = evaluate(creation, rules.policy, rules.cluster, Phase.MUTATE)
    except NamespaceUnknownError:
        return PodOutcome.UNKNOWN, None
    if decision.skip:
        return PodOutcome.NO_RULE, decision
    if not decision.allowed:
        return PodOutcome.DENIED, decision
    is_translated = not pod.managed and requests_vram(pod.raw)
    return PodOutcome.TRANSLATED if is_translated else PodOutcome.ALLOWED, decision
