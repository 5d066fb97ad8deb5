"""The shape of a policy file: pydantic models, strict, and the JSON Schema made from them.

Names, defaults and descriptions here are what editors and the table in policies/README.md show.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import GenerateJsonSchema

from webhook.adapters.policy_fields import (
    BlindAfter,
    ClassPattern,
    EnvName,
    Grace,
    Image,
    LabelKey,
    LabelValue,
    Name,
    NamespacePattern,
    PollInterval,
    Quantity,
    ResourcePattern,
    RuntimeClassName,
    Title,
    Tolerance,
    Vram,
)
from webhook.core.errors import Reason
from webhook.core.policy import (
    Action,
    EnforceBy,
    Placement,
    RunAs,
    Style,
    VisibleDevices,
    WhenBlind,
)
from webhook.core.quantity import format_bytes
from webhook.names import NODE_GPU_LABEL

API_VERSION: Final = "vramwarden.io/v1alpha1"
KIND: Final = "VRAMPolicy"
SCHEMA_ID: Final = "https://vramwarden.io/v1alpha1/vrampolicy.schema.json"
WHOLE_GPU_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu")


class _Part(BaseModel):
    """What all parts of a file have in common."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
    )


# Strictness would ask for the members themselves; a file has their text.
_Lax = Field(strict=False)
_ActionField = Annotated[Action, _Lax]
_Selector = dict[LabelKey, LabelValue]


class MemoryPart(_Part):
    """Bounds of the VRAM per GPU, both inclusive."""

    min: Vram | None = Field(
        None, description="The least VRAM per GPU that may be asked for; null is no bound."
    )
    max: Vram | None = Field(
        None, description="The most VRAM per GPU that may be asked for; null is no bound."
    )

    @field_validator("max")
    @classmethod
    def _holds_min(cls, most: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("min")
        if most is not None and least is not None and most < least:
            raise ValueError(
                f"{format_bytes(most)} is less than min, {format_bytes(least)}; swap them"
            )
        return most


class TolerationPart(_Part):
    """A toleration, as in a pod's spec."""

    key: LabelKey | Literal[""] = Field("", description="The taint's key; absent for any.")
    operator: Literal["Exists", "Equal", "Lt", "Gt"] = Field(
        "Equal", description="How value is compared; Exists needs none."
    )
    value: LabelValue = Field("", description="The taint's value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute", ""] = Field(
        "", description="The taint's effect; absent for any."
    )
    toleration_seconds: int | None = Field(
        None, description="How long NoExecute is tolerated; null is for ever."
    )

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        """Check what Kubernetes checks; otherwise it would refuse every pod of the rule."""
        if self.operator == "Exists" and self.value:
            raise ValueError("operator Exists takes no value; remove value, or use Equal")
        if not self.key and self.operator != "Exists":
            raise ValueError("has no key; add one, or use operator Exists to tolerate every taint")
        if self.operator in {"Lt", "Gt"} and not self.value.lstrip("-").isdigit():
            raise ValueError(f"operator {self.operator} compares integers; write one as value")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("tolerationSeconds works with effect NoExecute only; set it")
        return self


class EnvPart(_Part):
    """An environment variable, as in a container."""

    name: EnvName = Field(description="The variable's name.")
    value: str | None = Field(None, description="Its value, as text.")
    value_from: dict[str, Any] | None = Field(
        None, description="Where its value comes from, e.g. fieldRef or configMapKeyRef."
    )

    @model_validator(mode="after")
    def _has_one_value(self) -> Self:
        if (self.value is None) == (self.value_from is None):
            raise ValueError("needs either value or valueFrom")
        if self.value_from is not None and (
            len(self.value_from) != 1 or not isinstance(next(iter(self.value_from.values())), dict)
        ):
            raise ValueError("valueFrom needs exactly one source, e.g. fieldRef: {fieldPath: ...}")
        return self


class ClassPart(_Part):
    """A kind of GPU that pods ask for by name."""

    node_selector: _Selector = Field({}, description="Labels of the nodes that have such GPUs.")
    tolerations: list[TolerationPart] = Field(
        [], description="Tolerations that pods of this class get."
    )
    memory: MemoryPart = Field(
        MemoryPart(), description="Bounds for pods of this class, beside those of the rule."
    )


class MatchPart(_Part):
    """Which pods a rule governs: those that meet every field given."""

    namespaces: Annotated[list[NamespacePattern], Field(min_length=1)] | None = Field(
        None, description="Namespaces, with * for any text; absent is every namespace."
    )
    pod_labels: _Selector = Field({}, description="Labels that the pod must have, with values.")


class GpuCountPart(_Part):
    """Bounds of the number of GPUs."""

    max: int | None = Field(
        None, ge=1, le=9999, description="The most GPUs a pod may ask for; null is no bound."
    )


class ClassesPart(_Part):
    """Which classes a rule's pods may name."""

    allowed: list[ClassPattern] = Field(
        ["*"], description="Classes that may be named, with * for any text."
    )
    default: Name | None = Field(
        None, description="The class of pods that name none; null is no class."
    )


class EnforcementPart(_Part):
    """How the cap is held while the pod runs."""

    by: Annotated[EnforceBy, _Lax] = Field(
        EnforceBy.SIDECAR,
        description="Sidecar adds a container that stops what exceeds the cap; None adds nothing.",
    )
    style: Annotated[Style, _Lax] = Field(
        Style.NATIVE,
        description="Native is a sidecar as of Kubernetes 1.29; Container is for older clusters.",
    )
    run_as: Annotated[RunAs, _Lax] = Field(
        RunAs.AUTO,
        description="The sidecar's user: Root, the Workload's own, or Auto, which looks at the "
        "pod's security context.",
    )
    image: Image | None = Field(
        None, description="The sidecar's image; null is the release's enforcer image."
    )
    poll_interval: PollInterval = Field(
        "1s", description="How often memory is measured, from 100ms to 60s."
    )
    grace: Grace = Field(
        "5s", description="From SIGTERM to SIGKILL, up to 1h; 0s kills at once."
    )
    tolerance: Tolerance = Field(
        "2%", description="How far over the cap is still let pass: up to 50%, or a quantity."
    )
    blind_after: BlindAfter = Field(
        "60s", description="How long measuring may fail, from 1s to 1h, before whenBlind applies."
    )
    when_blind: Annotated[WhenBlind, _Lax] = Field(
        WhenBlind.REPORT,
        description="Report says so and goes on; Terminate ends the pod.",
    )


class RulePart(_Part):
    """One rule: which pods it governs and what happens to them."""

    name: Name = Field(description="The rule's name, unique in the policy; shown on pods.")
    match: MatchPart = Field(
        MatchPart(), description="Which pods the rule governs; absent is every pod."
    )
    action: _ActionField = Field(
        Action.ENFORCE,
        description="Enforce denies; Warn allows with a warning; Audit allows and records; "
        "Ignore leaves the pods alone.",
    )
    memory: MemoryPart = Field(MemoryPart(), description="Bounds of the VRAM per GPU.")
    gpu_count: GpuCountPart = Field(GpuCountPart(), description="Bounds of the number of GPUs.")
    classes: ClassesPart = Field(ClassesPart(), description="Which classes pods may name.")
    node_selector: _Selector = Field(
        {NODE_GPU_LABEL: "true"}, description="Labels of the nodes that pods with VRAM run on."
    )
    tolerations: list[TolerationPart] = Field(
        [], description="Tolerations that pods with VRAM get."
    )
    runtime_class_name: RuntimeClassName | None = Field(
        None, description="The RuntimeClass of pods with VRAM that name none."
    )
    env: list[EnvPart] = Field(
        [], description="Variables for containers with VRAM that do not set them."
    )
    visible_devices: Annotated[VisibleDevices, _Lax] = Field(
        VisibleDevices.DENY,
        description="What becomes of a hand-set NVIDIA_VISIBLE_DEVICES: Deny the pod, Void the "
        "variable, or Ignore it.",
    )
    placement: Annotated[Placement, _Lax] = Field(
        Placement.BINDING,
        description="Binding chooses the GPU when the pod is bound to a node; None shows all.",
    )
    enforcement: EnforcementPart = Field(
        EnforcementPart(), description="How the cap is held while the pod runs."
    )

    @field_validator("env")
    @classmethod
    def _each_once(cls, env: list[EnvPart]) -> list[EnvPart]:
        names = [entry.name for entry in env]
        twice = dict.fromkeys(name for name in names if names.count(name) > 1)
        if twice:
            raise ValueError(f"sets {', '.join(twice)} more than once; keep one entry")
        return env


class ExamplePodPart(_Part):
    """The pod of an example."""

    namespace: Name = Field(description="The pod's namespace.")
    name: RuntimeClassName = Field("example", description="The pod's name.")
    labels: _Selector = Field({}, description="The pod's labels.")
    annotations: dict[LabelKey, str] = Field({}, description="The pod's annotations, as text.")
    spec: dict[str, Any] | None = Field(
        None, description="The pod's spec; absent is one container called main."
    )


class ExpectPart(_Part):
    """What an example's author expects."""

    allowed: bool = Field(description="Whether the pod is allowed.")
    reasons: list[Annotated[Reason, _Lax]] | None = Field(
        None, description="The reasons found, all of them, in any order."
    )
    rule: Name | None = Field(None, description="The rule that governs the pod.")
    vram: Quantity | None = Field(
        None, description="The VRAM that the scheduler counts for the pod; 0 is none."
    )
    node_selector: _Selector | None = Field(
        None, description="Labels that the pod selects nodes by, among others."
    )


class ExamplePart(_Part):
    """A pod and what becomes of it; a policy whose examples fail is not loaded."""

    name: Title = Field(description="What the example shows, in words.")
    pod: ExamplePodPart = Field(description="The pod that is created.")
    expect: ExpectPart = Field(description="What becomes of it.")


class SpecPart(_Part):
    """The policy itself."""

    whole_gpu_resources: list[ResourcePattern] | None = Field(
        None,
        alias="wholeGPUResources",
        description="Resources that stand for whole GPUs, with * for any text; where no file "
        f"names any, {' and '.join(WHOLE_GPU_RESOURCES)}.",
    )
    classes: dict[Name, ClassPart] = Field({}, description="Kinds of GPUs, by name.")
    rules: list[RulePart] = Field([], description="Rules; the first that matches a pod governs it.")
    examples: list[ExamplePart] = Field(
        [], description="Pods and what becomes of them, tried whenever the policy is loaded."
    )


class MetadataPart(_Part):
    """The file's name for itself."""

    name: Name = Field(description="A name for people; nothing depends on it.")


class PolicyFile(_Part):
    """Who may ask for how much GPU memory, and how that is held."""

    api_version: Literal["vramwarden.io/v1alpha1"] = Field(description="The format's version.")
    kind: Literal["VRAMPolicy"] = Field(description="The format's name.")
    metadata: MetadataPart = Field(description="The file's name for itself.")
    spec: SpecPart = Field(description="The policy itself.")


class _Schema(GenerateJsonSchema):
    """Without the titles that repeat each field's name."""

    def field_title_should_be_set(self, _schema: object) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one policy document."""
    made = PolicyFile.model_json_schema(by_alias=True, schema_generator=_Schema)
    return made


_ = WithJsonSchema
