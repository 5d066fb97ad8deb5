"""Log events for the enforcer's actions: a constant message, a sentence, and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webhook.core.enforcement.messages import (
    LogMessage,
    describe,
    explain_container_stop,
    explain_end,
    explain_report,
    explain_stop,
)
from webhook.core.enforcement.model import (
    EndPod,
    Freed,
    Kill,
    NothingToStop,
    ReportBlind,
    ReportExcess,
    StopContainer,
    Terminate,
)
from webhook.core.formatting import format_amount

if TYPE_CHECKING:
    from webhook.core.enforcement.model import Action, Excess, Process
    from webhook.sidecar.journal import EnforcerJournal


def report_action(journal: EnforcerJournal, action: Action, grace_s: float) -> None:
    """Log an action; verdicts are also written to the termination message."""
    match action:
        case Terminate(process, excess):
            journal.verdict(
                "warning",
                LogMessage.STOPPING,
                explain_stop(process, excess),
                **_excess_values(excess),
                **process_values(process),
            )
        case StopContainer(_, excess, process):
            why = explain_container_stop(action)
            values = _excess_values(excess) | process_values(process)
            journal.verdict("warning", LogMessage.STOPPING_CONTAINER, why, **values)
        case ReportExcess(excess, process):
            why = explain_report(action, "the policy only reports (onExcess: Report)")
            values = _excess_values(excess) | (process_values(process) if process else {})
            journal.verdict("warning", LogMessage.WOULD_STOP, why, **values)
        case Kill(process, gpu):
            why = f"{describe(process)} is still there {grace_s:g} s after SIGTERM"
            journal.event(
                "warning", LogMessage.KILLING, why=why, gpu=gpu, **process_values(process)
            )
        case Freed(process, gpu, freed_bytes, after_s, returned):
            who = process_values(process)
            after_s = round(after_s, 3)
            if returned:
                why = (
                    f"{describe(process)} left the driver's list {after_s:.1f} s after its first "
                    f"signal, and its {format_amount(freed_bytes)} with it"
                )
                values = {"gpu": gpu, "after_s": after_s, "freed_bytes": freed_bytes}
                journal.event("info", LogMessage.CAME_BACK, why=why, **values, **who)
            else:
                why = f"{describe(process)} still holds it {after_s:.0f} s after its first signal"
                journal.verdict("error", LogMessage.STAYED, why, gpu=gpu, after_s=after_s, **who)
        case ReportBlind(blind=True, why=why):
            journal.verdict("error", LogMessage.BLIND, why)
        case ReportBlind():
            why = "the driver reports every process's memory"
            journal.verdict("info", LogMessage.MEASURING, why)
        case EndPod(nothing_to_stop=nothing_to_stop, excess=excess):
            over = excess or nothing_to_stop
            values = _excess_values(over) if over else {}
            journal.verdict("error", LogMessage.ENDING_POD, explain_end(action), **values)


def _excess_values(excess: Excess | NothingToStop) -> dict[str, Any]:
    used = {} if isinstance(excess, NothingToStop) else {"used_bytes": excess.used_bytes}
    return {
        "gpu": excess.gpu,
        **used,
        "sum_bytes": excess.sum_bytes,
        "cap_bytes": excess.cap_bytes,
        "peak_bytes": excess.peak_bytes,
    }


def process_values(process: Process) -> dict[str, Any]:
    """Return the fields that identify a process in the log."""
    return {"pid": process.pid, "command": process.command, "container": process.container}
