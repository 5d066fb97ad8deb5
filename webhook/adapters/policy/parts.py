"""The parts of a policy file that several of its fields have in common."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic.alias_generators import to_camel

from webhook.adapters.policy.fields import (
    Cpu,
    CpuLimit,
    EnvName,
    LabelKey,
    LabelValue,
    SidecarsMemory,
    TaintKey,
    Vram,
)
from webhook.core.pod.quantity import format_bytes, parse_quantity

Selector = dict[LabelKey, LabelValue]


class Part(BaseModel):
    """What all parts of a file have in common."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
    )


class MemoryPart(Part):
    """Bounds of the VRAM per GPU, both inclusive."""

    min: Vram | None = Field(
        None, description="The least VRAM per GPU that a pod may ask for; null is no bound."
    )
    max: Vram | None = Field(
        None, description="The most VRAM per GPU that a pod may ask for; null is no bound."
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


class TolerationPart(Part):
    """A toleration, as in a pod's spec."""

    key: TaintKey = Field("", description="The taint's key; absent for any.")
    operator: Literal["Exists", "Equal", "Lt", "Gt"] = Field(
        "Equal", description="How value is compared; Exists needs none."
    )
    value: LabelValue = Field("", description="The taint's value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute", ""] = Field(
        "", description="The taint's effect; absent for any."
    )
    toleration_seconds: int | None = Field(
        None, description="How long NoExecute is tolerated; null is forever."
    )

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        """Check what Kubernetes checks; otherwise it would reject every pod of the rule."""
        if self.operator == "Exists" and self.value:
            raise ValueError("operator Exists takes no value; remove value, or use Equal")
        if not self.key and self.operator != "Exists":
            raise ValueError("has no key; add one, or use operator Exists to tolerate every taint")
        if self.operator in {"Lt", "Gt"} and not self.value.lstrip("-").isdigit():
            raise ValueError(f"operator {self.operator} compares integers; write one as value")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("tolerationSeconds works with effect NoExecute only; set it")
        return self


class RequestsPart(Part):
    """What the scheduler keeps for the sidecar."""

    cpu: Cpu | None = Field(
        None, description="CPU; null is its limit, and without one the usual amount."
    )
    memory: SidecarsMemory | None = Field(
        None, description="Memory; null is its limit, and without one the usual amount."
    )


class LimitsPart(Part):
    """What the sidecar may use."""

    cpu: CpuLimit | None = Field(
        None, description="CPU; null is the usual amount, or the request if that is more."
    )
    memory: SidecarsMemory | None = Field(
        None, description="Memory; null is the usual amount, or the request if that is more."
    )


class ResourcesPart(Part):
    """The sidecar's CPU and memory, as in a container."""

    requests: RequestsPart = Field(
        RequestsPart(), description="What the scheduler keeps for the sidecar."
    )
    limits: LimitsPart = Field(LimitsPart(), description="What the sidecar may use.")

    @field_validator("limits")
    @classmethod
    def _hold_requests(cls, limits: LimitsPart, info: ValidationInfo) -> LimitsPart:
        requests = info.data.get("requests")
        if requests is None:  # a problem of its own
            return limits
        for name in ("cpu", "memory"):
            request, limit = getattr(requests, name), getattr(limits, name)
            if request and limit and parse_quantity(request) > parse_quantity(limit):
                raise ValueError(f"{name} is {limit}, less than the request, {request}; raise it")
        return limits


class EnvPart(Part):
    """An environment variable, as in a container."""

    name: EnvName = Field(description="The variable's name.")
    value: str = Field("", description="Its value, as text.")
    value_from: dict[str, Any] = Field(
        {}, description="Where its value comes from, e.g. fieldRef or configMapKeyRef."
    )

    @model_validator(mode="after")
    def _has_one_value(self) -> Self:
        if len(self.model_fields_set & {"value", "value_from"}) != 1:
            raise ValueError("needs either value or valueFrom")
        sources = self.value_from.values()
        if "value_from" in self.model_fields_set and [type(item) for item in sources] != [dict]:
            raise ValueError("valueFrom needs exactly one source, e.g. fieldRef: {fieldPath: ...}")
        return self
