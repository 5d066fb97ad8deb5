"""Problems and their codes, as all commands print them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from webhook.core.node.events import EventReason
from webhook.core.node.node_fields import SharingCode
from webhook.core.pod.findings import Reason


class Severity(StrEnum):
    """Severity of a problem."""

    ERROR = "error"
    """Something does not work, or was stopped."""
    WARNING = "warning"
    """Everything works now, but something will or may fail."""
    INFO = "info"


class Code(StrEnum):
    """Kinds of problems, in addition to the reasons of denials and Events (policies/reasons.md)."""

    # A pod that no node takes.
    TOO_LARGE = "TooLarge"
    """No GPU is that large, whatever is free on it."""
    TOO_FEW_GPUS = "TooFewGPUs"
    """No node has that many GPUs of that size."""
    GPUS_SPLIT = "GPUsSplit"
    """A node has enough free memory, but on several GPUs: its binding is denied."""
    NODES_SPLIT = "NodesSplit"
    """Only several nodes together have enough free memory."""
    NO_ROOM = "NoRoom"
    """All nodes together have less free memory than the pod requests."""
    UNHEALTHY_GPUS = "UnhealthyGPUs"
    """None of a node's GPUs may be chosen now."""
    GPUS_UNKNOWN = "GPUsUnknown"
    """The GPUs, or their free memory, are unknown."""
    NOT_SHARED = "NotShared"
    """The node's GPUs are not shared by memory."""
    DRAINING = "Draining"
    """Pods keep their GPU memory on the node, and no other pod gets any."""
    NODE_SELECTOR = "NodeSelector"
    """The node lacks a label that the pod selects, by selector, affinity or class."""
    NO_DEVICE_NAMES = "NoDeviceNames"
    """The node's container runtime resolves no name of its GPUs."""
    NO_ENFORCEMENT = "NoEnforcement"
    """A sidecar cannot measure memory on the node."""
    NO_SENTRY = "NoSentry"
    """The node has no sentry that acts, which alone holds the pod to its cap."""
    NO_DRIVER_LIMIT = "NoDriverLimit"
    """The driver is to hold the pod to its cap, and does not."""
    TAINT = "Taint"
    """The node has a taint that the pod does not tolerate."""
    CORDONED = "Cordoned"
    """The node is out of scheduling."""
    UNSCHEDULABLE = "Unschedulable"
    """The scheduler names another reason than VRAM: CPU, a volume, a taint."""
    NOT_SCHEDULED_YET = "NotScheduledYet"
    """A node has room, and the scheduler has not bound the pod yet."""
    GATED = "SchedulingGated"
    """A controller holds the pod back, as queues do."""
    BINDING_DENIED = "BindingDenied"
    """vramwarden denied the pod's last binding."""
    BLOCKED_ROLLOUT = "BlockedRollout"
    """A rollout waits for memory that only the workload's own older pods can free."""
    NOT_PREEMPTED = "NotPreempted"
    """The scheduler preempts no pod, because it counts a node's memory as one sum."""

    # A pod that is bound.
    WAITS_FOR_GPU = "WaitsForGPU"
    """The pod was bound while vramwarden was unavailable, and gets its GPU late."""
    CONTAINER_WAITS = "ContainerWaits"
    """The kubelet cannot start a container."""
    STOPPED = "Stopped"
    """The sidecar stopped something of the pod for what it held."""
    OVER_CAP = "OverCap"
    """The pod exceeded its cap, and nothing was stopped for that."""
    CAP_EXCEEDED = "VRAMCapExceeded"
    """The sentry stopped something of the pod for what it held."""
    CAP_HIT = "CapHit"
    """A container ended by itself after the driver denied it more memory."""
    BLIND = "Blind"
    """The pod's memory cannot be measured."""

    # A pod that has no GPU memory, or does not exist.
    CREATION_DENIED = "CreationDenied"
    """The policy does not deny the pod: a quota, another webhook or a malformed field does."""
    WEBHOOK_UNREACHABLE = "WebhookUnreachable"
    """The API server could not call a webhook, so it denied the pod."""
    STATIC_POD = "StaticPod"
    """The kubelet starts the pod from a file, without admission."""
    NOT_READ = "NotRead"
    """Something seems to request GPU memory in a way that vramwarden does not read."""
    NOT_IN_FORCE = "NotInForce"
    """The policy only records or warns, or leaves such pods alone."""
    JOB_FAILED = "JobFailed"
    """A Job's pods failed too often, or it took too long."""
    NO_PODS = "NoPods"
    """A workload should have pods, and neither it nor an Event states why it has none."""
    NOT_FOUND = "NotFound"
    """No object has that name."""

    # A GPU, or the figures of a node.
    GPU_UNHEALTHY = "GPUUnhealthy"
    """A GPU is lost or broken, and no pod is placed on it."""
    OVERCOMMITTED = "Overcommitted"
    """More memory of a GPU is allocated than it has."""
    UNMANAGED_MEMORY = "UnmanagedMemory"
    """A process without an allocation holds memory of a GPU."""
    STALE_FIGURES = "StaleFigures"
    """The figures of a node are older than 180 s."""
    NO_FIGURES = "NoFigures"
    """Pods are bound to a node whose sentry has written no figures."""

    # A node with GPUs.
    NO_GPU_NODES = "NoGPUNodes"
    """No node shows that it has a GPU."""
    NODE_NOT_READY = "NodeNotReady"
    """A node with GPUs is not ready."""
    NO_AGENT_LABEL = "NoAgentLabel"
    """A node with GPUs has no label that brings the agent there."""
    NO_RUNTIME = "NoRuntime"
    """NVIDIA's container runtime is missing, or has no RuntimeClass."""
    NOT_ADVERTISED = "NotAdvertised"
    """The node's agent offers no VRAM, and states no reason."""
    GIVEN_TWICE = "GivenTwice"
    """A pod has whole GPUs of a node whose GPUs are shared by memory."""

    # The installation.
    KUBERNETES_VERSION = "KubernetesVersion"
    """This version of Kubernetes is not supported, or cannot be read."""
    SENTRY_DENIED = "SentryDenied"
    """Pod Security denies the sentry's pods, or may do so."""
    NOT_INSTALLED = "NotInstalled"
    """vramwarden's webhook does not exist."""
    OTHER_VERSION = "OtherVersion"
    """The command and the release are of different versions."""
    NOT_READY = "NotReady"
    """Pods of a component of vramwarden are missing or not ready."""
    NO_AGENT = "NoAgent"
    """There is no agent, or no node gets one."""
    NOT_REGISTERED = "NotRegistered"
    """The API server does not call the webhook as the chart registers it."""
    LATER_WEBHOOK = "LaterWebhook"
    """Another webhook changes new pods after vramwarden."""
    NO_BIND_PATH = "NoBindPath"
    """No replica answers bindings, or another client could forge them."""
    CERTIFICATE = "Certificate"
    """The webhook's certificate or CA is missing, expires, or is not trusted."""
    NOT_ASKED = "NotAsked"
    """The API server did not call the webhook for a pod that it should judge."""
    WRONGLY_CHANGED = "WronglyChanged"
    """A pod that requests no VRAM was changed."""
    POLICY_INVALID = "PolicyInvalid"
    """The policy is missing, invalid or empty."""
    POLICY_NOT_LOADED = "PolicyNotLoaded"
    """The webhook still follows an earlier policy than the stored one."""
    FENCE_OPEN = "FenceOpen"
    """An admission policy of the fence is off or without effect."""
    USELESS_QUOTA = "UselessQuota"
    """Kubernetes does not count a line of a ResourceQuota about VRAM."""
    VALIDATOR_DENIED = "ValidatorDenied"
    """The policy denies pods by which NVIDIA's operator validates its device plugin."""


class ProblemSubject(NamedTuple):
    """Object with the problem; all fields are empty for the whole cluster."""

    kind: str = ""
    name: str = ""
    """Object name; for a GPU, `NODE/INDEX`."""
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


CLUSTER = ProblemSubject()


@dataclass(frozen=True, slots=True)
class Problem:
    """A fact that the user should know, and a fix."""

    code: Code | Reason | EventReason | SharingCode
    severity: Severity
    message: str
    """Message without a final full stop."""
    fix: str = ""
    """Action, or a line for a manifest; empty if nothing needs to be done."""
    subject: ProblemSubject = CLUSTER

    @property
    def json(self) -> dict[str, Any]:
        """The problem as JSON, without empty fields."""
        subject = {key: text for key, text in self.subject._asdict().items() if text}
        values = {
            "code": self.code.value,
            "severity": self.severity.value,
            "subject": subject,
            "message": self.message,
            "fix": self.fix,
        }
        return {key: value for key, value in values.items() if value}


Finding: TypeAlias = "list[Problem] | str | None"
"""Problems, or a message about the correct state; None if the check does not apply."""
