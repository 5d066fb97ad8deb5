"""Pydantic models of parts of a policy file: the base class, shared parts, and enforcement.

A field is declared here or in `models.py` with type, default and description, and in `core.policy`
with its meaning. Both have the same name; an alias gives the name in the file if it differs.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic.alias_generators import to_camel

from webhook.adapters.policy.fields import (
    Cpu,
    CpuLimit,
    EnvName,
    Image,
    LabelKey,
    LabelValue,
    SidecarsMemory,
    TaintKey,
    Tolerance,
    Vram,
    within,
)
from webhook.core.enforcement.parameters import (
    BLIND_AFTER,
    GRACE,
    MOST_PERCENT,
    POLL_INTERVAL,
    TOLERANCE,
)
from webhook.core.pod.quantity import format_bytes, parse_quantity
from webhook.core.policy.model import (
    DriverLimit,
    EnforceBy,
    Enforcement,
    MemoryBounds,
    OnExcess,
    PodRestart,
    ResourceAmounts,
    RunAs,
    WhenBlind,
)

Selector = dict[LabelKey, LabelValue]

Lax: Any = Field(strict=False)
"""Marks an enumeration field: strict models would reject the strings that a file contains."""


class Part(BaseModel):
    """Base class of all models of a policy file."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        use_attribute_docstrings=True,
    )
    builds: ClassVar[Callable[..., Any] | None] = None
    """Class in `core.policy`; None if the fields belong to the class of the surrounding part."""

    def build_fields(self, **others: Any) -> dict[str, Any]:
        """Return the arguments for the class in `core.policy`; `others` override fields."""
        found: dict[str, Any] = {}
        for name in type(self).model_fields:
            if name in others:
                continue
            value = getattr(self, name)
            is_group = isinstance(value, Part) and value.builds is None
            found |= value.build_fields() if is_group else {name: _built(value)}
        return found | others

    def build(self) -> Any:
        """Return the part as an instance of its class in `core.policy`."""
        return (self.builds or dict)(**self.build_fields())


def _built(value: Any) -> Any:
    if isinstance(value, Part):
        return value.build()
    if isinstance(value, list):
        return tuple(map(_built, value))
    if isinstance(value, dict):
        return {
            key: item.build() if isinstance(item, Part) else item for key, item in value.items()
        }
    return value


class MemoryPart(Part):
    """Bounds of the VRAM per GPU, both inclusive."""

    builds = MemoryBounds

    min_bytes: Vram | None = Field(None, alias="min")
    """The least VRAM per GPU that a pod may request; null is no bound."""
    max_bytes: Vram | None = Field(None, alias="max")
    """The most VRAM per GPU that a pod may request; null is no bound."""

    @field_validator("max_bytes")
    @classmethod
    def _holds_min(cls, most: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("min_bytes")
        if most is not None and least is not None and most < least:
            raise ValueError(
                f"{format_bytes(most)} is less than min, {format_bytes(least)}; swap them"
            )
        return most


class TolerationPart(Part):
    """A toleration, as in a pod's spec."""

    key: TaintKey = ""
    """The taint's key; absent for any."""
    operator: Literal["Exists", "Equal", "Lt", "Gt"] = "Equal"
    """Comparison of the taint's value with value; Exists needs no value."""
    value: LabelValue = ""
    """The taint's value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute", ""] = ""
    """The taint's effect; absent for any."""
    toleration_seconds: int | None = None
    """Seconds for which NoExecute is tolerated; null is forever."""

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        """Validate as Kubernetes does; otherwise it would reject every pod of the rule."""
        if self.operator == "Exists" and self.value:
            raise ValueError("operator Exists takes no value; remove value, or use Equal")
        if not self.key and self.operator != "Exists":
            raise ValueError("has no key; add one, or use operator Exists to tolerate every taint")
        if self.operator in {"Lt", "Gt"} and not self.value.lstrip("-").isdigit():
            raise ValueError(f"operator {self.operator} compares integers; write one as value")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("tolerationSeconds works with effect NoExecute only; set it")
        return self

    def build(self) -> dict[str, Any]:
        """Return the toleration as the API server stores it, without empty fields.

        Otherwise a stored toleration would differ from the policy's toleration, and be added again.
        """
        fields = self.model_dump(by_alias=True, exclude_unset=True)
        return {key: value for key, value in fields.items() if value not in {None, ""}}


class RequestsPart(Part):
    """Resources that the scheduler reserves for the sidecar."""

    cpu_request: Cpu | None = Field(None, alias="cpu")
    """CPU; null is its limit, and without one the usual amount."""
    memory_request: SidecarsMemory | None = Field(None, alias="memory")
    """Memory; null is its limit, and without one the usual amount."""


class LimitsPart(Part):
    """Resources that the sidecar may use."""

    cpu_limit: CpuLimit | None = Field(None, alias="cpu")
    """CPU; null is the usual amount, or the request if that is more."""
    memory_limit: SidecarsMemory | None = Field(None, alias="memory")
    """Memory; null is the usual amount, or the request if that is more."""


class ResourcesPart(Part):
    """The sidecar's CPU and memory, as in a container."""

    builds = ResourceAmounts

    requests: RequestsPart = RequestsPart()
    """Resources that the scheduler reserves for the sidecar."""
    limits: LimitsPart = LimitsPart()
    """Resources that the sidecar may use."""

    @field_validator("limits")
    @classmethod
    def _hold_requests(cls, limits: LimitsPart, info: ValidationInfo) -> LimitsPart:
        requests = info.data.get("requests")
        if requests is None:  # invalid, which is reported separately
            return limits
        for name in ("cpu", "memory"):
            request = getattr(requests, f"{name}_request")
            limit = getattr(limits, f"{name}_limit")
            if request and limit and parse_quantity(request) > parse_quantity(limit):
                raise ValueError(f"{name} is {limit}, less than the request, {request}; raise it")
        return limits


class EnvPart(Part):
    """An environment variable, as in a container."""

    name: EnvName
    """The variable's name."""
    value: str = ""
    """Its value, as text."""
    value_from: dict[str, Any] = {}
    """Source of its value, e.g. fieldRef or configMapKeyRef."""

    @model_validator(mode="after")
    def _has_one_value(self) -> Self:
        if len(self.model_fields_set & {"value", "value_from"}) != 1:
            raise ValueError("needs either value or valueFrom")
        sources = self.value_from.values()
        if "value_from" in self.model_fields_set and [type(item) for item in sources] != [dict]:
            raise ValueError("valueFrom needs exactly one source, e.g. fieldRef: {fieldPath: ...}")
        return self

    def build(self) -> dict[str, Any]:
        """Return the variable as the API server stores it: no empty value, a versioned fieldRef."""
        variable: dict[str, Any] = {"name": self.name}
        if self.value:
            variable["value"] = self.value
        if self.value_from:
            ((kind, reference),) = self.value_from.items()
            versioned = {"apiVersion": "v1", **reference} if kind == "fieldRef" else reference
            variable["valueFrom"] = {kind: versioned}
        return variable


def require(
    limit: DriverLimit,
    needs: dict[str, tuple[StrEnum, str]],
    fields: dict[str, Any],
    field: str = "",
) -> None:
    """Reject Require if another field conflicts; `needs` has value and reason by field."""
    lacks = [
        f"needs {to_camel(name)} {value}: {why}; change {to_camel(name)}, or write {field}Auto"
        for name, (value, why) in needs.items()
        if fields.get(name, value) != value
    ]
    if lacks and limit is DriverLimit.REQUIRE:
        raise ValueError(f"{field}{limit} {'; it '.join(lacks)}")


class EnforcementPart(Part):
    """Enforcement of the cap while the pod runs."""

    builds = Enforcement

    by: Annotated[EnforceBy, Lax] = EnforceBy.SIDECAR
    """Sidecar adds a container that stops what exceeds the cap; Sentry adds none, and the node's
    sentry stops it; None stops nothing."""
    run_as: Annotated[RunAs, Lax] = RunAs.AUTO
    """The sidecar's user: Root, the Workload's own, or Auto, which reads the pod's security
    context."""
    image: Image | None = None
    """The sidecar's image; null is the release's enforcer image. Another one must be of the
    webhook's release, since the pods' probes are programs in it."""
    poll_interval: Annotated[str, *within(POLL_INTERVAL)] = Field(
        POLL_INTERVAL.default,
        description="Interval between measurements of memory, from "
        f"{POLL_INTERVAL.least} to {POLL_INTERVAL.most}.",
    )
    grace: Annotated[str, *within(GRACE)] = Field(
        GRACE.default,
        description=f"Time between SIGTERM and SIGKILL, up to {GRACE.most}; 0s kills immediately.",
    )
    tolerance: Tolerance = Field(
        TOLERANCE,
        description=(
            "Allowed excess over the cap: a percentage with at most one decimal, up to "
            f"{MOST_PERCENT}%, or a quantity, 0 or at least 1Mi."
        ),
    )
    blind_after: Annotated[str, *within(BLIND_AFTER)] = Field(
        BLIND_AFTER.default,
        description="Time for which the sidecar's measurements may fail, from "
        f"{BLIND_AFTER.least} to {BLIND_AFTER.most}, before whenBlind applies.",
    )
    when_blind: Annotated[WhenBlind, Lax] = WhenBlind.REPORT
    """Report logs it and continues; Terminate ends the pod."""
    on_excess: Annotated[OnExcess, Lax] = OnExcess.STOP
    """Stop ends processes over the cap; Report logs what would be stopped, and stops nothing."""
    driver_limit: Annotated[DriverLimit, Lax] = DriverLimit.AUTO
    """Enforcement of the cap by the node's driver (from r615 on): Auto on nodes that support it;
    Require always, since the pod runs on no other nodes; Off never. Containers start when it is in
    effect. Auto is Off with by Sentry or None, onExcess Report, placement None, and accounting MIG
    or CapOnly."""
    pod_restart: Annotated[PodRestart, Lax] = PodRestart.NONE
    """RestartAllContainers restarts all containers of the pod if the sidecar ends for any reason,
    or may not stop processes over the cap; from Kubernetes 1.36 on. None restarts none."""
    resources: ResourcesPart | None = None
    """The sidecar's CPU and memory, in place of the usual amounts; null is those."""

    @field_validator("driver_limit")
    @classmethod
    def _can_be_required(cls, limit: DriverLimit, info: ValidationInfo) -> DriverLimit:
        needs = {
            "by": (EnforceBy.SIDECAR, "without a sidecar no container waits for the limit"),
            "on_excess": (OnExcess.STOP, "Report holds nobody to the cap, and the limit would"),
        }
        require(limit, needs, info.data)
        return limit

    @field_validator("run_as", "image", "blind_after", "when_blind", "pod_restart", "resources")
    @classmethod
    def _is_of_the_sidecar(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("by") is EnforceBy.SENTRY:
            raise ValueError(
                "is of the sidecar, and by Sentry adds none; remove the line, or write by Sidecar"
            )
        return value
