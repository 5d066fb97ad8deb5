"""The review of a Binding: what it asks, what is answered, and the annotation it gets.

The API server merges a Binding's annotations into the pod in the write that sets `spec.nodeName`
(registry/core/pod/storage, assignPod), and containers read `NVIDIA_VISIBLE_DEVICES` from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from webhook.core.pod.fields import mapping, strings, text
from webhook.core.pod.findings import MalformedObjectError
from webhook.names import GPU_ANNOTATION

if TYPE_CHECKING:
    from webhook.core.pod.fields import Json
    from webhook.core.pod.request import Request

RETRY_AFTER_S: Final = 1
_CREATE: Final = "CREATE"


class BindingOutcome(StrEnum):
    """What became of a binding."""

    PLACED = "placed"
    UNTOUCHED = "untouched"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    MALFORMED = "malformed"


class BindingReason(StrEnum):
    """Why, in one word for metrics and the audit log."""

    NONE = ""
    NOT_A_BINDING = "NotABinding"
    NO_DEMAND = "NoDemand"
    NO_SUCH_POD = "NoSuchPod"
    NO_GPU_FITS = "NoGPUFits"
    GPUS_UNKNOWN = "GPUsUnknown"
    UNREADABLE_DEMAND = "UnreadableDemand"
    API_SERVER_AWAY = "APIServerAway"
    NOT_CONFIGURED = "NotConfigured"


@dataclass(frozen=True, slots=True)
class Binding:
    """A pod that is to run on a node."""

    namespace: str
    name: str
    uid: str
    """The pod's; empty where the binding is by name only."""
    node: str
    obj: Json = field(repr=False)

    @property
    def pod(self) -> str:
        """The pod as people call it."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is answered to a binding, and why."""

    outcome: BindingOutcome
    reason: BindingReason = BindingReason.NONE
    sentence: str = ""
    """For whoever reads the pod's events."""
    uuids: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the API server may go on."""
        return self.outcome in {BindingOutcome.PLACED, BindingOutcome.UNTOUCHED}


def read_binding(request: Request) -> Binding | None:
    """Read what is to be bound; None for what is not the creation of a Binding.

    Raises MalformedObjectError for a Binding that the API server would not send.
    """
    if request.kind != "Binding" or request.operation != _CREATE:
        return None
    metadata = mapping(request.obj, "metadata", "")
    strings(metadata, "annotations", "metadata")
    name = text(metadata, "name", "metadata") or request.name
    node = text(mapping(request.obj, "target", ""), "name", "target")
    for path, value in (("metadata.name", name), ("target.name", node)):
        if not value:
            raise MalformedObjectError(path, "a name", None)
    namespace = request.namespace or text(metadata, "namespace", "metadata")
    return Binding(namespace, name, text(metadata, "uid", "metadata"), node, request.obj)


def annotated(binding: Json, uuids: tuple[str, ...]) -> Json:
    """Return a Binding with the GPUs that its pod gets."""
    metadata = mapping(binding, "metadata", "")
    annotations = {
        **strings(metadata, "annotations", "metadata"),
        GPU_ANNOTATION: ",".join(uuids),
    }
    return {**binding, "metadata": {**metadata, "annotations": annotations}}


def encode_verdict(uid: str, verdict: Verdict, encoded_patch: str) -> Json:
    """Build the response of the AdmissionReview; `encoded_patch` is base64, empty for none."""
    response: Json = {"uid": uid, "allowed": verdict.allowed}
    if not verdict.allowed:
        response["status"] = _status(verdict)
    if encoded_patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = encoded_patch
    response["auditAnnotations"] = {
        "decision": verdict.outcome.value,
        "reasons": verdict.reason.value,
        "rule": "",
        "policy": "",
    }
    return response


def _status(verdict: Verdict) -> dict[str, Any]:
    code, reason = {
        BindingOutcome.MALFORMED: (400, "BadRequest"),
        BindingOutcome.UNAVAILABLE: (503, "ServiceUnavailable"),
    }.get(verdict.outcome, (403, "Forbidden"))
    status: dict[str, Any] = {
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": verdict.sentence,
    }
    if verdict.outcome is BindingOutcome.UNAVAILABLE:
        # The API server turns this into the header Retry-After (responsewriters.ErrorNegotiated).
        status["details"] = {"retryAfterSeconds": RETRY_AFTER_S}
    return status
