"""Pods of a cluster as if they were created again and every rule enforced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
from webhook.core.policy.model import Action, Policy
from webhook.tools.problems.creation import find_violations
from webhook.tools.problems.problem import Problem
from webhook.tools.problems.recreation import PodOutcome, judge_recreation
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.release import AdmissionRules
from webhook.tools.snapshot.workloads import WorkloadState

_RECORDING: Final = {Action.WARN, Action.AUDIT}


_JUDGED: Final = (PodOutcome.DENIED, PodOutcome.TRANSLATED, PodOutcome.ALLOWED)


class RecreatedPod(NamedTuple):
    """A stored pod as if it were created now."""

    outcome: PodOutcome
    namespace: str
    name: str
    uid: str = ""
    """Only set if it has GPU memory and vramwarden sees its namespace."""
    workload: str = ""
    """Kind and name; only set if it is denied."""
    rule: str = ""
    """Only set if it is denied."""
    problems: tuple[Problem, ...] = ()
    """Reasons of its denial: the first problem of each code."""


class DeniedGroup(NamedTuple):
    """Pods of one namespace that one rule would deny for one reason, in the table's columns."""

    namespace: str
    rule: str
    action: str
    """The rule's action today."""
    reason: str
    pods: int
    workloads: int
    example: str
    """Name of the first pod."""
    message: str
    """Sentence for that pod."""


class OverCap(NamedTuple):
    """A pod that would have been stopped on one GPU for what it held."""

    pod: RecreatedPod
    node: str
    gpu: GpuFigures
    figures: PodFigures
    since_s: float
    """Unix time of the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """Content of a report."""

    policy: str
    """Its source, and the first digits of its digest."""
    counts: Counter[PodOutcome]
    exempt_namespaces: int
    """Number of exempt namespaces with pods."""
    why_usual: str
    """Reason why the chart's defaults decide which namespaces are exempt; empty if they do not."""
    denied: Sequence[DeniedGroup]
    denied_workloads: Sequence[WorkloadState]
    """Workloads whose pods vramwarden denies now."""
    over_cap: Sequence[OverCap] | None
    """None if pods have shares, and there are no figures of GPUs."""
    missing: Sequence[str]
    """Facts that could not be read, and why."""
    now_s: float

    @property
    def pods(self) -> int:
        """Number of pods to which a rule applies."""
        return sum(self.counts[one] for one in _JUDGED)

    @property
    def has_findings(self) -> bool:
        """Return True if a pod is or would be denied, or would have been stopped."""
        return bool(self.denied or self.denied_workloads or self.over_cap)


def enforcing(policy: Policy) -> Policy:
    """Return the policy as it would be if every rule that only records enforced."""
    rules = tuple(
        replace(rule, action=Action.ENFORCE) if rule.action in _RECORDING else rule
        for rule in policy.rules
    )
    return replace(policy, rules=rules)


def judge_pod(pod: ClusterPod, rules: AdmissionRules) -> RecreatedPod:
    """Judge a stored pod as if it were created now."""
    outcome, decision = judge_recreation(pod, rules)
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
    """Return the denied pods by namespace, rule and reason, most pods first."""
    actions = {rule.name: rule.action.value for rule in policy.rules}
    groups: dict[tuple[str, str, str], list[tuple[RecreatedPod, Problem]]] = {}
    for pod in pods:
        for one in pod.problems:
            groups.setdefault((pod.namespace, pod.rule, one.code), []).append((pod, one))
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
            groups.items(), key=lambda one: (-len(one[1]), one[0])
        )
    ]


def find_over_cap(pods: Mapping[str, RecreatedPod], nodes: Iterable[NodeFigures]) -> list[OverCap]:
    """Return which of the pods, by UID, would have been stopped; the first one first."""
    found = [
        OverCap(pods[one.uid], node.name, gpu, one, one.would_stop_since_s)
        for node in nodes
        for gpu in node.gpus
        for one in gpu.pods
        if one.would_stop and one.would_stop_since_s is not None and one.uid in pods
    ]
    return sorted(found, key=lambda one: (one.since_s, *one.pod[1:3], one.gpu.index))
