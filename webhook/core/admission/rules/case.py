"""Input of the rules: a pod under review, its demand, its rule, the policy and the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Flag, auto

from webhook.core.admission.rules.suggestions import find_likely_container, suggestions_for
from webhook.core.admission.sidecar.container import enforcer_for
from webhook.core.pod.command_lines import CommandLine, read_command_lines
from webhook.core.pod.demand import Demand, name_request_sources, plan_demand
from webhook.core.pod.fields import Json
from webhook.core.pod.findings import Finding
from webhook.core.pod.quantity import parse_quantity_or
from webhook.core.pod.suggestions import Suggestions
from webhook.core.pod.views import Container, Pod, effective_amount
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import Action, EnforceBy, Policy, Rollout, Rule, VisibleDevices
from webhook.names import GPU_CLASS_ANNOTATION


class CaseKind(Flag):
    """Kind of a review. Each rule judges some kinds."""

    WITHOUT_DEMAND = auto()
    """Creation of a pod that requests no VRAM."""
    UNREADABLE = auto()
    """Creation of a pod with an invalid request for VRAM."""
    READABLE = auto()
    """Creation of a pod that requests VRAM."""
    TRANSLATED = auto()
    """Pod that requests VRAM before it is stored, if no other rule has a finding."""
    UPDATED = auto()
    DEBUGGED = auto()
    """New debugging containers in a pod with VRAM."""
    DEBUGGED_WITHOUT_DEMAND = auto()
    """New debugging containers in a pod that requests no VRAM."""

    DEBUGGING = DEBUGGED | DEBUGGED_WITHOUT_DEMAND
    ASKING = UNREADABLE | READABLE
    CREATED = WITHOUT_DEMAND | ASKING


@dataclass(slots=True)
class SuggestedChanges:
    """Changes of a pod that messages suggest, to be made together."""

    annotations: dict[str, str] = field(default_factory=dict)
    removed: dict[str, set[str]] = field(default_factory=dict)
    """Names of resources to remove, keyed by container."""

    def remove(self, container: str, resources: Iterable[str]) -> None:
        """Add resources that a container should no longer request."""
        self.removed.setdefault(container, set()).update(resources)


@dataclass(slots=True, kw_only=True)
class Case:
    """A pod under review and all input for judging the pod; immutable by convention.

    Properties that several rules read are computed once, at the first read. `cached_property` is
    not used, since it takes a lock and needs instances without slots, which are slower.
    """

    pod: Pod
    old: Pod
    """The pod before an update; at creation, the same as `pod`."""
    rule: Rule
    policy: Policy
    cluster: Cluster
    suggestions: Suggestions
    suggested_changes: SuggestedChanges = field(default_factory=SuggestedChanges)
    """Changes that messages have suggested so far; the only field that rules change."""
    demand_if_any: Demand | None = None
    """The pod's demand, or the demand that the findings suggest if the pod's is invalid; may be
    None."""
    demand_problems: tuple[Finding, ...] = ()
    mutating: bool = False
    """True in the mutating phase, which may translate the pod."""
    _names_whole_gpus: bool | None = field(default=None, init=False)
    _requested_by: str = field(default="", init=False)
    _likely_container: str | None = field(default=None, init=False)
    _command_lines: list[tuple[Container, CommandLine]] | None = field(default=None, init=False)
    _enforcer: tuple[Json | None, ...] = field(default=(), init=False)
    """Tuple with the sidecar's container or None; empty until built."""

    @property
    def requests_vram(self) -> bool:
        """True if the pod requests VRAM, even with an invalid amount."""
        return self.demand_if_any is not None or bool(self.demand_problems)

    @property
    def requested_by(self) -> str:
        """All fields by which the pod requests VRAM, for messages."""
        if not self._requested_by:
            self._requested_by = name_request_sources(self.pod)
        return self._requested_by

    @property
    def likely_container(self) -> str:
        """Container that an amount without a name is probably for; empty if unclear."""
        if self._likely_container is None:
            self._likely_container = find_likely_container(self.pod, self.command_lines)
        return self._likely_container

    @property
    def command_lines(self) -> list[tuple[Container, CommandLine]]:
        """The containers with their command lines, up to a maximum number of characters."""
        if self._command_lines is None:
            self._command_lines = list(read_command_lines(self.pod.containers))
        return self._command_lines

    @property
    def finds_visible_devices(self) -> bool:
        """True if a hand-set NVIDIA_VISIBLE_DEVICES is a finding in a pod without a demand.

        Under Void, translation hides the GPUs instead. Under Audit and with rollout Observe, no
        GPUs are hidden yet, so a finding announces the change.
        """
        devices = self.rule.visible_devices
        observes = self.cluster.rollout is Rollout.OBSERVE or self.rule.action is Action.AUDIT
        return devices is VisibleDevices.DENY or (devices is VisibleDevices.VOID and observes)

    @property
    def demand(self) -> Demand:
        """The pod's demand, for rules that only judge pods with a demand. Raises LookupError."""
        if self.demand_if_any is None:
            raise LookupError("a rule that needs a demand is in the table for pods without one")
        return self.demand_if_any

    @property
    def enforced_by(self) -> EnforceBy:
        """Enforcement mode of the rule's pods."""
        return self.rule.enforcement.by

    @property
    def has_sidecar(self) -> bool:
        """True if the pod has the sidecar or will have it once created.

        A stored pod keeps its sidecar under a policy that adds none.
        """
        return (
            self.enforced_by is EnforceBy.SIDECAR
            if self.old is self.pod
            else bool(self.old.enforcers)
        )

    @property
    def names_whole_gpus(self) -> bool:
        """True if a container names a resource that may provide GPUs, whatever the amount."""
        if self._names_whole_gpus is None:
            names: set[str] = set()
            for container in (*self.pod.containers, *self.pod.enforcers):
                names.update(container.resources("requests"), container.resources("limits"))
            self._names_whole_gpus = any(map(self.policy.may_provide_gpus, names))
        return self._names_whole_gpus

    @property
    def has_whole_gpus(self) -> bool:
        """True if a container requests more than zero of a resource that may provide GPUs."""
        return self.names_whole_gpus and any(
            self.policy.may_provide_gpus(name) and parse_quantity_or(amount, None) != 0
            for container in (*self.pod.containers, *self.pod.enforcers)
            for kind in ("requests", "limits")
            for name, amount in container.resources(kind).items()
        )

    @property
    def names_node(self) -> bool:
        """True if the creator of the pod names its node."""
        return self.old is self.pod and bool(self.pod.spec.get("nodeName"))

    @property
    def enforcer(self) -> Json | None:
        """The sidecar's container; None if the rule has no sidecar or no sidecar would work."""
        if not self._enforcer:
            has_sidecar = self.enforced_by is EnforceBy.SIDECAR
            self._enforcer = (
                enforcer_for(self.pod, self.demand, self.rule) if has_sidecar else None,
            )
        return self._enforcer[0]


def new_case(
    pod: Pod, rule: Rule, policy: Policy, cluster: Cluster, *, mutating: bool = True
) -> Case:
    """Return the case of a new pod, with the rule for the GPU class that the pod requests."""
    name = pod.annotations.get(GPU_CLASS_ANNOTATION)
    rule = rule.for_class(policy.class_for(name or rule.default_class))
    suggestions = suggestions_for(pod, name, rule, policy, cluster)
    demand, problems = plan_demand(pod, suggestions)
    if demand is not None and rule.uses_device_plugin:
        # The annotation that replaces explicit amounts rounds up each of them.
        rounded_bytes = effective_amount(pod.containers, demand.amounts, 0)
        demand = demand._replace(per_gpu_bytes=rounded_bytes)
    return Case(
        pod=pod,
        old=pod,
        rule=rule,
        policy=policy,
        cluster=cluster,
        suggestions=suggestions,
        demand_if_any=demand,
        demand_problems=problems,
        mutating=mutating,
    )
