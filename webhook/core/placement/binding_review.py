"""Review of a Binding: request, verdict and patch.

The API server merges a Binding's annotations and labels into the pod in the write that sets
`spec.nodeName` (registry/core/pod/storage, assignPod). Containers get `NVIDIA_VISIBLE_DEVICES` from
these annotations. Keys with vramwarden's prefix that a Binding already has are removed, since they
would replace the marks by which a pod is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from webhook.core.bounds import MAX_SENTENCE_LENGTH
from webhook.core.pod.fields import Json, get_object, get_string, get_string_map
from webhook.core.pod.findings import MalformedObjectError
from webhook.core.pod.patch import Edits, Operation
from webhook.core.pod.request import BAD_REQUEST, FORBIDDEN, UNAVAILABLE, Request
from webhook.names import PREFIX


class BindingOutcome(StrEnum):
    """Outcome of a Binding's review."""

    PLACED = "placed"
    UNTOUCHED = "untouched"
    DENIED = "denied"
    UNAVAILABLE = "unavailable"
    MALFORMED = "malformed"


class BindingReason(StrEnum):
    """Reason of an outcome, for metrics and the audit log."""

    NONE = ""
    NOT_A_BINDING = "NotABinding"
    NO_UID = "NoUID"
    NO_DEMAND = "NoDemand"
    NO_SUCH_POD = "NoSuchPod"
    NO_GPU_FITS = "NoGPUFits"
    GPUS_UNKNOWN = "GPUsUnknown"
    NO_DEVICE_NAMES = "NoDeviceNames"
    NO_DRIVER_LIMIT = "NoDriverLimit"
    NO_SENTRY = "NoSentry"
    UNREADABLE_DEMAND = "UnreadableDemand"
    API_SERVER_AWAY = "APIServerAway"
    NOT_CONFIGURED = "NotConfigured"


@dataclass(frozen=True, slots=True)
class Binding:
    """Binding of a pod to a node."""

    namespace: str
    name: str
    uid: str
    """UID of the pod; empty if the Binding only has the pod's name, which no scheduler sends."""
    node: str
    obj: Json = field(repr=False)

    @property
    def pod(self) -> str:
        """`namespace/name` of the pod."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingVerdict:
    """Verdict on a Binding."""

    outcome: BindingOutcome
    reason: BindingReason = BindingReason.NONE
    message: str = ""
    """Sentence for the pod's events if the Binding is denied."""
    uuids: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    findings: ClassVar = ()
    warnings: ClassVar = ()
    patch: ClassVar = ()
    """Always empty: the patch depends on the Binding, see `patch_for`."""
    # No rule of a policy judges a binding.
    audit_annotations: ClassVar = {"rule": "", "policy": ""}

    @property
    def allowed(self) -> bool:
        """True if the API server may bind the pod."""
        return self.outcome in {BindingOutcome.PLACED, BindingOutcome.UNTOUCHED}

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons for metrics and logs; empty if the outcome is sufficient."""
        return (self.reason.value,) if self.reason else ()

    @property
    def code(self) -> int:
        """HTTP status code of a denial."""
        codes = {BindingOutcome.MALFORMED: BAD_REQUEST, BindingOutcome.UNAVAILABLE: UNAVAILABLE}
        return codes.get(self.outcome, FORBIDDEN)

    @property
    def log_fields(self) -> dict[str, Any]:
        """Fields for the webhook's log, in addition to outcome and reasons."""
        why = self.message[:MAX_SENTENCE_LENGTH]
        fields = {"gpus": list(self.uuids), "why": why}
        return {key: value for key, value in fields.items() if value}


def read_binding(request: Request) -> Binding | None:
    """Return the Binding of a request, or None if the request creates no Binding.

    Raises MalformedObjectError for a Binding that no API server would send.
    """
    if request.kind != "Binding" or request.operation != "CREATE":
        return None
    metadata = get_object(request.obj, "metadata", "")
    for part in ("annotations", "labels"):
        get_string_map(metadata, part, "metadata")
    name = get_string(metadata, "name", "metadata") or request.name
    node = get_string(get_object(request.obj, "target", ""), "name", "target")
    for path, value in (("metadata.name", name), ("target.name", node)):
        if not value:
            raise MalformedObjectError(path, "a name", None)
    namespace = request.namespace or get_string(metadata, "namespace", "metadata")
    return Binding(namespace, name, get_string(metadata, "uid", "metadata"), node, request.obj)


def patch_for(binding: Binding, verdict: BindingVerdict) -> Sequence[Operation]:
    """Return the patch that gives the pod its GPUs; empty if the Binding is denied."""
    edits = Edits()
    if verdict.allowed:
        metadata = binding.obj.get("metadata")
        if metadata is None and verdict.annotations:
            edits.put("", "metadata", metadata := {})
        _remove_marks(edits, get_object(binding.obj, "metadata", ""))
        if metadata is not None:
            edits.merge(
                "/metadata", "annotations", metadata.get("annotations"), verdict.annotations
            )
    return tuple(edits.operations)


def _remove_marks(edits: Edits, metadata: Mapping[str, Any]) -> None:
    """Remove annotations and labels with vramwarden's prefix from a Binding."""
    for part in ("annotations", "labels"):
        for key in get_string_map(metadata, part, "metadata"):
            if key.startswith(PREFIX):
                edits.remove(f"/metadata/{part}", key)
