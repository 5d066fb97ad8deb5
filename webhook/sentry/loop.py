"""The sentry's loop: look, judge, stop, take note; one thread, which never waits for a request."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters import surroundings
from webhook.adapters.kube.assigned import (
    AssignmentsSeen,
    AssignmentsUnread,
    watch_assignments,
)
from webhook.adapters.node_processes import NodeProcesses, Owner
from webhook.adapters.processes import Delivery
from webhook.core.enforcement.explanation import (
    describe,
    explain_end,
    explain_report,
    explain_stop,
)
from webhook.core.enforcement.step import EndPod, Freed, ReportExcess, Terminate
from webhook.core.kinds.node_writes import JITTER_S
from webhook.core.node.cgroups import Place, comparable_uid
from webhook.core.node.driver import Driver, after_scan, needs_new_container, why_unready
from webhook.core.node.inventory import Scan
from webhook.core.words import amount
from webhook.sentry.actor import Actor
from webhook.sentry.audit import REPORTED_BYTES, Audit
from webhook.sentry.figures import Figures
from webhook.sentry.judge import LATER_S, Judge
from webhook.sentry.names import Names
from webhook.sentry.observer import Observer
from webhook.sentry.pace import HOLDING_S, SHARE, pause_s
from webhook.sentry.teller import OfNode, OfPod, Teller
from webhook.sentry.writer import GpuNodeWriter, Stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.journal import Journal
    from webhook.adapters.kube.client import Kube
    from webhook.adapters.nvml import Nvml
    from webhook.core.enforcement.step import Action, Process
    from webhook.core.placement.assignments import Assignments
    from webhook.sentry.audit import Unmanaged
    from webhook.sentry.health import Health
    from webhook.sentry.metrics import SentryMetrics
    from webhook.sentry.observer import Look
    from webhook.sentry.settings import SentrySettings

    Message = AssignmentsSeen | AssignmentsUnread | Stored | Exception

UNREAD: Final = "the list of who was promised what has not been read yet"

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


class NewContainerNeededError(Exception):
    """Only a new container gets the driver's library, or access to the GPUs, again."""


class Sentry:
    """Holds the pods of its node to their caps until it is stopped."""

    def __init__(
        self,
        settings: SentrySettings,
        kube: Kube,
        nvml: Nvml,
        journal: Journal,
        metrics: SentryMetrics,
        health: Health,
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._journal = journal
        self._metrics = metrics
        self._health = health
        node = NodeProcesses(settings.pod_uid, proc=settings.proc)
        self._node = node
        self._lame = _lameness(node)
        self._observer = Observer(
            nvml,
            node,
            kernel_driver=settings.kernel_driver,
            outermost=surroundings.own_pid_namespace(proc=settings.proc).holds is False,
        )
        self._judge = Judge(acts=settings.act)
        self._audit = Audit()
        self._actor = Actor(node)
        self._teller = Teller(kube, settings.node, settings.pod_name, journal)
        self._figures = Figures(settings.node)
        self._writer = GpuNodeWriter(kube, settings.node, journal, random.uniform(0, JITTER_S))  # noqa: S311 - no secret
        self._names = Names(NodeProcesses(settings.pod_uid, proc=settings.proc))
        self._is_seeded = False
        self._driver = Driver(time.monotonic(), time.monotonic())
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._assignments: Assignments | None = None
        self._fresh_s: float | None = None
        self._unread = UNREAD
        self._reported: set[tuple[str, str]] = set()
        self._stuck: dict[str, _Stuck] = {}

    def run(self) -> None:
        """Run forever; raises NewContainerNeededError."""
        of = (self._kube, self._settings.namespace, self._settings.node)
        self._start(watch_assignments, *of, self._messages.put)
        self._start(self._teller.write_all)
        self._start(self._writer.write_all, self._messages.put)
        self._start(self._names.read_all)
        if self._lame:
            self._journal.event("error", "no process can be placed", why=self._lame)
        while True:
            looked_s = time.monotonic()
            look = self.turn(looked_s)
            pause = self.pause_s(look)
            self._health.expect(pause)
            self._wait(looked_s + look.took_s, pause, SHARE * look.took_s)

    def hear(self, message: Message) -> bool:
        """Take what a thread reports; return whether the list is another one now."""
        if isinstance(message, Exception):
            raise message
        if isinstance(message, Stored):
            self._is_seeded = True
            if message.figures is not None:
                self._figures.seed(message.figures, time.monotonic())
            return False
        if isinstance(message, AssignmentsUnread):
            self._fresh_s = None
            self._unread = self._unread and f"{UNREAD}: {message.why}"
            what = "the list of who was promised what cannot be followed"
            self._journal.once("list", "warning", what, message.why)
            return False
        self._unread = ""
        if message.watched:
            self._fresh_s = time.monotonic() if self._fresh_s is None else self._fresh_s
            self._journal.over("list", "the list of who was promised what is followed again")
        else:
            self._fresh_s = None
        is_new = message.assignments != self._assignments
        self._assignments = message.assignments
        self._judge.know(message.assignments)
        self._audit.know(message.assignments)
        self._figures.know(message.assignments)
        self._names.wanted = frozenset(map(comparable_uid, message.assignments))
        return is_new

    def turn(self, now_s: float) -> Look:
        """Look once, and do what follows from it."""
        pods = self._judge.judged()
        look = self._observer.look(now_s, self._judge.above, pods)
        if self._lame:  # nobody's memory is nobody's
            look = replace(look, lists={})
        actions = self._judge.judge(look, now_s)
        for uid, action in actions:
            self._perform(uid, action, look, now_s)
        self._report_freed(actions)
        self._metrics.looked(look.took_s)
        self._audit.see(look, now_s)
        unmanaged = self._audit.unmanaged(now_s, self._fresh_s)
        if self._writer.own.not_shared:  # what is held there others gave away
            unmanaged = ()
        self._show(look, unmanaged, now_s)
        if look.fault is None:
            self._report_unmanaged(unmanaged, now_s)
        judged = self._judge.judged()
        self._stuck = {uid: stuck for uid, stuck in self._stuck.items() if uid in judged}
        self._check_driver(look, now_s)
        return look

    def _show(self, look: Look, unmanaged: tuple[Unmanaged, ...], now_s: float) -> None:
        """Have figures and metrics say what this look showed."""
        self._figures.hear(self._names.said)
        self._figures.see(look, now_s)
        seen_s, followed = time.time(), self._fresh_s is not None
        shown = self._figures.show(seen_s, unmanaged, self._writer.own, followed=followed)
        looked_s = seen_s if look.fault is None else None
        self._metrics.show(shown, unmanaged, looked_s, counts=self._is_seeded)
        if self._is_seeded:
            self._writer.offer(shown.node)

    def pause_s(self, look: Look) -> float:
        """Return how long to wait after this look."""
        return pause_s(
            look.took_s,
            ending=self._judge.is_ending(),
            judging=bool(self._judge.judged()),
            may_act=bool(self._judge.lines),
            listed=bool(self._assignments),
            held=self._audit.holds,
        )

    def _wait(self, since_s: float, pause: float, least_s: float) -> None:
        """Wait for the next look; less where the list changed, for who is new may be over soon."""
        until_s = since_s + pause
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                is_new = self.hear(self._messages.get(timeout=left_s))
            except queue.Empty:
                return
            if is_new:
                until_s = min(until_s, since_s + max(HOLDING_S, least_s))

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run this on a thread; a bug in it ends the sentry, and not only the thread."""

        def run() -> None:
            try:
                work(*arguments)
            except Exception as error:  # noqa: BLE001 - handed to the main thread, which raises it
                self._messages.put(error)

        threading.Thread(target=run, name=work.__name__, daemon=True).start()

    def _perform(self, uid: str, action: Action, look: Look, now_s: float) -> None:
        """Log first, then signal, then report; a `Kill` comes with its `Terminate` at once."""
        match action:
            case Terminate(process, excess):
                why = explain_stop(self._as_its_owner_sees(process), excess)
                self._stop(uid, process, why, look, now_s)
            case EndPod(process=process):
                if process is not None:
                    action = replace(action, process=self._as_its_owner_sees(process))
                self._end(uid, explain_end(action), look, now_s)
            case ReportExcess():
                self._report_excess(uid, action, now_s)
            case Freed(process, gpu, _, after_s, returned=False):
                why = f"{describe(process)} still holds it {after_s:.0f} s after SIGKILL"
                values = {"why": why, "gpu": gpu} | self._values_of(uid, process)
                self._journal.line("error", "memory did not come back", values)

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
                    "memory came back",
                    pod=self._judge.lines[uid].pod,
                    uid=uid,
                    pids=[one.process.pid for one in freed[:_MOST_PIDS]],
                    processes=len(freed),
                    freed_bytes=sum(one.freed_bytes for one in freed),
                    after_s=round(max(one.after_s for one in freed), 3),
                )

    def _stop(self, uid: str, process: Process, why: str, look: Look, now_s: float) -> None:
        why += self._instead(uid)
        values = {"why": why} | self._values_of(uid, process)
        self._journal.line("warning", "stopping a process", values)
        owner = Owner(process, Place(uid, process.container))
        delivery = self._actor.stop(owner, look.held_by_containers(uid))
        if delivery is Delivery.DELIVERED:
            self._metrics.stopped("process")
            self._figures.stopped(uid)
            self._tell(uid, why, now_s)
        elif delivery is Delivery.REJECTED:
            self._judge.reject(uid, process)
            what = "it may not be signalled: see capabilities, pidfds and whether it was moved"
            values = {"why": what} | self._values_of(uid, process)
            self._journal.line("error", "a signal was rejected", values)

    def _end(self, uid: str, why: str, look: Look, now_s: float) -> None:
        """End all of a pod; where nobody can be stopped, say so once, and go on trying."""
        stuck = self._stuck.get(uid)
        if stuck is not None and now_s < stuck.retry_s:
            return
        why += self._instead(uid)
        pod = {"pod": self._judge.lines[uid].pod, "uid": uid}
        if stuck is None:
            self._journal.event("warning", "ending a pod", why=why, **pod)
        started_s = time.monotonic()
        ended = self._actor.end(uid, look.held_by_containers(uid), again=stuck is not None)
        numbers = {"rejected": ended.rejected, "enforcer_known": ended.sure}
        if ended.stopped:
            self._stuck.pop(uid, None)
            what = "processes of the pod were stopped"
            self._journal.event("info", what, **pod, stopped=ended.stopped, **numbers)
            self._metrics.stopped("pod")
            self._figures.stopped(uid)
            self._tell(uid, why, now_s)
            return
        stuck = stuck or _Stuck(now_s)
        stuck.retry_s = now_s + SHARE * (time.monotonic() - started_s)
        if not stuck.told and now_s - stuck.since_s >= STUCK_S:
            stuck.told = True
            why += "; but nobody of it could be stopped, and it holds the memory still"
            self._journal.event("error", "nobody could be stopped", why=why, **pod, **numbers)
            self._tell(uid, why, now_s, stopped=False)
        self._stuck[uid] = stuck

    def _instead(self, uid: str) -> str:
        hold = self._judge.lines[uid].hold
        late_s = (hold.late_s if hold else 0.0) + LATER_S
        return f"; its sidecar did not stop it within {late_s:g} s, so the node's sentry does"

    def _report_excess(self, uid: str, action: ReportExcess, now_s: float) -> None:
        """Report once for each excess what would be stopped, in the words of a stop."""
        line = self._judge.lines[uid]
        if action.process is not None:
            action = replace(action, process=self._as_its_owner_sees(action.process))
        of_policy = line.hold is not None and line.hold.reports
        who = "the policy only reports (onExcess: Report)" if of_policy else _ONLY_REPORTS
        why = explain_report(action, who)
        self._journal.event("warning", "a pod is over its cap", why=why, pod=line.pod, uid=uid)
        self._metrics.would_stop()
        self._figures.would_stop(uid, time.time())
        self._tell(uid, why, now_s, stopped=False)

    def _tell(self, uid: str, why: str, now_s: float, *, stopped: bool = True) -> None:
        self._teller.tell(OfPod(self._judge.lines[uid].pod, uid, why, stopped), now_s)

    def _values_of(self, uid: str, process: Process) -> dict[str, Any]:
        return {
            "pod": self._judge.lines[uid].pod,
            "uid": uid,
            "pid": process.pid,
            "command": process.command,
            "container": process.container,
        }

    def _report_unmanaged(self, unmanaged: tuple[Unmanaged, ...], now_s: float) -> None:
        """Report what is large once, and again after it was gone."""
        large = {(one.gpu.uuid, one.pod): one for one in unmanaged}
        large = {key: one for key, one in large.items() if one.held_bytes >= REPORTED_BYTES}
        for key, one in large.items():
            if key not in self._reported:
                values = {"gpu": one.gpu.uuid, "uid": one.pod, "held": amount(one.held_bytes)}
                self._journal.event("warning", "unmanaged memory", why=one.sentence(), **values)
                self._teller.tell(OfNode(one.sentence()), now_s)
        self._reported = set(large)

    def _check_driver(self, look: Look, now_s: float) -> None:
        scan = Scan(failed=look.failed, fault=look.fault, driver_loaded=look.driver_loaded)
        self._driver = after_scan(self._driver, scan, now_s)
        if needs_new_container(self._driver, now_s):
            raise NewContainerNeededError(look.failed)
        if look.failed:
            self._journal.once("driver", "warning", "not everything can be seen", look.failed)
        else:
            self._journal.over("driver", "everything can be seen")
        unseen = (why_unready(self._driver) or look.failed) if look.fault else ""
        self._health.obstacle = self._lame or self._unread or unseen


def _lameness(node: NodeProcesses) -> str:
    """Say why no process can be placed here; empty where it can."""
    if os.getpid() == 1:
        return "this is a process namespace of our own; the pod needs hostPID: true"
    if not node.knows_itself():
        return (
            "our own cgroup names no pod, so no other's can be read; set POD_UID to our pod's UID"
        )
    return ""
