"""Report on what every rule would deny or stop if it enforced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
from webhook.core.policy.model import Action, Policy
from webhook.tools.problems.problem import Problem
from webhook.tools.problems.recreation import PodOutcome, decide_recreation, find_violations
from webhook.tools.snapshot.admission_rules import AdmissionRules
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.workloads import WorkloadState

_RECORDING: Final = {Action.WARN, Action.AUDIT}
_JUDGED: Final = (PodOutcome.DENIED, PodOutcome.TRANSLATED, PodOutcome.ALLOWED)


class RecreatedPod(NamedTuple):
    """Outcome of creating a stored pod again."""

    outcome: PodOutcome
    namespace: str
    name: str
    uid: str = ""
    """UID; empty unless the pod has GPU memory and its namespace is not exempt."""
    workload: str = ""
    """Kind and name of the workload; empty unless the pod is denied."""
    rule: str = ""
    """Name of the rule; empty unless the pod is denied."""
    problems: tuple[Problem, ...] = ()
    """Reasons of the denial, one problem per code."""


class DeniedGroup(NamedTuple):
    """Pods of a namespace that a rule would deny for one reason; a row of the table."""

    namespace: str
    rule: str
    action: str
    """Current action of the rule."""
    reason: str
    pods: int
    workloads: int
    example: str
    """Name of the first pod."""
    message: str
    """Reason and message for the example pod."""


class OverCap(NamedTuple):
    """A pod that would have been stopped for exceeding its cap on a GPU."""

    pod: RecreatedPod
    node: str
    gpu: GpuFigures
    figures: PodFigures
    since_s: float
    """Unix time of the first excess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """Content of the report."""

    policy: str
    """Source of the policy, and the first digits of its digest."""
    counts: Counter[PodOutcome]
    exempt_namespaces: int
    """Number of exempt namespaces with pods."""
    why_default_scope: str
    """Reason why the chart's default exemptions are assumed; empty if the actual ones are known."""
    denied: Sequence[DeniedGroup]
    denied_workloads: Sequence[WorkloadState]
    """Workloads whose pods vramwarden denies at present."""
    over_cap: Sequence[OverCap] | None
    """Pods over their caps; None if unknown because there are no figures."""
    missing: Sequence[str]
    """Facts that could not be read, with the reason."""
    now_s: float

    @property
    def pods(self) -> int:
        """Number of pods to which a rule applies."""
        return sum(self.counts[outcome] for outcome in _JUDGED)

    @property
    def has_findings(self) -> bool:
        """True if a pod is or would be denied, or would have been stopped."""
        return bool(self.denied or self.denied_workloads or self.over_cap)


def enforce_all_rules(policy: Policy) -> Policy:
    """Return the policy with action Enforce instead of Audit and Warn."""
    rules = tuple(
        replace(rule, action=Action.ENFORCE) if rule.action in _RECORDING else rule
        for rule in policy.rules
    )
    return replace(policy, rules=rules)


def recreate_pod(pod: ClusterPod, rules: AdmissionRules) -> RecreatedPod:
    """Return the outcome of creating a stored pod again."""
    outcome, decision = decide_recreation(pod, rules)
    has_share = pod.managed and outcome is not PodOutcome.EXEMPT
    judged = RecreatedPod(outcome, pod.namespace, pod.name, pod.uid if has_share else "")
    if outcome is not PodOutcome.DENIED or decision is None:
        return judged
    first: dict[str, Problem] = {}
    for problem in find_violations(decision):
        first.setdefault(problem.code, problem)
    problems = tuple(first.values())
    return judged._replace(workload=str(pod.workload), rule=decision.rule, problems=problems)


def group_denied(pods: Iterable[RecreatedPod], policy: Policy) -> list[DeniedGroup]:
    """Return the denied pods by namespace, rule and reason, the largest group first."""
    actions = {rule.name: rule.action.value for rule in policy.rules}
    groups: dict[tuple[str, str, str], list[tuple[RecreatedPod, Problem]]] = {}
    for pod in pods:
        for problem in pod.problems:
            groups.setdefault((pod.namespace, pod.rule, problem.code), []).append((pod, problem))
    return [
        DeniedGroup(
            namespace=namespace,
            rule=rule,
            action=actions.get(rule, ""),
            reason=reason,
            pods=len(found),
            workloads=len({pod.workload for pod, _ in found}),
            example=found[0][0].name,
            message=f"{reason}: {found[0][1].message}",
        )
        for (namespace, rule, reason), found in sorted(
            groups.items(), key=lambda item: (-len(item[1]), item[0])
        )
    ]


def find_over_cap(pods: Mapping[str, RecreatedPod], nodes: Iterable[NodeFigures]) -> list[OverCap]:
    """Return the pods (keyed by UID) that would have been stopped, the oldest excess first."""
    found = [
        OverCap(pods[pod.uid], node.name, gpu, pod, pod.would_stop_since_s)
        for node in nodes
        for gpu in node.gpus
        for pod in gpu.pods
        if pod.would_stop and pod.would_stop_since_s is not None and pod.uid in pods
    ]
    return sorted(found, key=lambda excess: (excess.since_s, *excess.pod[1:3], excess.gpu.index))
