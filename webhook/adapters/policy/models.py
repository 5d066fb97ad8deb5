"""The shape of a policy file: pydantic models, strict.

Names, defaults and descriptions here are what editors and the table in policies/fields.md show.
"""

# ruff: noqa: RUF012 - pydantic copies a default

from collections import Counter
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic.alias_generators import to_camel

from webhook.adapters.policy.fields import (
    Capability,
    ChosenRuntimeClass,
    ClassPattern,
    ExpectedRuntimeClass,
    GpuCount,
    HostPaths,
    Image,
    LabelKey,
    Message,
    MigProfile,
    Name,
    NamespacePattern,
    NamespacePatterns,
    PodName,
    Quantity,
    ResourcePattern,
    RuntimeClassName,
    ServiceAccountPattern,
    Title,
    Tolerance,
    Vram,
    within,
)
from webhook.adapters.policy.parts import (
    EnvPart,
    MemoryPart,
    Part,
    ResourcesPart,
    Selector,
    TolerationPart,
)
from webhook.core.enforcement.bounds import (
    BLIND_AFTER,
    GRACE,
    MOST_PERCENT,
    POLL_INTERVAL,
    TOLERANCE,
)
from webhook.core.nvidia.programs import DEFAULT_PROGRAMS, Program
from webhook.core.pod.findings import Reason
from webhook.core.policy.match import Match
from webhook.core.policy.values import (
    AUTO_RUNTIME_CLASS,
    CAPABILITIES,
    SAFE_HOST_PATHS,
    WHOLE_GPU_RESOURCES,
    Accounting,
    Action,
    DriverLimit,
    EnforceBy,
    Enforcement,
    GPUClass,
    Isolation,
    OnExcess,
    Placement,
    PodRestart,
    ResourceClaims,
    Rule,
    RunAs,
    TimeSliced,
    VisibleDevices,
    WhenBlind,
)
from webhook.names import NODE_GPU_LABEL, NVIDIA_RUNTIME_CLASS

# Strictness would ask for the members themselves; a file has their text.
_Lax = Field(strict=False)


def _distinct(verb: str, values: list[Any]) -> list[Any]:
    names = Counter(getattr(value, "name", value) for value in values)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(f"{verb} {', '.join(twice)} more than once; keep one entry")
    return values


_NamesOnce = AfterValidator(partial(_distinct, "names"))
_SetsOnce = AfterValidator(partial(_distinct, "sets"))
_AsText = AfterValidator(str)
"""Of a choice that `core.policy` knows by its name alone."""


class ClassPart(Part):
    """A kind of GPU that pods ask for by name."""

    builds = GPUClass

    node_selector: Selector = {}
    """Labels of the nodes that have such GPUs."""
    tolerations: list[TolerationPart] = []
    """Tolerations that pods of this class get."""
    accounting: Annotated[Accounting, _Lax] | None = None
    """What the scheduler counts for this class; null is what the rule says."""


class CriteriaPart(Part):
    """Pods that meet every field given."""

    builds = Match

    namespace_labels: Selector = {}
    """Labels that the pod's namespace must have, with values. The webhook follows all namespaces
    while a rule asks for any."""
    pod_labels: Selector = {}
    """Labels that the pod must have, with values."""
    service_accounts: list[ServiceAccountPattern] = []
    """Names of the pod's own ServiceAccount, with * for any text; [] is any. A pod that names none
    has default."""


class ExceptPart(CriteriaPart):
    """Pods that a match leaves out: those that meet every field given."""

    namespaces: list[NamespacePattern] = []
    """Namespaces, with * for any text; [] is every namespace."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise ValueError("leaves out every pod; name e.g. namespaces, or leave the field out")
        return self


class MatchPart(CriteriaPart):
    """Which pods a rule applies to: those that meet every field given."""

    namespaces: NamespacePatterns = ["*"]
    """Namespaces, with * for any text; absent is every namespace."""
    exception: ExceptPart | None = Field(None, alias="except")
    """Pods that the rule does not match although they meet the rest, so that the rules after it are
    asked; null is none."""


class GpuCountPart(Part):
    """Bounds of the number of GPUs."""

    max_gpu_count: GpuCount | None = Field(None, alias="max")
    """The most GPUs per pod; null is no bound."""


class ClassesPart(Part):
    """Which classes a rule's pods may name."""

    allowed_classes: list[ClassPattern] = Field(["*"], alias="allowed")
    """Classes that may be named, with * for any text."""
    default_class: Name | None = Field(None, alias="default")
    """The class of pods that name none; null is no class."""


def _require(
    limit: DriverLimit,
    needs: dict[str, tuple[StrEnum, str]],
    given: dict[str, Any],
    field: str = "",
) -> None:
    """Reject Require beside a field that is given otherwise than it needs; `needs` says why."""
    lacks = [
        f"needs {to_camel(name)} {value}: {why}; change {to_camel(name)}, or write {field}Auto"
        for name, (value, why) in needs.items()
        if given.get(name, value) != value
    ]
    if lacks and limit is DriverLimit.REQUIRE:
        raise ValueError(f"{field}{limit} {'; it '.join(lacks)}")


class EnforcementPart(Part):
    """How the cap is held while the pod runs."""

    builds = Enforcement

    by: Annotated[EnforceBy, _Lax] = EnforceBy.SIDECAR
    """Sidecar adds a container that stops what exceeds the cap; Sentry adds none, and the node's
    sentry stops it; None stops nothing."""
    run_as: Annotated[RunAs, _Lax] = RunAs.AUTO
    """The sidecar's user: Root, the Workload's own, or Auto, which reads the pod's security
    context."""
    image: Image | None = None
    """The sidecar's image; null is the release's enforcer image. Another one must be of the
    webhook's release, since the pods' probes are programs in it."""
    poll_interval: Annotated[str, *within(POLL_INTERVAL)] = Field(
        POLL_INTERVAL.default,
        description="How often memory is measured, from "
        f"{POLL_INTERVAL.least} to {POLL_INTERVAL.most}.",
    )
    grace: Annotated[str, *within(GRACE)] = Field(
        GRACE.default,
        description=f"From SIGTERM to SIGKILL, up to {GRACE.most}; 0s kills at once.",
    )
    tolerance: Tolerance = Field(
        TOLERANCE,
        description=(
            "How far over the cap is still allowed: a percentage with at most one decimal, up to "
            f"{MOST_PERCENT}%, or a quantity, 0 or at least 1Mi."
        ),
    )
    blind_after: Annotated[str, *within(BLIND_AFTER)] = Field(
        BLIND_AFTER.default,
        description="How long the sidecar's measuring may fail, from "
        f"{BLIND_AFTER.least} to {BLIND_AFTER.most}, before whenBlind applies.",
    )
    when_blind: Annotated[WhenBlind, _Lax] = WhenBlind.REPORT
    """Report says so and continues; Terminate ends the pod."""
    on_excess: Annotated[OnExcess, _Lax] = OnExcess.STOP
    """Stop ends what exceeds the cap; Report says what would be stopped, and stops nothing."""
    driver_limit: Annotated[DriverLimit, _Lax] = DriverLimit.AUTO
    """Whether the node's driver holds the pod to its cap (from r615 on): Auto on nodes that can;
    Require always, since the pod runs on no other nodes; Off never. Containers start once it does.
    Auto is Off with by Sentry or None, onExcess Report, placement None, and accounting MIG or
    CapOnly."""
    pod_restart: Annotated[PodRestart, _Lax] = PodRestart.NONE
    """RestartAllContainers restarts all containers of the pod where the sidecar ends, whoever ended
    it, or may not stop what exceeds the cap; from Kubernetes 1.36 on. None restarts none."""
    resources: ResourcesPart | None = None
    """The sidecar's CPU and memory, in place of the usual amounts; null is those."""

    @field_validator("driver_limit")
    @classmethod
    def _can_be_required(cls, limit: DriverLimit, info: ValidationInfo) -> DriverLimit:
        needs = {
            "by": (EnforceBy.SIDECAR, "without a sidecar no container waits for the limit"),
            "on_excess": (OnExcess.STOP, "Report holds nobody to the cap, and the limit would"),
        }
        _require(limit, needs, info.data)
        return limit

    @field_validator("run_as", "image", "blind_after", "when_blind", "pod_restart", "resources")
    @classmethod
    def _is_of_the_sidecar(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("by") is EnforceBy.SENTRY:
            raise ValueError(
                "is of the sidecar, and by Sentry adds none; remove the line, or write by Sidecar"
            )
        return value


class RulePart(Part):
    """One rule: which pods it applies to, and what happens to them."""

    builds = Rule

    name: Name
    """The rule's name, unique in the policy; shown on pods."""
    match: MatchPart = MatchPart()
    """Which pods the rule applies to; absent is every pod."""
    action: Annotated[Action, _Lax] = Action.ENFORCE
    """Enforce denies; Warn allows with a warning; Audit records and changes no pod; Ignore leaves
    the pods alone."""
    message: Message | None = None
    """One line behind every denial of this rule, e.g. whom to ask."""
    memory: MemoryPart = MemoryPart()
    """Bounds of the VRAM per GPU."""
    gpu_count: GpuCountPart = GpuCountPart()
    """Bounds of the number of GPUs."""
    classes: ClassesPart = ClassesPart()
    """Which classes pods may name."""
    node_selector: Selector = {NODE_GPU_LABEL: "true"}
    """Labels of the nodes that pods with VRAM run on."""
    tolerations: list[TolerationPart] = []
    """Tolerations that pods with VRAM get."""
    runtime_class_name: ChosenRuntimeClass | None = Field(
        AUTO_RUNTIME_CLASS,
        description="The RuntimeClass of pods with VRAM that name none; Auto is "
        f"{NVIDIA_RUNTIME_CLASS} where the cluster has one, null is none.",
    )
    env: Annotated[list[EnvPart], _SetsOnce] = []
    """Variables for containers with VRAM that do not set them."""
    programs: Annotated[list[Annotated[Program, _Lax, _AsText]], _NamesOnce] = Field(
        list(DEFAULT_PROGRAMS), validate_default=True
    )
    """Programs whose own variables keep them within the cap, on containers with VRAM that do not
    set them and have no envFrom; [] is none."""
    visible_devices: Annotated[VisibleDevices, _Lax] = VisibleDevices.DENY
    """What happens to a hand-set NVIDIA_VISIBLE_DEVICES: Deny the pod, Void the variable, or Ignore
    it."""
    isolation: Annotated[Isolation, _Lax] = Isolation.ANY
    """Any lets containers of pods with VRAM run as any user. Under NonRoot each of them, debugging
    ones too, must name a user other than root and allow no privilege escalation, and the sidecar
    runs as root, so that they cannot stop it."""
    host_paths: HostPaths = Field(SAFE_HOST_PATHS, validate_default=True)
    """Paths of the node that pods with VRAM may mount: a list, each with what is below it, [] for
    none; or Safe, all but what leads to devices, runtimes or the kubelet."""
    capabilities: Annotated[list[Capability], _NamesOnce] = list(CAPABILITIES)
    """Capabilities that containers of pods with VRAM may add, beside the fourteen that runtimes
    give every container."""
    resource_claims: Annotated[ResourceClaims, _Lax] = ResourceClaims.DENY
    """What happens to a resource claim (DRA) beside VRAM: Deny the pod, or Ignore it."""
    translate_whole_gpu_bytes: Vram | None = Field(None, alias="translateWholeGPU")
    """The VRAM that a pod gets in place of one whole GPU, nvidia.com/gpu: 1, with a warning; null
    leaves it the GPU."""
    accounting: Annotated[Accounting, _Lax] = Accounting.VRAM
    """What the scheduler counts: VRAM is our own resource; MIG is the smallest slice of NVIDIA's
    device plugin that holds the demand; CapOnly is a slot of the plugin's time-slicing, and our
    cap."""
    time_sliced_resource: Annotated[TimeSliced, _Lax, _AsText] = Field(
        TimeSliced.GPU, validate_default=True
    )
    """The resource of which pods get one under CapOnly; nvidia.com/gpu.shared where NVIDIA's device
    plugin has renameByDefault: true."""
    placement: Annotated[Placement, _Lax] = Placement.BINDING
    """Binding chooses the GPU when the pod is bound to a node; None chooses none, and the pod sees
    every GPU of its node."""
    enforcement: EnforcementPart = EnforcementPart()
    """How the cap is held while the pod runs."""

    @field_validator("enforcement")
    @classmethod
    def _can_require_the_limit(
        cls, enforcement: EnforcementPart, info: ValidationInfo
    ) -> EnforcementPart:
        needs = {
            "accounting": (Accounting.VRAM, "a device plugin gives the GPU, and says not which"),
            "placement": (Placement.BINDING, "what sees all GPUs is promised none"),
        }
        _require(enforcement.driver_limit, needs, info.data, "driverLimit ")
        return enforcement

    @field_validator("enforcement")
    @classmethod
    def _is_known_to_the_sentry(
        cls, enforcement: EnforcementPart, info: ValidationInfo
    ) -> EnforcementPart:
        cap_only = info.data.get("accounting") is Accounting.CAP_ONLY
        if cap_only and enforcement.by is EnforceBy.SENTRY:
            raise ValueError(
                "by Sentry needs accounting VRAM: on nodes whose GPUs a device plugin gives, the "
                "sentry knows no caps; change accounting, or write by Sidecar"
            )
        return enforcement

    @field_validator("enforcement")
    @classmethod
    def _is_root_beside_others(
        cls, enforcement: EnforcementPart, info: ValidationInfo
    ) -> EnforcementPart:
        nobody_is = info.data.get("isolation") is Isolation.NON_ROOT
        if nobody_is and enforcement.run_as is RunAs.WORKLOAD:
            raise ValueError(
                "runAs Workload gives the sidecar a user that can be signalled, against isolation "
                "NonRoot; write runAs Auto, or isolation Any"
            )
        return enforcement


class ExamplePodPart(Part):
    """The pod of an example."""

    namespace: Name
    """The pod's namespace."""
    namespace_labels: Selector = {}
    """The labels of its namespace."""
    name: PodName = "example"
    """The pod's name."""
    labels: Selector = {}
    """The pod's labels."""
    annotations: dict[LabelKey, str] = {}
    """The pod's annotations, as text."""
    spec: dict[str, Any] | None = None
    """The pod's spec; absent is one container called main."""


class ExpectPart(Part):
    """What an example's author expects."""

    allowed: bool
    """Whether the pod is allowed."""
    reasons: list[Annotated[Reason, _Lax, _AsText]] | None = None
    """The reasons found, all of them, in any order."""
    rule: Name | None = None
    """The rule that applies to the pod."""
    vram: Quantity | None = None
    """The VRAM that the scheduler counts for the pod; 0 is none."""
    resources: dict[LabelKey, Quantity] | None = None
    """What the pod's containers limit together, by resource; 0 is none. Others may stand beside."""
    node_selector: Selector | None = None
    """Labels that the pod selects nodes by, among others."""
    runtime_class_name: ExpectedRuntimeClass | None = None
    """The RuntimeClass that the pod names; '' is none."""
    annotations: dict[LabelKey, str] | None = None
    """Annotations that the pod has, among others."""
    tolerations: list[TolerationPart] | None = None
    """Tolerations that the pod has, among others."""
    env: dict[str, str] | None = None
    """Variables of each container with VRAM, among others, with values."""
    translated: dict[str, Any] | None = Field(None, alias="pod")
    """The whole pod as it is stored, without the annotation vramwarden.io/admitted."""


class ExamplePart(Part):
    """A pod and the decision about it; a policy whose examples fail is not loaded."""

    name: Title
    """What the example shows, in words."""
    pod: ExamplePodPart
    """The pod that is created."""
    runtime_classes: list[RuntimeClassName] = []
    """The RuntimeClasses of the cluster in which it is created."""
    mig_profiles: dict[MigProfile, Vram] = {}
    """The slices (MIG) that a node of that cluster has: the memory of one, by the name of its
    profile."""
    expect: ExpectPart
    """The decision about it."""


class SpecPart(Part):
    """The policy itself."""

    whole_gpu_resources: list[ResourcePattern] = Field(
        list(WHOLE_GPU_RESOURCES), alias="wholeGPUResources"
    )
    """Resources that stand for whole GPUs, with * for any text; the lists of several files are
    added up."""
    classes: dict[Name, ClassPart] = {}
    """Kinds of GPUs, by name."""
    rules: list[RulePart] = []
    """Rules; the first that matches a pod applies to it."""
    examples: list[ExamplePart] = []
    """Pods and the decisions about them, checked whenever the policy is loaded."""


class MetadataPart(Part):
    """The file's name for itself."""

    name: Name
    """A name for people."""


class PolicyFile(Part):
    """Who may ask for how much GPU memory, and how that is held."""

    api_version: Literal["vramwarden.io/v1alpha1"]
    """The format's version."""
    kind: Literal["VRAMPolicy"]
    """The format's name."""
    metadata: MetadataPart
    """The file's name for itself."""
    spec: SpecPart
    """The policy itself."""
