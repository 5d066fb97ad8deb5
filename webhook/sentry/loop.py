"""The sentry's loop: scan, judge, stop, report. Its one thread never waits for a request."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import replace
from typing import NoReturn

from webhook import __version__
from webhook.adapters import host_environment
from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.node_objects import AssignmentsSeen, AssignmentsUnread, watch_assignments
from webhook.adapters.node_nvml import NodeNvml
from webhook.adapters.node_processes import NodeProcesses
from webhook.core.formatting import format_amount
from webhook.core.kinds.node_write_delay import JITTER_S
from webhook.core.kinds.nodes import NodeFigures
from webhook.core.node.access import DriverStatus, explain_unready, needs_new_container, record_scan
from webhook.core.node.events import EventReason
from webhook.names import SENTRY_REPORTER
from webhook.node_programs.events import EventWriter
from webhook.node_programs.program import (
    Inbox,
    NewContainerNeededError,
    NotStartedError,
    run_program,
)
from webhook.sentry.actions import ActionRunner, limit_report
from webhook.sentry.assignments import MALFORMED, NodeAssignments
from webhook.sentry.endpoints import Liveness, SentryMetrics, serve
from webhook.sentry.gpu_node_writer import GpuNodeWriter
from webhook.sentry.judge import Judge, Judgement, list_thresholds
from webhook.sentry.node_status import NodeStatus
from webhook.sentry.program_reports import LimiterReport, SidecarReports
from webhook.sentry.scanner import DUTY, HOLDING_S, ProcessScan, ProcessScanner, pause_s
from webhook.sentry.settings import SentrySettings
from webhook.sentry.usage import REPORTED_BYTES, Unmanaged, UsageTracker, describe_unmanaged

Message = AssignmentsSeen | AssignmentsUnread | NodeFigures


class Sentry:
    """Enforces the caps of the node's pods until the sentry is stopped."""

    def __init__(
        self,
        settings: SentrySettings,
        kube: Kube,
        nvml: NodeNvml,
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
        self._obstacle = _obstacle(node)
        self._scanner = ProcessScanner(
            nvml,
            node,
            kernel_driver=settings.kernel_driver,
            outermost=host_environment.check_pid_namespace(proc=settings.proc).holds is False,
        )
        self._limits = LimiterReport(settings.limiter_folder)
        self._judge = Judge(self._limits.counted_bytes, acts=settings.act)
        self._events = EventWriter(
            kube,
            journal,
            node=settings.node,
            reporter=SENTRY_REPORTER,
            instance=settings.pod_name,
            action="Audit",
            what="Events and conditions",
        )
        can_act = (
            settings.act
            and not self._obstacle
            and bool(host_environment.check_own_permission().holds)
        )
        self._usage = UsageTracker()
        self._status = NodeStatus(settings.node, self._limits, acts=can_act)
        self._actions = ActionRunner(
            node, self._judge, self._status, metrics, self._events, journal
        )
        self._writer = GpuNodeWriter(kube, settings.node, journal, random.uniform(0, JITTER_S))  # noqa: S311 - no secret
        self._stats = SidecarReports(
            NodeProcesses(settings.pod_uid, proc=settings.proc), lambda: self._assignments.listed
        )
        self._is_seeded = False
        self._driver = DriverStatus(scanned_s=time.monotonic(), answered_s=time.monotonic())
        self._inbox: Inbox[Message] = Inbox()
        self._assignments = NodeAssignments()
        self._judgement = Judgement()
        self._reported: set[tuple[str, str]] = set()

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
        """Handle a thread's report; return True if the assignment list changed."""
        before = self._assignments
        if isinstance(message, NodeFigures):
            self._is_seeded = True
            self._status.seed(message, time.monotonic())
        elif isinstance(message, AssignmentsUnread):
            self._assignments = before.without_watch(message.why)
            self._log_unread(message.why)
        else:
            self._assignments = before.with_list(message, time.monotonic())
            if not message.complete:
                self._log_unread(MALFORMED)
            elif message.watched:
                self._journal.over("list", "the list of who was promised what is followed again")
        after = self._assignments
        return (after.is_read, after.listed) != (before.is_read, before.listed)

    def _log_unread(self, why: str) -> None:
        what = "the list of who was promised what cannot be followed"
        self._journal.once("list", "warning", what, why)

    def step(self, now_s: float) -> ProcessScan:
        """Scan the GPUs once, and act on the result."""
        self._limits.read()
        active = self._judgement.active.intersection(self._assignments.capped)
        scan = self._scanner.scan(now_s, list_thresholds(self._assignments, active), active)
        if self._obstacle:  # no process can be attributed to a pod
            scan = replace(scan, lists={})
        assignments = self._assignments = self._assignments.after_scan(scan.lists)
        self._judgement = self._judge.judge(scan, assignments, now_s)
        self._actions.run(self._judgement, scan, assignments, now_s)
        self._report_limits(assignments)
        own, observed_s = self._writer.own, time.time()
        usage = self._usage.update(scan, assignments, now_s, shared=not own.not_shared)
        node = self._status.update(
            scan, usage, assignments, self._stats.stats, own, now_s, observed_s
        )
        self._metrics.scanned(scan.took_s)
        scanned_s = observed_s if scan.fault is None else None
        self._metrics.show(
            node, assignments.names, usage.unmanaged, scanned_s, counts=self._is_seeded
        )
        if self._is_seeded:
            self._writer.offer(node)
        if scan.fault is None:
            self._report_unmanaged(usage.unmanaged, assignments)
        self._check_driver(scan, now_s)
        return scan

    def pause_s(self, scan: ProcessScan) -> float:
        """Return the pause after this scan, in seconds."""
        return pause_s(
            scan.took_s,
            ending=self._judgement.is_ending,
            judging=bool(self._judgement.active),
            may_act=bool(self._assignments.capped),
            listed=bool(self._assignments.listed),
            held=self._usage.has_processes(),
            poll_s=self._assignments.poll_s,
        )

    def _wait(self, since_s: float, pause: float, least_s: float) -> None:
        """Wait for the next scan; a new list shortens the pause: new pods may exceed their caps."""
        until_s = since_s + pause
        while (left_s := until_s - time.monotonic()) > 0:
            message = self._inbox.get(left_s)
            if message is not None and self.on_report(message):
                until_s = min(until_s, since_s + max(HOLDING_S, least_s))

    def _report_limits(self, assignments: NodeAssignments) -> None:
        for uid, told in self._limits.new_events(assignments.listed):
            pod, why = assignments.names[uid], told.why
            self._journal.event(
                "warning", "what became of a pod's limit", why=why, pod=pod, uid=uid
            )
            self._events.report(limit_report(pod, uid, why))

    def _report_unmanaged(self, unmanaged: Unmanaged, assignments: NodeAssignments) -> None:
        """Report large unmanaged amounts once, and again if they return."""
        large: set[tuple[str, str]] = set()
        for gpu, held in unmanaged.items():
            for uid, held_bytes in held.items():
                if held_bytes < REPORTED_BYTES:
                    continue
                large.add((gpu.uuid, uid))
                if (gpu.uuid, uid) not in self._reported:
                    listed = uid in assignments.listed
                    why = describe_unmanaged(gpu, uid, held_bytes, listed=listed)
                    values = {"gpu": gpu.uuid, "uid": uid, "held": format_amount(held_bytes)}
                    self._journal.event("warning", "unmanaged memory", why=why, **values)
                    self._events.report_node(EventReason.UNMANAGED, why)
        self._reported = large

    def _check_driver(self, scan: ProcessScan, now_s: float) -> None:
        self._driver = record_scan(self._driver, scan, now_s)
        if needs_new_container(self._driver, now_s):
            raise NewContainerNeededError(scan.failed)
        if scan.failed:
            self._journal.once("driver", "warning", "not everything can be seen", scan.failed)
        else:
            self._journal.over("driver", "everything can be seen")
        unseen = (explain_unready(self._driver) or scan.failed) if scan.fault else ""
        self._liveness.obstacle = self._obstacle or self._assignments.unread or unseen


def _obstacle(node: NodeProcesses) -> str:
    """Return why processes cannot be attributed to pods; empty if they can."""
    if os.getpid() == 1:
        return "this is a process namespace of our own; the pod needs hostPID: true"
    if not node.can_find_pods():
        return (
            "our own cgroup names no pod, so no other's can be read; set POD_UID to our pod's UID"
        )
    return ""


def sentry(settings: SentrySettings) -> int:
    """Enforce the caps of a node's pods until SIGTERM; return the exit code.

    It is the exit code of `run_program`, 1 if the port is in use, or 142 (128 + SIGALRM) if a scan
    was a minute late.
    """
    liveness = Liveness(alarm=signal.alarm)
    metrics = SentryMetrics(settings.node, of_pods=settings.pod_metrics)

    def work(kube: Kube, journal: Journal) -> NoReturn:
        try:
            port = serve(settings.host, settings.metrics_port, liveness, metrics)
        except OSError as error:
            where = f"{settings.host}:{settings.metrics_port} cannot be served: {error}"
            raise NotStartedError("no port", f"{where}; use --host and --metrics-port") from error
        started = {"node": settings.node, "version": __version__, "act": settings.act, "port": port}
        journal.event("info", "started", api=kube.url, **started)
        rights = host_environment.check_own_permission(proc=settings.proc)
        if settings.act and not rights.holds:
            journal.event("warning", "others' processes are out of reach", why=rights.reason)
        Sentry(settings, kube, NodeNvml(), journal, metrics, liveness).run()

    return run_program(settings.kubeconfig, work)
