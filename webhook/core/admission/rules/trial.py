"""Try what a message would tell people to write, before it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.admission.rules import amounts, nodes
from webhook.core.admission.rules.case import Case
from webhook.core.pod.demand import asked_by, read_demand
from webhook.core.pod.fields import EXAMPLE
from webhook.core.pod.findings import Reason
from webhook.core.pod.lines import NO_LINES, LineCheck
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.views import Change, changed
from webhook.names import GPU_CLASS_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.pod.findings import Finding
    from webhook.core.pod.views import Pod
    from webhook.core.policy.cluster import Cluster
    from webhook.core.policy.values import Policy, Rule

MOST_TRIALS: Final = 32
"""For one review: somebody's list may have many wrong entries, and each is tried."""
_KINDS: Final = ("limits", "requests")
_MOST_CONTAINERS: Final = 32
_MOST_AMOUNTS: Final = 256
"""A larger pod is not tried, and its author reads no line: a trial reads all of these."""
_SMALLER: Final = ("4Gi", "1Gi")
"""Examples where slices of GPUs, or other containers, leave no room for the usual one."""
_OF_BOUNDS: Final = {Reason.TOO_LARGE, Reason.TOO_SMALL, Reason.INVALID_COUNT}
_OF_ALL: Final = (amounts.whole_gpus,)
_OF_ASKING: Final = (
    amounts.whole_gpu_and_share,
    amounts.gpu_class_known,
    nodes.node_selector,
)
_OF_DEMANDS: Final = (amounts.bounds, nodes.slices, nodes.one_slot)


def case_of(
    pod: Pod,
    rule: Rule,
    policy: Policy,
    cluster: Cluster,
    *,
    lines: LineCheck,
    mutating: bool = True,
) -> Case:
    """Return the case of a pod that is created, with its rule as it is for the class asked for."""
    demand, unreadable = read_demand(pod, lines)
    gpu_class = policy.class_for((demand and demand.gpu_class) or rule.default_class)
    return Case(
        pod=pod,
        old=pod,
        rule=rule.of_class(gpu_class),
        policy=policy,
        cluster=cluster,
        lines=lines,
        asked=demand,
        unreadable=unreadable,
        mutating=mutating,
    )


def _wrong(case: Case, *, asks: bool = False) -> Iterator[Finding]:
    """Yield what is wrong with what a pod asks for, or `asks` before the change."""
    yield from case.unreadable
    asks, asked = asks or case.asks, case.asked is not None
    for rule in (*_OF_ALL, *(_OF_ASKING if asks else ()), *(_OF_DEMANDS if asked else ())):
        yield from rule(case)


def _key(found: Finding) -> tuple[str, str, str]:
    """Return what tells findings apart; of bounds there are several at one place."""
    return found.reason, found.path, found.detail if found.reason in _OF_BOUNDS else ""


class Trial(LineCheck):
    """A pod that is created, under the rule that judges it."""

    def __init__(
        self,
        pod: Pod,
        rule: Rule,
        policy: Policy,
        cluster: Cluster,
        left: int = MOST_TRIALS,
    ) -> None:
        """Begin with the pod as it came; `left` says how many changes are tried."""
        self.pod = pod
        self._judged_by = (rule, policy, cluster)
        self._left = left
        self._before: set[tuple[str, str, str]] | None = None

    def why_not(self, change: Change) -> str | None:
        """Judge the pod with a change beside the lines kept: by what its author asks for alone."""
        if self._left > 0 and self._before is None and not self._is_small():
            self._left = 0
        if self._left <= 0:
            return ""
        self._left -= 1
        if self._before is None:
            self._before = set(map(_key, self._wrong(Change())))
        for found in self._wrong(change):
            if _key(found) not in self._before:
                return found.detail
        return None

    def wrong(self, change: Change) -> str:
        """Judge the pod with a change as one that is created."""
        return next((one.detail for one in _wrong(self.case(change))), "")

    def keep(self, change: Change) -> None:
        """Stand the lines that are tried from now on beside this one."""
        self.kept = self._with(change)
        self._before = None

    def examples(self) -> Iterator[str]:
        """Yield the usual example, then what the bounds of the rule and the class allow."""
        yield EXAMPLE
        if self._left <= 0:
            return
        rule, policy, _ = self._judged_by
        name = changed(self.pod, self._with(Change())).annotations.get(GPU_CLASS_ANNOTATION)
        for bounds, _, _ in amounts.bounds_for(name, rule, policy):
            for limit in (bounds.max_bytes, bounds.min_bytes):
                if limit is not None:
                    yield format_bytes(limit)
        yield from _SMALLER

    def case(self, change: Change | None = None) -> Case:
        """Return the case of the pod with all lines kept, and perhaps one more."""
        pod = changed(self.pod, self._with(change or Change()))
        return case_of(pod, *self._judged_by, lines=Trial(pod, *self._judged_by, self._left))

    def _is_small(self) -> bool:
        containers = self.pod.containers
        if len(containers) > _MOST_CONTAINERS:
            return False
        amounts = (len(one.resources(kind)) for one in containers for kind in _KINDS)
        return sum(amounts) <= _MOST_AMOUNTS

    def _with(self, change: Change) -> Change:
        return change.beside(self.kept) if self.kept else change

    def _wrong(self, change: Change) -> list[Finding]:
        pod = changed(self.pod, self._with(change))
        case = case_of(pod, *self._judged_by, lines=NO_LINES)
        return [*_wrong(case, asks=bool(asked_by(self.pod)))]
