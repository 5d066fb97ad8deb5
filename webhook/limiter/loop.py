"""The limiter's loop: find the cgroups of listed pods, have the driver limit them, read it back."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from webhook.adapters.kube.node_watch import (
    AssignmentsSeen,
    AssignmentsUnread,
    watch_assignments,
)
from webhook.adapters.nvml import LimitDeniedError, NvmlError
from webhook.core.enforcement.limits import NO_LIMIT
from webhook.core.node.cgroups import pod_directories
from webhook.core.node.driver import STUCK_AFTER_S, Driver, after_scan, needs_new_container
from webhook.core.node.inventory import Scan
from webhook.core.node.limits import (
    EVERY_S,
    FILE,
    LARGEST_FILE,
    MOST_LIMITED,
    MOST_TOLD,
    STALE_S,
    Limited,
    LimiterState,
    Proof,
    Told,
    read_limiter_state,
    write_limiter_state,
)
from webhook.core.nvidia.drivers import Fault
from webhook.core.pod.gpus import EVERY_GPU
from webhook.core.policy.values import DriverLimit
from webhook.core.words import amount
from webhook.limiter.cgroups import NodeCgroups
from webhook.limiter.proof import MISC, prove, why_denied
from webhook.nodekit.program import Inbox, NewContainerNeededError, answering, scan_with

if TYPE_CHECKING:
    from webhook.adapters.journal import Journal
    from webhook.adapters.kube.client import Kube
    from webhook.adapters.nvml import Nvml
    from webhook.limiter.cgroups import Leaf
    from webhook.limiter.settings import LimiterSettings

    Message = AssignmentsSeen | AssignmentsUnread

STEP_S: Final = 0.1
"""Between searches for the cgroup of a pod that was just listed, and for containers of a young
one; they take no call of the driver. From a pod's cgroup to its sandbox a kubelet takes longer."""
SOON_S: Final = 150.0
"""For so long a listed pod's cgroup is searched for in short steps: an entry without a binding is
off the list after 120 s."""
YOUNG_S: Final = 30.0
SELDOM_S: Final = 2.0
AGAIN_S: Final = 1.0
"""After a container's cgroup was first seen its limits are read once more: a runtime's hook may
have set one moments later."""
PROVE_EVERY_S: Final = 600.0
RETRY_S: Final = 60.0
WITHDRAW_AFTER_S: Final = STALE_S
"""For so long a driver may fail before the proof is withdrawn: a node's label is no lamp."""

_STUCK: Final = 142
_NOT_YET: Final = "not tried yet: no driver has answered"
_FIRST: Final = 2
"""Containers that run before any of the user's can: the sandbox and the sidecar."""
_NAMED: Final = 3
_FAILED: Final = frozenset({Fault.LIBRARY_MISSING, Fault.DRIVER_DOWN, Fault.DRIVER_CHANGED})


@dataclass(slots=True, kw_only=True)
class _LimitedPod:
    """A pod of the list that the driver is to hold."""

    uid: str
    cap_bytes: int
    gpus: tuple[str, ...]
    since_s: float
    path: str = ""
    """Of its cgroup; empty until that is there."""
    leaves: tuple[Leaf, ...] = ()
    searched_s: float = float("-inf")
    set_s: float = float("inf")
    """When all of its GPUs first had its limit."""
    held: dict[str, Limited] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Why it could not be limited the last time, by GPU."""

    def is_young(self, now_s: float) -> bool:
        """Say whether its cgroups are searched for in short steps."""
        if self.set_s > now_s:
            return now_s - self.since_s < SOON_S
        return now_s - self.set_s < YOUNG_S


class Limiter:
    """Has the driver hold the pods of its node until it is stopped."""

    def __init__(self, settings: LimiterSettings, kube: Kube, nvml: Nvml, journal: Journal) -> None:
        self._settings = settings
        self._kube = kube
        self._nvml = nvml
        self._journal = journal
        self._cgroups = NodeCgroups(settings.cgroups, settings.pod_uid)
        self._inbox: Inbox[Message] = Inbox()
        self._pods: dict[str, _LimitedPod] = {}
        self._proof = Proof(holds=False, why=_NOT_YET)
        self._proved: tuple[str, frozenset[str]] = ("", frozenset())
        """By which driver and on which GPUs it was tried last, and when."""
        self._proved_s = float("-inf")
        self._told: deque[Told] = deque(maxlen=MOST_TOLD)
        self._tellings = 0
        self._reading_s = float("-inf")
        """When the driver is to be asked next."""
        self._again_s = float("inf")
        """When it is to be asked once more about what is new."""
        self._written_s = float("-inf")
        """When the file was written last."""
        self._changed = True
        self._started_s = time.time()
        self._beat_s = time.monotonic()
        self._driver = Driver(scanned_s=self._beat_s, answered_s=self._beat_s)
        self._failing_s: float | None = None
        """Since when the driver does not answer."""
        self._late = self._read_late()
        """Of each limit, by pod, GPU and amount, whether it came late; the newest of them."""

    def run(self) -> NoReturn:
        """Run until an exception: a bug, a signal, or NewContainerNeededError."""
        start, send = self._inbox.start, self._inbox.put
        start(watch_assignments, self._kube, self._settings.namespace, self._settings.node, send)
        start(self._watch_over)
        while True:
            self._beat_s = time.monotonic()
            pause_s = self.step(self._beat_s)
            message = self._inbox.get(pause_s)
            while message is not None:
                self.on_report(message, time.monotonic())
                message = self._inbox.get()

    def on_report(self, message: Message, now_s: float) -> None:
        """Take what the watcher reports."""
        if isinstance(message, AssignmentsUnread):
            what = "the list of who was promised what cannot be followed"
            self._journal.once("list", "warning", what, message.why)
            return
        self._journal.over("list", "the list of who was promised what is followed again")
        listed: dict[str, _LimitedPod] = {}
        unreadable: list[str] = []
        for uid, one in message.assignments.items():
            hold = one.hold
            if hold is None or hold.limit is DriverLimit.OFF or len(listed) >= MOST_LIMITED:
                continue
            if pod_directories("kubepods", uid) and 0 < hold.cap_bytes < NO_LIMIT:
                listed[uid] = self._wanted(uid, hold.cap_bytes, one.uuids, now_s)
            else:
                unreadable.append(one.pod)
        if unreadable:
            what = "lines of the list have no UID or no cap"
            self._journal.once("lines", "error", what, ", ".join(unreadable[:_NAMED]))
        self._changed = self._changed or listed.keys() != self._pods.keys()
        self._pods = listed

    def step(self, now_s: float) -> float:
        """Do what is due, and return how long to wait."""
        if self._proof.holds:
            self._find_cgroups(now_s)
        if now_s >= min(self._reading_s, self._again_s):
            self._again_s = float("inf") if now_s >= self._again_s else self._again_s
            self._reading_s = now_s + (EVERY_S if self._proof.holds and self._pods else RETRY_S)
            self._ask(now_s)
        if self._changed or now_s - self._written_s >= EVERY_S:
            self._write(now_s)
        soonest_s = min(self._reading_s, self._again_s, self._written_s + EVERY_S)
        if self._proof.holds and self._pods:
            young = any(pod.is_young(now_s) for pod in self._pods.values())
            soonest_s = min(soonest_s, now_s + (STEP_S if young else SELDOM_S))
        return max(STEP_S, soonest_s - now_s)

    def _wanted(self, uid: str, cap_bytes: int, gpus: tuple[str, ...], now_s: float) -> _LimitedPod:
        """Return what is known of a pod that the driver is to hold.

        Its cap is never less than it was: the driver's entry would count what is held already.
        """
        known = self._pods.get(uid)
        if known is None:
            return _LimitedPod(uid=uid, cap_bytes=cap_bytes, gpus=gpus, since_s=now_s)
        if cap_bytes > known.cap_bytes or set(gpus) - set(known.gpus):
            known.cap_bytes = max(cap_bytes, known.cap_bytes)
            known.gpus, self._reading_s = gpus, now_s
        return known

    def _find_cgroups(self, now_s: float) -> None:
        """Find cgroups, of pods and of their containers; what is new is limited at once."""
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

    def _ask(self, now_s: float) -> None:
        """Open the driver, prove and limit, and close it."""
        scan = scan_with(
            self._nvml,
            self._settings.kernel_driver,
            Scan,
            lambda version: self._limit_all(version, now_s),
        )
        self._driver = after_scan(self._driver, scan, now_s)
        if needs_new_container(self._driver, now_s):
            raise NewContainerNeededError(scan.failed)
        if scan.fault is None:
            self._failing_s = None
            self._journal.over("driver", "the driver answers again")
            return
        self._journal.once("driver", "warning", "the driver does not answer", scan.failed)
        self._reading_s = min(self._reading_s, now_s + EVERY_S)
        self._failing_s = now_s if self._failing_s is None else self._failing_s
        if not self._proof.holds or now_s - self._failing_s >= WITHDRAW_AFTER_S:
            self._prove(Proof(holds=False, why=scan.failed))
            self._proved_s = float("-inf")

    def _limit_all(self, version: str, now_s: float) -> Scan:
        gpus = answering(self._nvml)
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
            self._reading_s = now_s + EVERY_S if self._pods else self._reading_s
            for pod in self._pods.values():
                self._limit(pod, whole, now_s)
        return Scan(gpus=gpus, driver_version=version)

    def _prove(self, proof: Proof) -> None:
        if proof == self._proof:
            return
        self._proof, self._changed = proof, True
        if proof.holds:
            self._journal.event("info", "the driver holds caps here", back_end=proof.back_end)
        else:
            self._journal.event("warning", "the driver holds no caps here", why=proof.why)

    def _limit(self, pod: _LimitedPod, gpus: tuple[str, ...], now_s: float) -> None:
        """Have the driver hold one pod on each of its GPUs."""
        if not pod.path:
            return
        named = gpus if pod.gpus == (EVERY_GPU,) else pod.gpus
        for uuid in named:
            if uuid not in gpus:
                continue
            try:
                self._limit_on(pod, uuid)
                self._limit_leaves(pod, uuid)
                why = ""
            except NvmlError as error:
                if error.fault in _FAILED:
                    raise
                why = why_denied(error)
                if not isinstance(error, LimitDeniedError):
                    self._proved_s = float("-inf")
            except OSError as error:
                why = f"its cgroup cannot be used: {error}"
            if self._cgroups.pod(pod.uid) != pod.path:
                return  # it ended meanwhile
            if why and pod.failed.get(uuid, "") != why:
                what = f"the driver does not hold it to its cap on {uuid}: {why}"
                self._add_event(pod, "a pod cannot be limited", what)
            pod.failed[uuid] = why
        if pod.set_s > now_s and pod.held.keys() >= set(named):
            pod.set_s = now_s

    def _limit_on(self, pod: _LimitedPod, uuid: str) -> None:
        """Set and read the limit of a pod's cgroup.

        It is set the first time also where it is read already: that may be an ancestor's, or what
        the driver keeps of a cgroup that is gone. It came late where none of ours was there and
        more containers ran than the sandbox and the sidecar, which waits for it: what they held by
        then is never counted. What was said of that before is kept, also over a restart.
        """
        path, want = self._cgroups.for_driver(pod.path), self._want(pod)
        if not self._is_misc():
            self._cgroups.enable_dmem(pod.path)
        found = self._nvml.limit(uuid, path)
        stands = found is not None and (found.soft_bytes, found.hard_bytes) == want
        held = pod.held.get(uuid)
        if held is None:
            containers = {leaf.container for leaf in pod.leaves if leaf.runs and leaf.container}
            late = not stands and len(containers) > _FIRST
            late = self._late.get((pod.uid, uuid, pod.cap_bytes), late)
        else:
            late = held.late
        if held is None or not stands:
            self._set(uuid, path, want)
            found = self._nvml.limit(uuid, path)
            if found is None or (found.soft_bytes, found.hard_bytes) != want:
                raise NvmlError(
                    "nvmlDeviceGetMemoryLimits_v1", 0, gpu=uuid, detail=f"{found} for {want}"
                )
            what = "a pod is limited" if held is None else "a pod's limit was lost, and is set anew"
            values = {"uid": pod.uid, "gpu": uuid, "limit": amount(pod.cap_bytes), "late": late}
            self._journal.event("info" if held is None else "warning", what, **values)
            self._late[pod.uid, uuid, pod.cap_bytes], self._changed = late, True
            while len(self._late) > MOST_LIMITED:
                del self._late[next(iter(self._late))]
        used_bytes = found.used_bytes if found else 0
        pod.held[uuid] = Limited(pod.uid, uuid, pod.cap_bytes, used_bytes, late)

    def _limit_leaves(self, pod: _LimitedPod, uuid: str) -> None:
        """Have no container's own limit be another than its pod's.

        | back end | what is read of a container | then |
        | --- | --- | --- |
        | misc | its pod's limit | nothing |
        | misc | another: it has one of its own | ours in its place, and told |
        | dmem | ours | nothing |
        | dmem | none, as each is born | ours |
        | dmem | another amount | ours in its place, and told |
        """
        want = self._want(pod)
        denied: LimitDeniedError | None = None
        for leaf in pod.leaves:
            try:
                path = self._cgroups.for_driver(leaf.path)
                found = self._nvml.limit(uuid, path)
                if found is None or (found.soft_bytes, found.hard_bytes) == want:
                    continue
                self._set(uuid, path, want)
            except OSError:  # it ended meanwhile
                continue
            except LimitDeniedError as error:  # it holds more already, or ended meanwhile
                denied = error if self._cgroups.exists(leaf.path) else denied
                continue
            if self._is_misc() or found.hard_bytes != NO_LIMIT:
                self._report(pod, uuid, leaf, found.hard_bytes)
        if denied is not None:
            raise denied

    def _set(self, uuid: str, path: str, want: tuple[int, int]) -> None:
        if not self._nvml.set_limit(uuid, path, *want):
            raise NvmlError("nvmlDeviceSetMemoryLimits_v1", 3, gpu=uuid)

    def _want(self, pod: _LimitedPod) -> tuple[int, int]:
        """Return soft and hard: dmem's soft limit is `dmem.min`, which a removed leaf leaves."""
        return (pod.cap_bytes if self._is_misc() else 0), pod.cap_bytes

    def _is_misc(self) -> bool:
        return self._proof.back_end == MISC

    def _report(self, pod: _LimitedPod, uuid: str, leaf: Leaf, had_bytes: int) -> None:
        had = "none" if had_bytes == NO_LIMIT else amount(had_bytes)
        why = (
            f"container {leaf.container[:12] or 'unknown'} had a driver's limit of its own on"
            f" {uuid} ({had}), as its image's or its runtime's variables set it: it is the pod's"
            f" cap now, {amount(pod.cap_bytes)}"
        )
        if self._is_misc():
            why += "; the driver counts it apart from its pod, whose sum sidecar and sentry hold"
        self._add_event(pod, "a container had a limit of its own", why)

    def _add_event(self, pod: _LimitedPod, what: str, why: str) -> None:
        """Log it, and have the sentry report it as an Event of the pod."""
        self._tellings += 1
        self._told.append(Told(self._tellings, pod.uid, why))
        self._changed = True
        self._journal.event("warning", what, why=why, uid=pod.uid)

    def _write(self, now_s: float) -> None:
        """Write the file for the sentry by a rename; a full disk must not stop us."""
        held = self._pods.values() if self._proof.holds else ()
        state = LimiterState(
            written_s=time.time(),
            started_s=self._started_s,
            proof=self._proof,
            limited=tuple(one for pod in held for one in pod.held.values()),
            told=tuple(self._told),
        )
        path = f"{self._settings.folder}/{FILE}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._written_s, self._changed = now_s, False
        try:
            descriptor = os.open(f"{path}.new", flags, 0o644)
            with os.fdopen(descriptor, "w") as file:
                file.write(write_limiter_state(state))
            os.replace(f"{path}.new", path)  # noqa: PTH105 - pathlib would be loaded for it
            self._journal.over("file", "what was done can be written again")
        except OSError as error:
            what = "what was done cannot be written for the sentry"
            self._journal.once("file", "error", what, str(error))

    def _read_late(self) -> dict[tuple[str, str, int], bool]:
        """Return what the last run knew of limits that it set."""
        path = f"{self._settings.folder}/{FILE}"
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - as above
                state = read_limiter_state(file.read(LARGEST_FILE).decode(errors="replace"))
        except OSError:
            state = None
        known = state.limited if state else ()
        return {(one.uid, one.gpu, one.hard_bytes): one.late for one in known}

    def _watch_over(self) -> None:
        """End the program where a call of the driver does not return: nothing else would."""
        while time.monotonic() - self._beat_s < STUCK_AFTER_S + EVERY_S:
            time.sleep(EVERY_S)
        self._journal.event("error", "the driver does not return")
        os._exit(_STUCK)
