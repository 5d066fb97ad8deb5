"""What `vramwarden explain` knows of a pod or a workload, and what it says of it; values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from webhook.core.enforcement.log_messages import LogMessage
    from webhook.core.kinds.histories import History
    from webhook.core.kinds.nodes import NodeFigures
    from webhook.core.pod.findings import Finding, Reason
    from webhook.core.policy.values import Action
    from webhook.tools.explain.judge.eligible import Mismatch
    from webhook.tools.explain.judge.room import Blocker, NodeRoom
    from webhook.tools.snapshot.node import ClusterNode
    from webhook.tools.snapshot.pod import ClusterPod


class State(StrEnum):
    """What a pod, or a workload, is doing."""

    PENDING = "pending"
    """It waits for a node."""
    REFUSED = "refused"
    """Its pods are not created."""
    WAITING = "waiting"
    """It has a node, and no GPU yet."""
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    """Something of it was stopped for what it held; the rest may run on."""
    BLIND = "blind"
    """Its memory cannot be measured."""
    ENDED = "ended"
    GONE = "gone"
    """It does not exist any more; its last run is known."""
    NO_DEMAND = "no-demand"
    """It asks for no VRAM."""
    UNKNOWN = "unknown"
    """Nothing has that name."""


class Severity(StrEnum):
    """How much a cause matters."""

    ERROR = "error"
    """It blocks, or something was stopped for it."""
    WARNING = "warning"
    """It will, or may."""
    INFO = "info"


class OtherReason(StrEnum):
    """Reasons for which no other part of vramwarden has a word."""

    UNSCHEDULABLE = "Unschedulable"
    """The scheduler names something else than VRAM: CPU, a volume, a taint."""
    NOT_SCHEDULED_YET = "NotScheduledYet"
    """A node has room, and the scheduler has not said why it does not take it."""
    GATED = "SchedulingGated"
    """Somebody holds it back, as queues do."""
    BINDING_DENIED = "BindingDenied"
    """We denied its last binding."""
    WAITS_FOR_GPU = "WaitsForGPU"
    """It was bound while vramwarden was away."""
    CREATION_DENIED = "CreationDenied"
    """Something other than vramwarden denied the pod: a quota, another webhook."""
    CONTAINER_WAITS = "ContainerWaits"
    """The kubelet cannot start a container."""
    CAP_EXCEEDED = "VRAMCapExceeded"
    """The sentry stopped it, from outside."""
    CAP_HIT = "CapHit"
    """It ended by itself, when the driver gave it no more."""
    JOB_FAILED = "JobFailed"
    """Its pods failed too often, or it took too long."""
    NO_PODS = "NoPods"
    """It should have some, and neither it nor an Event says why it has none."""
    NOT_READ = "NotRead"
    """It seems to ask for GPU memory in a way that vramwarden does not read."""
    NOT_IN_FORCE = "NotInForce"
    """The policy only records or warns of such pods, or leaves them alone."""
    NOT_FOUND = "NotFound"


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that is to be known."""

    severity: Severity
    reason: Reason | Blocker | Mismatch | LogMessage | OtherReason
    detail: str
    fix: str = ""
    """What to do; empty where there is nothing."""
    aside: str = ""
    """What stands beside it, for people."""


@dataclass(frozen=True, slots=True)
class Enough:
    """Amounts per GPU that would have been enough; None where that is not known."""

    admit_bytes: int | None = None
    """For the policy: its bound."""
    start_now_bytes: int | None = None
    """To be placed at once."""
    start_now_node: str = ""
    run_bytes: int | None = None
    """Not to be stopped, as far as it was seen to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is said."""

    kind: str
    namespace: str
    name: str
    state: State
    headline: str
    causes: tuple[Cause, ...] = ()
    nodes: tuple[NodeRoom, ...] = ()
    enough: Enough = field(default_factory=Enough)
    notes: tuple[tuple[str, str], ...] = ()
    """Each a label and a text."""
    remarks: tuple[str, ...] = ()
    """Sentences that stand at the end."""
    left_out: tuple[str, ...] = ()
    """What could not be read, and why."""
    pod: Report | None = None
    """Of a workload: its newest pod that is in trouble, else its newest."""

    @property
    def is_trouble(self) -> bool:
        """Whether something blocks, or was stopped, also where nobody says what."""
        mine = any(cause.severity is not Severity.INFO for cause in self.causes)
        lacks_pods = self.kind != "Pod" and self.state is State.PENDING and self.pod is None
        return mine or lacks_pods or bool(self.pod and self.pod.is_trouble)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedPod:
    """The API server's answer to a pod that was tried as the user, and not stored."""

    translated: bool = False
    """It would have GPU memory."""
    warnings: tuple[str, ...] = ()
    denial: str = ""
    """Where it was denied: the API server's message."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the policy in force says of a pod's creation."""

    rule: str
    action: Action | None
    """None where no rule matches."""
    findings: tuple[Finding, ...]
    malformed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Anew:
    """What becomes of a pod like one that exists, if it is created now."""

    trial: TriedPod | None
    """None where none may be tried."""
    ruling: Ruling | None
    """None where the policy cannot be read."""
    exempt: bool
    """Whether the webhook configuration leaves its namespace out, as far as that can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """What could be read about a pod."""

    namespace: str
    name: str
    now_s: float
    pod: ClusterPod | None
    """None where it does not exist."""
    nodes: tuple[NodeFigures, ...] | None = None
    """None where they cannot be read."""
    seen: Mapping[str, ClusterNode] | None = None
    """Nodes by name; None where the user may not read them, or none was needed."""
    pods: tuple[ClusterPod, ...] | None = None
    """Managed ones of all namespaces; None where they cannot be listed, or were not needed."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Of the namespace's pods, by UID."""
    workloads: tuple[str, ...] = ()
    """Of those that have one, as `deployment/llama`; where the pod does not exist."""
    anew: Anew | None = None
    """Of a pod that asks for VRAM and has none."""
    log: tuple[str, ...] = ()
    """The enforcer's lines, the oldest first."""
    histories: tuple[History, ...] = ()
    """Of the namespace."""
    left_out: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """As a report names it."""
        return f"Pod {self.namespace}/{self.name}"

    def report(self, state: State, headline: str, causes: Iterable[Cause], **more: Any) -> Report:
        """Return what is said of this pod."""
        return Report(
            kind="Pod",
            namespace=self.namespace,
            name=self.name,
            state=state,
            headline=headline,
            causes=tuple(causes),
            **{"left_out": self.left_out, **more},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """What could be read about what creates pods."""

    kind: str
    """As `Deployment`."""
    namespace: str
    name: str
    exists: bool = True
    by_owner: bool = False
    """Whether its pods alone were read, and not itself."""
    refusals: tuple[str, ...] = ()
    """What was said where pods could not be created: of conditions first, then of Events."""
    wanted: int | None = None
    """Pods that there should be."""
    pods: int = 0
    """Pods that there are."""
    others: tuple[str, ...] = ()
    """Names of the same kind, where it does not exist."""
    left_out: tuple[str, ...] = ()
    misplaced: tuple[str, ...] = ()
    """Our annotations that stand on it, and not on its pods' template."""
    template: str = "spec.template"
    """Where that template stands."""
    ended: str = ""
    """What became of a Job that makes no more pods: `is complete, 1 pod succeeded`."""
    failed: str = ""
    """Why a Job has failed."""
    tried: bool = False
    """Whether the refusals are answers to a pod that was tried as the user, and not stored."""
