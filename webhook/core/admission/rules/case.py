"""What the rules judge: a pod, what it asks for, the policy in force, and its cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Flag, auto

from webhook.core.admission.rules.amounts import meant_container
from webhook.core.admission.rules.suggestions import suggestions_for
from webhook.core.admission.tiers import SIDECAR, Tier, tier_of
from webhook.core.pod.command_lines import CommandLine, read_command_lines
from webhook.core.pod.demand import Demand, asked_by, plan_demand
from webhook.core.pod.fields import Json
from webhook.core.pod.findings import Finding
from webhook.core.pod.quantity import amount_or
from webhook.core.pod.suggestions import Suggestions
from webhook.core.pod.views import Container, Pod, effective_amount
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.values import Action, Policy, Rollout, Rule, VisibleDevices
from webhook.names import GPU_CLASS_ANNOTATION


class CaseKind(Flag):
    """Which kind of case it is; each rule judges some of them."""

    WITHOUT_DEMAND = auto()
    """The creation of a pod that asks for no VRAM."""
    UNREADABLE = auto()
    """The creation of a pod that asks for VRAM in a way that cannot be read."""
    READABLE = auto()
    """The creation of a pod that asks for VRAM."""
    TRANSLATED = auto()
    """The same pod before it is stored, where nothing else was found."""
    UPDATED = auto()
    DEBUGGED = auto()
    """New debugging containers in a pod with VRAM."""
    DEBUGGED_WITHOUT_DEMAND = auto()
    """New debugging containers in a pod that asks for no VRAM."""

    DEBUGGING = DEBUGGED | DEBUGGED_WITHOUT_DEMAND
    ASKING = UNREADABLE | READABLE
    CREATED = WITHOUT_DEMAND | ASKING


@dataclass(slots=True)
class SuggestedLines:
    """Changes of a pod that hints suggest, to be followed together."""

    annotations: dict[str, str] = field(default_factory=dict)
    removed: dict[str, set[str]] = field(default_factory=dict)
    """Names of resources, by container."""

    def remove(self, container: str, resources: Iterable[str]) -> None:
        """Add resources that a container should no longer ask for."""
        self.removed.setdefault(container, set()).update(resources)


@dataclass(slots=True, kw_only=True)
class Case:
    """One pod to judge; like `Pod` it is changed by nobody, though it is not frozen.

    What several rules ask for is found out once, and only where one asks; by hand, since
    `cached_property` takes a lock and wants instances without slots, whose fields are slower.
    """

    pod: Pod
    old: Pod
    """The pod before an update; the same pod where it is created."""
    rule: Rule
    policy: Policy
    cluster: Cluster
    suggestions: Suggestions
    """Amounts that messages may suggest."""
    lines: SuggestedLines = field(default_factory=SuggestedLines)
    """Lines that messages suggest so far."""
    asked: Demand | None = None
    """The demand. If it cannot be read, the one that the findings suggest, or None."""
    unreadable: tuple[Finding, ...] = ()
    """Reasons why the demand cannot be read."""
    mutating: bool = False
    """Whether translation may follow."""
    _names_whole_gpus: bool | None = field(default=None, init=False)
    _asked_by: str = field(default="", init=False)
    _meant_container: str | None = field(default=None, init=False)
    _command_lines: list[tuple[Container, CommandLine]] | None = field(default=None, init=False)
    _enforcer: tuple[Json | None, ...] = field(default=(), init=False)
    """Empty until it is asked for."""

    @property
    def asks(self) -> bool:
        """Whether the pod asks for VRAM, readably or not."""
        return self.asked is not None or bool(self.unreadable)

    @property
    def asked_by(self) -> str:
        """All by which the pod asks for VRAM, in words."""
        if not self._asked_by:
            self._asked_by = asked_by(self.pod)
        return self._asked_by

    @property
    def meant_container(self) -> str:
        """Name of the container that seems to be meant by one quantity; empty for none."""
        if self._meant_container is None:
            self._meant_container = meant_container(self)
        return self._meant_container

    @property
    def command_lines(self) -> list[tuple[Container, CommandLine]]:
        """The containers with their command lines, up to a number of characters."""
        if self._command_lines is None:
            self._command_lines = list(read_command_lines(self.pod.containers))
        return self._command_lines

    @property
    def finds_visible_devices(self) -> bool:
        """Whether a hand-set NVIDIA_VISIBLE_DEVICES is a finding in a pod without a demand.

        Void is a matter of translation, except where nothing is voided yet: then what is found
        shows what will be.
        """
        devices = self.rule.visible_devices
        observes = self.cluster.rollout is Rollout.OBSERVE or self.rule.action is Action.AUDIT
        return devices is VisibleDevices.DENY or (devices is VisibleDevices.VOID and observes)

    @property
    def demand(self) -> Demand:
        """The demand, for rules that judge only pods with one."""
        if self.asked is None:
            raise LookupError("a rule that needs a demand is in the table for pods without one")
        return self.asked

    @property
    def tier(self) -> Tier:
        """What is to hold the cap."""
        return tier_of(self.rule)

    @property
    def has_sidecar(self) -> bool:
        """True if the pod has the sidecar, or will have it once it is created.

        A stored pod keeps its sidecar under a policy that adds none.
        """
        return self.tier is SIDECAR if self.old is self.pod else bool(self.old.enforcers)

    @property
    def names_whole_gpus(self) -> bool:
        """Whether any container names a resource that may bring GPUs."""
        if self._names_whole_gpus is None:
            names: set[str] = set()
            for container in (*self.pod.containers, *self.pod.enforcers):
                names.update(container.resources("requests"), container.resources("limits"))
            self._names_whole_gpus = any(map(self.policy.may_bring_gpus, names))
        return self._names_whole_gpus

    @property
    def has_whole_gpus(self) -> bool:
        """Whether any container asks for more than zero of such a resource."""
        return self.names_whole_gpus and any(
            self.policy.may_bring_gpus(name) and amount_or(amount, None) != 0
            for container in (*self.pod.containers, *self.pod.enforcers)
            for kind in ("requests", "limits")
            for name, amount in container.resources(kind).items()
        )

    @property
    def names_node(self) -> bool:
        """Whether whoever creates the pod names its node; later the scheduler has named it."""
        return self.old is self.pod and bool(self.pod.spec.get("nodeName"))

    @property
    def enforcer(self) -> Json | None:
        """The sidecar's container; None where the rule has none, or none would work."""
        if not self._enforcer:
            self._enforcer = (self.tier.adds(self.pod, self.demand, self.rule),)
        return self._enforcer[0]


def case_of(
    pod: Pod, rule: Rule, policy: Policy, cluster: Cluster, *, mutating: bool = True
) -> Case:
    """Return the case of a pod that is created, with its rule as it is for the class asked for."""
    name = pod.annotations.get(GPU_CLASS_ANNOTATION)
    rule = rule.of_class(policy.class_for(name or rule.default_class))
    suggestions = suggestions_for(pod, name, rule, policy, cluster)
    demand, unreadable = plan_demand(pod, suggestions)
    if demand is not None and rule.leaves_to_plugin:
        # An annotation takes the place of explicit amounts, each of which it rounds up.
        rounded_bytes = effective_amount(pod.containers, demand.amounts, 0)
        demand = demand._replace(per_gpu_bytes=rounded_bytes)
    return Case(
        pod=pod,
        old=pod,
        rule=rule,
        policy=policy,
        cluster=cluster,
        suggestions=suggestions,
        asked=demand,
        unreadable=unreadable,
        mutating=mutating,
    )
