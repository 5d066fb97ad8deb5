"""Executes the judge's actions: log line first, then the signal, then Event and condition."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from webhook.adapters.journal import Journal
from webhook.adapters.node_processes import NodeProcesses, Owner
from webhook.adapters.processes import Delivery
from webhook.core.enforcement.messages import (
    LogMessage,
    describe,
    explain_end,
    explain_report,
    explain_stop,
)
from webhook.core.enforcement.model import (
    Action,
    EndPod,
    Freed,
    Kill,
    Process,
    ReportExcess,
    Terminate,
)
from webhook.core.node.cgroups import ProcessOwner
from webhook.core.node.events import EventReason
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.pod.gpus import EnforceBy
from webhook.names import CAP_HELD_CONDITION
from webhook.node_programs.events import EventReport, EventWriter
from webhook.sentry.assignments import NodeAssignments
from webhook.sentry.endpoints import SentryMetrics
from webhook.sentry.judge import LATER_S, Judge, Judgement
from webhook.sentry.killer import Killer
from webhook.sentry.node_status import NodeStatus
from webhook.sentry.scanner import DUTY, ProcessScan

STUCK_S: Final = 5.0
"""Time before the sentry reports that no process of a pod could be stopped, in seconds."""

_MOST_PIDS: Final = 8  # PIDs in a log line
_POLICY_REPORTS: Final = "the policy only reports (onExcess: Report)"
_SENTRY_REPORTS: Final = "the sentry only reports"


@dataclass(frozen=True, slots=True)
class _Pod:
    uid: str
    name: str
    """`namespace/name`."""
    terms: CapTerms

    @property
    def by_sentry(self) -> bool:
        return self.terms.by is EnforceBy.SENTRY

    @property
    def grace_s(self) -> float:
        return self.terms.grace_s if self.by_sentry else 0.0

    @property
    def sidecar_note(self) -> str:
        """End of a message about the sidecar; empty for a pod by Sentry."""
        if self.by_sentry:
            return ""
        delay_s = self.terms.delay_s + LATER_S
        return f"; its sidecar did not stop it within {delay_s:g} s, so the node's sentry does"

    @property
    def values(self) -> dict[str, str]:
        """Values of a log line."""
        return {"pod": self.name, "uid": self.uid}

    def values_with(self, process: Process) -> dict[str, Any]:
        """Return the values of a log line about a process of the pod."""
        return self.values | {
            "pid": process.pid,
            "command": process.command,
            "container": process.container,
        }


@dataclass(slots=True)
class _StuckPod:
    """A pod over its cap in which no process could be stopped."""

    since_s: float
    retry_s: float = 0.0
    """Time of the next attempt, which reads all processes of the node."""
    reported: bool = False


class ActionRunner:
    """Stops and reports processes and pods."""

    def __init__(
        self,
        node: NodeProcesses,
        judge: Judge,
        status: NodeStatus,
        metrics: SentryMetrics,
        events: EventWriter,
        journal: Journal,
    ) -> None:
        self._node = node
        self._killer = Killer(node)
        self._judge = judge
        self._status = status
        self._metrics = metrics
        self._events = events
        self._journal = journal
        self._stuck: dict[str, _StuckPod] = {}

    def run(
        self,
        judgement: Judgement,
        scan: ProcessScan,
        assignments: NodeAssignments,
        now_s: float,
    ) -> None:
        """Execute the actions of a scan."""
        self._stuck = {uid: stuck for uid, stuck in self._stuck.items() if uid in judgement.active}
        freed: dict[_Pod, list[Freed]] = {}
        for uid, action in judgement.actions:
            pod = _Pod(uid, assignments.capped[uid].pod, assignments.terms[uid])
            if isinstance(action, Freed) and action.returned:
                freed.setdefault(pod, []).append(action)
            else:
                self._perform(pod, action, scan, now_s)
        for pod, returned in freed.items():
            self._log_freed(pod, returned)

    def _perform(self, pod: _Pod, action: Action, scan: ProcessScan, now_s: float) -> None:
        """Execute one action.

        Without a grace period a `Kill` comes together with its `Terminate`, which has already sent
        SIGKILL.
        """
        match action:
            case Terminate(process, excess):
                why = explain_stop(self._with_inner_pid(process), excess)
                self._stop(pod, process, why, scan)
            case Kill(process, gpu) if pod.grace_s:
                self._kill(pod, process, gpu, scan)
            case EndPod(process=process):
                if process is not None:
                    action = replace(action, process=self._with_inner_pid(process))
                self._end(pod, explain_end(action), scan, now_s)
            case ReportExcess():
                self._report_excess(pod, action)
            case Freed(process, gpu, _, after_s):
                why = f"{describe(process)} still holds it {after_s:.0f} s after SIGKILL"
                values = {"why": why, "gpu": gpu} | pod.values_with(process)
                self._journal.line("error", LogMessage.STAYED, values)

    def _with_inner_pid(self, process: Process) -> Process:
        """Return the process with its PID in its pod, if that PID can be read.

        Sentences contain this PID; the other values of a log line contain the node's PID.
        """
        try:
            pid = self._node.inner_pid(process.pid)
        except OSError:
            return process
        return replace(process, pid=pid) if pid else process

    def _log_freed(self, pod: _Pod, freed: list[Freed]) -> None:
        """Log freed memory, in one line per pod: a pod may have had many processes."""
        self._journal.event(
            "info",
            LogMessage.CAME_BACK,
            **pod.values,
            pids=[action.process.pid for action in freed[:_MOST_PIDS]],
            processes=len(freed),
            freed_bytes=sum(action.freed_bytes for action in freed),
            after_s=round(max(action.after_s for action in freed), 3),
        )

    def _stop(self, pod: _Pod, process: Process, why: str, scan: ProcessScan) -> None:
        why += pod.sidecar_note
        values = {"why": why} | pod.values_with(process)
        self._journal.line("warning", LogMessage.STOPPING, values)
        number = signal.SIGTERM if pod.grace_s else signal.SIGKILL
        if self._signal(pod, process, scan, number) is Delivery.DELIVERED:
            self._count_stop(pod, "process")
            self._report(pod, why)

    def _kill(self, pod: _Pod, process: Process, gpu: str, scan: ProcessScan) -> None:
        """Send SIGKILL to a process that outlived its grace period, unless it has ended."""
        if self._node.is_gone(process):
            return
        name = describe(self._with_inner_pid(process))
        why = f"{name} is still there {pod.grace_s:g} s after SIGTERM"
        values = {"why": why, "gpu": gpu} | pod.values_with(process)
        self._journal.line("warning", LogMessage.KILLING, values)
        self._signal(pod, process, scan, signal.SIGKILL)

    def _signal(
        self, pod: _Pod, process: Process, scan: ProcessScan, number: signal.Signals
    ) -> Delivery:
        owner = Owner(process, ProcessOwner(pod.uid, process.container))
        held = scan.held_by_containers(pod.uid)
        delivery = self._killer.stop(owner, held, sidecar=not pod.by_sentry, number=number)
        if delivery is Delivery.REJECTED:
            self._judge.reject(pod.uid, process)
            why = "it may not be signalled: see capabilities, pidfds and whether it was moved"
            values = {"why": why} | pod.values_with(process)
            self._journal.line("error", "a signal was rejected", values)
        return delivery

    def _end(self, pod: _Pod, why: str, scan: ProcessScan, now_s: float) -> None:
        """End all processes of a pod. If none can be stopped, report that once and keep trying."""
        stuck = self._stuck.get(pod.uid)
        if stuck is not None and now_s < stuck.retry_s:
            return
        why += pod.sidecar_note
        if stuck is None:
            self._journal.event("warning", "ending a pod", why=why, **pod.values)
        started_s = time.monotonic()
        owners = (process.owner for process in chain(*scan.lists.values()))
        ended = self._killer.end(
            pod.uid,
            {owner for owner in owners if owner and owner.place.pod == pod.uid},
            scan.held_by_containers(pod.uid),
            sidecar=not pod.by_sentry,
            again=stuck is not None,
        )
        numbers = {"rejected": ended.rejected, "enforcer_known": ended.sure}
        if ended.stopped:
            self._stuck.pop(pod.uid, None)
            what = "processes of the pod were stopped"
            self._journal.event("info", what, **pod.values, stopped=ended.stopped, **numbers)
            self._count_stop(pod, "pod")
            self._report(pod, why)
            return
        stuck = stuck or _StuckPod(now_s)
        stuck.retry_s = now_s + DUTY * (time.monotonic() - started_s)
        if not stuck.reported and now_s - stuck.since_s >= STUCK_S:
            stuck.reported = True
            why += "; but nobody of it could be stopped, and it holds the memory still"
            self._journal.event(
                "error", "nobody could be stopped", why=why, **pod.values, **numbers
            )
            self._report(pod, why, stopped=False)
        self._stuck[pod.uid] = stuck

    def _count_stop(self, pod: _Pod, target: str) -> None:
        self._metrics.stopped(target, pod.terms.by)
        self._status.stopped(pod.uid)

    def _report_excess(self, pod: _Pod, action: ReportExcess) -> None:
        if action.process is not None:
            action = replace(action, process=self._with_inner_pid(action.process))
        why = explain_report(action, _POLICY_REPORTS if pod.terms.reports else _SENTRY_REPORTS)
        self._journal.event("warning", "a pod is over its cap", why=why, **pod.values)
        self._metrics.would_stop()
        self._status.would_stop(pod.uid, time.time())
        self._report(pod, why, stopped=False)

    def _report(self, pod: _Pod, why: str, *, stopped: bool = True) -> None:
        self._events.report(cap_report(pod.name, pod.uid, why, stopped=stopped))


def limit_report(pod: str, uid: str, why: str) -> EventReport:
    """Return the report of a change of a pod's driver limit."""
    return EventReport(
        about=_reference(pod, uid), reason=EventReason.LIMIT_RESET, sentence=why, action="Limit"
    )


def cap_report(pod: str, uid: str, why: str, *, stopped: bool) -> EventReport:
    """Return the report that a pod was over its cap, with a condition if something was stopped."""
    condition = {
        "type": CAP_HELD_CONDITION,
        "status": "False",
        "reason": EventReason.CAP_EXCEEDED,
        "message": why,
    }
    return EventReport(
        about=_reference(pod, uid),
        reason=EventReason.CAP_EXCEEDED,
        sentence=why,
        action="Stop" if stopped else "Report",
        condition=condition if stopped else None,
    )


def _reference(pod: str, uid: str) -> dict[str, str]:
    namespace, _, name = pod.partition("/")
    return {"kind": "Pod", "namespace": namespace, "name": name, "uid": uid}
