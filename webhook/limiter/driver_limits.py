"""Driver limits of pods, set and read on their cgroups, and the proof that they work on a node.

Reading a limit proves nothing: the result is the same with a driver that is too old, with a driver
whose mode is off, and without a limit on this cgroup. For the proof a small limit is set on the
limiter's own pod, read, and removed. It has no other effect, since this pod holds no GPU memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from webhook.adapters.journal import Journal
from webhook.adapters.node_nvml import NodeNvml
from webhook.adapters.nvml import LimitDeniedError, NvmlError
from webhook.core.enforcement.driver_limit import NO_LIMIT, Limit
from webhook.core.formatting import format_amount
from webhook.core.node.limiter_state import MOST_EVENTS, MOST_LIMITED, LimitEvent, PodLimitState
from webhook.core.nvidia.drivers import LIMITS_FROM, Fault, Proof, ScannedGpu, can_limit_cgroups
from webhook.core.pod.gpus import EVERY_GPU
from webhook.limiter.cgroups import Leaf, NodeCgroups

Late = dict[tuple[str, str, int], bool]
"""True for a limit that was set late, keyed by pod, GPU and amount; only the newest limits are
kept."""

SOON_S: Final = 150.0
"""Time for which the cgroup of a listed pod is searched for at short intervals, in seconds: an
entry without a binding leaves the list after 120 s."""
YOUNG_S: Final = 30.0

_FIRST: Final = 2
"""Number of containers that run before the user's containers: the sandbox and the sidecar."""
_FAILED: Final = frozenset({Fault.LIBRARY_MISSING, Fault.DRIVER_DOWN, Fault.DRIVER_CHANGED})


@dataclass(slots=True, kw_only=True)
class LimitedPod:
    """A pod on the assignment list that the driver should limit."""

    uid: str
    cap_bytes: int
    gpus: tuple[str, ...]
    since_s: float
    path: str = ""
    leaves: tuple[Leaf, ...] = ()
    searched_s: float = float("-inf")
    set_s: float = float("inf")
    """Time at which all of the pod's GPUs first had the limit."""
    held: dict[str, PodLimitState] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Reason why the last attempt to set the limit failed, keyed by GPU; empty after success."""

    def is_young(self, now_s: float) -> bool:
        """Return True if the pod's cgroups are searched for at short intervals."""
        if self.set_s > now_s:
            return now_s - self.since_s < SOON_S
        return now_s - self.set_s < YOUNG_S


class PodLimiter:
    """Makes the driver limit pods, and collects events for the sentry."""

    def __init__(self, nvml: NodeNvml, cgroups: NodeCgroups, journal: Journal, late: Late) -> None:
        """`late` is from the previous run."""
        self._nvml = nvml
        self._cgroups = cgroups
        self._journal = journal
        self.late = late
        self.events: deque[LimitEvent] = deque(maxlen=MOST_EVENTS)
        self._event_count = 0
        self.misc = True
        """True for back end misc, False for dmem."""
        self.changed = False
        """True if the file for the sentry must be written again."""

    def limit(self, pod: LimitedPod, gpus: tuple[str, ...], now_s: float) -> bool:
        """Limit one pod on its GPUs; `gpus` are the GPUs of the node without MIG.

        Returns False if the driver no longer behaves as in the proof. Raises NvmlError if it is
        gone.
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
                return True  # the pod ended meanwhile
            if why and pod.failed.get(uuid, "") != why:
                what = f"the driver does not hold it to its cap on {uuid}: {why}"
                self._add_event(pod, "a pod cannot be limited", what)
            pod.failed[uuid] = why
        if pod.set_s > now_s and pod.held.keys() >= set(named):
            pod.set_s = now_s
        return proven

    def _limit_on(self, pod: LimitedPod, uuid: str) -> None:
        """Set and read the limit of a pod's cgroup.

        The first time the limit is set even if it can already be read: it may be an ancestor's
        limit, or one that the driver kept of a removed cgroup. The limit is late if it was missing
        while containers other than the sandbox and the sidecar ran, since the driver never counts
        the memory that they already held. `late` never changes afterwards, even after a restart.
        """
        path, want = self._cgroups.for_driver(pod.path), self._limits_to_set(pod)
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
        """Replace limits of containers that differ from their pod's limit.

        | back end | limit read of a container | action |
        | --- | --- | --- |
        | misc | its pod's limit | none |
        | misc | another limit, set on the container | set the pod's limit, and report it |
        | dmem | its pod's limit | none |
        | dmem | none, as for a new container | set the pod's limit |
        | dmem | another amount | set the pod's limit, and report it |
        """
        want = self._limits_to_set(pod)
        denied: LimitDeniedError | None = None
        for leaf in pod.leaves:
            try:
                path = self._cgroups.for_driver(leaf.path)
                found = self._nvml.limit(uuid, path)
                if found is None or (found.soft_bytes, found.hard_bytes) == want:
                    continue
                self._set(uuid, path, want)
            except OSError:  # the container ended meanwhile
                continue
            except LimitDeniedError as error:  # it uses more already, or has ended
                denied = error if self._cgroups.exists(leaf.path) else denied
                continue
            if self.misc or found.hard_bytes != NO_LIMIT:
                self._report(pod, uuid, leaf, found.hard_bytes)
        if denied is not None:
            raise denied

    def _set(self, uuid: str, path: str, want: tuple[int, int]) -> None:
        if not self._nvml.set_limit(uuid, path, *want):
            raise NvmlError("nvmlDeviceSetMemoryLimits_v1", 3, gpu=uuid)

    def _limits_to_set(self, pod: LimitedPod) -> tuple[int, int]:
        """Return soft and hard limit; no soft limit on dmem, as `dmem.min` outlives a container."""
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
        """Log an event of a pod, and add it to the events that the sentry reports."""
        self._event_count += 1
        self.events.append(LimitEvent(self._event_count, pod.uid, why))
        self.changed = True
        self._journal.event("warning", what, why=why, uid=pod.uid)


MISC: Final = "misc"
DMEM: Final = "dmem"
PROOF_BYTES: Final = 64 * 2**20

_TAKES_DMEM: Final = (
    "{}: the driver limits by the kernel's controller dmem here, which takes limiter.dmem=true; or"
    " load it with RmMemacctMode=1, for misc"
)
_EXCLUSIVE: Final = 3  # NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
_VGPU: Final = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU


def prove(
    nvml: NodeNvml, version: str, gpus: Iterable[ScannedGpu], cgroups: NodeCgroups, *, dmem: bool
) -> Proof:
    """Return whether limits work on each GPU; raises NvmlError if the driver as a whole fails.

    | driver, cgroups, GPUs | result |
    | --- | --- |
    | before r615 | not tried |
    | cgroup v1, or pods have no cgroups | not tried |
    | no GPU, or all of them in MIG mode or without memory of their own | not tried |
    | a vGPU, or a GPU in compute mode Exclusive_Process, as under MPS | not tried |
    | the driver rejects the limit, or returns another amount, on a GPU | no |
    | the driver accepts and returns the limit on all GPUs | yes |

    The host limits the memory of a vGPU. NVIDIA's plugin sets compute mode Exclusive_Process for
    MPS. The driver would charge the memory of all clients to the MPS server. Without MPS such a GPU
    is not shared.
    """
    if not can_limit_cgroups(version):
        return _failed_proof(
            f"not tried: driver {version} has no limits, r{LIMITS_FROM} or newer has"
        )
    if why := cgroups.find_own():
        return _failed_proof(f"not tried: {why}")
    whole = [gpu for gpu in gpus if not gpu.mig and gpu.usable_bytes]
    if not whole:
        return _failed_proof("not tried: no GPU here has memory of its own and is not in MIG mode")
    found: set[str] = set()
    for gpu in whole:
        try:
            proof = _prove_on(nvml, gpu.uuid, cgroups, dmem=dmem)
        except NvmlError as error:
            if error.fault in (Fault.DRIVER_DOWN, Fault.DRIVER_CHANGED):
                raise
            return _failed_proof(why_denied(error))
        except OSError as error:
            return _failed_proof(f"our own cgroup cannot be used: {error}")
        if not proof.holds:
            return proof
        found.add(proof.back_end)
    if len(found) > 1:
        return _failed_proof("the driver limits one GPU by misc and another by dmem")
    return Proof(holds=True, back_end=found.pop())


def why_denied(error: NvmlError) -> str:
    """Return why a limit was not set; names a missing permission if that is the reason."""
    if error.fault is Fault.NO_PERMISSION:
        return (
            f"{error.gpu}: the driver denies it to us (code {error.code}): it takes CAP_SYS_ADMIN"
            " of the node, which user namespaces (hostUsers: false) and whatever narrows the pod's"
            " capabilities take away"
        )
    return str(error)


def _prove_on(nvml: NodeNvml, uuid: str, cgroups: NodeCgroups, *, dmem: bool) -> Proof:
    """Set a limit on the limiter's own pod, and read it on the pod and on its container.

    The container's limit shows the back end, which the driver does not report: on misc it equals
    the pod's limit, on dmem each cgroup has a separate limit.
    """
    compute, virtual = nvml.modes(uuid)
    if virtual == _VGPU:
        return _failed_proof(f"not tried: {uuid} is a vGPU, whose memory its host limits")
    if compute == _EXCLUSIVE:
        return _failed_proof(
            f"not tried: {uuid} is of one process alone (Exclusive_Process), as under MPS"
        )
    pod, leaf = cgroups.for_driver(cgroups.own_pod), cgroups.for_driver(cgroups.own_leaf)
    taken = nvml.set_limit(uuid, pod, 0, PROOF_BYTES)
    if not taken and dmem and cgroups.offers_dmem():
        cgroups.enable_dmem(cgroups.own_pod)
        taken = nvml.set_limit(uuid, pod, 0, PROOF_BYTES)
    if not taken and not dmem and cgroups.offers_dmem():
        return _failed_proof(f"not tried: {_TAKES_DMEM.format(uuid)}")
    if not taken:
        return _failed_proof(
            f"{uuid}: the driver takes no limit (by its mode RmMemacctMode, or the kernel)"
        )
    says, inherited = (nvml.limit(uuid, path) for path in (pod, leaf))
    back_end = MISC if _is_proof(inherited) else DMEM
    if back_end == DMEM and dmem:
        nvml.set_limit(uuid, leaf, 0, PROOF_BYTES)
        inherited = nvml.limit(uuid, leaf)
        nvml.set_limit(uuid, leaf, 0, NO_LIMIT)
    nvml.set_limit(uuid, pod, 0, NO_LIMIT)
    if not _is_proof(says):
        return _failed_proof(
            f"{uuid}: the driver took a limit of {PROOF_BYTES} bytes and says {says}"
        )
    if back_end == DMEM and not dmem:
        return _failed_proof(_TAKES_DMEM.format(uuid))
    if not _is_proof(inherited):
        return _failed_proof(f"{uuid}: the driver holds no container apart: it says {inherited}")
    return Proof(holds=True, back_end=back_end)


def _is_proof(limit: Limit | None) -> bool:
    return limit is not None and limit.hard_bytes == PROOF_BYTES


def _failed_proof(why: str) -> Proof:
    return Proof(holds=False, why=why)
