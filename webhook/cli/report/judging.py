"""What the pods of a cluster would meet if they were created again and every rule enforced."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from webhook.core.admission.creators import Creator
from webhook.core.admission.decide import Decision, Outcome, Phase, decide
from webhook.core.admission.templates import creation_of
from webhook.core.pod.demand import asks_for_vram
from webhook.core.pod.findings import shortened
from webhook.core.pod.lenient import as_object
from webhook.core.policy.values import Action, Policy, Rollout
from webhook.core.seeing.workloads import workload_of
from webhook.names import MANAGED_LABEL, MIRROR_POD_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from webhook.core.pod.fields import Json
    from webhook.core.seeing.nodes import NodeFigures

MOST_GROUPS: Final = 500
"""Of which a report is made; pods of further ones are counted alone."""
MOST_WORKLOADS: Final = 10_000
"""Of a group; of more, no more are counted."""
LONGEST_SENTENCE: Final = 512
_WORDS: Final = {Outcome.DENIED, Outcome.MALFORMED}
_LOOKING: Final = {Action.WARN, Action.AUDIT}
MALFORMED: Final = "Malformed"
_NO_LABELS: Final[Mapping[str, Mapping[str, str]]] = {}


@dataclass(slots=True)
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


@dataclass(frozen=True, slots=True)
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


def enforcing(policy: Policy) -> Policy:
    """Return the policy as it would be if every rule that only looks, and the rollout, enforced."""
    rules = tuple(
        replace(rule, action=Action.ENFORCE) if rule.action in _LOOKING else rule
        for rule in policy.rules
    )
    return replace(policy, rules=rules, rollout=Rollout.ENFORCE)


class Judged:
    """Takes one stored pod after the other, and remembers little of each."""

    def __init__(
        self, policy: Policy, namespace_labels: Mapping[str, Mapping[str, str]] = _NO_LABELS
    ) -> None:
        """Judge by these labels, by the names of namespaces."""
        self._namespace_labels = namespace_labels
        self._policy = enforcing(policy)
        self._actions = {rule.name: rule.action.value for rule in policy.rules}
        self._groups: dict[tuple[str, str, str], Denied] = {}
        self._names: dict[str, tuple[str, str]] = {}
        self.pods = 0
        """That a rule governs."""
        self.denied_pods = 0
        self.untranslated = 0
        """Pods that ask for VRAM, have none today, and would get it."""
        self.unread = 0
        """Pods that are too large to be read."""

    def take(self, raw: Json) -> None:
        """Judge a stored pod as if it were created now."""
        metadata, spec = as_object(raw.get("metadata")), raw.get("spec")
        namespace, name = str(metadata.get("namespace")), str(metadata.get("name"))
        labels = as_object(metadata.get("labels"))
        if labels.get(MANAGED_LABEL) == "true":
            self._names[str(metadata.get("uid"))] = namespace, name
        if not isinstance(spec, dict):
            self.unread += 1
            return
        if MIRROR_POD_ANNOTATION in as_object(metadata.get("annotations")):
            return  # a kubelet's own, which nobody denies
        creator = Creator(namespace_labels=self._namespace_labels.get(namespace, {}))
        creation = creation_of(_as_created(raw), namespace, creator)
        decision = decide(creation, self._policy, Phase.MUTATE)
        if decision.skip:
            return
        self.pods += 1
        if decision.outcome in _WORDS:
            self.denied_pods += 1
            for reason, sentence in _found(decision):
                self._note(namespace, name, decision.rule, reason, sentence, metadata)
        elif asks_for_vram(raw) and labels.get(MANAGED_LABEL) != "true":
            self.untranslated += 1

    def denied(self) -> list[Denied]:
        """Return what would be denied, most pods first."""
        found = self._groups.values()
        return sorted(found, key=lambda one: (-one.pods, one.namespace, one.rule, one.reason))

    def over_cap(self, nodes: Iterable[NodeFigures]) -> list[OverCap]:
        """Return who would have been stopped, of the pods that were taken; the oldest first."""
        found = [
            OverCap(
                *self._names[pod.uid],
                node.name,
                gpu.index,
                pod.cap_bytes,
                pod.peak_bytes,
                pod.would_stop,
                pod.would_stop_since_s,
            )
            for node in nodes
            for gpu in node.gpus
            for pod in gpu.pods
            if pod.would_stop and pod.would_stop_since_s is not None and pod.uid in self._names
        ]
        return sorted(found, key=lambda one: (one.since_s, one.namespace, one.pod, one.gpu))

    def _note(
        self, namespace: str, name: str, rule: str, reason: str, sentence: str, metadata: Json
    ) -> None:
        key = namespace, rule, reason
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) == MOST_GROUPS:
                return
            action = self._actions.get(rule, "")
            group = Denied(namespace, rule, action, reason, name, sentence)
            self._groups[key] = group
        group.pods += 1
        if len(group.workloads) < MOST_WORKLOADS:
            group.workloads.add(str(workload_of(metadata)))


def _as_created(raw: Json) -> Json:
    """Return a pod without what the scheduler and users of `kubectl debug` have added to it."""
    added = {"nodeName", "ephemeralContainers"}
    spec = {key: value for key, value in raw["spec"].items() if key not in added}
    return {"metadata": raw["metadata"], "spec": spec}


def _found(decision: Decision) -> Iterator[tuple[str, str]]:
    """Yield each reason once, with the first sentence of it."""
    if decision.malformed:
        yield MALFORMED, shortened(decision.malformed, LONGEST_SENTENCE)
    seen: set[str] = set()
    for finding in decision.findings:
        reason = finding.reason.value
        if reason not in seen:
            seen.add(reason)
            yield reason, shortened(str(finding), LONGEST_SENTENCE)
