"""The object `GPUNode`: figures of a node's sentry, with pod UIDs but without names.

Every user of the cluster may read a GPUNode, so it has no data of a namespace. Amounts in the
object are whole MiB. Used and requested memory is rounded up, free memory is rounded down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from webhook.core.bounds import MAX_SENTENCE_LENGTH, MAX_STRING_LENGTH, MAX_WORD_LENGTH
from webhook.core.formatting import replace_unprintable
from webhook.core.nvidia.drivers import Proof
from webhook.core.pod.fields import Json, as_object, as_objects
from webhook.core.pod.gpus import (
    FAULT_LOST,
    FAULT_SILENT,
    MAX_FAULT_LENGTH,
    MAX_GPUS,
    MAX_PRODUCT_LENGTH,
    Gpu,
    is_valid_gpu_id,
)
from webhook.core.pod.quantity import MIB, format_bytes
from webhook.names import GPU_NODE_KIND, GROUP_VERSION

MAX_PODS: Final = 256
"""Maximum number of managed pods, and of unmanaged pods, listed per GPU."""
STALE_S: Final = 180.0
"""Age in seconds from which figures are reported as old. A sentry writes every 60 to 65 s."""
SENTRY_FRESH_S: Final = 120.0
"""Maximum age in seconds of figures that prove that the sentry acts. Replacing a DaemonSet pod
takes less. The condition only becomes `False` after the same time without proof."""
HELD_BY_DRIVER, HELD_LATE, HELD_BY_SENTRY = "driver", "driver, late", "sentry"
HOLDERS: Final = (HELD_BY_DRIVER, HELD_LATE, "sidecar", HELD_BY_SENTRY)
"""Enforcers of a pod's cap, strongest first."""
BY_DRIVER: Final = (HELD_BY_DRIVER, HELD_LATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFigures:
    """Figures of a pod with an amount on a GPU."""

    uid: str
    cap_bytes: int
    used_bytes: int | None = None
    """Memory in use, in bytes; None if it could not be measured."""
    peak_bytes: int | None = None
    stops: int | None = None
    """Number of times that the pod was stopped for exceeding its cap; None if unknown."""
    would_stop: int | None = None
    """Number of excesses that were reported without stopping the pod."""
    would_stop_since_s: float | None = None
    """Unix time of the first reported excess; None without one."""
    held_by: str = ""
    """Strongest current enforcer of the pod's cap: `driver`, `driver, late`, `sidecar` or
    `sentry`; empty if none or unknown."""
    idle_since_s: float | None = None
    """Unix time at which the pod's last kernel ran; None if a kernel is running or if unknown."""
    processes: int | None = field(default=None, compare=False)
    """Number of the pod's processes in the driver's list; only for metrics, not in the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """Figures of one GPU of a node."""

    uuid: str
    index: int
    product: str
    total_bytes: int
    usable_bytes: int
    """Total memory without the driver's reserve, in bytes."""
    promised_bytes: int | None = None
    """Bytes reserved by the node's assignment list; None while the list is unreadable."""
    used_bytes: int | None = None
    free_bytes: int | None = None
    """Bytes that may still be reserved; negative if reservations exceed the memory."""
    unattributed_bytes: int | None = None
    """Bytes in use that the driver reports for no process."""
    healthy: bool = True
    pods: tuple[PodFigures, ...] = ()
    unmanaged: Mapping[str, int] = field(default_factory=dict)
    """Bytes of unmanaged memory, keyed by pod UID; the key is empty for processes outside of
    pods."""
    fault: str = ""
    """Reason why the GPU is unhealthy, as reported by the node agent; may be empty."""
    measured: bool = False
    """True if the GPU's memory and process list could be read at the last scan."""

    @property
    def unmanaged_bytes(self) -> int | None:
        """Unmanaged bytes of all pods and processes; None if the assignment list is unknown."""
        known = self.promised_bytes is not None or self.unmanaged
        return sum(self.unmanaged.values()) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """Figures of a node with GPUs."""

    name: str
    observed_s: float
    driver_version: str
    enforcement: str
    """Value of the node's enforcement label: `sidecar` or `none`."""
    acts: bool = False
    """True if the sentry may stop processes, has the permission and follows the assignment list."""
    gpus: tuple[GpuFigures, ...] = ()
    not_shared: str = ""
    """Reason why the node's GPUs are not shared; empty if they are shared."""
    limit: Proof | None = None
    """The limiter's proof that the driver enforces caps; None without a limiter."""
    held: str = ""
    """Reason why no further pod gets a GPU; empty if further pods may get one."""


class SentryFault(StrEnum):
    """Reason in the node's condition while its sentry is not proven to act."""

    NO_SENTRY = "NoSentry"
    DOES_NOT_ACT = "SentryDoesNotAct"
    NOT_MEASURED = "GPUNotMeasured"


def find_sentry_fault(
    figures: NodeFigures | None, gpus: Iterable[Gpu | GpuFigures], now_s: float
) -> SentryFault | None:
    """Return the reason why figures do not prove that the sentry acts on these GPUs, or None.

    `now_s` is a Unix time.
    """
    if figures is None or abs(now_s - figures.observed_s) > SENTRY_FRESH_S:
        return SentryFault.NO_SENTRY
    if not figures.acts:
        return SentryFault.DOES_NOT_ACT
    return SentryFault.NOT_MEASURED if unmeasured_gpus(figures, gpus) else None


def unmeasured_gpus(figures: NodeFigures, gpus: Iterable[Gpu | GpuFigures]) -> tuple[str, ...]:
    """Return the UUIDs of GPUs that the sentry does not measure.

    A GPU that does not respond to the node agent is left out: it gets no pod and cannot be
    measured.
    """
    measured = {gpu.uuid for gpu in figures.gpus if gpu.measured}
    answering = (gpu.uuid for gpu in gpus if gpu.fault not in {FAULT_LOST, FAULT_SILENT})
    return tuple(uuid for uuid in answering if uuid not in measured)


def write_gpu_node(node: NodeFigures, node_uid: str = "") -> Json:
    """Return the GPUNode object. With `node_uid`, the node owns the object."""
    metadata: Json = {"name": node.name}
    if node_uid:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node_uid}
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": GROUP_VERSION,
        "kind": GPU_NODE_KIND,
        "metadata": metadata,
        "status": _status(node),
    }


def read_gpu_node(raw: Mapping[str, Any]) -> NodeFigures | None:
    """Return the figures in a stored object, or None if it has no figures yet.

    Never fails: malformed parts are left out.
    """
    metadata, status = as_object(raw.get("metadata")), as_object(raw.get("status"))
    name, observed_s = metadata.get("name"), read_time(status.get("observedAt"))
    if not isinstance(name, str) or observed_s is None:
        return None
    gpus = [found for item in as_objects(status.get("gpus"), MAX_GPUS) if (found := _gpu(item))]
    return NodeFigures(
        name=name,
        observed_s=observed_s,
        driver_version=_text(status, "driverVersion"),
        enforcement=_text(status, "enforcement"),
        acts=status.get("acts") is True,
        gpus=tuple(gpus),
        not_shared=_text(status, "notShared", MAX_STRING_LENGTH),
        limit=_limit(as_object(status.get("driverLimit"))),
        held=_text(status, "held", MAX_STRING_LENGTH),
    )


def write_time(at_s: float) -> str:
    """Return a Unix time in Kubernetes' format, to the second."""
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(value: object) -> float | None:
    """Return the Unix time of an RFC 3339 timestamp, or None for anything else.

    Also returns None for a time that `write_time` could not write: `9999-12-31T23:59:59-10:00` is
    in the year 10000.
    """
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
        return at.astimezone(UTC).timestamp() if at.tzinfo else None
    except (ValueError, OverflowError):
        return None


def held_by(figures: Iterable[PodFigures]) -> str:
    """Return the weakest enforcer of a pod's cap over all its GPUs.

    Returns an empty string if a GPU has no enforcer or the enforcer is unknown.
    """
    found = {figure.held_by for figure in figures} or {""}
    return "" if found - {*HOLDERS} else max(found, key=HOLDERS.index)


def largest_gpu(nodes: Iterable[NodeFigures] | None) -> int | None:
    """Return the usable bytes of the largest GPU, or None if no figures are known."""
    sizes = (gpu.usable_bytes for node in nodes or () for gpu in node.gpus)
    return max(sizes, default=None)


def get_idle_since_s(figures: Iterable[PodFigures]) -> float | None:
    """Return the Unix time since which a pod is idle on all its GPUs.

    Returns None if one of the pod's kernels is running, or if this is unknown for a GPU.
    """
    since_s: float | None = None
    for figure in figures:
        if figure.idle_since_s is None:
            return None
        since_s = max(since_s or 0.0, figure.idle_since_s)
    return since_s


def _status(node: NodeFigures) -> Json:
    gpus = node.gpus
    promised = [gpu.promised_bytes for gpu in gpus if gpu.promised_bytes is not None]
    used = [gpu.used_bytes for gpu in gpus if gpu.used_bytes is not None]
    free = [gpu.free_bytes for gpu in gpus if gpu.free_bytes is not None and gpu.healthy]
    held = sum(sum(gpu.unmanaged.values()) for gpu in gpus)
    summary: Json = {
        "gpus": len(gpus),
        "usable": _format_rounded_down(sum(gpu.usable_bytes for gpu in gpus)),
    }
    if len(promised) == len(gpus):
        summary["promised"] = _format_rounded_up(sum(promised))
        summary["unmanaged"] = _format_rounded_up(held)
    if len(used) == len(gpus):
        summary["used"] = _format_rounded_up(sum(used))
    if free and not (node.not_shared or node.held):
        summary["largestFree"] = _format_rounded_down(max(0, *free))
    status: Json = {
        "observedAt": write_time(node.observed_s),
        "driverVersion": node.driver_version,
        "enforcement": node.enforcement,
        "acts": node.acts,
        "summary": summary,
        "gpus": [_write_gpu(gpu) for gpu in gpus],
    }
    if (limit := node.limit) is not None:
        status["driverLimit"] = {
            "proven": limit.holds,
            "backEnd": limit.back_end,
            "why": limit.why[:MAX_SENTENCE_LENGTH],
        }
    whys = {"notShared": node.not_shared[:MAX_STRING_LENGTH], "held": node.held[:MAX_STRING_LENGTH]}
    return status | {key: why for key, why in whys.items() if why}


def _write_gpu(gpu: GpuFigures) -> Json:
    written: Json = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "product": gpu.product,
        "totalMi": gpu.total_bytes // MIB,
        "usableMi": gpu.usable_bytes // MIB,
    }
    _put(written, "promisedMi", gpu.promised_bytes, _to_mib_rounded_up)
    _put(written, "usedMi", gpu.used_bytes, _to_mib_rounded_up)
    _put(written, "freeMi", gpu.free_bytes, lambda value: value // MIB)
    _put(written, "unattributedMi", gpu.unattributed_bytes, _to_mib_rounded_up)
    if not gpu.healthy:
        written["healthy"] = False
    if gpu.fault:
        written["fault"] = gpu.fault[:MAX_FAULT_LENGTH]
    if gpu.measured:
        written["measured"] = True
    written["pods"] = [_write_pod(pod) for pod in gpu.pods[:MAX_PODS]]
    written["unmanaged"] = [
        {"uid": uid, "usedMi": _to_mib_rounded_up(used)}
        for uid, used in islice(gpu.unmanaged.items(), MAX_PODS)
    ]
    return written


def _write_pod(pod: PodFigures) -> Json:
    written: Json = {"uid": pod.uid, "capMi": _to_mib_rounded_up(pod.cap_bytes)}
    _put(written, "usedMi", pod.used_bytes, _to_mib_rounded_up)
    _put(written, "peakMi", pod.peak_bytes, _to_mib_rounded_up)
    if pod.stops is not None:
        written["stops"] = pod.stops
    if pod.would_stop is not None and pod.would_stop_since_s is not None:
        written["wouldStop"] = pod.would_stop
        written["wouldStopSince"] = write_time(pod.would_stop_since_s)
    if pod.held_by:
        written["heldBy"] = pod.held_by
    if pod.idle_since_s is not None:
        written["idleSince"] = write_time(pod.idle_since_s)
    return written


def _limit(raw: Json) -> Proof | None:
    proven, why = raw.get("proven"), _text(raw, "why", MAX_SENTENCE_LENGTH)
    if type(proven) is not bool:
        return None
    return Proof(proven, _text(raw, "backEnd"), why)


def _gpu(raw: Json) -> GpuFigures | None:
    uuid, index = raw.get("uuid", ""), raw.get("index", -1)
    total, usable = _bytes(raw, "totalMi"), _bytes(raw, "usableMi")
    if usable is None or not is_valid_gpu_id(uuid, index):
        return None
    return GpuFigures(
        uuid=uuid,
        index=index,
        product=_text(raw, "product", MAX_PRODUCT_LENGTH),
        total_bytes=usable if total is None else total,
        usable_bytes=usable,
        promised_bytes=_bytes(raw, "promisedMi"),
        used_bytes=_bytes(raw, "usedMi"),
        free_bytes=_bytes(raw, "freeMi", negative=True),
        unattributed_bytes=_bytes(raw, "unattributedMi"),
        healthy=raw.get("healthy") is not False,
        pods=tuple(pod for item in as_objects(raw.get("pods"), MAX_PODS) if (pod := _pod(item))),
        unmanaged={
            _text(item, "uid"): used
            for item in as_objects(raw.get("unmanaged"), MAX_PODS)
            if (used := _bytes(item, "usedMi")) is not None
        },
        fault=_text(raw, "fault", MAX_FAULT_LENGTH),
        measured=raw.get("measured") is True,
    )


def _pod(raw: Json) -> PodFigures | None:
    uid, cap = _text(raw, "uid"), _bytes(raw, "capMi")
    if not uid or cap is None:
        return None
    would_stop, since_s = _count(raw, "wouldStop"), read_time(raw.get("wouldStopSince"))
    if would_stop is None or since_s is None:
        would_stop = since_s = None
    return PodFigures(
        uid=uid,
        cap_bytes=cap,
        used_bytes=_bytes(raw, "usedMi"),
        peak_bytes=_bytes(raw, "peakMi"),
        stops=_count(raw, "stops"),
        would_stop=would_stop,
        would_stop_since_s=since_s,
        held_by=_text(raw, "heldBy"),
        idle_since_s=read_time(raw.get("idleSince")),
    )


def _put(into: Json, key: str, value: int | None, rounded: Callable[[int], int]) -> None:
    if value is not None:
        into[key] = rounded(value)


def _to_mib_rounded_up(value: int) -> int:
    return -(-value // MIB)


def _format_rounded_up(value: int) -> str:
    return format_bytes(_to_mib_rounded_up(value) * MIB)


def _format_rounded_down(value: int) -> str:
    return format_bytes(value // MIB * MIB)


def _bytes(raw: Json, key: str, *, negative: bool = False) -> int | None:
    value = raw.get(key)
    if type(value) is not int or (value < 0 and not negative):
        return None
    return value * MIB


def _count(raw: Json, key: str) -> int | None:
    value = raw.get(key)
    return value if type(value) is int and value >= 0 else None


def _text(raw: Json, key: str, limit: int = MAX_WORD_LENGTH) -> str:
    value = raw.get(key)
    return replace_unprintable(value, limit) if isinstance(value, str) else ""
