"""Policy of a platform team: rules, GPU classes and examples.

`webhook.adapters.policy` reads the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final

from webhook.core.pod.gpus import DriverLimit as DriverLimit  # noqa: PLC0414 - one of these values
from webhook.core.pod.gpus import EnforceBy as EnforceBy  # noqa: PLC0414 - one of these values
from webhook.core.pod.other_products import SHARED_GPU, WHOLE_GPU
from webhook.core.policy.gpu_resources import GPU_RESOURCES, NETWORK_RESOURCES, NVIDIA_DOMAIN
from webhook.core.policy.match import Match, Subject, matches_any
from webhook.names import NODE_DRIVER_LIMIT_LABEL, NODE_GPU_LABEL

SAFE_HOST_PATHS: Final = "Safe"
"""Keyword in place of a list of paths: all paths except to devices, runtimes or the kubelet."""

CAPABILITIES: Final = ("NET_ADMIN", "NET_RAW", "IPC_LOCK")
"""Default capabilities that pods with VRAM may add, for service meshes and RDMA."""

AUTO_RUNTIME_CLASS: Final = "Auto"
"""Keyword in place of a RuntimeClass: `nvidia` if the cluster has a RuntimeClass of that name."""


class Action(StrEnum):
    """Effect of findings on a pod."""

    ENFORCE = "Enforce"
    WARN = "Warn"
    AUDIT = "Audit"
    IGNORE = "Ignore"


class Rollout(StrEnum):
    """Effect of findings on pods without a demand, whatever the rule's action."""

    OBSERVE = "Observe"
    """Findings only cause warnings, and no GPUs are hidden. Recommended for a new installation."""
    ENFORCE = "Enforce"
    """The rule's action applies."""


class VisibleDevices(StrEnum):
    """Effect of NVIDIA_VISIBLE_DEVICES in a manifest."""

    DENY = "Deny"
    VOID = "Void"
    IGNORE = "Ignore"


class Isolation(StrEnum):
    """Users that containers of a pod with VRAM may run as."""

    ANY = "Any"
    NON_ROOT = "NonRoot"
    """No user that could signal the sidecar, which runs as root."""


class ResourceClaims(StrEnum):
    """Effect of a resource claim (DRA) in a pod with VRAM."""

    DENY = "Deny"
    IGNORE = "Ignore"


class Placement(StrEnum):
    """Time at which the GPU is chosen."""

    BINDING = "Binding"
    NONE = "None"


class RunAs(StrEnum):
    """User that the sidecar runs as."""

    AUTO = "Auto"
    ROOT = "Root"
    WORKLOAD = "Workload"


class WhenBlind(StrEnum):
    """Action of a sidecar that can no longer measure memory."""

    REPORT = "Report"
    TERMINATE = "Terminate"


class OnExcess(StrEnum):
    """Action of sidecar and sentry on a pod that stays over its cap."""

    STOP = "Stop"
    REPORT = "Report"
    """Report the excess and stop no process. For clusters that start with reports only."""


class Accounting(StrEnum):
    """Resource that the scheduler counts for a pod's demand."""

    VRAM = "VRAM"
    """The resource `vramwarden.io/vram`, in bytes."""
    MIG = "MIG"
    """The smallest MIG slice of NVIDIA's device plugin that is large enough."""
    CAP_ONLY = "CapOnly"
    """A time-slicing slot of NVIDIA's device plugin; vramwarden only enforces the cap."""


class TimeSliced(StrEnum):
    """Resources for the time-slicing slots of NVIDIA's device plugin."""

    GPU = WHOLE_GPU
    SHARED = SHARED_GPU
    """Used if the plugin's configuration has `renameByDefault: true`."""


class PodRestart(StrEnum):
    """Action of the kubelet if the sidecar requests a restart of the pod (KEP-5532)."""

    NONE = "None"
    ALL_CONTAINERS = "RestartAllContainers"


@dataclass(frozen=True, slots=True)
class MemoryBounds:
    """Bounds in bytes per GPU, both inclusive; None means no bound."""

    min_bytes: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceAmounts:
    """CPU and memory of the sidecar, as quantities; None if not set by the rule.

    No request exceeds its limit.
    """

    cpu_request: str | None = None
    cpu_limit: str | None = None
    memory_request: str | None = None
    memory_limit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """Enforcement of the caps of a rule's pods. The sidecar parses the durations."""

    by: EnforceBy
    run_as: RunAs
    image: str
    poll_interval: str
    grace: str
    tolerance: str
    """A percentage such as `2%`, or a number of bytes."""
    blind_after: str
    when_blind: WhenBlind
    on_excess: OnExcess
    driver_limit: DriverLimit
    pod_restart: PodRestart
    resources: ResourceAmounts

    def __hash__(self) -> int:
        """Hash only the image, which is fast: few rules differ only in other fields."""
        return hash(self.image)

    @property
    def restarts_pod(self) -> bool:
        """True if an excess can be ended without a signal to a process."""
        return self.pod_restart is PodRestart.ALL_CONTAINERS

    def promised_limit(self, placement: Placement) -> DriverLimit:
        """Return how the rule's pods use the driver's limit.

        | by | onExcess | placement | result |
        | --- | --- | --- | --- |
        | Sidecar | Stop | Binding | the value of `driverLimit` |
        | any other combination | | | Off: no container would wait for it, or no cap is enforced |
        """
        gates = self.by, self.on_excess, placement
        return self.driver_limit if gates == _LIMIT_CONDITIONS else DriverLimit.OFF


_LIMIT_CONDITIONS: Final = (EnforceBy.SIDECAR, OnExcess.STOP, Placement.BINDING)


@dataclass(frozen=True, slots=True)
class GPUClass:
    """Named kind of GPU."""

    name: str
    node_selector: Mapping[str, str]
    tolerations: tuple[dict[str, Any], ...]
    accounting: Accounting | None = None
    """Resource that the scheduler counts for pods of this class; None: as set in the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: the pods that it applies to, and how these pods are treated."""

    name: str
    match: Match
    action: Action
    memory: MemoryBounds
    max_gpu_count: int | None
    allowed_classes: tuple[str, ...]
    default_class: str | None
    node_selector: Mapping[str, str]
    tolerations: tuple[dict[str, Any], ...]
    runtime_class_name: str | None
    """RuntimeClass of pods that name none: a name, AUTO_RUNTIME_CLASS, or None."""
    env: tuple[dict[str, Any], ...]
    programs: tuple[str, ...]
    """Names in `core.nvidia.programs`. Containers with VRAM get the environment variables of
    these programs."""
    visible_devices: VisibleDevices
    isolation: Isolation
    host_paths: tuple[str, ...] | None
    """Host paths that pods with VRAM may mount, with all paths below; None for all paths that
    `core/admission/rules/isolation.py` considers safe."""
    capabilities: frozenset[str]
    """Capabilities that pods with VRAM may add to the container runtime's defaults."""
    resource_claims: ResourceClaims
    translate_whole_gpu_bytes: int | None
    """Bytes of VRAM that a pod gets instead of one whole GPU; None: the pod gets the whole GPU."""
    accounting: Accounting
    placement: Placement
    enforcement: Enforcement
    message: str | None = None
    time_sliced_resource: str = TimeSliced.GPU.value
    """Resource of NVIDIA's device plugin that pods request if `accounting` is CapOnly."""
    where: str = field(default="", compare=False)
    """File and line, for messages."""

    @property
    def chooses_gpus(self) -> bool:
        """True if GPUs are chosen at binding; otherwise a pod sees all GPUs of its node."""
        return self.placement is Placement.BINDING

    @property
    def gates_workload(self) -> bool:
        """True if each container with VRAM has the gate; False if at most the sidecar has it."""
        return self.chooses_gpus and self.enforcement.by is not EnforceBy.SIDECAR

    @property
    def driver_limit(self) -> DriverLimit:
        """Use of the driver's limit for the rule's pods."""
        return self.enforcement.promised_limit(self.placement)

    def node_selector_for(self, gpu_class: GPUClass | None) -> Mapping[str, str]:
        """Return the node selector for pods of a GPU class, or without a class if None."""
        selector = dict(self.node_selector)
        if gpu_class:
            selector |= gpu_class.node_selector
        if self.driver_limit is DriverLimit.REQUIRE:
            selector[NODE_DRIVER_LIMIT_LABEL] = "true"
        return selector

    @property
    def uses_device_plugin(self) -> bool:
        """True if NVIDIA's device plugin allocates the GPUs, so that vramwarden counts no VRAM."""
        return self.accounting is not Accounting.VRAM

    def for_class(self, gpu_class: GPUClass | None) -> Rule:
        """Return the rule as it applies to pods of a class; None: pods without a class.

        | accounting of the class, or of the rule | placement | enforcement of the cap |
        | --- | --- | --- |
        | VRAM | the rule's | the rule's `enforcement` |
        | MIG | None | none: the GPU itself divides its memory |
        | CapOnly | None | the rule's `enforcement` |

        With MIG and CapOnly, pods do not select the label `vramwarden.io/gpu`, which marks nodes
        whose memory the vramwarden agent advertises.
        """
        accounting = (gpu_class and gpu_class.accounting) or self.accounting
        if accounting is Accounting.VRAM:
            return self if self.accounting is accounting else replace(self, accounting=accounting)
        by = EnforceBy.NONE if accounting is Accounting.MIG else self.enforcement.by
        selector = {
            key: value for key, value in self.node_selector.items() if key != NODE_GPU_LABEL
        }
        return replace(
            self,
            accounting=accounting,
            placement=Placement.NONE,
            enforcement=replace(self.enforcement, by=by),
            node_selector=selector,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A pod and the decision that the policy's author expects. None accepts any value."""

    name: str
    where: str
    namespace: str
    namespace_labels: Mapping[str, str]
    pod: dict[str, Any]
    allowed: bool
    reasons: tuple[str, ...] | None
    rule: str | None
    vram: Fraction | None
    node_selector: Mapping[str, str] | None
    runtime_class_name: str | None
    """Expected RuntimeClass; empty for a pod without a RuntimeClass."""
    runtime_classes: frozenset[str]
    """Names of the cluster's RuntimeClasses."""
    mig_profiles: Mapping[str, int] = field(default_factory=dict)
    """Bytes of a slice on the cluster's nodes, keyed by profile name."""
    annotations: Mapping[str, str] | None = None
    tolerations: tuple[dict[str, Any], ...] | None = None
    env: Mapping[str, str] | None = None
    """Values of environment variables in every container with VRAM, keyed by name."""
    resources: Mapping[str, Fraction] | None = None
    """Sum of the limits of all containers, keyed by resource."""
    translated: dict[str, Any] | None = None
    """Whole pod after admission, without the annotation `admitted`."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Policy in the files of a platform team."""

    rules: tuple[Rule, ...] = ()
    classes: Mapping[str, GPUClass] = field(default_factory=dict)
    whole_gpu_resources: tuple[str, ...] = ()
    """Names of resources for whole GPUs; may contain `*`."""
    examples: tuple[Example, ...] = ()
    digest: str = ""
    """SHA-256 of all files, in hex."""

    @property
    def short_digest(self) -> str:
        """First 12 hex digits of the digest, for annotations, logs and metrics."""
        return self.digest[:12]

    def rule_for(self, subject: Subject) -> Rule | None:
        """Return the first rule that matches the pod, or None if no rule matches.

        Raises NamespaceUnknownError.
        """
        return next((rule for rule in self.rules if rule.match.matches(subject)), None)

    @property
    def namespace_labels(self) -> frozenset[str]:
        """Keys of the namespace labels that rules match."""
        return frozenset(
            key for rule in self.rules for part in rule.match.parts for key in part.namespace_labels
        )

    @property
    def pod_labels(self) -> frozenset[str]:
        """Keys of the pod labels that rules match."""
        return frozenset(
            key for rule in self.rules for part in rule.match.parts for key in part.pod_labels
        )

    def is_whole_gpu(self, resource: str) -> bool:
        """Return True if a resource requests whole GPUs."""
        return matches_any(resource, self.whole_gpu_resources)

    def may_provide_gpus(self, resource: str) -> bool:
        """Return True if a pod that requests the resource may get a GPU.

        NVIDIA's device plugin can offer GPUs and slices under any name below nvidia.com. NVIDIA's
        network operator can use any such name for network cards.
        """
        if self.is_whole_gpu(resource) or matches_any(resource, GPU_RESOURCES):
            return True
        return resource.startswith(NVIDIA_DOMAIN) and not matches_any(resource, NETWORK_RESOURCES)

    def class_for(self, name: str | None) -> GPUClass | None:
        """Return the GPU class of this name, or None if the policy has no such class."""
        return self.classes.get(name) if name else None

    def accountings_for(self, rule: Rule) -> set[Accounting]:
        """Return the accountings of a rule's pods, over all classes that the pods may name."""
        classes = (
            self.classes[name] for name in allowed_class_names(self.classes, rule.allowed_classes)
        )
        return {
            rule.accounting,
            *(gpu_class.accounting for gpu_class in classes if gpu_class.accounting),
        }


def allowed_class_names(classes: Iterable[str], allowed: tuple[str, ...]) -> list[str]:
    """Return the names of the classes that a rule allows, sorted."""
    return sorted(name for name in classes if matches_any(name, allowed))
