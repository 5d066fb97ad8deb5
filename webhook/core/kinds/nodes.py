"""What a node's sentry saw, as the object `GPUNode` carries it: figures and UIDs, no names.

Everybody in the cluster may read it, so nothing of a namespace stands in it. Amounts in the object
are whole MiB: what is taken is rounded up, what is left down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from webhook.core.bounds import LONGEST_SENTENCE, LONGEST_STORED, LONGEST_WORD
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
from webhook.names import GPU_NODE_KIND, SEEING_API_VERSION

MAX_PODS: Final = 256
"""Of a GPU, managed ones and others each."""
STALE_S: Final = 180.0
"""Figures that are older are said to be old: a sentry writes them every 60 to 65 s."""
SENTRY_FRESH_S: Final = 120.0
"""Maximum age of figures that prove a sentry that acts, in seconds. Replacing a DaemonSet pod takes
less. The condition becomes `False` only after the same time without proof."""
HELD_BY_DRIVER, HELD_LATE, HELD_BY_SENTRY = "driver", "driver, late", "sentry"
HOLDERS: Final = (HELD_BY_DRIVER, HELD_LATE, "sidecar", HELD_BY_SENTRY)
"""Who may hold a pod to its cap, the strongest first."""
BY_DRIVER: Final = (HELD_BY_DRIVER, HELD_LATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFigures:
    """A pod that was promised memory of a GPU."""

    uid: str
    cap_bytes: int
    used_bytes: int | None = None
    """None where it could not be measured: unknown is not zero."""
    peak_bytes: int | None = None
    stops: int | None = None
    """How often something of it was stopped for its cap, as far as is known."""
    would_stop: int | None = None
    """Of how many excesses it was only reported that they would be stopped."""
    would_stop_since_s: float | None = None
    """Unix time of the first of them."""
    held_by: str = ""
    """`driver`, `driver, late`, `sidecar` or `sentry`: who holds it to its cap now, the strongest;
    empty where nobody does or that is unknown."""
    idle_since_s: float | None = None
    """Unix time since when none of its kernels was seen to run; None where one runs, or unknown."""
    processes: int | None = field(default=None, compare=False)
    """That the driver lists on the GPU; for metrics alone, the object has them not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """One GPU of a node."""

    uuid: str
    index: int
    product: str
    total_bytes: int
    usable_bytes: int
    """Less what the driver keeps for itself."""
    promised_bytes: int | None = None
    """By the node's list; None while that cannot be followed."""
    used_bytes: int | None = None
    free_bytes: int | None = None
    """What may still be promised; below zero where more was promised than there is."""
    unattributed_bytes: int | None = None
    """In use, and listed for no process."""
    healthy: bool = True
    pods: tuple[PodFigures, ...] = ()
    unmanaged: Mapping[str, int] = field(default_factory=dict)
    """What is held without a promise, by the pod's UID; empty for processes of no pod."""
    fault: str = ""
    """Why it is not healthy, as the node agent says it; empty where it does not."""
    measured: bool = False
    """True if its use and its list of processes could be read at the last try."""

    @property
    def unmanaged_bytes(self) -> int | None:
        """In use without a promise; None where nobody knows what was promised."""
        known = self.promised_bytes is not None or self.unmanaged
        return sum(self.unmanaged.values()) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """A node with GPUs."""

    name: str
    observed_s: float
    """Unix time."""
    driver_version: str
    enforcement: str
    """As the node's label of that name: `sidecar` or `none`."""
    acts: bool = False
    """True if the sentry may stop processes, has the right to, and follows its list of pods."""
    gpus: tuple[GpuFigures, ...] = ()
    not_shared: str = ""
    """Why its GPUs are not shared, and nothing of them can be promised; empty where they are."""
    limit: Proof | None = None
    """Whether the driver can hold caps, by the node's limiter; None where there is none."""
    held: str = ""
    """Why what is free on them is promised to nobody; empty where it may be."""


class SentryFault(StrEnum):
    """Reason why a node's sentry is not proved to act: the reason of the node's condition."""

    NO_SENTRY = "NoSentry"
    DOES_NOT_ACT = "SentryDoesNotAct"
    NOT_MEASURED = "GPUNotMeasured"


def find_sentry_fault(
    figures: NodeFigures | None, gpus: Iterable[Gpu | GpuFigures], now_s: float
) -> SentryFault | None:
    """Return why figures prove no sentry that acts on these GPUs; None if they prove one.

    `now_s` is a Unix time.
    """
    if figures is None or abs(now_s - figures.observed_s) > SENTRY_FRESH_S:
        return SentryFault.NO_SENTRY
    if not figures.acts:
        return SentryFault.DOES_NOT_ACT
    return SentryFault.NOT_MEASURED if unmeasured_gpus(figures, gpus) else None


def unmeasured_gpus(figures: NodeFigures, gpus: Iterable[Gpu | GpuFigures]) -> tuple[str, ...]:
    """Return the UUIDs of GPUs that a sentry does not measure.

    A GPU that does not answer the agent either gets no pod, and nothing there can be measured.
    """
    measured = {gpu.uuid for gpu in figures.gpus if gpu.measured}
    answering = (gpu.uuid for gpu in gpus if gpu.fault not in {FAULT_LOST, FAULT_SILENT})
    return tuple(uuid for uuid in answering if uuid not in measured)


def write_gpu_node(node: NodeFigures, node_uid: str = "") -> Json:
    """Return the object; with the node's UID it goes when the node goes."""
    metadata: Json = {"name": node.name}
    if node_uid:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node_uid}
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": SEEING_API_VERSION,
        "kind": GPU_NODE_KIND,
        "metadata": metadata,
        "status": _status(node),
    }


def read_gpu_node(raw: Mapping[str, Any]) -> NodeFigures | None:
    """Read a stored object; None where it shows nothing yet.

    Never fails: parts that are not as we write them are left out.
    """
    metadata, status = as_object(raw.get("metadata")), as_object(raw.get("status"))
    name, observed_s = metadata.get("name"), read_time(status.get("observedAt"))
    if not isinstance(name, str) or observed_s is None:
        return None
    gpus = [found for one in as_objects(status.get("gpus"), MAX_GPUS) if (found := _gpu(one))]
    return NodeFigures(
        name=name,
        observed_s=observed_s,
        driver_version=_text(status, "driverVersion"),
        enforcement=_text(status, "enforcement"),
        acts=status.get("acts") is True,
        gpus=tuple(gpus),
        not_shared=_text(status, "notShared", LONGEST_STORED),
        limit=_limit(as_object(status.get("driverLimit"))),
        held=_text(status, "held", LONGEST_STORED),
    )


def write_time(at_s: float) -> str:
    """Return a Unix time as Kubernetes writes it, to the second."""
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(value: object) -> float | None:
    """Return the Unix time that a text in RFC 3339 says, None where it says none.

    Nor where `write_time` could not write it: `9999-12-31T23:59:59-10:00` is in the year 10000.
    """
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
        return at.astimezone(UTC).timestamp() if at.tzinfo else None
    except (ValueError, OverflowError):
        return None


def held_by(figures: Iterable[PodFigures]) -> str:
    """Return who holds a pod to its cap, on the GPU on which it is held the least.

    Empty where nobody does on one of them, or that is unknown.
    """
    found = {one.held_by for one in figures} or {""}
    return "" if found - {*HOLDERS} else max(found, key=HOLDERS.index)


def largest_gpu(nodes: Iterable[NodeFigures] | None) -> int | None:
    """Return the usable bytes of the largest GPU; None if no node's figures are known."""
    sizes = (gpu.usable_bytes for node in nodes or () for gpu in node.gpus)
    return max(sizes, default=None)


def get_idle_since_s(figures: Iterable[PodFigures]) -> float | None:
    """Return since when (Unix time) no kernel of a pod was seen to run on any of its GPUs.

    None where one runs, or where that is unknown of a GPU.
    """
    since_s: float | None = None
    for one in figures:
        if one.idle_since_s is None:
            return None
        since_s = max(since_s or 0.0, one.idle_since_s)
    return since_s


def _status(node: NodeFigures) -> Json:
    gpus = node.gpus
    promised = [gpu.promised_bytes for gpu in gpus if gpu.promised_bytes is not None]
    used = [gpu.used_bytes for gpu in gpus if gpu.used_bytes is not None]
    free = [gpu.free_bytes for gpu in gpus if gpu.free_bytes is not None and gpu.healthy]
    held = sum(sum(gpu.unmanaged.values()) for gpu in gpus)
    summary: Json = {"gpus": len(gpus), "usable": _down(sum(gpu.usable_bytes for gpu in gpus))}
    if len(promised) == len(gpus):
        summary["promised"] = _up(sum(promised))
        summary["unmanaged"] = _up(held)
    if len(used) == len(gpus):
        summary["used"] = _up(sum(used))
    if free and not (node.not_shared or node.held):
        summary["largestFree"] = _down(max(0, *free))
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
            "why": limit.why[:LONGEST_SENTENCE],
        }
    whys = {"notShared": node.not_shared[:LONGEST_STORED], "held": node.held[:LONGEST_STORED]}
    return status | {key: why for key, why in whys.items() if why}


def _write_gpu(gpu: GpuFigures) -> Json:
    written: Json = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "product": gpu.product,
        "totalMi": gpu.total_bytes // MIB,
        "usableMi": gpu.usable_bytes // MIB,
    }
    _put(written, "promisedMi", gpu.promised_bytes, _ceil)
    _put(written, "usedMi", gpu.used_bytes, _ceil)
    _put(written, "freeMi", gpu.free_bytes, lambda value: value // MIB)
    _put(written, "unattributedMi", gpu.unattributed_bytes, _ceil)
    if not gpu.healthy:
        written["healthy"] = False
    if gpu.fault:
        written["fault"] = gpu.fault[:MAX_FAULT_LENGTH]
    if gpu.measured:
        written["measured"] = True
    written["pods"] = [_write_pod(pod) for pod in gpu.pods[:MAX_PODS]]
    written["unmanaged"] = [
        {"uid": uid, "usedMi": _ceil(used)} for uid, used in islice(gpu.unmanaged.items(), MAX_PODS)
    ]
    return written


def _write_pod(pod: PodFigures) -> Json:
    written: Json = {"uid": pod.uid, "capMi": _ceil(pod.cap_bytes)}
    _put(written, "usedMi", pod.used_bytes, _ceil)
    _put(written, "peakMi", pod.peak_bytes, _ceil)
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
    proven, why = raw.get("proven"), _text(raw, "why", LONGEST_SENTENCE)
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
        pods=tuple(pod for one in as_objects(raw.get("pods"), MAX_PODS) if (pod := _pod(one))),
        unmanaged={
            _text(one, "uid"): used
            for one in as_objects(raw.get("unmanaged"), MAX_PODS)
            if (used := _bytes(one, "usedMi")) is not None
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


def _ceil(value: int) -> int:
    return -(-value // MIB)


def _up(value: int) -> str:
    return format_bytes(_ceil(value) * MIB)


def _down(value: int) -> str:
    return format_bytes(value // MIB * MIB)


def _bytes(raw: Json, key: str, *, negative: bool = False) -> int | None:
    value = raw.get(key)
    if type(value) is not int or (value < 0 and not negative):
        return None
    return value * MIB


def _count(raw: Json, key: str) -> int | None:
    value = raw.get(key)
    return value if type(value) is int and value >= 0 else None


def _text(raw: Json, key: str, limit: int = LONGEST_WORD) -> str:
    value = raw.get(key)
    return replace_unprintable(value, limit) if isinstance(value, str) else ""
