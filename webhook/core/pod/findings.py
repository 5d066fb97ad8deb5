"""Findings about a pod, and the reasons for which pods are denied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from webhook.core.bounds import MAX_PATH_LENGTH, MAX_SENTENCE_LENGTH, MAX_SHOWN_FINDINGS
from webhook.core.formatting import shorten

MAX_FINDINGS: Final = 1000
SEPARATOR: Final = "\n; "
"""Separator of findings in a message: `kubectl` shows each finding on its own line."""
WRITTEN_BY_ANOTHER: Final = "if you did not write it, another webhook did"
"""End of sentences about fields that another webhook may have written."""
MESSAGE_PREFIX: Final = "Your platform team says: "


class Reason(StrEnum):
    """Reasons in denials, metrics and policy examples; a closed set.

    `make generate` writes the table in policies/reasons.md from each reason's most common text and
    its advice.
    """

    example: str
    cure: str

    def __new__(cls, value: str, example: str, cure: str) -> Self:
        """Create a member whose value is the first string."""
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.example = example
        reason.cure = cure
        return reason

    INVALID_QUANTITY = (
        "InvalidQuantity",
        "8GB is not a Kubernetes quantity; use 8G or 8Gi",
        "write a size with a unit",
    )
    TOO_SMALL = (
        "TooSmall",
        "8192 is 8192 bytes; for MiB write 8192Mi",
        "add the missing unit, or ask for as much as the rule wants",
    )
    TOO_LARGE = (
        "TooLarge",
        'asks for 80Gi per GPU; rule "team" allows at most 40Gi',
        "ask for less, or ask your platform team",
    )
    UNKNOWN_CONTAINER = (
        "UnknownContainer",
        'write trainer in place of trainr; the pod has no container "trainr"; ...',
        "name a container of the pod",
    )
    INVALID_COUNT = (
        "InvalidCount",
        '"two" is not a number of GPUs; write a positive integer, e.g. "2"',
        "write a number within the rule's bound",
    )
    REQUESTS_LIMITS_MISMATCH = (
        "RequestsLimitsMismatch",
        "write 1 in both; the request is 2 but the limit is 1",
        "make them equal, or write the limit alone",
    )
    FRACTIONAL_WHOLE_GPU = (
        "FractionalWholeGPU",
        "500m is not a whole number of GPUs; to share a GPU remove it and set the annotation ...",
        "use `gpu-memory`",
    )
    WHOLE_GPU_AND_SHARE = (
        "WholeGPUAndShare",
        "remove nvidia.com/gpu to share one, or vramwarden.io/gpu-memory to have a whole one; ...",
        "keep one of the two",
    )
    CONFLICTING_AMOUNTS = (
        "ConflictingAmounts",
        "remove vramwarden.io/vram, or make the two agree; it sets 4Gi but the annotation ...",
        "remove one of the two",
    )
    UNKNOWN_CLASS = (
        "UnknownClass",
        'class "a10" does not exist; rule "team" allows a100-80gb, t4',
        "choose a class of the policy",
    )
    NODE_SELECTOR_CONFLICT = (
        "NodeSelectorConflict",
        'remove the line; it selects "false", and pods with VRAM need "true" ...',
        "remove the line",
    )
    HOST_PID = (
        "HostPID",
        "remove hostPID; the sidecar that holds the cap needs the pod's own process namespace",
        "remove `hostPID`, which a pod by `Sentry` may not have either",
    )
    PROCESS_NAMESPACE_NOT_SHARED = (
        "ProcessNamespaceNotShared",
        "remove the line; the sidecar that holds the cap must see the pod's processes",
        "remove `shareProcessNamespace: false`",
    )
    NODE_NAME_PRESET = (
        "NodeNamePreset",
        "remove it and use nodeSelector kubernetes.io/hostname; ...",
        "use a node selector",
    )
    PRIVILEGED_CONTAINER = (
        "PrivilegedContainer",
        'remove it; container "main" is privileged, and so reaches every GPU of its node; ...',
        "remove `privileged: true`, or set the user that the message asks for",
    )
    HOST_IPC = (
        "HostIPC",
        "remove hostIPC and mount an emptyDir with medium Memory at /dev/shm; ...",
        "remove `hostIPC`; for more shared memory mount an `emptyDir` with medium Memory",
    )
    HOST_PATH = (
        "HostPath",
        "remove the volume and its mounts, or ask your platform team for a rule ...",
        (
            "remove the volume and its mounts, or ask your platform team for a rule with that path "
            "in `hostPaths`"
        ),
    )
    CAPABILITY = (
        "Capability",
        "remove it, or ask your platform team for a rule whose capabilities name it; ...",
        "remove it, or ask your platform team for a rule with it in `capabilities`",
    )
    USER_NAMESPACE = (
        "UserNamespace",
        "remove the line; pods in user namespaces do not start with a GPU; ...",
        "remove `hostUsers: false`, or the annotation of CRI-O",
    )
    VISIBLE_DEVICES_OVERRIDE = (
        "VisibleDevicesOverride",
        "remove NVIDIA_VISIBLE_DEVICES; it shows GPUs that nobody accounts for; ...",
        "remove the variable or mount, ask with `gpu-memory`",
    )
    DRIVER_VARIABLE = (
        "DriverVariable",
        "remove CUDA_MPS_PIPE_DIRECTORY; MPS is not used here, and compute is not divided",
        "remove the variable",
    )
    DEVICE_INJECTION = (
        "DeviceInjection",
        "remove it; it shows GPUs that nobody accounts for; ...",
        "remove the annotation, ask with `gpu-memory`",
    )
    RESERVED_NAME = (
        "ReservedName",
        "give the container another name; vram-enforcer is reserved",
        "rename it; remove a mount of our volumes, and mount elsewhere what is at `/run/vram-gate`",
    )
    ENFORCEMENT_IMPOSSIBLE = (
        "EnforcementImpossible",
        "set runAsUser to the image's user id ...",
        (
            "set `runAsUser`, give the containers one AppArmor or SELinux profile, or ask your "
            "platform team for a rule with `podRestart`"
        ),
    )
    UNSUPPORTED_OS = (
        "UnsupportedOS",
        "remove the request for VRAM; it cannot be shared on Windows",
        "run it on Linux",
    )
    IMMUTABLE = (
        "Immutable",
        (
            "delete the pod and create it again with the new value; it cannot change from "
            '"8Gi" to "16Gi" on a pod that exists'
        ),
        "create the pod again",
    )
    EPHEMERAL_CONTAINER = (
        "EphemeralContainer",
        (
            'use kubectl debug --profile=baseline; container "debug" adds the capability '
            "SYS_PTRACE, which none may do in a pod with VRAM"
        ),
        "debug without the GPU, with the profile that the message names",
    )
    TOO_COMPLEX = (
        "TooComplex",
        "split the pod; it has 300 containers, and at most 256 are judged",
        "make the pod smaller; variables may come from a ConfigMap with `envFrom`",
    )
    UNMUTATED = (
        "Unmutated",
        (
            "create the pod again; if that does not help, tell your platform team that "
            "vramwarden's mutating webhook did not run, ..."
        ),
        "create it again; if that does not help, tell your platform team",
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a pod: its reason, the path of the field, and a sentence with advice."""

    reason: Reason
    path: str
    detail: str

    def __post_init__(self) -> None:
        """Shorten path and detail, since responses and logs repeat these and names may be long."""
        if len(self.path) > MAX_PATH_LENGTH:
            object.__setattr__(self, "path", shorten(self.path, MAX_PATH_LENGTH))
        if len(self.detail) > MAX_SENTENCE_LENGTH:
            object.__setattr__(self, "detail", shorten(self.detail, MAX_SENTENCE_LENGTH))

    def __str__(self) -> str:
        return f"{self.reason}: {self.path}: {self.detail}"


class MalformedObjectError(ValueError):
    """A field has a type that Kubernetes' API does not allow."""

    def __init__(self, path: str, wanted: str, found: object, cure: str = "") -> None:
        shown = shorten(path, MAX_PATH_LENGTH)
        super().__init__(f"{shown}: must be {wanted}, not {_json_type(found)}{cure}")


def annotation_path(key: str) -> str:
    """Return the field path of an annotation, as Kubernetes' own messages write it."""
    return f"metadata.annotations[{key}]"


def join_findings(findings: Sequence[Finding], separator: str = SEPARATOR) -> str:
    """Return the message of a denial, with at most `MAX_SHOWN_FINDINGS` findings."""
    lines = list(map(str, findings[:MAX_SHOWN_FINDINGS]))
    more = len(findings) - MAX_SHOWN_FINDINGS
    if more > 0:
        count = f"{more} or" if len(findings) >= MAX_FINDINGS else more
        lines.append(f"and {count} more findings")
    return separator.join(lines)


def quote(value: object, limit: int = 64) -> str:
    """Return a user's value for a message: quoted, escaped, shortened to `limit` characters."""
    text = shorten(str(value), limit)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")
