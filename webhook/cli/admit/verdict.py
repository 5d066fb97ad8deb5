"""What admission decides about one pod or pod template, as lines of the command's output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.manifests.documents import text_of
from webhook.adapters.manifests.reading import ExactFloat
from webhook.core.admission.decide import Decision, Outcome, Phase, decide
from webhook.core.pod.demand import read_demand
from webhook.core.pod.findings import MalformedObjectError
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.request import Request
from webhook.core.pod.views import read_pod
from webhook.names import ASKING_ANNOTATIONS

if TYPE_CHECKING:
    from webhook.adapters.manifests.documents import Target
    from webhook.core.pod.fields import Json
    from webhook.core.pod.patch import Operation
    from webhook.core.policy.values import Policy

_LARGEST_INTEGER: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Judged:
    """A pod or pod template, and the decision about it: the last one where there are two."""

    target: Target
    namespace: str
    decision: Decision | None
    """None where the object holds no pod template."""
    patch: tuple[Operation, ...] = ()
    notes: tuple[str, ...] = ()
    """What the API server would return as warnings beside the decision."""

    @property
    def allowed(self) -> bool:
        """Whether the API server would let the pod in."""
        return self.decision is None or self.decision.allowed

    @property
    def title(self) -> str:
        """Which object it is: `Deployment team-a/infer`."""
        owner = self.target.owner
        name = text_of(owner, "metadata", "name") or text_of(owner, "metadata", "generateName")
        return f"{self.target.kind} {self.namespace}/{name or '(no name)'}"

    @property
    def summary(self) -> str:
        """What was decided, in one line."""
        decision = self.decision
        if decision is None:
            return "left alone (no pod template)"
        if not decision.allowed:
            return f"denied: {decision.message}"
        if decision.outcome is Outcome.WARNED:
            return f"warning: {decision.message}"
        if decision.outcome is Outcome.AUDITED:
            return f"left alone (audit: {decision.message})"
        if decision.skip:
            rule = f": rule {decision.rule}" if decision.rule else ""
            return f"left alone ({decision.skip}{rule})"
        asked = _asked(decision.obj)
        if not self.patch:
            already = f"already translated by rule {decision.rule} ({asked})"
            return already if asked else "left alone (asks for no VRAM)"
        what = asked or "NVIDIA_VISIBLE_DEVICES set to void"
        return f"translated by rule {decision.rule} ({what})"

    @property
    def hints(self) -> list[str]:
        """What was probably meant: annotations on the workload, where nothing reads them."""
        owner = self.target.owner
        misplaced = {*_annotations(owner), *_annotations(_map(_map(owner, "spec"), "jobTemplate"))}
        place = f"{self.target.field}.metadata.annotations"
        return [
            f"{key} on the {self.target.kind} itself has no effect; put it under {place}"
            for key in ASKING_ANNOTATIONS
            if key in misplaced and key not in _annotations(self.target.template or {})
        ]


def judge(target: Target, policy: Policy, namespace: str) -> Judged:
    """Decide a pod as the API server would have it decided on creation: mutate, then validate."""
    namespace = text_of(target.owner, "metadata", "namespace") or namespace
    if target.template is None:
        return Judged(target, namespace, None)
    mutating = decide(request_for(target, namespace), policy, Phase.MUTATE)
    if not mutating.allowed:
        return Judged(target, namespace, mutating, notes=mutating.notes)
    again = replace(request_for(target, namespace), obj=mutating.obj)
    validating = decide(again, policy, Phase.VALIDATE)
    patch = mutating.patch if validating.allowed else ()
    return Judged(target, namespace, validating, patch, mutating.notes)


def request_for(target: Target, namespace: str) -> Request:
    """Return the request that the API server would send for the pod's creation."""
    pod = _as_sent(target.pod)
    return Request(
        uid="admit",
        kind="Pod",
        operation="CREATE",
        subresource="",
        namespace=namespace,
        name=text_of(pod, "metadata", "name"),
        dry_run=True,
        obj=pod,
        old={},
    )


def _as_sent(value: Any, above: tuple[str, str] = ("", "")) -> Any:
    """Return plain JSON; an amount that a manifest writes as a number is sent as its digits."""
    if isinstance(value, dict):
        return {
            key: item.text
            if isinstance(item, ExactFloat) and _holds_amounts(above)
            else _as_sent(item, (above[1], key))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_as_sent(item, above) for item in value]
    if isinstance(value, ExactFloat) or (type(value) is int and abs(value) > _LARGEST_INTEGER):
        return float(value)
    return value


def _holds_amounts(above: tuple[str, str]) -> bool:
    return above in {("resources", "requests"), ("resources", "limits")}


def _asked(pod: Json) -> str:
    """Return the demand in words, empty where there is none."""
    try:
        demand, _ = read_demand(read_pod(pod))
    except MalformedObjectError:
        return ""
    if demand is None:
        return ""
    amount, count = format_bytes(demand.per_gpu_bytes), demand.gpu_count
    return f"{amount} on {count} GPU" if count == 1 else f"{amount} on each of {count} GPUs"


def _annotations(holder: Json) -> Json:
    return _map(_map(holder, "metadata"), "annotations")


def _map(holder: Json, key: str) -> Json:
    value = holder.get(key)
    return value if isinstance(value, dict) else {}
