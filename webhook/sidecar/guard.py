"""The enforcer's loop: observe, judge, act, beat; in one thread, since NVML serializes calls."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters import host_environment, processes
from webhook.adapters.processes import Delivery
from webhook.core.enforcement.model import Cap, EndPod, Kill, StepState, StopContainer, Terminate
from webhook.core.enforcement.step import name_victim, step
from webhook.core.enforcement.termination_message import (
    TerminationMessage,
    describe_for_people,
    write_message,
    write_process_name,
)
from webhook.core.frozen import replace
from webhook.names import POD_RESTART_EXIT_CODE
from webhook.sidecar.driver_limit import DriverLimitCheck
from webhook.sidecar.events import process_values, report_action
from webhook.sidecar.heartbeat import Heartbeat
from webhook.sidecar.observer import Observer
from webhook.sidecar.shutdown import delay_exit_while

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.adapters.nvml import Nvml
    from webhook.core.enforcement.model import Action, Process
    from webhook.sidecar.journal import EnforcerJournal
    from webhook.sidecar.settings import EnforcerSettings

WAITING_INTERVAL_S: Final = 0.25
"""Maximum interval between observations while the pod waits for the driver's limit, in seconds."""

JUDGING_INTERVAL_S: Final = 0.5
"""Maximum interval between observations while an excess is confirmed or ended, in seconds."""

ENDING_INTERVAL_S: Final = 0.1
"""Interval between checks for remaining processes while the pod ends, in seconds."""

SWEEPS: Final = 10
SWEEP_TIMEOUT_S: Final = 5.0
"""Limits on the search for processes that start more processes: number of sweeps, and seconds. A
fork bomb may be faster than the search, and must not delay the next observation."""

PAUSE_INTERVALS: Final = 5
PAUSE_S: Final = 5.0
"""A gap between observations is reported if it exceeds both `PAUSE_S`, in seconds, and
`PAUSE_INTERVALS` poll intervals, since the pod was unguarded."""


STUCK_INTERVALS: Final = 3
STUCK_S: Final = 15.0
"""The pod is unguarded after `STUCK_S` seconds and `STUCK_INTERVALS` poll intervals without an
observation; `probe.sh` uses the same limits."""


class Guard:
    """Enforces the pod's cap until it is stopped."""

    def __init__(
        self,
        settings: EnforcerSettings,
        nvml: Nvml,
        journal: EnforcerJournal,
        run_folder: str,
        *,
        counts_unidentified: bool = False,
        proc: str = "/proc",
    ) -> None:
        me = os.getpid()
        self._settings = settings
        self._journal = journal
        self._proc = proc
        self._heartbeat = Heartbeat(run_folder)
        self._beats = True
        self._cap = Cap(
            cap_bytes=settings.cap_bytes,
            tolerance_bytes=settings.tolerance_bytes,
            grace_s=settings.grace_s,
            blind_after_s=settings.blind_after_s,
            terminate_when_blind=settings.terminate_when_blind,
            reports_only=not settings.stops_processes,
            protected=frozenset({1, me, *processes.ancestors(me, proc=proc)}),
        )
        self._limit = None
        if settings.driver_limit:
            self._limit = DriverLimitCheck(settings, nvml, journal, run_folder, proc=proc)
        self._is_waiting = self._limit is not None
        """True if the pod must not start yet."""
        self._observer = Observer(
            nvml,
            settings.cap_bytes,
            ceiling_bytes=self._cap.ceiling_bytes,
            counts_unidentified=counts_unidentified,
            limit=self._limit,
            proc=proc,
        )
        self._began_s = self._observed_s = time.monotonic()
        self._stops = 0
        self._name = ""
        self._rejected: set[Process] = set()
        self._state = StepState()
        self._containers_with_memory: frozenset[str] = frozenset()

    def run(self) -> int:
        """Enforce the cap until the end, and return the exit code; raises DriverChangedError."""
        delay_exit_while(self._is_needed)
        self._journal.final_figures = self._final_figures
        last_s = time.monotonic()
        if self._limit and self._settings.gpus:
            # If the limit is already set, the pod need not wait for the first observation.
            self._is_waiting = not self._limit.allows_start(self._settings.gpus, last_s)
            self._beat()
        while True:
            now_s = time.monotonic()
            if now_s - last_s > max(PAUSE_S, PAUSE_INTERVALS * self._settings.poll_interval_s):
                why = "we were stopped, starved of CPU, or kept waiting by the driver"
                gap_s = now_s - last_s
                self._journal.event("warning", "no observation for a while", why=why, s=gap_s)
            for action in self._judge(now_s):
                if isinstance(action, EndPod):
                    self._end_pod(action)
                    return POD_RESTART_EXIT_CODE
                self._perform(action)
            if self._limit:
                gpus = self._settings.gpus or self._observer.gpus
                self._is_waiting = not self._limit.allows_start(gpus, now_s)
            if not self._beat():
                return POD_RESTART_EXIT_CODE
            last_s = self._observed_s = now_s
            time.sleep(max(0.0, now_s + self._pause_s(now_s) - time.monotonic()))

    def _is_needed(self) -> bool:
        """Return True if the guard works and a container that held memory runs; thread-safe.

        Other containers may wait for the sidecar to end: a native sidecar that precedes it in the
        pod, such as a service mesh's proxy, is stopped only afterwards.
        """
        stuck_after_s = max(STUCK_S, STUCK_INTERVALS * self._settings.poll_interval_s)
        if time.monotonic() - self._observed_s > stuck_after_s:
            return False
        holders = self._containers_with_memory
        return any(
            "" in holders or process.container in holders for process in self._workload_processes()
        )

    def _judge(self, now_s: float) -> tuple[Action, ...]:
        judged = {gpu for gpu, samples in self._state.over.items() if samples}
        judged |= {victim.gpu for victim in self._state.victims}
        observation = self._observer.observe(now_s, judged)
        observation = replace(observation, rejected=frozenset(self._rejected))
        self._rejected.clear()
        # The container is empty for processes that were only summed up; it may be any container.
        self._containers_with_memory |= {usage.process.container for usage in observation.usages}
        self._state, actions = step(self._state, observation, self._cap, now_s)
        self._stops += sum(isinstance(action, Terminate | StopContainer) for action in actions)
        self._update_process_name()
        return actions

    def _final_figures(self) -> tuple[str, dict[str, Any]]:
        """Return the pod's figures as a message and as log values; callable in any thread."""
        seconds = int(time.monotonic() - self._began_s)
        words = TerminationMessage(self._cap.cap_bytes, self._state.peaks, self._stops, seconds)
        figures = {"peak_bytes": dict(words.peaks), "cap_bytes": words.cap_bytes}
        values = {
            "why": describe_for_people(words),
            **figures,
            "stops": words.stops,
            "s": words.seconds,
        }
        return write_message(words), values

    def _update_process_name(self) -> None:
        """Set the process name to stops and peak, for readers outside the pod."""
        name = write_process_name(self._stops, max(self._state.peaks.values(), default=None))
        if name == self._name:
            return
        self._name = name
        with contextlib.suppress(OSError):
            file = os.open(f"{self._proc}/self/comm", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(file, name.encode())
            finally:
                os.close(file)

    def _pause_s(self, now_s: float) -> float:
        """Return the time until the next observation; shorter during an excess and a grace period.

        A grace period may end without a kill while the driver does not list its victim.
        """
        pause_s = self._settings.poll_interval_s
        if self._is_waiting:
            pause_s = min(pause_s, WAITING_INTERVAL_S)
        if self._state.victims or any(self._state.over.values()):
            pause_s = min(pause_s, JUDGING_INTERVAL_S)
        for victim in self._state.victims:
            left_s = victim.terminated_at_s + self._settings.grace_s - now_s
            if victim.killed_at_s is None and left_s > 0:
                pause_s = min(pause_s, left_s)
        return pause_s

    def _beat(self) -> bool:
        """Write the heartbeat once the pod may start; return False if no process can be read.

        A process of the same user may lower the guard's limit of file descriptors (prlimit(2)).
        Then no file in /proc can be opened, and only a new container has the original limit. Other
        failures are logged once.
        """
        if self._is_waiting:
            return True
        try:
            self._heartbeat.beat()
        except OSError as error:
            if error.errno == errno.EMFILE:
                why = f"{error}: somebody lowered our limit, and we cannot see any process"
                self._journal.event("error", "out of descriptors", why=why)
                return False
            if self._beats:
                self._beats = False
                self._journal.event("error", "no heartbeat", why=str(error))
        return True

    def _perform(self, action: Action) -> None:
        """Log an action before performing it, so that the reason is known when the process ends."""
        if isinstance(action, Terminate):
            # The process may have executed another program since it was first observed.
            fresh = processes.identify(action.process.pid, proc=self._proc)
            if fresh == action.process:
                action = replace(action, process=fresh)
                self._state = name_victim(self._state, fresh)
        report_action(self._journal, action, self._settings.grace_s)
        if isinstance(action, Terminate):
            self._signal(action.process, signal.SIGTERM)
        elif isinstance(action, Kill):
            self._signal(action.process, signal.SIGKILL)
        elif isinstance(action, StopContainer):
            self._kill_all(action.container)
            for victim in self._state.victims:
                if victim.gpu == action.excess.gpu:
                    self._signal(victim.process, signal.SIGKILL)

    def _signal(self, process: Process, number: signal.Signals) -> None:
        delivery = processes.stop(process, number, proc=self._proc)
        if delivery is Delivery.REJECTED:
            self._rejected.add(process)
            why = host_environment.check_permission(process, proc=self._proc).reason
            self._journal.event(
                "error", "a signal was rejected", why=why, **process_values(process)
            )

    def _end_pod(self, action: EndPod) -> None:
        """End the processes of the other containers, which the kubelet restarts or leaves stopped.

        With RestartAllContainers the kubelet restarts all containers because of the guard's exit
        code. The policy prefers no workload to an unmeasured one. If stops were not enough there is
        no grace period: each process has already had one.
        """
        report_action(self._journal, action, self._settings.grace_s)
        grace_s = self._settings.grace_s if action.excess is None else 0.0
        deadline_s = time.monotonic() + grace_s
        left = list(self._workload_processes()) if grace_s else []
        for process in left:
            processes.stop(process, signal.SIGTERM, proc=self._proc)
        while left and time.monotonic() < deadline_s:
            self._beat()
            time.sleep(ENDING_INTERVAL_S)
            left = [process for process in left if not processes.is_gone(process, proc=self._proc)]
            left = left or list(self._workload_processes())
        self._kill_all()

    def _kill_all(self, container: str = "") -> None:
        """Kill all processes of one container, or of all other containers.

        All are stopped with SIGSTOP first, and killed once no new ones appear. A stopped process
        starts no others, and still counts against a process limit that the container has reached.
        """
        found: set[Process] = set()
        deadline_s = time.monotonic() + SWEEP_TIMEOUT_S
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in found:
                processes.stop(process, number, proc=self._proc)
            for _ in range(SWEEPS):
                self._beat()
                before = len(found)
                for process in self._workload_processes(container):
                    if time.monotonic() >= deadline_s:
                        break
                    if process not in found:
                        found.add(process)
                        processes.stop(process, number, proc=self._proc)
                if len(found) == before:
                    break

    def _workload_processes(self, container: str = "") -> Iterator[Process]:
        """Yield the processes of one other container, or of all except sandbox and enforcer."""
        first, me = (processes.identify(pid, proc=self._proc) for pid in (1, os.getpid()))
        spared = {"", *(process.container for process in (first, me) if process)}
        for process in processes.list_processes(proc=self._proc):
            if process.pid in self._cap.protected or process.container in spared:
                continue
            if container in ("", process.container):
                yield process
