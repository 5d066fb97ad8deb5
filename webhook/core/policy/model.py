"""What a platform team decides: rules, classes, and which rule applies to a pod.

Values only: the files they come from are read by `webhook.adapters.policy.files`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final

from webhook.core.pod.gpus import DriverLimit as DriverLimit  # noqa: PLC0414 - one of these values
from webhook.core.pod.gpus import EnforceBy as EnforceBy  # noqa: PLC0414 - one of these values
from webhook.core.pod.other_products import OTHER_PRODUCT_RESOURCES, SHARED_GPU, WHOLE_GPU
from webhook.core.policy.match import Match, Subject, matches_any
from webhook.names import NODE_DRIVER_LIMIT_LABEL, NODE_GPU_LABEL

WHOLE_GPU_RESOURCES: Final = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-*",
    "nvidia.com/pgpu",
    "nvidia.com/gpumem*",
    "nvidia.com/gpucores",
    "volcano.sh/vgpu-*",
    "aliyun.com/gpu-*",
    "amd.com/gpu*",
    "amd.com/*_nps*",
    "deviceclass.resource.kubernetes.io/*gpu*",
    "deviceclass.resource.kubernetes.io/mig.nvidia.com",
    "deviceclass.resource.kubernetes.io/nvidia-*",
)
"""What stands for whole GPUs where a policy names none; policies/default.yaml explains each."""

NVIDIA_DOMAIN: Final = "nvidia.com/"
AMD_DOMAIN: Final = "amd.com/"
GPU_RESOURCES: Final = (
    *(f"{NVIDIA_DOMAIN}*{word}*" for word in ("gpu", "mig-")),
    *OTHER_PRODUCT_RESOURCES,
)
"""What brings GPUs under any policy, whatever else its name says."""
NETWORK_RESOURCES: Final = tuple(
    f"{NVIDIA_DOMAIN}*{word}*"
    for word in (
        *("hostdev", "nic", "net", "eth", "vf", "rdma", "roce", "ibp", "infiniband", "sriov"),
        *("mlnx", "mlx", "connectx", "cx", "bf2", "bf3", "dpu"),
    )
)
"""Of other names below that domain those of network cards: NVIDIA's network operator takes any."""

SAFE_HOST_PATHS: Final = "Safe"
"""In place of a list of paths: whatever leads neither to devices, runtimes nor the kubelet."""

CAPABILITIES: Final = ("NET_ADMIN", "NET_RAW", "IPC_LOCK")
"""What pods with VRAM may add where a rule says nothing: for service meshes, and for RDMA."""

AUTO_RUNTIME_CLASS: Final = "Auto"
"""In place of a name, none of which has a capital: `nvidia` where the cluster has that."""


class Action(StrEnum):
    """What a rule does with findings."""

    ENFORCE = "Enforce"
    WARN = "Warn"
    AUDIT = "Audit"
    IGNORE = "Ignore"


class Rollout(StrEnum):
    """What findings on pods without a demand do, whatever the rule's action."""

    OBSERVE = "Observe"
    """They are only warned of, and nothing is voided: what a new installation should begin with."""
    ENFORCE = "Enforce"
    """They do what the rule's action says."""


class VisibleDevices(StrEnum):
    """What a rule does with a hand-set NVIDIA_VISIBLE_DEVICES."""

    DENY = "Deny"
    VOID = "Void"
    IGNORE = "Ignore"


class Isolation(StrEnum):
    """Which users the containers of a pod with VRAM may run as."""

    ANY = "Any"
    NON_ROOT = "NonRoot"
    """None that could signal the sidecar, which is root."""


class ResourceClaims(StrEnum):
    """What a rule does with a resource claim (DRA) beside a share."""

    DENY = "Deny"
    IGNORE = "Ignore"


class Placement(StrEnum):
    """When the GPU is chosen."""

    BINDING = "Binding"
    NONE = "None"


class RunAs(StrEnum):
    """Which user the sidecar runs as."""

    AUTO = "Auto"
    ROOT = "Root"
    WORKLOAD = "Workload"


class WhenBlind(StrEnum):
    """What a sidecar does when it can no longer measure."""

    REPORT = "Report"
    TERMINATE = "Terminate"


class OnExcess(StrEnum):
    """What a sidecar and the sentry do about a pod that stays over its cap."""

    STOP = "Stop"
    REPORT = "Report"
    """Everything but the stop: what a cluster begins with that wants to see reports first."""


class Accounting(StrEnum):
    """What the scheduler counts for a demand."""

    VRAM = "VRAM"
    """Our own resource, in bytes."""
    MIG = "MIG"
    """A slice of NVIDIA's device plugin, the smallest that holds the demand."""
    CAP_ONLY = "CapOnly"
    """Nothing of ours: a slot that NVIDIA's device plugin offers by time-slicing, and our cap."""


class TimeSliced(StrEnum):
    """The resources under which NVIDIA's device plugin offers the slots of its time-slicing."""

    GPU = WHOLE_GPU
    SHARED = SHARED_GPU
    """Where its configuration has `renameByDefault: true`."""


class PodRestart(StrEnum):
    """What the kubelet does when the sidecar says that the pod must restart (KEP-5532)."""

    NONE = "None"
    ALL_CONTAINERS = "RestartAllContainers"


@dataclass(frozen=True, slots=True)
class MemoryBounds:
    """Bounds in bytes per GPU, both inclusive; None means no bound."""

    min_bytes: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceAmounts:
    """What a rule says of the sidecar's CPU and memory, as quantities; None where it says nothing.

    A request is not more than its limit.
    """

    cpu_request: str | None = None
    cpu_limit: str | None = None
    memory_request: str | None = None
    memory_limit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """How a rule's pods are held to their cap. Durations are text, as the sidecar reads them."""

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
        """Hash one field: decisions find what belongs to a rule by it, and a rule has few alike."""
        return hash(self.image)

    @property
    def restarts_pod(self) -> bool:
        """Whether an excess can be ended without a signal to any process."""
        return self.pod_restart is PodRestart.ALL_CONTAINERS

    def promised_limit(self, placement: Placement) -> DriverLimit:
        """Return what pods are promised of the driver's limit.

        | by | onExcess | placement | promised |
        | --- | --- | --- | --- |
        | Sidecar | Stop | Binding | what `driverLimit` says |
        | any other of these | | | Off: nothing in the pod would wait, or nothing is to hold it |
        """
        gates = self.by, self.on_excess, placement
        return self.driver_limit if gates == _LIMIT_CONDITIONS else DriverLimit.OFF


_LIMIT_CONDITIONS: Final = (EnforceBy.SIDECAR, OnExcess.STOP, Placement.BINDING)


@dataclass(frozen=True, slots=True)
class GPUClass:
    """A named kind of GPU."""

    name: str
    node_selector: Mapping[str, str]
    tolerations: tuple[dict[str, Any], ...]
    accounting: Accounting | None = None
    """What the scheduler counts for pods of this class; None is what the rule says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: which pods it applies to and what happens to them."""

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
    """The RuntimeClass of pods that name none; AUTO_RUNTIME_CLASS, or None for none."""
    env: tuple[dict[str, Any], ...]
    programs: tuple[str, ...]
    """Names of `core.nvidia.programs`, whose variables containers with VRAM get."""
    visible_devices: VisibleDevices
    isolation: Isolation
    host_paths: tuple[str, ...] | None
    """Paths of the node that pods with VRAM may mount, and what is below them; None for all that
    `core/admission/rules/isolation.py` takes for safe."""
    capabilities: frozenset[str]
    """Which containers of pods with VRAM may add beside what runtimes give everybody."""
    resource_claims: ResourceClaims
    translate_whole_gpu_bytes: int | None
    """What a pod that asks for one whole GPU gets of it in its place; None leaves it its GPU."""
    accounting: Accounting
    placement: Placement
    enforcement: Enforcement
    message: str | None = None
    """What stands behind every denial of this rule."""
    time_sliced_resource: str = TimeSliced.GPU.value
    """What pods ask NVIDIA's device plugin for, where `accounting` is CapOnly."""
    where: str = field(default="", compare=False)
    """File and line, for messages."""

    @property
    def chooses_gpus(self) -> bool:
        """Whether a pod's GPUs are chosen at binding; otherwise it sees all of its node's."""
        return self.placement is Placement.BINDING

    @property
    def gates_workload(self) -> bool:
        """True if each container with VRAM has the gate; otherwise the sidecar has it, or none."""
        return self.chooses_gpus and self.enforcement.by is not EnforceBy.SIDECAR

    @property
    def driver_limit(self) -> DriverLimit:
        """What its pods are promised of the driver's limit."""
        return self.enforcement.promised_limit(self.placement)

    def node_selector_for(self, gpu_class: GPUClass | None) -> Mapping[str, str]:
        """Return the labels of nodes that pods of a class, or of none, select."""
        selector = dict(self.node_selector)
        if gpu_class:
            selector |= gpu_class.node_selector
        if self.driver_limit is DriverLimit.REQUIRE:
            selector[NODE_DRIVER_LIMIT_LABEL] = "true"
        return selector

    @property
    def uses_device_plugin(self) -> bool:
        """Whether NVIDIA's device plugin gives pods their GPUs, and nothing of ours is counted."""
        return self.accounting is not Accounting.VRAM

    def for_class(self, gpu_class: GPUClass | None) -> Rule:
        """Return the rule as it is for pods of a class, or of none.

        | accounting, of the class or else of the rule | placement | the cap is held by |
        | --- | --- | --- |
        | VRAM | the rule's | the rule's `enforcement` |
        | MIG | None | nothing of ours: the GPU itself divides its memory |
        | CapOnly | None | the rule's `enforcement` |

        Other accounting than VRAM never asks for nodes that bear the label `vramwarden.io/gpu`:
        that is on those whose memory our own agent advertises.
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
    """A pod and what a policy's author expects of it; None means that nothing is expected."""

    name: str
    where: str
    """File and line, for the message."""
    namespace: str
    namespace_labels: Mapping[str, str]
    pod: dict[str, Any]
    allowed: bool
    reasons: tuple[str, ...] | None
    rule: str | None
    vram: Fraction | None
    node_selector: Mapping[str, str] | None
    runtime_class_name: str | None
    """Empty for a pod that names no RuntimeClass."""
    runtime_classes: frozenset[str]
    """The RuntimeClasses of the cluster in which the pod is created."""
    mig_profiles: Mapping[str, int] = field(default_factory=dict)
    """Bytes of one slice of its nodes, by the name of its profile."""
    annotations: Mapping[str, str] | None = None
    tolerations: tuple[dict[str, Any], ...] | None = None
    env: Mapping[str, str] | None = None
    """Values of variables, by name, in every container with VRAM."""
    resources: Mapping[str, Fraction] | None = None
    """What all containers of the pod limit together, by resource."""
    translated: dict[str, Any] | None = None
    """The whole pod as it should be stored, without the annotation that names rule and policy."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a platform team wants, as its files say it."""

    rules: tuple[Rule, ...] = ()
    classes: Mapping[str, GPUClass] = field(default_factory=dict)
    whole_gpu_resources: tuple[str, ...] = ()
    """Names or patterns with `*`."""
    examples: tuple[Example, ...] = ()
    digest: str = ""
    """SHA-256 of all that went in, in hex."""

    @property
    def short_digest(self) -> str:
        """The first 12 hex digits: what annotations, logs and metrics show."""
        return self.digest[:12]

    def rule_for(self, subject: Subject) -> Rule | None:
        """Return the first rule that matches, or None: such a pod is left alone.

        Raises NamespaceUnknownError.
        """
        return next((rule for rule in self.rules if rule.match.holds(subject)), None)

    @property
    def namespace_labels(self) -> frozenset[str]:
        """The labels of namespaces for which rules ask."""
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
        """Say whether a resource name stands for whole GPUs."""
        return matches_any(resource, self.whole_gpu_resources)

    def may_provide_gpus(self, resource: str) -> bool:
        """Say whether somebody may give a pod a GPU for a resource, under whatever name.

        NVIDIA's device plugin offers GPUs and slices under any name below its domain, which it
        shares with NVIDIA's network operator.
        """
        if self.is_whole_gpu(resource) or matches_any(resource, GPU_RESOURCES):
            return True
        return resource.startswith(NVIDIA_DOMAIN) and not matches_any(resource, NETWORK_RESOURCES)

    def class_for(self, name: str | None) -> GPUClass | None:
        """Return a class by name."""
        return self.classes.get(name) if name else None

    def accountings_for(self, rule: Rule) -> set[Accounting]:
        """Return what the scheduler may count for the pods of a rule, whatever class they name."""
        classes = (
            self.classes[name] for name in allowed_class_names(self.classes, rule.allowed_classes)
        )
        return {rule.accounting, *(one.accounting for one in classes if one.accounting)}


def allowed_class_names(classes: Iterable[str], allowed: tuple[str, ...]) -> list[str]:
    """Return the names of the classes that a rule allows, sorted."""
    return sorted(name for name in classes if matches_any(name, allowed))
