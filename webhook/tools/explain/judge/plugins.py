"""A pod whose GPU NVIDIA's device plugin gives it: a slice of MIG, or a slot of time-slicing.

Nothing of ours counts its memory, so no figures of ours say where it would have room. The scheduler
says that, and who reads it has to know in which words.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from webhook.core.kinds.nodes import read_time
from webhook.core.nvidia.plugin import is_slice
from webhook.core.placement.fit import Need
from webhook.core.placement.pods import Hold
from webhook.core.pod.demand import read_demand
from webhook.core.pod.findings import MalformedObjectError
from webhook.core.pod.views import read_pod
from webhook.core.policy.values import TimeSliced
from webhook.core.words import named, span
from webhook.names import MANAGED_LABEL
from webhook.tools.explain.judge.bound import explain_bound
from webhook.tools.explain.judge.report import State
from webhook.tools.explain.judge.waiting import demand_words, of_scheduler

if TYPE_CHECKING:
    from webhook.core.placement.assignments import PodState
    from webhook.tools.explain.judge.report import PodFacts, Report
    from webhook.tools.snapshot.pod import ClusterPod

_SLOTS: Final = frozenset(one.value for one in TimeSliced)
_SLICE: Final = (
    "a slice (MIG) has memory of its own, to which the GPU holds it; the node's labels "
    "nvidia.com/mig-<profile>.memory say how much"
)
_SLOT: Final = (
    "its GPU is shared by time-slicing: its sidecar holds it to its cap, and nobody keeps that "
    "memory free, so others may take it first"
)


def explain_by_plugin(facts: PodFacts, pod: ClusterPod, state: PodState) -> Report | None:
    """Explain a pod that asks the plugin in place of VRAM of ours; None for all other pods."""
    try:
        found = read_pod(pod.raw)
        demand = read_demand(found)[0]
        if demand is None or found.labels.get(MANAGED_LABEL) != "true":
            return None
        asked = [
            (resource, amount)
            for container in found.containers
            if container.name in demand.amounts
            for resource, amount in container.resources("limits").items()
            if is_slice(resource) or resource in _SLOTS
        ]
    except MalformedObjectError:
        return None
    if not asked:
        return None
    what = named([f"{amount} {resource}" for resource, amount in asked], 4)
    remark = _SLICE if is_slice(asked[0][0]) else _SLOT
    need = Need(demand.per_gpu_bytes, demand.gpu_count)
    state = replace(
        state,
        need=need,
        at_binding=False,
        hold=Hold(cap_bytes=need.memory_bytes, tolerance_bytes=0, late_s=0.0, may_act=False),
    )
    asks = demand_words(state, pod.rule)
    how = f"{what}, given by NVIDIA's device plugin"
    if not state.node and not state.finished:
        created_s = pod.created_s
        waited = "" if created_s is None else f" for {span(facts.now_s - created_s)}"
        headline = f"{facts.title} has waited{waited}. {asks} That is {how}."
        causes = of_scheduler(pod, None, judged=False)
        return facts.report(State.PENDING, headline, causes, remarks=(remark,))
    report = explain_bound(facts, pod, state)
    headline = report.headline
    if not state.finished:
        status = pod.part("status")
        does = "runs" if status.get("phase") == "Running" else "starts"
        since_s = read_time(status.get("startTime"))
        since = "" if since_s is None else f" since {span(facts.now_s - since_s)}"
        headline = f"{facts.title} {does} on {state.node}{since}: {how}. {asks}"
    return replace(report, headline=headline, remarks=(remark,), left_out=facts.left_out)
