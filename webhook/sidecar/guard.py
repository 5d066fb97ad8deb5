"""The enforcer's loop: observe, judge, act, beat; one thread, for NVML answers one at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters import host_environment, processes
from webhook.adapters.processes import Delivery
from webhook.core.enforcement.model import (
    Cap,
    EndPod,
    Kill,
    StepState,
    StopContainer,
    Terminate,
)
from webhook.core.enforcement.step import name_victim, step
from webhook.core.enforcement.termination_message import (
    TerminationMessage,
    in_words,
    write_message,
    write_process_name,
)
from webhook.core.frozen import replace
from webhook.names import POD_RESTART_EXIT_CODE
from webhook.sidecar.ending import delay_exit_while
from webhook.sidecar.events import report, values_of
from webhook.sidecar.heartbeat import Heartbeat
from webhook.sidecar.limit import PodLimit
from webhook.sidecar.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.adapters.nvml import Nvml
    from webhook.core.enforcement.model import Action, Process
    from webhook.sidecar.journal import EnforcerJournal
    from webhook.sidecar.settings import EnforcerSettings

WAITING_S: Final = 0.25
"""Between observations, at most, while the pod waits for the driver's limit."""

JUDGING_S: Final = 0.5
"""Between observations, at most, while an excess is confirmed or ended."""

ENDING_S: Final = 0.1
"""Between checks of who is left while the pod ends."""

SWEEPS: Final = 10
SWEEPING_S: Final = 5.0
"""How often, and for how long, what starts processes again is searched for more of them: a fork
bomb may outrun us, and must not keep us from the next observation."""

PAUSE_INTERVALS: Final = 5
PAUSE_S: Final = 5.0
"""A gap between two observations that is longer than both is reported: nobody guarded then."""


STUCK_INTERVALS: Final = 3
STUCK_S: Final = 15.0
"""Without an observation for longer than both, nobody guards: as `probe.sh` judges a heartbeat."""


class Guard:
    """Holds the pod to its cap until it is stopped."""

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
            reports_only=not settings.stops,
            protected=frozenset({1, me, *processes.ancestors(me, proc=proc)}),
        )
        self._limit = None
        if settings.driver_limit:
            self._limit = PodLimit(settings, nvml, journal, run_folder, proc=proc)
        self._waits = self._limit is not None
        """Whether the pod is not to start yet."""
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
        self._holders: frozenset[str] = frozenset()
        """The containers that were seen to hold memory."""

    def run(self) -> int:
        """Guard, and return the exit code; raises DriverChangedError."""
        delay_exit_while(self._is_needed)
        self._journal.final_figures = self._final_figures
        last_s = time.monotonic()
        if self._limit and self._settings.only:
            # Where the limit stands, the pod need not wait for the first observation.
            self._waits = not self._limit.lets_start(self._settings.only, last_s)
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
                gpus = self._settings.only or self._observer.gpus
                self._waits = not self._limit.lets_start(gpus, now_s)
            if not self._beat():
                return POD_RESTART_EXIT_CODE
            last_s = self._observed_s = now_s
            time.sleep(max(0.0, now_s + self._pause_s(now_s) - time.monotonic()))

    def _is_needed(self) -> bool:
        """Say whether we work, and a container that held memory runs anything; safe in any thread.

        Another may wait for us: a native sidecar that comes before us in the pod, such as a proxy
        of a mesh, is told to stop once we are over, and until then we would wait for it.
        """
        stuck_after_s = max(STUCK_S, STUCK_INTERVALS * self._settings.poll_interval_s)
        if time.monotonic() - self._observed_s > stuck_after_s:
            return False
        holders = self._holders
        return any("" in holders or one.container in holders for one in self._others())

    def _judge(self, now_s: float) -> tuple[Action, ...]:
        judged = {gpu for gpu, samples in self._state.over.items() if samples}
        judged |= {victim.gpu for victim in self._state.victims}
        observation = self._observer.observe(now_s, judged)
        observation = replace(observation, rejected=frozenset(self._rejected))
        self._rejected.clear()
        # Where it is not known which, a crowd that was only added up, it may be any of them.
        self._holders |= {usage.process.container for usage in observation.usages}
        self._state, actions = step(self._state, observation, self._cap, now_s)
        self._stops += sum(isinstance(one, Terminate | StopContainer) for one in actions)
        self._show_by_name()
        return actions

    def _final_figures(self) -> tuple[str, dict[str, Any]]:
        """Return what is known of the pod so far; safe in any thread."""
        seconds = int(time.monotonic() - self._began_s)
        words = TerminationMessage(self._cap.cap_bytes, self._state.peaks, self._stops, seconds)
        figures = {"peak_bytes": dict(words.peaks), "cap_bytes": words.cap_bytes}
        values = {"why": in_words(words), **figures, "stops": words.stops, "s": words.seconds}
        return write_message(words), values

    def _show_by_name(self) -> None:
        """Show stops and peak as our process's name, for who sees us from outside the pod."""
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
        """Return how long to wait: less while an excess is judged, and as a grace ends.

        A grace may be over without a kill, while the driver does not show its victim.
        """
        pause_s = self._settings.poll_interval_s
        if self._waits:
            pause_s = min(pause_s, WAITING_S)
        if self._state.victims or any(self._state.over.values()):
            pause_s = min(pause_s, JUDGING_S)
        for victim in self._state.victims:
            left_s = victim.terminated_at_s + self._settings.grace_s - now_s
            if victim.killed_at_s is None and left_s > 0:
                pause_s = min(pause_s, left_s)
        return pause_s

    def _beat(self) -> bool:
        """Beat, once the pod may start; return False where that shows that we can see nothing more.

        A process of our user may lower our limit of descriptors (prlimit(2)). Nothing of proc can
        be opened then, and a new container has its own limit. What else fails is said once.
        """
        if self._waits:
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
        """Report first: whoever reads why a process ended finds the reason already written."""
        if isinstance(action, Terminate):
            # It may have executed another program since it was first seen.
            fresh = processes.identify(action.process.pid, proc=self._proc)
            if fresh == action.process:
                action = replace(action, process=fresh)
                self._state = name_victim(self._state, fresh)
        report(self._journal, action, self._settings.grace_s)
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
            self._journal.event("error", "a signal was rejected", why=why, **values_of(process))

    def _end_pod(self, action: EndPod) -> None:
        """Stop what the other containers run, for the kubelet to restart or to leave stopped.

        Where the pod asks for RestartAllContainers, the kubelet does it on our exit code. The
        policy wants no workload rather than one that nobody measures. Where stops were not enough
        there is no grace: each process that was stopped had one.
        """
        report(self._journal, action, self._settings.grace_s)
        grace_s = self._settings.grace_s if action.excess is None else 0.0
        deadline_s = time.monotonic() + grace_s
        left = list(self._others()) if grace_s else []
        for process in left:
            processes.stop(process, signal.SIGTERM, proc=self._proc)
        while left and time.monotonic() < deadline_s:
            self._beat()
            time.sleep(ENDING_S)
            left = [process for process in left if not processes.is_gone(process, proc=self._proc)]
            left = left or list(self._others())
        self._kill_all()

    def _kill_all(self, container: str = "") -> None:
        """Kill what a container runs, or all that the others run; whoever starts more, too.

        All is stopped first, and killed once nothing new appears: what is stopped starts nothing,
        and is still in the way of a limit to processes that it has reached.
        """
        found: set[Process] = set()
        deadline_s = time.monotonic() + SWEEPING_S
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in found:
                processes.stop(process, number, proc=self._proc)
            for _ in range(SWEEPS):
                self._beat()
                before = len(found)
                for process in self._others(container):
                    if time.monotonic() >= deadline_s:
                        break
                    if process not in found:
                        found.add(process)
                        processes.stop(process, number, proc=self._proc)
                if len(found) == before:
                    break

    def _others(self, container: str = "") -> Iterator[Process]:
        """Yield what other containers run, or one of them; never what holds the pod together."""
        first, me = (processes.identify(pid, proc=self._proc) for pid in (1, os.getpid()))
        spared = {"", *(process.container for process in (first, me) if process)}
        for process in processes.list_processes(proc=self._proc):
            if process.pid in self._cap.protected or process.container in spared:
                continue
            if container in ("", process.container):
                yield process
