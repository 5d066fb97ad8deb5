"""Problems of a bound pod that waits, was stopped, or has a cap that is not enforced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from webhook.core.enforcement.messages import SHOWN_ID, sufficient_request
from webhook.core.enforcement.termination_message import TerminationMessage, stops_in_words
from webhook.core.formatting import format_amount, format_duration, format_exact
from webhook.core.kinds.ended_pods import read_termination_messages
from webhook.core.kinds.histories import fills
from webhook.core.kinds.nodes import (
    BY_DRIVER,
    GpuFigures,
    NodeFigures,
    PodFigures,
    find_sentry_fault,
    held_by,
    largest_gpu,
    read_time,
)
from webhook.core.pod.fields import find_object, find_string
from webhook.names import (
    CAP_HELD_CONDITION,
    DRIVER_LIMIT_ANNOTATION,
    ENFORCER_CONTAINER,
    GATE_VARIABLE,
    GPU_MEMORY_ANNOTATION,
    VRAM_RESOURCE,
)
from webhook.tools.problems.eligibility import (
    NO_SENTRY,
    driver_enforces_caps,
    explain_missing_limit,
    requires_sentry,
)
from webhook.tools.problems.enforcer_log import EnforcerLog, LogEntry
from webhook.tools.problems.pending_pod import unreadable_demand
from webhook.tools.problems.problem import Code, Problem, Severity
from webhook.tools.snapshot.objects import Condition
from webhook.tools.snapshot.pod import (
    BOUND_WHILE_AWAY,
    LIMIT_GRACE_S,
    ClusterPod,
    is_container_gated,
)

_ENDED_BY_OTHERS: Final = {0, 137, 143}
"""Exit codes that are not a failure of the container: success, SIGKILL and SIGTERM."""
_NORMAL_REASONS: Final = {"ContainerCreating", "PodInitializing"}
_GATED: Final = (
    "until then the kubelet creates no container of it with VRAM, and reports "
    f"CreateContainerConfigError: missing value for {GATE_VARIABLE}. That is no fault of the pod"
)
_WITHOUT_LIMIT: Final = (
    "or delete the pod: created again, it waits for no limit on a node without the label "
    "vramwarden.io/driver-limit, unless its rule requires one"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPod:
    """A pod that is bound or has ended, with GPU figures and the log of its sidecar."""

    pod: ClusterPod
    log: EnforcerLog
    nodes: Sequence[NodeFigures] | None
    """Figures of all nodes; None if they are unreadable."""
    now_s: float

    @property
    def node(self) -> NodeFigures | None:
        """Figures of the pod's node, or None without any."""
        return next((node for node in self.nodes or () if node.name == self.pod.state.node), None)

    @property
    def allocations(self) -> list[tuple[GpuFigures, PodFigures]]:
        """GPUs of the pod, each with the pod's figures on that GPU."""
        pairs = [(gpu, pod) for gpu in (self.node.gpus if self.node else ()) for pod in gpu.pods]
        return [(gpu, pod) for gpu, pod in pairs if pod.uid == self.pod.state.uid]

    @property
    def figures(self) -> list[PodFigures]:
        """Figures of the pod on each of its GPUs."""
        return [pod for _, pod in self.allocations]

    @property
    def cap_bytes(self) -> int:
        """Cap of the pod per GPU, in bytes; 0 if unknown."""
        return self.pod.state.terms.cap_bytes if self.pod.state.terms else 0

    @property
    def peak_bytes(self) -> int:
        """Largest known peak of the pod on one GPU, in bytes; 0 if unknown."""
        message = self.message
        peaks = [figure.peak_bytes for figure in self.figures]
        peaks += [stop.peak_bytes for stop in (*self.log.stops, *self.log.reports)]
        return max(filter(None, (*peaks, *(message.peaks.values() if message else ()))), default=0)

    @property
    def message(self) -> TerminationMessage | None:
        """Combined termination messages of the pod's sidecar, or None without any."""
        return read_termination_messages(self.pod.enforcer_statuses())

    @property
    def stops(self) -> int:
        """Known number of stops of the pod."""
        message = self.message
        known = [figure.stops or 0 for figure in self.figures]
        return max(len(self.log.stops), message.stops if message else 0, *known, 0)

    @property
    def cap_exceeded(self) -> Condition | None:
        """Condition by which the sentry reports a stop, or None if the sentry stopped nothing."""
        return self.pod.condition(CAP_HELD_CONDITION, "False")

    @property
    def was_over(self) -> bool:
        """True if the pod is known to have exceeded its cap, and its peak is known."""
        was_seen = self.stops or self.log.reports or self.cap_exceeded
        return bool(self.peak_bytes) and bool(was_seen or self.peak_bytes > self.cap_bytes)

    @property
    def sufficient_bytes(self) -> int:
        """Request that would have prevented the stop, in bytes, according to the known peak."""
        return sufficient_request(max(self.cap_bytes, self.peak_bytes))

    @property
    def request_line(self) -> str:
        """Manifest line for the sufficient request; empty if no peak is known."""
        return (
            suggest_request(self.pod, self.sufficient_bytes, self.nodes) if self.peak_bytes else ""
        )

    @property
    def lacks_sentry(self) -> bool:
        """True if the node is known to have no sentry that enforces caps on all its GPUs."""
        gpus = self.node.gpus if self.node else ()
        return self.nodes is not None and bool(find_sentry_fault(self.node, gpus, self.now_s))


def suggest_request(
    pod: ClusterPod | None, amount_bytes: int, nodes: Iterable[NodeFigures] | None
) -> str:
    """Return the manifest line with which such a pod requests an amount per GPU.

    | annotation gpu-memory of the pod | line |
    | --- | --- |
    | any, and no GPU has that amount | what to do instead |
    | one quantity, or the pod is gone | the annotation, to be copied |
    | a list by container | the sum of its entries |
    | absent: containers have limits | the sum of their limits, per GPU |
    """
    asks, largest_bytes = format_exact(amount_bytes), largest_gpu(nodes)
    if largest_bytes is not None and amount_bytes > largest_bytes:
        return f"no GPU here has {asks}: let it take less at a time, as by smaller batches"
    if pod is None:
        return f"{GPU_MEMORY_ANNOTATION}: {asks}"
    written = pod.annotations.get(GPU_MEMORY_ANNOTATION)
    if not isinstance(written, str):
        return f"{asks} per GPU in the limits {VRAM_RESOURCE}"
    if "=" in written:
        return f"{asks} in sum over the containers in {GPU_MEMORY_ANNOTATION}"
    return f"{GPU_MEMORY_ANNOTATION}: {asks}"


def find_stops(bound: BoundPod) -> Iterator[Problem]:
    """Yield stops by sidecar and sentry, or else a container failure at the cap."""
    by_sentry = bound.cap_exceeded
    if bound.log.stops:
        detail = f"stopped {_describe_newest(bound, bound.log.stops, bound.stops)}"
        yield Problem(Code.STOPPED, Severity.WARNING, detail, bound.request_line)
    elif bound.stops and not by_sentry:
        detail = f"{stops_in_words(bound.stops)} for what the pod held"
        yield Problem(Code.STOPPED, Severity.WARNING, detail, bound.request_line)
    if by_sentry:
        at_s = read_time(by_sentry.since)
        when = (
            ""
            if at_s is None
            else f"{format_duration(bound.now_s - at_s)} ago, by the node's sentry: "
        )
        detail = f"{when}{_replace_container_ids(bound.pod, by_sentry.message)}"
        yield Problem(Code.CAP_EXCEEDED, Severity.WARNING, detail, bound.request_line)
    elif not bound.stops:
        yield from _find_cap_hit(bound)


def _describe_newest(bound: BoundPod, entries: Sequence[LogEntry], known: int) -> str:
    newest, count = entries[-1], max(known, len(entries))
    when = "earlier" if newest.at_s is None else f"{format_duration(bound.now_s - newest.at_s)} ago"
    times = "" if count == 1 else f" ({count} times so far)"
    return f"{when}{times}: {_replace_container_ids(bound.pod, newest.why)}"


def _replace_container_ids(pod: ClusterPod, why: str) -> str:
    for status in pod.container_statuses():
        container = find_string(status, "containerID").rpartition("//")[2][:SHOWN_ID]
        if container:
            why = why.replace(f"container {container}", f"container {find_string(status, 'name')}")
    return why


def _find_cap_hit(bound: BoundPod) -> Iterator[Problem]:
    """Yield a problem if a container failed after the pod reached a cap that the driver enforces.

    | cap enforced by | peak | a container | problem |
    | --- | --- | --- | --- |
    | the driver | reaches the cap | failed by itself | yes |
    | unknown, and the binding chose the driver | reaches the cap | failed by itself | yes |
    | another component | any | any | no |
    """
    enforced_by, cap, peak = held_by(bound.figures), bound.cap_bytes, bound.peak_bytes
    by_driver = enforced_by in BY_DRIVER or (
        not enforced_by and DRIVER_LIMIT_ANNOTATION in bound.pod.annotations
    )
    failed = max(_failed_containers(bound.pod), default=None)
    if not (by_driver and cap and fills(peak, cap) and failed):
        return
    at_s, name, code = failed
    when = f"{format_duration(bound.now_s - at_s)} ago: " if at_s else ""
    detail = (
        f"{when}container {name} ended by itself (exit code {code}), and the pod had held "
        f"{format_amount(peak)} of {format_exact(cap)}: the cap was hit, and the driver denied "
        "an allocation beyond it. Its size is not known, so a larger request may still be too small"
    )
    yield Problem(Code.CAP_HIT, Severity.WARNING, detail, bound.request_line)


def _failed_containers(pod: ClusterPod) -> Iterator[tuple[float, str, int]]:
    """Yield time, name and exit code of the user's containers that failed without being stopped."""
    for status in pod.container_statuses():
        name = find_string(status, "name")
        for when in ("state", "lastState") if name != ENFORCER_CONTAINER else ():
            ended = find_object(status, when, "terminated")
            code = ended.get("exitCode")
            is_own = ended.get("reason") != "OOMKilled" and code not in _ENDED_BY_OTHERS
            if type(code) is int and is_own:
                yield read_time(ended.get("finishedAt")) or 0.0, name, code


def find_excess_reports(bound: BoundPod) -> Iterator[Problem]:
    """Yield excesses after which nothing was stopped, and failures to measure the pod."""
    log = bound.log
    if log.reports:
        detail = f"reported only, {_describe_newest(bound, log.reports, 0)}"
        yield Problem(Code.OVER_CAP, Severity.INFO, detail, bound.request_line)
    elif 0 < bound.cap_bytes < bound.peak_bytes and not (bound.stops or bound.cap_exceeded):
        detail = (
            f"it held {format_amount(bound.peak_bytes)}, and nothing is known to have been stopped"
        )
        yield Problem(Code.OVER_CAP, Severity.INFO, detail, bound.request_line)
    if log.blind and not bound.pod.state.finished:
        fix = "kubectl logs, container vram-enforcer, says more; or ask your platform team"
        yield Problem(Code.BLIND, Severity.ERROR, f"cannot measure: {log.blind}", fix)


def find_late_assignment(bound: BoundPod) -> Iterator[Problem]:
    """Yield the reason why a bound pod has no GPU yet, and the kubelet's message."""
    waits = bound.pod.state.pending
    message = waits.last_message if waits else ""
    fix = "wait: vramwarden assigns a GPU within seconds once it is back (vramwarden check)"
    if message:
        fix = "wait: vramwarden assigns a GPU of the node as soon as one has room; "
        fix += (
            "after 5 minutes without room it deletes the pod, and its controller creates another"
            if waits and waits.has_controller
            else "or delete the pod and create it again, so that it may go to another node"
        )
    yield Problem(Code.WAITS_FOR_GPU, Severity.ERROR, message or BOUND_WHILE_AWAY, fix)
    if bound.pod.is_gated:
        yield Problem(Code.CONTAINER_WAITS, Severity.INFO, _GATED)


def find_running_problems(bound: BoundPod) -> Iterator[Problem]:
    """Yield problems of a pod that has GPUs and has not ended."""
    if bound.pod.state.unreadable and not bound.pod.state.uuids:
        yield unreadable_demand(bound.pod.state.unreadable)
    for gpu in bound.node.gpus if bound.node else ():
        if gpu.uuid in bound.pod.state.uuids and not gpu.healthy:
            why = f": {gpu.fault}" if gpu.fault else ""
            detail = f"its GPU {gpu.index} is lost or unhealthy{why}"
            fix = "once it has saved its work, delete it, so that another GPU is chosen"
            yield Problem(Code.GPU_UNHEALTHY, Severity.WARNING, detail, fix)
    yield from _find_waiting_container(bound)
    yield from _find_missing_limit(bound)
    if requires_sentry(bound.pod) and bound.lacks_sentry:
        detail = f"nothing holds it to its cap now: {NO_SENTRY}"
        fix = "ask your platform team to see to the sentry there (vramwarden check)"
        yield Problem(Code.NO_SENTRY, Severity.INFO, detail, fix)


def _find_waiting_container(bound: BoundPod) -> Iterator[Problem]:
    """Yield a problem for the first container that the kubelet cannot start."""
    for status in bound.pod.container_statuses():
        waits = find_object(status, "state", "waiting")
        reason, message = find_string(waits, "reason"), find_string(waits, "message")
        if is_container_gated(status):
            if bound.pod.state.uuids:
                detail = "it has its GPU now, and the kubelet creates its containers within 10 s"
                yield Problem(Code.CONTAINER_WAITS, Severity.INFO, detail)
                return
        elif reason and reason not in _NORMAL_REASONS:
            detail = f"container {find_string(status, 'name')}: {reason}" + (
                f": {message}" if message else ""
            )
            yield Problem(Code.CONTAINER_WAITS, Severity.ERROR, detail)
            return


def _find_missing_limit(bound: BoundPod) -> Iterator[Problem]:
    """Yield a problem if the driver should enforce the cap but does not.

    | the pod | cap enforced by | problem |
    | --- | --- | --- |
    | has no annotation `driver-limit` | any | none |
    | any | the driver | none |
    | starts | another, or unknown | it waits for the limit |
    | runs | sidecar or sentry, by figures or its sidecar's log | the limit was lost |
    """
    enforced_by, reason = held_by(bound.figures), bound.log.not_held
    if enforced_by in BY_DRIVER or DRIVER_LIMIT_ANNOTATION not in bound.pod.annotations:
        return
    why, fix = f": {reason}" if reason else "", "the log of vramwarden's limiter there says why"
    if bound.node and not driver_enforces_caps(bound.node):
        why += f"; {explain_missing_limit(bound.node)}"
        fix = "ask your platform team to see to it (vramwarden check)"
    if bound.pod.phase != "Running":
        since_s = read_time(bound.pod.part("status").get("startTime"))
        late = since_s is not None and bound.now_s - since_s > LIMIT_GRACE_S
        severity = Severity.ERROR if late else Severity.INFO
        detail = f"it starts nothing before the driver holds it to its cap{why}"
        fix = f"{fix}; {_WITHOUT_LIMIT}" if late else ""
        yield Problem(Code.NO_DRIVER_LIMIT, severity, detail, fix)
    elif enforced_by or reason:
        detail = f"the driver no longer holds it to its cap{why}"
        yield Problem(Code.NO_DRIVER_LIMIT, Severity.INFO, detail, fix)
