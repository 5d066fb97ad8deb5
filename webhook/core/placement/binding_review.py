"""The review of a Binding: its request, its verdict, and the annotations that it gets.

The API server merges a Binding's annotations and labels into the pod in the write that sets
`spec.nodeName` (registry/core/pod/storage, assignPod), and containers read `NVIDIA_VISIBLE_DEVICES`
from there. So what a Binding brings along under our prefix is taken off: it would replace the marks
by which a pod is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from webhook.core.bounds import LONGEST_SENTENCE
from webhook.core.pod.fields import Json, get_object, get_string, get_string_map
from webhook.core.pod.findings import MalformedObjectError
from webhook.core.pod.patch import Edits, Operation
from webhook.core.pod.request import BAD_REQUEST, FORBIDDEN, UNAVAILABLE, Request
from webhook.names import PREFIX


class BindingOutcome(StrEnum):
    """What was decided about a binding."""

    PLACED = "placed"
    UNTOUCHED = "untouched"
    DENIED = "denied"
    UNAVAILABLE = "unavailable"
    MALFORMED = "malformed"


class BindingReason(StrEnum):
    """Why, in one word for metrics and the audit log."""

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
    """A pod that is to run on a node."""

    namespace: str
    name: str
    uid: str
    """The pod's; empty where the binding is by name only, which no scheduler does."""
    node: str
    obj: Json = field(repr=False)

    @property
    def pod(self) -> str:
        """The pod's namespace and name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingVerdict:
    """The answer to a binding, and why."""

    outcome: BindingOutcome
    reason: BindingReason = BindingReason.NONE
    message: str = ""
    """What the pod's events show where the binding is denied."""
    uuids: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Those that give the pod its GPUs."""
    findings: ClassVar = ()
    warnings: ClassVar = ()
    patch: ClassVar = ()
    """Depends on the Binding, see `patch_for`."""
    # No rule of a policy judges a binding.
    audit_annotations: ClassVar = {"rule": "", "policy": ""}

    @property
    def allowed(self) -> bool:
        """Whether the API server may go on."""
        return self.outcome in {BindingOutcome.PLACED, BindingOutcome.UNTOUCHED}

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, where there is more to say than the outcome."""
        return (self.reason.value,) if self.reason else ()

    @property
    def code(self) -> int:
        """The HTTP status code where the binding is denied."""
        codes = {BindingOutcome.MALFORMED: BAD_REQUEST, BindingOutcome.UNAVAILABLE: UNAVAILABLE}
        return codes.get(self.outcome, FORBIDDEN)

    @property
    def log_fields(self) -> dict[str, Any]:
        """What our own log keeps besides outcome and reason."""
        why = self.message[:LONGEST_SENTENCE]
        fields = {"gpus": list(self.uuids), "why": why}
        return {key: value for key, value in fields.items() if value}


def read_binding(request: Request) -> Binding | None:
    """Read what is to be bound; None where the request does not create a Binding.

    Raises MalformedObjectError for a Binding that the API server would not send.
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
    """Return the patch of a Binding that gives its pod the GPUs."""
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
    """Take off a Binding what is ours to write."""
    for part in ("annotations", "labels"):
        for key in get_string_map(metadata, part, "metadata"):
            if key.startswith(PREFIX):
                edits.remove(f"/metadata/{part}", key)
