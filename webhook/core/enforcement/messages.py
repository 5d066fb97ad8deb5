"""The constant messages in the logs of sidecar and sentry that other programs read."""

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
    """The key `msg` of a log line; of a verdict, also the start of the termination message."""

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
    """Return the request per GPU, in bytes, for a pod that held at most `peak_bytes` on one GPU.

    It is the peak and 15 %, rounded up to whole 256Mi, above 8Gi to whole Gi. The margin is for
    what was not seen: a process that is stopped, or denied memory, may have needed more.
    """
    wanted = -(-peak_bytes * (100 + MARGIN_PERCENT) // 100)
    grain = _GIB if wanted > _COARSE_ABOVE_BYTES else _GIB // 4
    return max(1, -(-wanted // grain)) * grain


def advise_request(peak_bytes: int) -> str:
    """Return the end of a sentence about a pod over its cap: its peak, and what to write."""
    asks = format_exact(sufficient_request(peak_bytes))
    return (
        f"the pod's peak was {format_amount(peak_bytes)}, so write vramwarden.io/gpu-memory: "
        f"{asks} (the peak and {MARGIN_PERCENT} %)"
    )


_LONGEST_COMMAND = 80  # in a sentence; events have all that is known of it
SHOWN_ID = 12  # characters of a container's id in a sentence


def explain_stop(process: Process, excess: Excess) -> str:
    """Return why a process is stopped, and which request would do."""
    within = f"within {excess.grew_within_s:.1f} s" if excess.grew_within_s else "at first sight"
    reason = f"it grew last, by {format_amount(excess.grew_bytes)} {within}"
    if excess.order is VictimOrder.LARGEST:
        reason = "it holds the most"
    return _explain(process, excess, reason)


def explain_container_stop(action: StopContainer) -> str:
    """Say why all processes of a container are stopped."""
    whose = "its container" if action.container else "the pod"
    reason = f"{_not_exactly(action.excess)}, so all processes of {whose} end"
    return _explain(action.process, action.excess, reason)


def explain_end(action: EndPod) -> str:
    """Say why the whole pod has to end."""
    if action.process is not None and action.excess is not None:
        reason = f"{_not_exactly(action.excess)}, so all processes of the pod end"
        return _explain(action.process, action.excess, reason)
    return _none_can_be_stopped(action.nothing_to_stop) if action.nothing_to_stop else action.why


def explain_report(action: ReportExcess, why_not: str) -> str:
    """Say what would be stopped, in the words of the stop, and why nothing is."""
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


def _not_exactly(excess: Excess) -> str:
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
    """Name a process: pid, command, container."""
    shown = shorten(process.command, _LONGEST_COMMAND)
    command = f" ({shown})" if shown else ""
    container = f" of container {process.container[:SHOWN_ID]}" if process.container else ""
    return f"process {process.pid}{command}{container}"
