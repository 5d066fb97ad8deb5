"""What the enforcer says about what it does, in words a developer can act on."""

from __future__ import annotations

from webhook.core.enforcement.step import (
    EndPod,
    Excess,
    First,
    Powerless,
    Process,
    ReportExcess,
    StopContainer,
)
from webhook.core.enforcement.sufficient_request import advise_request
from webhook.core.formatting import format_amount, format_count, format_exact, shorten

_LONGEST_COMMAND = 80  # in a sentence; events have all that is known of it
SHOWN_ID = 12  # characters of a container's id in a sentence


def explain_stop(process: Process, excess: Excess) -> str:
    """Return why a process is stopped, and which request would do."""
    within = f"within {excess.grew_within_s:.1f} s" if excess.grew_within_s else "at first sight"
    reason = f"it grew last, by {format_amount(excess.grew_bytes)} {within}"
    if excess.first is First.LARGEST:
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
    return _none_can_be_stopped(action.powerless) if action.powerless else action.why


def explain_report(action: ReportExcess, why_not: str) -> str:
    """Say what would be stopped, in the words of the stop, and why nothing is."""
    over, process = action.excess, action.process
    if isinstance(over, Powerless):
        what = _none_can_be_stopped(over)
    else:
        what = explain_stop(process, over) if process else ""
    return f"{what}; nothing is stopped: {why_not}"


def _none_can_be_stopped(over: Powerless) -> str:
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
