"""The limiter's loop: finds the cgroups of listed pods, sets and reads their driver limits."""

from __future__ import annotations

import os
import time
from typing import Final, NoReturn

from webhook import __version__
from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.node_objects import AssignmentsSeen, AssignmentsUnread, watch_assignments
from webhook.adapters.node_nvml import NodeNvml
from webhook.core.enforcement.driver_limit import NO_LIMIT
from webhook.core.node.access import STUCK_AFTER_S, DriverStatus, needs_new_container, record_scan
from webhook.core.node.cgroups import list_pod_directories
from webhook.core.node.inventory import Scan
from webhook.core.node.limiter_state import (
    LARGEST_FILE_BYTES,
    MOST_LIMITED,
    STALE_AFTER_S,
    STATE_FILE,
    WRITE_INTERVAL_S,
    LimiterState,
    read_limiter_state,
    write_limiter_state,
)
from webhook.core.nvidia.drivers import Proof
from webhook.core.policy.model import DriverLimit
from webhook.limiter.cgroups import NodeCgroups
from webhook.limiter.driver_limits import MISC, Late, LimitedPod, PodLimiter, prove
from webhook.limiter.settings import LimiterSettings
from webhook.node_programs.program import (
    Inbox,
    NewContainerNeededError,
    list_answering_gpus,
    run_program,
    scan_with,
)

Message = AssignmentsSeen | AssignmentsUnread

STEP_S: Final = 0.1
"""Interval of searches for cgroups of young pods, in seconds. A search needs no call of the
driver. A kubelet takes longer between creating a pod's cgroup and its sandbox."""
SELDOM_S: Final = 2.0
AGAIN_S: Final = 1.0
"""Time from finding a container's cgroup to reading its limit again, in seconds: a hook of the
runtime may set a limit late."""
PROVE_EVERY_S: Final = 600.0
RETRY_S: Final = 60.0
WITHDRAW_AFTER_S: Final = STALE_AFTER_S
"""Time for which the driver may fail before the proof is withdrawn, in seconds.

The agent removes the label itself once its own scan finds the driver gone or replaced.
"""

_STUCK: Final = 142
_NOT_YET: Final = "not tried yet: no driver has answered"
_NAMED: Final = 3


class Limiter:
    """Makes the driver limit the pods of its node until it is stopped."""

    def __init__(
        self, settings: LimiterSettings, kube: Kube, nvml: NodeNvml, journal: Journal
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._nvml = nvml
        self._journal = journal
        self._cgroups = NodeCgroups(settings.cgroups, settings.pod_uid)
        self._inbox: Inbox[Message] = Inbox()
        self._pods: dict[str, LimitedPod] = {}
        self._proof = Proof(holds=False, why=_NOT_YET)
        self._proved: tuple[str, frozenset[str]] = ("", frozenset())
        """Driver version and GPUs of the last proof; `_proved_s` is its time."""
        self._proved_s = float("-inf")
        self._reading_s = float("-inf")
        self._again_s = float("inf")
        """Time of an additional read for new containers."""
        self._written_s = float("-inf")
        self._changed = True
        self._started_s = time.time()
        self._beat_s = time.monotonic()
        self._driver = DriverStatus(scanned_s=self._beat_s, answered_s=self._beat_s)
        self._failing_s: float | None = None
        """Time since which the driver does not respond; None if it does."""
        self._limits = PodLimiter(nvml, self._cgroups, journal, self._read_late())

    def run(self) -> NoReturn:
        """Run until an exception: a bug, a signal, or NewContainerNeededError."""
        start, send = self._inbox.start, self._inbox.put
        start(watch_assignments, self._kube, self._settings.namespace, self._settings.node, send)
        start(self._exit_if_driver_hangs)
        while True:
            self._beat_s = time.monotonic()
            pause_s = self.step(self._beat_s)
            message = self._inbox.get(pause_s)
            while message is not None:
                self.on_report(message, time.monotonic())
                message = self._inbox.get()

    def on_report(self, message: Message, now_s: float) -> None:
        """Handle a report of the watcher."""
        if isinstance(message, AssignmentsUnread):
            what = "the list of who was promised what cannot be followed"
            self._journal.once("list", "warning", what, message.why)
            return
        self._journal.over("list", "the list of who was promised what is followed again")
        listed: dict[str, LimitedPod] = {}
        unreadable: list[str] = []
        for uid, assignment in message.assignments.items():
            terms = assignment.terms
            if terms is None or terms.limit is DriverLimit.OFF or len(listed) >= MOST_LIMITED:
                continue
            if list_pod_directories("kubepods", uid) and 0 < terms.cap_bytes < NO_LIMIT:
                listed[uid] = self._wanted(uid, terms.cap_bytes, assignment.uuids, now_s)
            else:
                unreadable.append(assignment.pod)
        if unreadable:
            what = "lines of the list have no UID or no cap"
            self._journal.once("lines", "error", what, ", ".join(unreadable[:_NAMED]))
        self._changed = self._changed or listed.keys() != self._pods.keys()
        self._pods = listed

    def step(self, now_s: float) -> float:
        """Do what is due; return the pause until the next step, in seconds."""
        if self._proof.holds:
            self._find_cgroups(now_s)
        if now_s >= min(self._reading_s, self._again_s):
            self._again_s = float("inf") if now_s >= self._again_s else self._again_s
            self._reading_s = now_s + (
                WRITE_INTERVAL_S if self._proof.holds and self._pods else RETRY_S
            )
            self._open_driver_and_limit(now_s)
        if self._changed or self._limits.changed or now_s - self._written_s >= WRITE_INTERVAL_S:
            self._write(now_s)
        soonest_s = min(self._reading_s, self._again_s, self._written_s + WRITE_INTERVAL_S)
        if self._proof.holds and self._pods:
            young = any(pod.is_young(now_s) for pod in self._pods.values())
            soonest_s = min(soonest_s, now_s + (STEP_S if young else SELDOM_S))
        return max(STEP_S, soonest_s - now_s)

    def _wanted(self, uid: str, cap_bytes: int, gpus: tuple[str, ...], now_s: float) -> LimitedPod:
        """Return the state of a pod that the driver should limit.

        The pod's cap is never lowered, since the driver counts the memory that the pod already
        holds.
        """
        pod = self._pods.get(uid)
        if pod is None:
            return LimitedPod(uid=uid, cap_bytes=cap_bytes, gpus=gpus, since_s=now_s)
        if cap_bytes > pod.cap_bytes or set(gpus) - set(pod.gpus):
            pod.cap_bytes = max(cap_bytes, pod.cap_bytes)
            pod.gpus, self._reading_s = gpus, now_s
        return pod

    def _find_cgroups(self, now_s: float) -> None:
        """Find the cgroups of pods and containers; limit new ones immediately."""
        for pod in self._pods.values():
            if not pod.is_young(now_s) and now_s - pod.searched_s < SELDOM_S:
                continue
            pod.searched_s = now_s
            path = self._cgroups.pod(pod.uid)
            leaves = self._cgroups.leaves(path) if path else ()
            if path != pod.path:
                pod.path, pod.held, pod.set_s = path, {}, float("inf")
                self._reading_s = now_s
            if {leaf.number for leaf in leaves} - {leaf.number for leaf in pod.leaves}:
                self._reading_s, self._again_s = now_s, now_s + AGAIN_S
            pod.leaves = leaves

    def _open_driver_and_limit(self, now_s: float) -> None:
        scan = scan_with(
            self._nvml,
            self._settings.kernel_driver,
            Scan,
            lambda version: self._limit_all(version, now_s),
        )
        self._driver = record_scan(self._driver, scan, now_s)
        if needs_new_container(self._driver, now_s):
            raise NewContainerNeededError(scan.failed)
        if scan.fault is None:
            self._failing_s = None
            self._journal.over("driver", "the driver answers again")
            return
        self._journal.once("driver", "warning", "the driver does not answer", scan.failed)
        self._reading_s = min(self._reading_s, now_s + WRITE_INTERVAL_S)
        self._failing_s = now_s if self._failing_s is None else self._failing_s
        self._proved_s = float("-inf")  # it may return in another mode
        if not self._proof.holds or now_s - self._failing_s >= WITHDRAW_AFTER_S:
            self._prove(Proof(holds=False, why=scan.failed))

    def _limit_all(self, version: str, now_s: float) -> Scan:
        gpus = list_answering_gpus(self._nvml)
        proved = version, frozenset(gpu.uuid for gpu in gpus)
        every_s = PROVE_EVERY_S if self._proof.holds else RETRY_S
        if proved != self._proved or now_s - self._proved_s >= every_s:
            if version != self._proved[0]:
                for pod in self._pods.values():
                    pod.held.clear()
            proof = prove(self._nvml, version, gpus, self._cgroups, dmem=self._settings.dmem)
            self._proved, self._proved_s = proved, now_s
            self._prove(proof)
        if self._proof.holds:
            self._find_cgroups(now_s)
            whole = tuple(gpu.uuid for gpu in gpus if not gpu.mig and gpu.usable_bytes)
            self._reading_s = now_s + WRITE_INTERVAL_S if self._pods else self._reading_s
            for pod in self._pods.values():
                if not self._limits.limit(pod, whole, now_s):
                    self._proved_s = float("-inf")
        return Scan(gpus=gpus, driver_version=version)

    def _prove(self, proof: Proof) -> None:
        if proof == self._proof:
            return
        self._proof, self._changed = proof, True
        self._limits.misc = proof.back_end == MISC
        if proof.holds:
            self._journal.event("info", "the driver holds caps here", back_end=proof.back_end)
        else:
            self._journal.event("warning", "the driver holds no caps here", why=proof.why)

    def _write(self, now_s: float) -> None:
        """Replace the file for the sentry; an error such as a full disk is only logged."""
        held = self._pods.values() if self._proof.holds else ()
        state = LimiterState(
            written_s=time.time(),
            started_s=self._started_s,
            proof=self._proof,
            limited=tuple(limit for pod in held for limit in pod.held.values()),
            events=tuple(self._limits.events),
        )
        path = f"{self._settings.folder}/{STATE_FILE}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._written_s, self._changed, self._limits.changed = now_s, False, False
        try:
            descriptor = os.open(f"{path}.new", flags, 0o644)
            with os.fdopen(descriptor, "w") as file:
                file.write(write_limiter_state(state))
            os.replace(f"{path}.new", path)  # noqa: PTH105 - pathlib would be loaded for it
            self._journal.over("file", "what was done can be written again")
        except OSError as error:
            what = "what was done cannot be written for the sentry"
            self._journal.once("file", "error", what, str(error))

    def _read_late(self) -> Late:
        """Return whether each limit that the previous run set was set late."""
        path = f"{self._settings.folder}/{STATE_FILE}"
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - as above
                state = read_limiter_state(file.read(LARGEST_FILE_BYTES).decode(errors="replace"))
        except OSError:
            state = None
        limits = state.limited if state else ()
        return {(limit.uid, limit.gpu, limit.hard_bytes): limit.late for limit in limits}

    def _exit_if_driver_hangs(self) -> None:
        while time.monotonic() - self._beat_s < STUCK_AFTER_S + WRITE_INTERVAL_S:
            time.sleep(WRITE_INTERVAL_S)
        self._journal.event("error", "the driver does not return")
        os._exit(_STUCK)


def limiter(settings: LimiterSettings) -> int:
    """Make the driver limit a node's pods until SIGTERM; return the exit code.

    It is the exit code of `run_program`, or 142 (128 + SIGALRM, as for the sentry) if a call of the
    driver did not return for a minute.
    """

    def work(kube: Kube, journal: Journal) -> NoReturn:
        started = {"node": settings.node, "version": __version__, "dmem": settings.dmem}
        journal.event("info", "started", api=kube.url, **started)
        Limiter(settings, kube, NodeNvml(), journal).run()

    return run_program(settings.kubeconfig, work)
