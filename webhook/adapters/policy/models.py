"""Strict pydantic models of a policy file: match criteria, rules, classes and examples.

Their names, defaults and descriptions are shown by editors, and in policies/fields.md.
"""

# ruff: noqa: RUF012 - pydantic copies a default

from collections import Counter
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from webhook.adapters.policy.fields import (
    Capability,
    ChosenRuntimeClass,
    ClassPattern,
    ExpectedRuntimeClass,
    GpuCount,
    HostPaths,
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
    Vram,
)
from webhook.adapters.policy.parts import (
    EnforcementPart,
    EnvPart,
    Lax,
    MemoryPart,
    Part,
    Selector,
    TolerationPart,
    require,
)
from webhook.core.nvidia.programs import DEFAULT_PROGRAMS, Program
from webhook.core.pod.findings import Reason
from webhook.core.policy.gpu_resources import WHOLE_GPU_RESOURCES
from webhook.core.policy.match import Match
from webhook.core.policy.model import (
    AUTO_RUNTIME_CLASS,
    CAPABILITIES,
    SAFE_HOST_PATHS,
    Accounting,
    Action,
    EnforceBy,
    GPUClass,
    Isolation,
    Placement,
    ResourceClaims,
    Rule,
    RunAs,
    TimeSliced,
    VisibleDevices,
)
from webhook.names import NODE_GPU_LABEL, NVIDIA_RUNTIME_CLASS


def _distinct(verb: str, values: list[Any]) -> list[Any]:
    names = Counter(getattr(value, "name", value) for value in values)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(f"{verb} {', '.join(twice)} more than once; keep one entry")
    return values


_NamesOnce = AfterValidator(partial(_distinct, "names"))
_SetsOnce = AfterValidator(partial(_distinct, "sets"))
_AsText = AfterValidator(str)
"""Converts an enumeration member to a string, for fields that are strings in `core.policy`."""


class ClassPart(Part):
    """A kind of GPU that pods request by name."""

    builds = GPUClass

    node_selector: Selector = {}
    """Labels of the nodes that have such GPUs."""
    tolerations: list[TolerationPart] = []
    """Tolerations that pods of this class get."""
    accounting: Annotated[Accounting, Lax] | None = None
    """Resource that the scheduler counts for this class; null is that of the rule."""


class CriteriaPart(Part):
    """Pods that meet every given field."""

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
    """Pods that a match leaves out: those that meet every given field."""

    namespaces: list[NamespacePattern] = []
    """Namespaces, with * for any text; [] is every namespace."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise ValueError("leaves out every pod; name e.g. namespaces, or leave the field out")
        return self


class MatchPart(CriteriaPart):
    """Pods that a rule applies to: those that meet every given field."""

    namespaces: NamespacePatterns = ["*"]
    """Namespaces, with * for any text; absent is every namespace."""
    exception: ExceptPart | None = Field(None, alias="except")
    """Pods that the rule does not match although they meet the rest, so that later rules can match
    them; null is none."""


class GpuCountPart(Part):
    """Bounds of the number of GPUs."""

    max_gpu_count: GpuCount | None = Field(None, alias="max")
    """The most GPUs per pod; null is no bound."""


class ClassesPart(Part):
    """Classes that a rule's pods may name."""

    allowed_classes: list[ClassPattern] = Field(["*"], alias="allowed")
    """Classes that may be named, with * for any text."""
    default_class: Name | None = Field(None, alias="default")
    """The class of pods that name none; null is no class."""


class RulePart(Part):
    """One rule: which pods it applies to, and what happens to them."""

    builds = Rule

    name: Name
    """The rule's name, unique in the policy; shown on pods."""
    match: MatchPart = MatchPart()
    """Pods that the rule applies to; absent is every pod."""
    action: Annotated[Action, Lax] = Action.ENFORCE
    """Enforce denies; Warn allows with a warning; Audit records and changes no pod; Ignore leaves
    the pods alone."""
    message: Message | None = None
    """One line appended to every denial of this rule, e.g. whom to ask."""
    memory: MemoryPart = MemoryPart()
    """Bounds of the VRAM per GPU."""
    gpu_count: GpuCountPart = GpuCountPart()
    """Bounds of the number of GPUs."""
    classes: ClassesPart = ClassesPart()
    """Classes that pods may name."""
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
    programs: Annotated[list[Annotated[Program, Lax, _AsText]], _NamesOnce] = Field(
        list(DEFAULT_PROGRAMS), validate_default=True
    )
    """Programs whose own variables keep them within the cap, on containers with VRAM that do not
    set them and have no envFrom; [] is none."""
    visible_devices: Annotated[VisibleDevices, Lax] = VisibleDevices.DENY
    """Handling of a hand-set NVIDIA_VISIBLE_DEVICES: Deny the pod, Void the variable, or
    Ignore it."""
    isolation: Annotated[Isolation, Lax] = Isolation.ANY
    """Any lets containers of pods with VRAM run as any user. Under NonRoot each of them, debugging
    ones too, must name a user other than root and allow no privilege escalation, and the sidecar
    runs as root, so that they cannot stop it."""
    host_paths: HostPaths = Field(SAFE_HOST_PATHS, validate_default=True)
    """Paths of the node that pods with VRAM may mount: a list, each with what is below it, [] for
    none; or Safe, all but what leads to devices, runtimes or the kubelet."""
    capabilities: Annotated[list[Capability], _NamesOnce] = list(CAPABILITIES)
    """Capabilities that containers of pods with VRAM may add, in addition to the fourteen that
    runtimes give every container."""
    resource_claims: Annotated[ResourceClaims, Lax] = ResourceClaims.DENY
    """Handling of a resource claim (DRA) in a pod with VRAM: Deny the pod, or Ignore the claim."""
    translate_whole_gpu_bytes: Vram | None = Field(None, alias="translateWholeGPU")
    """The VRAM that a pod gets in place of one whole GPU, nvidia.com/gpu: 1, with a warning; null
    leaves it the GPU."""
    accounting: Annotated[Accounting, Lax] = Accounting.VRAM
    """Resource that the scheduler counts: VRAM is vramwarden's own resource; MIG is the smallest
    slice of NVIDIA's device plugin with enough memory; CapOnly is a slot of the plugin's
    time-slicing, with a cap."""
    time_sliced_resource: Annotated[TimeSliced, Lax, _AsText] = Field(
        TimeSliced.GPU, validate_default=True
    )
    """The resource of which pods get one under CapOnly; nvidia.com/gpu.shared if NVIDIA's device
    plugin has renameByDefault: true."""
    placement: Annotated[Placement, Lax] = Placement.BINDING
    """Binding chooses the GPU when the pod is bound to a node; None chooses none, and the pod sees
    every GPU of its node."""
    enforcement: EnforcementPart = EnforcementPart()
    """Enforcement of the cap while the pod runs."""

    @field_validator("enforcement")
    @classmethod
    def _can_require_the_limit(
        cls, enforcement: EnforcementPart, info: ValidationInfo
    ) -> EnforcementPart:
        needs = {
            "accounting": (Accounting.VRAM, "a device plugin gives the GPU, and says not which"),
            "placement": (Placement.BINDING, "what sees all GPUs is promised none"),
        }
        require(enforcement.driver_limit, needs, info.data, "driverLimit ")
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
    def _check_run_as_isolation(
        cls, enforcement: EnforcementPart, info: ValidationInfo
    ) -> EnforcementPart:
        is_isolated = info.data.get("isolation") is Isolation.NON_ROOT
        if is_isolated and enforcement.run_as is RunAs.WORKLOAD:
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
    """Expected result of an example."""

    allowed: bool
    """True if the pod is allowed."""
    reasons: list[Annotated[Reason, Lax, _AsText]] | None = None
    """The reasons found, all of them, in any order."""
    rule: Name | None = None
    """The rule that applies to the pod."""
    vram: Quantity | None = None
    """The VRAM that the scheduler counts for the pod; 0 is none."""
    resources: dict[LabelKey, Quantity] | None = None
    """Sum of the limits of the pod's containers, by resource; 0 is none. Others are allowed."""
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
    """The complete stored pod, without the annotation vramwarden.io/admitted."""


class ExamplePart(Part):
    """A pod and the decision about it; a policy whose examples fail is not loaded."""

    name: Title
    """Title of the example."""
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
    """Metadata of the policy."""

    name: Name
    """Name of the policy, for its readers."""


class PolicyFile(Part):
    """Rules for requests of GPU memory, and their enforcement."""

    api_version: Literal["vramwarden.io/v1alpha1"]
    """The format's version."""
    kind: Literal["VRAMPolicy"]
    """The format's name."""
    metadata: MetadataPart
    """Metadata of the policy."""
    spec: SpecPart
    """The policy itself."""
