"""Messages of sidecar and sentry: keys of log lines, and sentences with the recommended request.

The sidecar, the sentry, `explain`, `advise` and warnings at admission recommend the same request
for the same peak.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from webhook.core.enforcement.model import (
    EndPod,
    Excess,
    NothingToStop,
    Process,
    ReportExcess,
    StopContainer,
    VictimOrder,
)
from webhook.core.formatting import format_amount, format_count, format_exact, shorten


class LogMessage(StrEnum):
    """Value of `msg` in a log line; a verdict also starts the termination message with it."""

    STOPPING = "stopping a process"
    STOPPING_CONTAINER = "stopping a container"
    WOULD_STOP = "would stop a process"
    KILLING = "killing a process"
    CAME_BACK = "memory came back"
    STAYED = "memory did not come back"
    ENDING_POD = "the pod must restart"
    BLIND = "cannot measure"
    MEASURING = "measuring again"
    SELF_TEST = "self-test"
    DRIVER_CHANGED = "the driver changed"
    WAITING_FOR_LIMIT = "waiting for the driver's limit"
    HELD = "held by the driver"
    HELD_LATE = "held by the driver, late"
    NOT_HELD = "not held by the driver"


MARGIN_PERCENT: Final = 15
_GIB: Final = 2**30
_COARSE_ABOVE_BYTES: Final = 8 * _GIB


def sufficient_request(peak_bytes: int) -> int:
    """Return the recommended request per GPU, in bytes, for a pod with this peak on a GPU.

    It is the peak plus 15 %, rounded up to 256Mi, or to 1Gi above 8Gi. The margin covers use that
    was not measured: a process that was stopped or denied memory may have needed more.
    """
    wanted = -(-peak_bytes * (100 + MARGIN_PERCENT) // 100)
    grain = _GIB if wanted > _COARSE_ABOVE_BYTES else _GIB // 4
    return max(1, -(-wanted // grain)) * grain


def advise_request(peak_bytes: int) -> str:
    """Return the end of a sentence about a pod over its cap: peak and recommended request."""
    asks = format_exact(sufficient_request(peak_bytes))
    return (
        f"the pod's peak was {format_amount(peak_bytes)}, so write vramwarden.io/gpu-memory: "
        f"{asks} (the peak and {MARGIN_PERCENT} %)"
    )


_LONGEST_COMMAND = 80  # characters of a command in a sentence; log lines have the whole command
SHOWN_ID = 12  # characters of a container ID in a sentence


def explain_stop(process: Process, excess: Excess) -> str:
    """Return why a process is stopped, and the recommended request."""
    within = f"within {excess.grew_within_s:.1f} s" if excess.grew_within_s else "at first sight"
    reason = f"it grew last, by {format_amount(excess.grew_bytes)} {within}"
    if excess.order is VictimOrder.LARGEST:
        reason = "it holds the most"
    return _explain(process, excess, reason)


def explain_container_stop(action: StopContainer) -> str:
    """Return why all processes of a container are stopped."""
    whose = "its container" if action.container else "the pod"
    reason = f"{_stops_were_not_enough(action.excess)}, so all processes of {whose} end"
    return _explain(action.process, action.excess, reason)


def explain_end(action: EndPod) -> str:
    """Return why the whole pod is ended."""
    if action.process is not None and action.excess is not None:
        reason = f"{_stops_were_not_enough(action.excess)}, so all processes of the pod end"
        return _explain(action.process, action.excess, reason)
    return _none_can_be_stopped(action.nothing_to_stop) if action.nothing_to_stop else action.why


def explain_report(action: ReportExcess, why_not: str) -> str:
    """Return what would be stopped, in the words of a stop, and why nothing is stopped."""
    over, process = action.excess, action.process
    if isinstance(over, NothingToStop):
        what = _none_can_be_stopped(over)
    else:
        what = explain_stop(process, over) if process else ""
    return f"{what}; nothing is stopped: {why_not}"


def _none_can_be_stopped(over: NothingToStop) -> str:
    return (
        f"over the VRAM cap on GPU {over.gpu}: the pod holds {format_amount(over.sum_bytes)}, "
        f"the cap is {format_exact(over.cap_bytes)}, and none of its processes can be stopped "
        f"from here; {advise_request(over.peak_bytes)}"
    )


def _stops_were_not_enough(excess: Excess) -> str:
    were = "was" if excess.stops_before == 1 else "were"
    stops = format_count(excess.stops_before, "stop")
    return f"{stops} {were} not enough in {excess.stops_within_s:.0f} s"


def _explain(process: Process, excess: Excess, reason: str) -> str:
    others = excess.sum_bytes - excess.used_bytes
    beside = f", other processes of the pod {format_amount(others)}" if others else ""
    return (
        f"over the VRAM cap on GPU {excess.gpu}: {describe(process)} holds "
        f"{format_amount(excess.used_bytes)}{beside}, the cap is {format_exact(excess.cap_bytes)}; "
        f"{reason}; {advise_request(excess.peak_bytes)}"
    )


def describe(process: Process) -> str:
    """Return a process's PID, command and container as a phrase."""
    shown = shorten(process.command, _LONGEST_COMMAND)
    command = f" ({shown})" if shown else ""
    container = f" of container {process.container[:SHOWN_ID]}" if process.container else ""
    return f"process {process.pid}{command}{container}"
