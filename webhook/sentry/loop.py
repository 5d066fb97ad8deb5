"""The sentry's loop: scan, judge, stop, report; one thread, which never waits for a request."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, NoReturn

from webhook.adapters import host_environment
from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.node_watch import (
    AssignmentsSeen,
    AssignmentsUnread,
    watch_assignments,
)
from webhook.adapters.node_processes import NodeProcesses, Owner
from webhook.adapters.nvml import Nvml
from webhook.adapters.processes import Delivery
from webhook.core.enforcement.explanation import (
    describe,
    explain_end,
    explain_report,
    explain_stop,
)
from webhook.core.enforcement.log_messages import LogMessage
from webhook.core.enforcement.step import (
    Action,
    EndPod,
    Freed,
    Kill,
    Process,
    ReportExcess,
    Terminate,
)
from webhook.core.formatting import format_amount
from webhook.core.kinds.node_writes import JITTER_S
from webhook.core.kinds.nodes import NodeFigures
from webhook.core.node.cgroups import Place, comparable_uid
from webhook.core.node.driver import Driver, after_scan, needs_new_container, why_unready
from webhook.core.node.events import EventReason
from webhook.core.placement.assignments import Assignments
from webhook.core.pod.gpus import EnforceBy
from webhook.names import CAP_HELD_CONDITION, SENTRY_REPORTER
from webhook.nodekit.events import EventReport, EventWriter
from webhook.nodekit.program import Inbox, NewContainerNeededError
from webhook.sentry.figures import Figures
from webhook.sentry.holdings import REPORTED_BYTES, Holdings, Unmanaged, describe_unmanaged
from webhook.sentry.intervals import DUTY, HOLDING_S, pause_s
from webhook.sentry.judge import LATER_S, Judge, with_last_terms
from webhook.sentry.killer import Killer
from webhook.sentry.limits import Limits
from webhook.sentry.metrics import SentryMetrics
from webhook.sentry.probes import Liveness
from webhook.sentry.scanner import ProcessScan, ProcessScanner
from webhook.sentry.settings import SentrySettings
from webhook.sentry.sidecar_stats import SidecarStats
from webhook.sentry.writer import GpuNodeWriter

Message = AssignmentsSeen | AssignmentsUnread | NodeFigures

UNREAD: Final = "the list of who was promised what has not been read yet"
MALFORMED: Final = "it is malformed; entries that cannot be read stay as they were"

STUCK_S: Final = 5.0
"""For so long nobody of a pod could be stopped before that is told: it may be over in a moment."""

_MOST_PIDS: Final = 8  # in a line
_ONLY_REPORTS: Final = "the sentry only reports"


@dataclass(slots=True)
class _Stuck:
    """A pod that is over its cap and of which nobody could be stopped."""

    since_s: float
    retry_s: float = 0.0
    """When it is tried again: that takes a read of each process of the node."""
    told: bool = False


class Sentry:
    """Holds the pods of its node to their caps until it is stopped."""

    def __init__(
        self,
        settings: SentrySettings,
        kube: Kube,
        nvml: Nvml,
        journal: Journal,
        metrics: SentryMetrics,
        liveness: Liveness,
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._journal = journal
        self._metrics = metrics
        self._liveness = liveness
        node = NodeProcesses(settings.pod_uid, proc=settings.proc)
        self._node = node
        self._obstacle = _obstacle(node)
        self._scanner = ProcessScanner(
            nvml,
            node,
            kernel_driver=settings.kernel_driver,
            outermost=host_environment.own_pid_namespace(proc=settings.proc).holds is False,
        )
        self._limits = Limits(settings.limiter_folder)
        self._judge = Judge(self._limits.counted, acts=settings.act)
        self._holdings = Holdings()
        self._killer = Killer(node)
        self._events = EventWriter(
            kube,
            journal,
            node=settings.node,
            reporter=SENTRY_REPORTER,
            instance=settings.pod_name,
            action="Audit",
            what="Events and conditions",
        )
        can_act = settings.act and not self._obstacle and bool(host_environment.own_rights().holds)
        self._figures = Figures(settings.node, self._holdings, self._limits, acts=can_act)
        self._writer = GpuNodeWriter(kube, settings.node, journal, random.uniform(0, JITTER_S))  # noqa: S311 - no secret
        self._stats = SidecarStats(NodeProcesses(settings.pod_uid, proc=settings.proc))
        self._is_seeded = False
        self._driver = Driver(scanned_s=time.monotonic(), answered_s=time.monotonic())
        self._inbox: Inbox[Message] = Inbox()
        self._promises: Assignments | None = None
        """The node's list, by UID as it is compared."""
        self._fresh_s: float | None = None
        self._unread = UNREAD
        self._reported: set[tuple[str, str]] = set()
        self._stuck: dict[str, _Stuck] = {}

    def run(self) -> NoReturn:
        """Run until an exception: a bug, a signal, or NewContainerNeededError."""
        start, send = self._inbox.start, self._inbox.put
        start(watch_assignments, self._kube, self._settings.namespace, self._settings.node, send)
        start(self._events.write_all)
        start(self._writer.write_all, send)
        start(self._stats.read_all)
        if self._obstacle:
            self._journal.event("error", "no process can be placed", why=self._obstacle)
        try:
            while True:
                began_s = time.monotonic()
                scan = self.step(began_s)
                pause = self.pause_s(scan)
                self._liveness.expect(pause)
                self._wait(began_s + scan.took_s, pause, DUTY * scan.took_s)
        finally:
            self._writer.write_last()

    def on_report(self, message: Message) -> bool:
        """Take what a thread reports; return whether the list is another one now."""
        if isinstance(message, NodeFigures):
            self._is_seeded = True
            self._figures.seed(message, time.monotonic())
            return False
        if isinstance(message, AssignmentsUnread):
            self._cannot_follow(message.why)
            return False
        promises = {comparable_uid(uid): one for uid, one in message.assignments.items()}
        if not message.complete:
            promises = with_last_terms(promises, self._promises or {})
            self._cannot_follow(MALFORMED)
        else:
            self._follow(watched=message.watched)
        is_new = promises != self._promises
        self._promises = promises
        self._judge.on_list(promises)
        self._figures.on_list(promises)
        self._stats.wanted = frozenset(promises)
        return is_new

    def _follow(self, *, watched: bool) -> None:
        self._unread = ""
        if watched:
            self._fresh_s = time.monotonic() if self._fresh_s is None else self._fresh_s
            self._journal.over("list", "the list of who was promised what is followed again")
        else:
            self._fresh_s = None

    def _cannot_follow(self, why: str) -> None:
        self._fresh_s = None
        self._unread = self._unread and f"{UNREAD}: {why}"
        what = "the list of who was promised what cannot be followed"
        self._journal.once("list", "warning", what, why)

    def step(self, now_s: float) -> ProcessScan:
        """Scan once, and do what follows from it."""
        self._limits.read()
        pods = self._judge.judged()
        scan = self._scanner.scan(now_s, self._judge.above, pods)
        if self._obstacle:  # nobody's memory is nobody's
            scan = replace(scan, lists={})
        actions = self._judge.judge(scan, now_s)
        for uid, action in actions:
            self._perform(uid, action, scan, now_s)
        self._report_freed(actions)
        self._report_limits()
        self._metrics.scanned(scan.took_s)
        promises = self._promises or {}
        self._holdings.on_scan(scan, now_s, promises)
        unmanaged = self._holdings.unmanaged(promises, now_s, self._fresh_s)
        if self._writer.own.not_shared:  # what is held there others gave away
            unmanaged = {}
        self._show(scan, unmanaged, now_s)
        if scan.fault is None:
            self._report_unmanaged(unmanaged)
        judged = self._judge.judged()
        self._stuck = {uid: stuck for uid, stuck in self._stuck.items() if uid in judged}
        self._check_driver(scan, now_s)
        return scan

    def _show(self, scan: ProcessScan, unmanaged: Unmanaged, now_s: float) -> None:
        """Have figures and metrics say what this scan showed."""
        seen_s, followed = time.time(), self._fresh_s is not None
        self._figures.on_scan(scan, self._stats.stats, now_s, seen_s)
        node = self._figures.show(seen_s, unmanaged, self._writer.own, followed=followed)
        names = {uid: promise.pod for uid, promise in (self._promises or {}).items()}
        scanned_s = seen_s if scan.fault is None else None
        self._metrics.show(node, names, unmanaged, scanned_s, counts=self._is_seeded)
        if self._is_seeded:
            self._writer.offer(node)

    def pause_s(self, scan: ProcessScan) -> float:
        """Return how long to wait after this scan."""
        return pause_s(
            scan.took_s,
            ending=self._judge.is_ending(),
            judging=bool(self._judge.judged()),
            may_act=bool(self._judge.promises),
            listed=bool(self._promises),
            held=bool(self._holdings),
            poll_s=self._judge.poll_s(),
        )

    def _wait(self, since_s: float, pause: float, least_s: float) -> None:
        """Wait for the next scan; less where the list changed, for who is new may be over soon."""
        until_s = since_s + pause
        while (left_s := until_s - time.monotonic()) > 0:
            message = self._inbox.get(left_s)
            if message is not None and self.on_report(message):
                until_s = min(until_s, since_s + max(HOLDING_S, least_s))

    def _perform(self, uid: str, action: Action, scan: ProcessScan, now_s: float) -> None:
        """Log first, then signal, then report.

        Without a grace period a `Kill` comes with its `Terminate`, which has sent SIGKILL already.
        """
        match action:
            case Terminate(process, excess):
                why = explain_stop(self._as_its_owner_sees(process), excess)
                self._stop(uid, process, why, scan)
            case Kill(process, gpu) if self._grace_s(uid):
                self._kill(uid, process, gpu, scan)
            case EndPod(process=process):
                if process is not None:
                    action = replace(action, process=self._as_its_owner_sees(process))
                self._end(uid, explain_end(action), scan, now_s)
            case ReportExcess():
                self._report_excess(uid, action)
            case Freed(process, gpu, _, after_s, returned=False):
                why = f"{describe(process)} still holds it {after_s:.0f} s after SIGKILL"
                values = {"why": why, "gpu": gpu} | self._values_of(uid, process)
                self._journal.line("error", LogMessage.STAYED, values)

    def _as_its_owner_sees(self, process: Process) -> Process:
        """Return the process with the number that it has in its pod, where that can be read.

        What we log beside the sentence has the node's.
        """
        try:
            number = self._node.inner_pid(process.pid)
        except OSError:
            return process
        return replace(process, pid=number) if number else process

    def _report_freed(self, actions: list[tuple[str, Action]]) -> None:
        """Log what came back, in one line for each pod: it may have had hundreds of processes."""
        for uid in {uid: None for uid, _ in actions}:
            freed = [
                action
                for whose, action in actions
                if whose == uid and isinstance(action, Freed) and action.returned
            ]
            if freed:
                self._journal.event(
                    "info",
                    LogMessage.CAME_BACK,
                    pod=self._judge.promises[uid].pod,
                    uid=uid,
                    pids=[one.process.pid for one in freed[:_MOST_PIDS]],
                    processes=len(freed),
                    freed_bytes=sum(one.freed_bytes for one in freed),
                    after_s=round(max(one.after_s for one in freed), 3),
                )

    def _stop(self, uid: str, process: Process, why: str, scan: ProcessScan) -> None:
        why += self._instead(uid)
        values = {"why": why} | self._values_of(uid, process)
        self._journal.line("warning", LogMessage.STOPPING, values)
        number = signal.SIGTERM if self._grace_s(uid) else signal.SIGKILL
        if self._signal(uid, process, scan, number) is Delivery.DELIVERED:
            self._metrics.stopped("process", self._by(uid))
            self._figures.stopped(uid)
            self._report(uid, why)

    def _kill(self, uid: str, process: Process, gpu: str, scan: ProcessScan) -> None:
        """Send SIGKILL to a process that outlived its grace period, or none if it has ended."""
        if self._node.is_gone(process):
            return
        name = describe(self._as_its_owner_sees(process))
        why = f"{name} is still there {self._grace_s(uid):g} s after SIGTERM"
        values = {"why": why, "gpu": gpu} | self._values_of(uid, process)
        self._journal.line("warning", LogMessage.KILLING, values)
        self._signal(uid, process, scan, signal.SIGKILL)

    def _signal(
        self, uid: str, process: Process, scan: ProcessScan, number: signal.Signals
    ) -> Delivery:
        owner, held = Owner(process, Place(uid, process.container)), scan.held_by_containers(uid)
        sidecar = not self._is_by_sentry(uid)
        delivery = self._killer.stop(owner, held, sidecar=sidecar, number=number)
        if delivery is Delivery.REJECTED:
            self._judge.reject(uid, process)
            what = "it may not be signalled: see capabilities, pidfds and whether it was moved"
            values = {"why": what} | self._values_of(uid, process)
            self._journal.line("error", "a signal was rejected", values)
        return delivery

    def _end(self, uid: str, why: str, scan: ProcessScan, now_s: float) -> None:
        """End all of a pod; where nobody can be stopped, say so once, and go on trying."""
        stuck = self._stuck.get(uid)
        if stuck is not None and now_s < stuck.retry_s:
            return
        why += self._instead(uid)
        pod = {"pod": self._judge.promises[uid].pod, "uid": uid}
        if stuck is None:
            self._journal.event("warning", "ending a pod", why=why, **pod)
        started_s = time.monotonic()
        held, sidecar = scan.held_by_containers(uid), not self._is_by_sentry(uid)
        owners = (one.owner for one in chain(*scan.lists.values()))
        theirs = {one for one in owners if one and one.place.pod == uid}
        ended = self._killer.end(uid, theirs, held, sidecar=sidecar, again=stuck is not None)
        numbers = {"rejected": ended.rejected, "enforcer_known": ended.sure}
        if ended.stopped:
            self._stuck.pop(uid, None)
            what = "processes of the pod were stopped"
            self._journal.event("info", what, **pod, stopped=ended.stopped, **numbers)
            self._metrics.stopped("pod", self._by(uid))
            self._figures.stopped(uid)
            self._report(uid, why)
            return
        stuck = stuck or _Stuck(now_s)
        stuck.retry_s = now_s + DUTY * (time.monotonic() - started_s)
        if not stuck.told and now_s - stuck.since_s >= STUCK_S:
            stuck.told = True
            why += "; but nobody of it could be stopped, and it holds the memory still"
            self._journal.event("error", "nobody could be stopped", why=why, **pod, **numbers)
            self._report(uid, why, stopped=False)
        self._stuck[uid] = stuck

    def _by(self, uid: str) -> EnforceBy:
        return self._judge.terms[uid].by

    def _is_by_sentry(self, uid: str) -> bool:
        return self._by(uid) is EnforceBy.SENTRY

    def _grace_s(self, uid: str) -> float:
        return self._judge.terms[uid].grace_s if self._is_by_sentry(uid) else 0.0

    def _instead(self, uid: str) -> str:
        """Return what a message adds about the sidecar; empty for a pod by Sentry."""
        if self._is_by_sentry(uid):
            return ""
        delay_s = self._judge.terms[uid].delay_s + LATER_S
        return f"; its sidecar did not stop it within {delay_s:g} s, so the node's sentry does"

    def _report_excess(self, uid: str, action: ReportExcess) -> None:
        """Report once for each excess what would be stopped, in the words of a stop."""
        promise = self._judge.promises[uid]
        if action.process is not None:
            action = replace(action, process=self._as_its_owner_sees(action.process))
        of_policy = "the policy only reports (onExcess: Report)"
        who = of_policy if self._judge.terms[uid].reports else _ONLY_REPORTS
        why = explain_report(action, who)
        self._journal.event("warning", "a pod is over its cap", why=why, pod=promise.pod, uid=uid)
        self._metrics.would_stop()
        self._figures.would_stop(uid, time.time())
        self._report(uid, why, stopped=False)

    def _report(self, uid: str, why: str, *, stopped: bool = True) -> None:
        pod = self._judge.promises[uid].pod
        self._events.report(report_of_pod(pod, uid, why, stopped=stopped))

    def _report_limits(self) -> None:
        """Report what the limiter says of limits of pods."""
        for uid, told in self._limits.news(self._promises or {}):
            pod, why = (self._promises or {})[uid].pod, told.why
            self._journal.event(
                "warning", "what became of a pod's limit", why=why, pod=pod, uid=uid
            )
            self._events.report(report_of_limit(pod, uid, why))

    def _values_of(self, uid: str, process: Process) -> dict[str, Any]:
        return {
            "pod": self._judge.promises[uid].pod,
            "uid": uid,
            "pid": process.pid,
            "command": process.command,
            "container": process.container,
        }

    def _report_unmanaged(self, unmanaged: Unmanaged) -> None:
        """Report what is large once, and again after it was gone."""
        large: set[tuple[str, str]] = set()
        for gpu, held in unmanaged.items():
            for uid, held_bytes in held.items():
                if held_bytes < REPORTED_BYTES:
                    continue
                large.add((gpu.uuid, uid))
                if (gpu.uuid, uid) not in self._reported:
                    listed = uid in (self._promises or {})
                    why = describe_unmanaged(gpu, uid, held_bytes, listed=listed)
                    values = {"gpu": gpu.uuid, "uid": uid, "held": format_amount(held_bytes)}
                    self._journal.event("warning", "unmanaged memory", why=why, **values)
                    self._events.report_node(EventReason.UNMANAGED, why)
        self._reported = large

    def _check_driver(self, scan: ProcessScan, now_s: float) -> None:
        self._driver = after_scan(self._driver, scan, now_s)
        if needs_new_container(self._driver, now_s):
            raise NewContainerNeededError(scan.failed)
        if scan.failed:
            self._journal.once("driver", "warning", "not everything can be seen", scan.failed)
        else:
            self._journal.over("driver", "everything can be seen")
        unseen = (why_unready(self._driver) or scan.failed) if scan.fault else ""
        self._liveness.obstacle = self._obstacle or self._unread or unseen


def _obstacle(node: NodeProcesses) -> str:
    """Say why no process can be placed here; empty where it can."""
    if os.getpid() == 1:
        return "this is a process namespace of our own; the pod needs hostPID: true"
    if not node.knows_itself():
        return (
            "our own cgroup names no pod, so no other's can be read; set POD_UID to our pod's UID"
        )
    return ""


def report_of_limit(pod: str, uid: str, why: str) -> EventReport:
    """Report what became of the driver's limit of a pod."""
    return EventReport(
        about=_reference(pod, uid), reason=EventReason.LIMIT_RESET, sentence=why, action="Limit"
    )


def report_of_pod(pod: str, uid: str, why: str, *, stopped: bool) -> EventReport:
    """Report that a pod was over its cap; where nothing was stopped, by an Event alone."""
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
