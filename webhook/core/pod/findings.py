"""Why a pod is refused: a closed set of reasons, and findings that carry them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Reason(StrEnum):
    """The closed set of reasons that users, metrics and policy examples see."""

    INVALID_QUANTITY = "InvalidQuantity"
    TOO_SMALL = "TooSmall"
    TOO_LARGE = "TooLarge"
    UNKNOWN_CONTAINER = "UnknownContainer"
    INVALID_COUNT = "InvalidCount"
    REQUESTS_LIMITS_MISMATCH = "RequestsLimitsMismatch"
    FRACTIONAL_WHOLE_GPU = "FractionalWholeGPU"
    WHOLE_GPU_AND_SHARE = "WholeGPUAndShare"
    CONFLICTING_AMOUNTS = "ConflictingAmounts"
    UNKNOWN_CLASS = "UnknownClass"
    NODE_SELECTOR_CONFLICT = "NodeSelectorConflict"
    HOST_PID = "HostPID"
    PROCESS_NAMESPACE_NOT_SHARED = "ProcessNamespaceNotShared"
    NODE_NAME_PRESET = "NodeNamePreset"
    PRIVILEGED_CONTAINER = "PrivilegedContainer"
    VISIBLE_DEVICES_OVERRIDE = "VisibleDevicesOverride"
    RESERVED_NAME = "ReservedName"
    ENFORCEMENT_IMPOSSIBLE = "EnforcementImpossible"
    UNSUPPORTED_OS = "UnsupportedOS"
    IMMUTABLE = "Immutable"
    EPHEMERAL_CONTAINER = "EphemeralContainer"
    UNMUTATED = "Unmutated"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a pod: reason, field path, and what is wrong and what to do."""

    reason: Reason
    path: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.path}: {self.detail}"


class MalformedObjectError(ValueError):
    """A field of the reviewed object has a type that Kubernetes' API does not allow."""

    def __init__(self, path: str, wanted: str, found: object, cure: str = "") -> None:
        super().__init__(f"{path}: must be {wanted}, not {_json_type(found)}{cure}")


def annotation_path(key: str) -> str:
    """Return the field path of an annotation, as Kubernetes' own messages write it."""
    return f"metadata.annotations[{key}]"


def render(findings: Iterable[Finding]) -> str:
    """Join findings to the message a user reads in `kubectl`."""
    return "; ".join(map(str, findings))


def quoted(value: object, limit: int = 64) -> str:
    """Show a user's value in a message: in quotes, escaped, cut to `limit` characters."""
    text = str(value)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")
