"""One pod under the driver's limit: set and read back on its cgroup, and on its containers'."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from webhook.adapters.journal import Journal
from webhook.adapters.nvml import LimitDeniedError, Nvml, NvmlError
from webhook.core.enforcement.limits import NO_LIMIT
from webhook.core.formatting import format_amount
from webhook.core.node.limiter_state import MOST_EVENTS, MOST_LIMITED, LimitEvent, PodLimitState
from webhook.core.nvidia.drivers import Fault
from webhook.core.pod.gpus import EVERY_GPU
from webhook.limiter.cgroups import Leaf, NodeCgroups
from webhook.limiter.proof import why_denied

Late = dict[tuple[str, str, int], bool]
"""Of each limit, by pod, GPU and amount, whether it came late; the newest of them."""

SOON_S: Final = 150.0
"""For so long a listed pod's cgroup is searched for in short steps: an entry without a binding is
off the list after 120 s."""
YOUNG_S: Final = 30.0

_FIRST: Final = 2
"""Containers that run before any of the user's can: the sandbox and the sidecar."""
_FAILED: Final = frozenset({Fault.LIBRARY_MISSING, Fault.DRIVER_DOWN, Fault.DRIVER_CHANGED})


@dataclass(slots=True, kw_only=True)
class LimitedPod:
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
    held: dict[str, PodLimitState] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Why it could not be limited the last time, by GPU."""

    def is_young(self, now_s: float) -> bool:
        """Say whether its cgroups are searched for in short steps."""
        if self.set_s > now_s:
            return now_s - self.since_s < SOON_S
        return now_s - self.set_s < YOUNG_S


class PodLimiter:
    """Has the driver hold pods, and remembers what is to be told of that."""

    def __init__(self, nvml: Nvml, cgroups: NodeCgroups, journal: Journal, late: Late) -> None:
        """Prepare; `late` is what the last run knew."""
        self._nvml = nvml
        self._cgroups = cgroups
        self._journal = journal
        self.late = late
        self.told: deque[LimitEvent] = deque(maxlen=MOST_EVENTS)
        self._tellings = 0
        self.misc = True
        """Whether that is the back end; dmem otherwise."""
        self.changed = False
        """Whether there is something new to be told."""

    def limit(self, pod: LimitedPod, gpus: tuple[str, ...], now_s: float) -> bool:
        """Have the driver hold one pod on each of its GPUs, of those that are whole.

        Return whether the driver still does as it proved. Raises NvmlError where it is gone.
        """
        proven = True
        if not pod.path:
            return proven
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
                    proven = False
            except OSError as error:
                why = f"its cgroup cannot be used: {error}"
            if self._cgroups.pod(pod.uid) != pod.path:
                return True  # it ended meanwhile
            if why and pod.failed.get(uuid, "") != why:
                what = f"the driver does not hold it to its cap on {uuid}: {why}"
                self._add_event(pod, "a pod cannot be limited", what)
            pod.failed[uuid] = why
        if pod.set_s > now_s and pod.held.keys() >= set(named):
            pod.set_s = now_s
        return proven

    def _limit_on(self, pod: LimitedPod, uuid: str) -> None:
        """Set and read the limit of a pod's cgroup.

        It is set the first time also where it is read already: that may be an ancestor's, or what
        the driver keeps of a cgroup that is gone. It came late where none of ours was there and
        more containers ran than the sandbox and the sidecar, which waits for it: what they held by
        then is never counted. What was said of that before is kept, also over a restart.
        """
        path, want = self._cgroups.for_driver(pod.path), self._want(pod)
        if not self.misc:
            self._cgroups.enable_dmem(pod.path)
        found = self._nvml.limit(uuid, path)
        stands = found is not None and (found.soft_bytes, found.hard_bytes) == want
        held = pod.held.get(uuid)
        if held is None:
            containers = {leaf.container for leaf in pod.leaves if leaf.runs and leaf.container}
            late = not stands and len(containers) > _FIRST
            late = self.late.get((pod.uid, uuid, pod.cap_bytes), late)
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
            values = {
                "uid": pod.uid,
                "gpu": uuid,
                "limit": format_amount(pod.cap_bytes),
                "late": late,
            }
            self._journal.event("info" if held is None else "warning", what, **values)
            self.late[pod.uid, uuid, pod.cap_bytes], self.changed = late, True
            while len(self.late) > MOST_LIMITED:
                del self.late[next(iter(self.late))]
        used_bytes = found.used_bytes if found else 0
        pod.held[uuid] = PodLimitState(pod.uid, uuid, pod.cap_bytes, used_bytes, late)

    def _limit_leaves(self, pod: LimitedPod, uuid: str) -> None:
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
            if self.misc or found.hard_bytes != NO_LIMIT:
                self._report(pod, uuid, leaf, found.hard_bytes)
        if denied is not None:
            raise denied

    def _set(self, uuid: str, path: str, want: tuple[int, int]) -> None:
        if not self._nvml.set_limit(uuid, path, *want):
            raise NvmlError("nvmlDeviceSetMemoryLimits_v1", 3, gpu=uuid)

    def _want(self, pod: LimitedPod) -> tuple[int, int]:
        """Return soft and hard: dmem's soft limit is `dmem.min`, which a removed leaf leaves."""
        return (pod.cap_bytes if self.misc else 0), pod.cap_bytes

    def _report(self, pod: LimitedPod, uuid: str, leaf: Leaf, had_bytes: int) -> None:
        had = "none" if had_bytes == NO_LIMIT else format_amount(had_bytes)
        why = (
            f"container {leaf.container[:12] or 'unknown'} had a driver's limit of its own on"
            f" {uuid} ({had}), as its image's or its runtime's variables set it: it is the pod's"
            f" cap now, {format_amount(pod.cap_bytes)}"
        )
        if self.misc:
            why += "; the driver counts it apart from its pod, whose sum sidecar and sentry hold"
        self._add_event(pod, "a container had a limit of its own", why)

    def _add_event(self, pod: LimitedPod, what: str, why: str) -> None:
        """Log it, and have the sentry report it as an Event of the pod."""
        self._tellings += 1
        self.told.append(LimitEvent(self._tellings, pod.uid, why))
        self.changed = True
        self._journal.event("warning", what, why=why, uid=pod.uid)
