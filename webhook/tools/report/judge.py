"""What the pods of a cluster would meet if they were created again and every rule enforced."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from webhook.core.admission.decide import Decision, Outcome, Phase, decide
from webhook.core.admission.templates import creation_of
from webhook.core.kinds.nodes import STALE_S, idle_since
from webhook.core.pod.demand import asks_for_vram
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.match import NamespaceUnknownError
from webhook.core.policy.values import Action, Policy
from webhook.core.words import counted, named
from webhook.names import MIRROR_POD_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from webhook.core.kinds.nodes import NodeFigures, PodFigures
    from webhook.tools.snapshot.pod import ClusterPod
    from webhook.tools.snapshot.release import Scope

IDLE_S: Final = 6 * 3600.0
"""As the alert VramwardenIdlePromise has it."""
_WORDS: Final = {Outcome.DENIED, Outcome.MALFORMED}
_RECORDING: Final = {Action.WARN, Action.AUDIT}
MALFORMED: Final = "Malformed"


@dataclass(slots=True, kw_only=True)
class Denied:
    """Pods of one namespace that one rule would deny for one reason."""

    namespace: str
    rule: str
    action: str
    """What the rule does today."""
    reason: str
    example: str
    """One of the pods."""
    sentence: str
    """What is wrong with it, as its user would read it."""
    pods: int = 0
    workloads: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverCap:
    """A pod that would have been stopped on one GPU for what it held."""

    namespace: str
    pod: str
    node: str
    gpu: int
    cap_bytes: int
    peak_bytes: int | None
    times: int
    since_s: float
    """Unix time of the first time."""


@dataclass(frozen=True, slots=True)
class IdlePods:
    """Pods that did nothing on any of their GPUs for more than `IDLE_S`."""

    pods: int
    held_bytes: int
    """By all of them together, now."""


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """What a replica has counted since it started."""

    replica: str
    since_s: float | None
    """Unix time."""
    reviews: dict[str, dict[str, int]]
    """Of new pods, by decision and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """Everything that a report says."""

    policy: str
    """Where it is from, and the first digits of its digest."""
    pods: int
    denied_pods: int
    untranslated: int
    exempt_pods: int
    """Of namespaces of which the API server sends vramwarden nothing: not judged."""
    exempt_namespaces: int
    """With such pods."""
    why_usual: str
    """Why those are by the chart's defaults; empty where the cluster itself says it."""
    denied: Sequence[Denied]
    over_cap: Sequence[OverCap]
    idle: IdlePods | None
    """None where there are none, as far as anybody knows."""
    counted: Sequence[ReplicaCounts]
    missing: Sequence[str]
    """What could not be read, and what to do."""
    unjudged: int
    """Pods of which it could not be said, for want of labels of their namespaces."""
    now_s: float

    @property
    def would_change(self) -> bool:
        """Whether anybody would be denied or stopped."""
        return bool(self.denied_pods or self.over_cap)


def enforcing(policy: Policy) -> Policy:
    """Return the policy as it would be if every rule that only records enforced."""
    rules = tuple(
        replace(rule, action=Action.ENFORCE) if rule.action in _RECORDING else rule
        for rule in policy.rules
    )
    return replace(policy, rules=rules)


class RolloutJudge:
    """Judges one stored pod after the other, and remembers little of each."""

    def __init__(
        self, policy: Policy, scope: Scope, labels: Mapping[str, Mapping[str, str] | None]
    ) -> None:
        """`labels`: those of each namespace for which rules or scope ask; None for unknown ones."""
        self._policy = enforcing(policy)
        self._scope = scope
        self._cluster = Cluster(namespaces=labels)
        self._exempt: dict[str, bool] = {}
        self._actions = {rule.name: rule.action.value for rule in policy.rules}
        self._groups: dict[tuple[str, str, str], Denied] = {}
        self._names: dict[str, tuple[str, str]] = {}
        self.pods = 0
        """To which a rule applies."""
        self.exempt_pods = 0
        """Of namespaces of which the API server sends us nothing."""
        self.denied_pods = 0
        self.untranslated = 0
        """Pods that ask for VRAM, have none today, and would get it."""
        self.unread = 0
        """Pods that are too large to be read."""
        self.unjudged = 0
        """Pods whose rule depends on labels of their namespace, which are not known."""
        self.unknown: set[str] = set()
        """Namespaces of those."""

    def add(self, pod: ClusterPod) -> None:
        """Judge a stored pod as if it were created now."""
        raw, namespace = pod.raw, pod.namespace
        if self._is_exempt(namespace):
            self.exempt_pods += 1
            return
        if pod.managed:
            self._names[pod.uid] = namespace, pod.name
        if not isinstance(raw.get("spec"), dict):
            self.unread += 1
            return
        if MIRROR_POD_ANNOTATION in pod.annotations:
            return  # a kubelet's own, which nobody denies
        creation = creation_of(pod.as_created(), namespace)
        try:
            decision = decide(creation, self._policy, self._cluster, Phase.MUTATE)
        except NamespaceUnknownError:
            self.unjudged += 1
            self.unknown.add(namespace)
            return
        if decision.skip:
            return
        self.pods += 1
        if decision.outcome in _WORDS:
            self.denied_pods += 1
            for reason, sentence in _found(decision):
                self._note(pod, decision.rule, reason, sentence)
        elif asks_for_vram(raw) and not pod.managed:
            self.untranslated += 1

    @property
    def exempt_namespaces(self) -> int:
        """Those with such pods."""
        return sum(self._exempt.values())

    def _is_exempt(self, namespace: str) -> bool:
        if namespace not in self._exempt:
            labels = self._cluster.labels_of(namespace)
            self._exempt[namespace] = self._scope.exempts(namespace, labels)
        return self._exempt[namespace]

    def denied(self) -> list[Denied]:
        """Return what would be denied, most pods first."""
        found = self._groups.values()
        return sorted(found, key=lambda one: (-one.pods, one.namespace, one.rule, one.reason))

    def missing(self, why_no_labels: str) -> Iterator[str]:
        """Yield which pods could not be judged, and why.

        Where nothing kept the labels from being read, their namespace is newer than they are.
        """
        if self.unread:
            yield f"what becomes of {counted(self.unread, 'pod')}, too large to be read"
        if self.unjudged:
            where = named(sorted(self.unknown))
            yield (
                f"what becomes of {counted(self.unjudged, 'pod')} in {where}: rules "
                "ask for labels of these namespaces, "
                f"{why_no_labels or 'which were not there yet'}"
            )

    def over_cap(self, nodes: Iterable[NodeFigures]) -> list[OverCap]:
        """Return who would have been stopped, of the pods that were added; the oldest first."""
        found = [
            OverCap(
                namespace=self._names[pod.uid][0],
                pod=self._names[pod.uid][1],
                node=node.name,
                gpu=gpu.index,
                cap_bytes=pod.cap_bytes,
                peak_bytes=pod.peak_bytes,
                times=pod.would_stop,
                since_s=pod.would_stop_since_s,
            )
            for node in nodes
            for gpu in node.gpus
            for pod in gpu.pods
            if pod.would_stop and pod.would_stop_since_s is not None and pod.uid in self._names
        ]
        return sorted(found, key=lambda one: (one.since_s, one.namespace, one.pod, one.gpu))

    def idle(self, nodes: Iterable[NodeFigures], now_s: float) -> IdlePods | None:
        """Return what idle pods hold, of those that were added, by figures that are not old."""
        found: dict[str, list[PodFigures]] = {}
        for node in nodes:
            fresh = now_s - node.observed_s <= STALE_S
            for pod in (pod for gpu in node.gpus for pod in gpu.pods if fresh):
                if pod.uid in self._names:
                    found.setdefault(pod.uid, []).append(pod)
        since_s = {uid: idle_since(figures) for uid, figures in found.items()}
        held = [
            sum(one.used_bytes or 0 for one in figures)
            for uid, figures in found.items()
            if (idle_s := since_s[uid]) is not None and now_s - idle_s > IDLE_S
        ]
        holding = [one for one in held if one]
        return IdlePods(len(holding), sum(holding)) if holding else None

    def _note(self, pod: ClusterPod, rule: str, reason: str, sentence: str) -> None:
        key = pod.namespace, rule, reason
        group = self._groups.get(key)
        if group is None:
            action = self._actions.get(rule, "")
            group = Denied(
                namespace=pod.namespace,
                rule=rule,
                action=action,
                reason=reason,
                example=pod.name,
                sentence=sentence,
            )
            self._groups[key] = group
        group.pods += 1
        group.workloads.add(str(pod.workload))


def _found(decision: Decision) -> Iterator[tuple[str, str]]:
    """Yield each reason once, with the first sentence of it."""
    if decision.malformed:
        yield MALFORMED, decision.malformed
    seen: set[str] = set()
    for finding in decision.findings:
        reason = finding.reason.value
        if reason not in seen:
            seen.add(reason)
            yield reason, str(finding)
