"""Pods of a cluster as if they were created again and every rule enforced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.core.admission.decide import Outcome, Phase, decide_anew
from webhook.core.admission.templates import creation_of
from webhook.core.kinds.nodes import STALE_S, idle_since
from webhook.core.pod.demand import asks_for_vram
from webhook.core.policy.match import NamespaceUnknownError
from webhook.core.policy.values import Action, Policy
from webhook.names import MIRROR_POD_ANNOTATION
from webhook.tools.problems.creation import find_violations
from webhook.tools.problems.problem import ProblemSubject

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
    from webhook.core.policy.cluster import Cluster
    from webhook.tools.problems.problem import Problem
    from webhook.tools.snapshot.pod import ClusterPod
    from webhook.tools.snapshot.workloads import CreationFailure

IDLE_S: Final = 6 * 3600.0
"""Time after which the alert VramwardenIdlePromise fires, too."""
_RECORDING: Final = {Action.WARN, Action.AUDIT}


class PodOutcome(Enum):
    """What becomes of a stored pod that is created again."""

    EXEMPT = auto()
    """The API server sends vramwarden nothing of its namespace."""
    UNREAD = auto()
    """Unknown: it is too large to be read."""
    UNKNOWN = auto()
    """Unknown: its rule depends on labels of its namespace, which are unknown."""
    NO_RULE = auto()
    """No rule applies to it, or it is a static pod."""
    DENIED = auto()
    TRANSLATED = auto()
    """It requests GPU memory, has none today, and gets it."""
    ALLOWED = auto()


_JUDGED: Final = (PodOutcome.DENIED, PodOutcome.TRANSLATED, PodOutcome.ALLOWED)


class RecreatedPod(NamedTuple):
    """A stored pod as if it were created now."""

    outcome: PodOutcome
    namespace: str
    name: str
    uid: str = ""
    """Only set if it has GPU memory and vramwarden sees its namespace."""
    rule: str = ""
    """Only set if it is denied."""
    problems: tuple[Problem, ...] = ()
    """Why it is denied: the first problem of each code, of its workload."""


class DeniedGroup(NamedTuple):
    """Pods of one namespace that one rule would deny for one reason."""

    rule: str
    action: str
    """The rule's action today."""
    problem: Problem
    """The first pod's problem."""
    pods: Sequence[RecreatedPod]

    @property
    def workloads(self) -> int:
        """Number of workloads of the pods."""
        return len({one.subject for pod in self.pods for one in pod.problems})


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
    """Everything that a report says."""

    policy: str
    """Where it is from, and the first digits of its digest."""
    counts: Counter[PodOutcome]
    exempt_namespaces: int
    """Number of exempt namespaces with pods."""
    why_usual: str
    """Why namespaces are exempt by the chart's defaults; empty if the cluster itself says it."""
    denied: Sequence[DeniedGroup]
    denied_workloads: Sequence[CreationFailure]
    """Workloads whose pods vramwarden denies now."""
    over_cap: Sequence[OverCap]
    idle_bytes: Sequence[int]
    """Bytes that each pod holds that did nothing on any of its GPUs for more than `IDLE_S`."""
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


def judge_pod(
    pod: ClusterPod, policy: Policy, cluster: Cluster, is_exempt: Callable[[str], bool]
) -> RecreatedPod:
    """Judge a stored pod as if it were created now."""
    if is_exempt(pod.namespace):
        return RecreatedPod(PodOutcome.EXEMPT, pod.namespace, pod.name)
    judged = RecreatedPod(
        PodOutcome.NO_RULE, pod.namespace, pod.name, pod.uid if pod.managed else ""
    )
    if not isinstance(pod.raw.get("spec"), dict):
        return judged._replace(outcome=PodOutcome.UNREAD)
    if MIRROR_POD_ANNOTATION in pod.annotations:
        return judged
    creation = creation_of(pod.as_created(), pod.namespace)
    try:
        decision = decide_anew(creation, policy, cluster, Phase.MUTATE)
    except NamespaceUnknownError:
        return judged._replace(outcome=PodOutcome.UNKNOWN)
    if decision.skip:
        return judged
    if decision.outcome in {Outcome.DENIED, Outcome.MALFORMED}:
        workload = pod.workload
        subject = ProblemSubject(workload.kind, workload.name, pod.namespace)
        first: dict[str, Problem] = {}
        for problem in find_violations(decision, subject):
            first.setdefault(problem.code, problem)
        denied = judged._replace(outcome=PodOutcome.DENIED, rule=decision.rule)
        return denied._replace(problems=tuple(first.values()))
    is_translated = not pod.managed and asks_for_vram(pod.raw)
    return judged._replace(outcome=PodOutcome.TRANSLATED if is_translated else PodOutcome.ALLOWED)


def group_denied(pods: Iterable[RecreatedPod], policy: Policy) -> list[DeniedGroup]:
    """Return the denied pods by namespace, rule and reason, most pods first."""
    actions = {rule.name: rule.action.value for rule in policy.rules}
    groups: dict[tuple[str, str, str], tuple[Problem, list[RecreatedPod]]] = {}
    for pod in pods:
        for problem in pod.problems:
            group = groups.setdefault((pod.namespace, pod.rule, problem.code), (problem, []))
            group[1].append(pod)
    ordered = sorted(groups.items(), key=lambda one: (-len(one[1][1]), one[0]))
    return [DeniedGroup(rule, actions.get(rule, ""), *found) for (_, rule, _), found in ordered]


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


def find_idle(
    pods: Mapping[str, RecreatedPod], nodes: Iterable[NodeFigures], now_s: float
) -> list[int]:
    """Return the bytes that each idle pod of these, by UID, holds by figures that are not old."""
    found: dict[str, list[PodFigures]] = {}
    for node in nodes:
        fresh = now_s - node.observed_s <= STALE_S
        for one in (one for gpu in node.gpus for one in gpu.pods if fresh):
            if one.uid in pods:
                found.setdefault(one.uid, []).append(one)
    held = (
        sum(one.used_bytes or 0 for one in figures)
        for figures in found.values()
        if (idle_s := idle_since(figures)) is not None and now_s - idle_s > IDLE_S
    )
    return [*filter(None, held)]
