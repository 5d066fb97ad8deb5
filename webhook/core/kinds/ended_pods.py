"""Pods that ended, and their runs in the workload's history.

The figures come from the sidecar's termination message, which a tenant can forge for its own pod.
The node's GPUs and the pod's lifetime bound these figures. The sentry's peak, which no tenant can
forge, also counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webhook.core.bounds import MAX_ENTRIES, MAX_RUN_STOPS
from webhook.core.enforcement.termination_message import TerminationMessage, read_message
from webhook.core.kinds.histories import Run
from webhook.core.kinds.nodes import BY_DRIVER, NodeFigures, held_by, read_time
from webhook.core.kinds.workloads import Workload, find_workload
from webhook.core.placement.pod_state import PodState
from webhook.core.pod.fields import Json, as_object, as_objects, find_object
from webhook.core.pod.gpus import Gpu
from webhook.names import ENFORCER_CONTAINER, MAX_LABEL_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedPod:
    """A pod with a demand that has ended or is about to end."""

    uid: str
    namespace: str
    pod: str
    node: str
    workload: Workload
    gpu_count: int
    requested_bytes: int
    began_s: float
    """Unix time at which the pod began."""
    ended_s: float
    """Unix time at which the last container ended; otherwise, the time of the planned deletion."""
    is_over: bool
    """True if all of the pod's containers ended."""
    termination: TerminationMessage | None = None


def read_ended_pod(raw: Mapping[str, Any], state: PodState) -> EndedPod | None:
    """Return a stored pod if it ended or is about to end, or None. Never fails.

    `state` is the state of the pod in placement.

    | phase | being deleted | the sidecar, or without one all that ran | |
    | --- | --- | --- | --- |
    | Succeeded, Failed | any | has ended | over |
    | any other | yes | has ended | over |
    | any other | yes | runs, or nothing is known | about to end |
    | Succeeded, Failed | no | nothing is known | None: its end is unknown |
    | any other | no | any | None |

    A pod that was never bound, or requests nothing, is never returned.
    """
    metadata, status = as_object(raw.get("metadata")), as_object(raw.get("status"))
    deleted_s = read_time(metadata.get("deletionTimestamp"))
    if state.need is None or not state.node or not (state.finished or deleted_s is not None):
        return None
    began_s = read_time(status.get("startTime")) or read_time(metadata.get("creationTimestamp"))
    containers = [
        item
        for key in ("initContainerStatuses", "containerStatuses")
        for item in as_objects(status.get(key), MAX_ENTRIES)
    ]
    enforcers = [
        container for container in containers if container.get("name") == ENFORCER_CONTAINER
    ]
    last = [
        _terminated(enforcer, "state").get("finishedAt") for enforcer in enforcers or containers
    ]
    ends = [*map(read_time, last)]
    known = [end for end in ends if end is not None]
    is_over = bool(known) and len(known) == len(ends)
    if is_over:
        ended_s = max(known)
    elif deleted_s is not None:
        ended_s = deleted_s
    else:
        return None
    namespace, _, name = state.name.partition("/")
    return EndedPod(
        uid=state.uid,
        namespace=namespace,
        pod=name,
        node=state.node,
        workload=find_workload(metadata),
        gpu_count=state.need.gpu_count,
        requested_bytes=state.terms.cap_bytes if state.terms else state.need.memory_bytes,
        began_s=ended_s if began_s is None else began_s,
        ended_s=ended_s,
        is_over=is_over,
        termination=read_termination_messages(enforcers),
    )


def build_run(ending: EndedPod, gpus: Sequence[Gpu], figures: NodeFigures | None) -> Run:
    """Return the run of a pod that ended.

    `gpus` are the node's GPUs; empty if unknown. `figures` are the sentry's figures.

    | termination message | the sentry's figures of the pod | peak and stops |
    | --- | --- | --- |
    | yes | yes | the larger of each |
    | yes | no | of the message |
    | no | yes | of the sentry |
    | no | no | no peak, no stops |

    The GPU bounds the peak if the node's GPUs are known, and the pod's lifetime bounds the
    duration. The run is limited if the driver enforced the cap on each of the pod's GPUs according
    to the sentry's last figures.
    """
    totals = {gpu.uuid: gpu.total_bytes or gpu.memory_bytes for gpu in gpus}
    words = ending.termination
    peaks = dict(words.peaks) if words else {}
    stops = words.stops if words else 0
    own = [
        (gpu.uuid, pod)
        for gpu in (figures.gpus if figures else ())
        for pod in gpu.pods
        if pod.uid == ending.uid
    ]
    for uuid, pod in own:
        peaks[uuid] = max(peaks.get(uuid, 0), pod.peak_bytes or 0)
        stops = max(stops, pod.stops or 0)
    bounded = {
        uuid: min(peak, totals.get(uuid, peak))
        for uuid, peak in peaks.items()
        if peak and (uuid in totals or not totals)
    }
    where = max(bounded, key=lambda uuid: bounded[uuid], default="")
    lived_s = max(0.0, ending.ended_s - ending.began_s)
    return Run(
        pod=ending.pod,
        ended_s=ending.ended_s,
        requested_bytes=ending.requested_bytes,
        gpus=ending.gpu_count,
        peak_bytes=bounded.get(where),
        stops=min(stops, MAX_RUN_STOPS),
        seconds=min(float(words.seconds), lived_s) if words else lived_s,
        product=next((gpu.product for gpu in gpus if gpu.uuid == where), "")[:MAX_LABEL_LENGTH],
        limited=held_by(pod for _, pod in own) in BY_DRIVER,
    )


def read_termination_messages(enforcers: Sequence[Json]) -> TerminationMessage | None:
    """Return the sum of a sidecar's termination messages, from the statuses of its container.

    There may be two messages, since the sidecar may have been restarted once.
    """
    said = [
        found
        for enforcer in enforcers
        for state in ("lastState", "state")
        if (found := read_message(_terminated(enforcer, state).get("message")))
    ]
    if not said:
        return None
    peaks: dict[str, int] = {}
    for words in said:
        for uuid, peak in words.peaks.items():
            peaks[uuid] = max(peak, peaks.get(uuid, 0))
    stops, seconds = sum(line.stops for line in said), sum(line.seconds for line in said)
    return TerminationMessage(said[-1].cap_bytes, peaks, stops, seconds)


def _terminated(container: Json, state: str) -> Json:
    return find_object(container, state, "terminated")
