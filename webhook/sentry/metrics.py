"""The sentry's metrics: what the last scan showed, so who is gone leaves no figure behind.

Names and labels are relied on by dashboards and rules: they do not change.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from webhook.core.pod.gpus import EnforceBy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

    from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
    from webhook.core.nvidia.drivers import SeenGpu
    from webhook.sentry.holdings import Unmanaged

    OnGpus = list[tuple[str, GpuFigures, PodFigures]]
    """Pods on GPUs, with the pod's `namespace/name`."""

MOST_PODS: Final = 256
"""Of a node; of those without a promise the largest. The others are summed as the pod `_other`, for
an empty label would get the name of the sentry's own pod."""

MOST_PODS_ON_GPUS: Final = 900
"""Pods counted once for each of their GPUs; with four figures each, all we have stays below the
PodMonitor's `sampleLimit`, beyond which Prometheus takes nothing at all."""


_OTHER: Final = "_other"
_GPU: Final = ["node", "gpu", "uuid"]
_POD: Final = ["namespace", "pod"]
_PEAK: Final = "memory_peak_bytes"

_BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

_FIGURES_OF_GPUS: Final[tuple[tuple[str, str, Callable[[GpuFigures], int | None]], ...]] = (
    ("total", "All memory of a GPU.", lambda gpu: gpu.total_bytes),
    ("usable", "What pods can share of a GPU: all of it but the driver's reserve.",
     lambda gpu: gpu.usable_bytes),
    ("promised", "What pods on a GPU were promised; a pod that sees every GPU counts on each.",
     lambda gpu: gpu.promised_bytes),
    ("used", "In use on a GPU by all programs, as the driver says of the device.",
     lambda gpu: gpu.used_bytes),
    ("free", "What of a GPU may still be promised; below 0 where too much was promised.",
     lambda gpu: gpu.free_bytes),
    ("unattributed", "In use on a GPU and listed for no process: contexts, managed memory.",
     lambda gpu: gpu.unattributed_bytes),
)  # fmt: skip

_FIGURES_OF_PODS: Final[tuple[tuple[str, str, Callable[[PodFigures], int | None]], ...]] = (
    ("memory_cap_bytes", "What a pod may use of a GPU.", lambda pod: pod.cap_bytes),
    ("memory_used_bytes", "What a pod uses of a GPU; absent where it cannot be measured.",
     lambda pod: pod.used_bytes),
    (_PEAK, "The most that a pod was seen to use of a GPU.", lambda pod: pod.peak_bytes),
    ("processes", "Processes of a pod that the driver lists on a GPU.",
     lambda pod: pod.processes),
)  # fmt: skip


class _Snapshot(Collector):
    """Yields what was shown last; the whole of it is one reference, which another thread reads.

    Who is gone leaves nothing behind, and what is not known is absent, so that a failed read never
    seems to be a GPU that is idle.
    """

    def __init__(self, node: str, *, of_pods: bool) -> None:
        self._node = node
        self._of_pods = of_pods
        self.scanned_s: float | None = None
        self.shown: tuple[NodeFigures, Mapping[str, str], Unmanaged] | None = None
        self.counts = False

    def collect(self) -> Iterator[Metric]:
        if self.scanned_s is not None:
            last = GaugeMetricFamily(
                "vramwarden_sentry_last_look_timestamp_seconds",
                "Unix time of the last scan of the GPUs that the driver answered.",
                labels=["node"],
            )
            last.add_metric([self._node], self.scanned_s)
            yield last
        if self.shown is None:
            return
        node, names, unmanaged = self.shown
        yield from self._of_gpus(node)
        yield self._of_unmanaged(unmanaged)
        if self._of_pods:
            yield from self._of_pods_on_gpus(node, names)

    def _of_gpus(self, node: NodeFigures) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "vramwarden_gpu_info",
            "A GPU of the node, always 1; for joins.",
            labels=[*_GPU, "product", "driver_version", "enforcement"],
        )
        for gpu in node.gpus:
            info.add_metric(
                [*self._gpu(gpu), gpu.product, node.driver_version, node.enforcement], 1
            )
        yield info
        healthy = GaugeMetricFamily(
            "vramwarden_gpu_healthy",
            "0 where a GPU cannot be seen or the agent found it broken, at most two minutes "
            "late; else 1.",
            labels=_GPU,
        )
        for gpu in node.gpus:
            healthy.add_metric(self._gpu(gpu), int(gpu.healthy))
        yield healthy
        for name, what, of in _FIGURES_OF_GPUS:
            family = GaugeMetricFamily(f"vramwarden_gpu_memory_{name}_bytes", what, labels=_GPU)
            for gpu in node.gpus:
                if (figure := of(gpu)) is not None:
                    family.add_metric(self._gpu(gpu), figure)
            yield family

    def _of_unmanaged(self, unmanaged: Unmanaged) -> Metric:
        held = GaugeMetricFamily(
            "vramwarden_gpu_memory_unmanaged_bytes",
            "Memory held by a pod that was promised none, or by processes of no pod (pod_uid is "
            "empty). Absent while the list of what each pod was promised cannot be watched.",
            labels=[*_GPU, "pod_uid"],
        )
        all_held = [(gpu, *one) for gpu, pods in unmanaged.items() for one in pods.items()]
        for gpu, pod, held_bytes in sorted(all_held, key=lambda one: -one[2])[:MOST_PODS]:
            held.add_metric([*self._gpu(gpu), pod], held_bytes)
        return held

    def _of_pods_on_gpus(self, node: NodeFigures, names: Mapping[str, str]) -> Iterator[Metric]:
        """Yield each pod on each GPU, and one sum for each GPU of those that are too many.

        In a sum there is no peak, for peaks were at different times.
        """
        kept, rest = _kept(node, names)
        summed: dict[str, list[PodFigures]] = {gpu.uuid: [] for gpu in node.gpus}
        for _, gpu, pod in rest:
            summed[gpu.uuid].append(pod)
        for name, what, of in _FIGURES_OF_PODS:
            family = GaugeMetricFamily(f"vramwarden_pod_{name}", what, labels=[*_GPU, *_POD])
            for pod_name, gpu, pod in kept:
                if (figure := of(pod)) is not None:
                    family.add_metric([*self._gpu(gpu), *pod_name.split("/")], figure)
            for gpu in node.gpus:
                figures = [of(pod) for pod in summed[gpu.uuid]]
                known = [figure for figure in figures if figure is not None]
                if figures and len(known) == len(figures) and name != _PEAK:
                    family.add_metric([*self._gpu(gpu), _OTHER, _OTHER], sum(known))
            yield family
        yield self._of_idleness(kept, node.observed_s)
        if self.counts:
            yield self._of_stops(kept, rest)

    def _of_idleness(self, kept: OnGpus, observed_s: float) -> Metric:
        idle = GaugeMetricFamily(
            "vramwarden_sentry_pod_idle_seconds",
            "For how long no kernel of a pod ran on a GPU of which it holds memory, by samples "
            "that the driver takes each 10 s. Absent where one runs, or the driver takes none.",
            labels=["node", *_POD],
        )
        since_s = {name: pod.idle_since_s for name, _, pod in kept}
        for name, at_s in since_s.items():
            if at_s is not None:
                idle.add_metric([self._node, *name.split("/")], max(0.0, observed_s - at_s))
        return idle

    def _of_stops(self, kept: OnGpus, rest: OnGpus) -> Metric:
        stops = CounterMetricFamily(
            "vramwarden_pod_stops",
            "How often a process, or all, of a pod was stopped for its cap, as far as is known.",
            labels=["node", *_POD],
        )
        counted = {name: pod.stops for name, _, pod in kept}
        for name, number in counted.items():
            if number is not None:
                stops.add_metric([self._node, *name.split("/")], number)
        others = {name: pod.stops for name, _, pod in rest if name not in counted}
        if known := [number for number in others.values() if number is not None]:
            stops.add_metric([self._node, _OTHER, _OTHER], sum(known))
        return stops

    def _gpu(self, gpu: GpuFigures | SeenGpu) -> list[str]:
        return [self._node, str(gpu.index), gpu.uuid.lower()]


def _kept(node: NodeFigures, names: Mapping[str, str]) -> tuple[OnGpus, OnGpus]:
    """Return the first pods of the list, as far as they are shown one by one, and the others."""
    pods: dict[str, OnGpus] = {name: [] for name in names.values()}
    for gpu in node.gpus:
        for pod in gpu.pods:
            pods[names[pod.uid]].append((names[pod.uid], gpu, pod))
    kept: OnGpus = []
    rest: OnGpus = []
    for number, theirs in enumerate(filter(None, pods.values())):
        fits = number < MOST_PODS and len(kept) + len(theirs) <= MOST_PODS_ON_GPUS
        (kept if fits and not rest else rest).extend(theirs)
    return kept, rest


class SentryMetrics:
    """The metrics, in a registry of their own."""

    def __init__(self, node: str, *, of_pods: bool = True) -> None:
        self.registry = registry = CollectorRegistry()
        self._lock = Lock()
        self._changes = 0
        """Counted by the main thread alone."""
        self._written = -1, b""
        """The exposition, and of which change it is."""
        self._snapshot = _Snapshot(node, of_pods=of_pods)
        registry.register(self._snapshot)
        duration = Histogram(
            "vramwarden_sentry_look_duration_seconds",
            "How long a scan of all GPUs took: NVML opened, read and closed.",
            ["node"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._duration = duration.labels(node)
        stops = Counter(
            "vramwarden_sentry_stops",
            "What the sentry stopped for holding more than its cap: a process, or all of a pod.",
            ["node", "of", "by"],
            registry=registry,
        )
        self._stops = {
            (of, by): stops.labels(node, of, by)
            for of in ("process", "pod")
            for by in (EnforceBy.SIDECAR, EnforceBy.SENTRY)
        }

        would_stop = Counter(
            "vramwarden_sentry_would_stop",
            "Excesses that were reported and not stopped: onExcess: Report, or sentry.act=false.",
            ["node"],
            registry=registry,
        )
        self._would_stop = would_stop.labels(node)

    def scanned(self, took_s: float) -> None:
        """Count a scan."""
        self._duration.observe(took_s)
        self._changes += 1

    def show(
        self,
        node: NodeFigures,
        names: Mapping[str, str],
        unmanaged: Unmanaged,
        scanned_s: float | None,
        *,
        counts: bool = True,
    ) -> None:
        """Show what is known after a scan; its Unix time is None where no driver answered.

        `names` are the pods' own, by UID, in the order of the list: figures never carry them.
        `counts` is whether what was counted before we started is in it: a counter that begins
        lower, and then rises to that, would be read as so many stops of now.
        """
        self._snapshot.scanned_s = scanned_s or self._snapshot.scanned_s
        self._snapshot.counts = counts
        self._snapshot.shown = node, names, unmanaged
        self._changes += 1

    def stopped(self, of: str, by: EnforceBy) -> None:
        """Count a stop of a `process` or a `pod`."""
        self._stops[of, by].inc()
        self._changes += 1

    def would_stop(self) -> None:
        """Count an excess for which nothing was stopped."""
        self._would_stop.inc()
        self._changes += 1

    def exposition(self) -> bytes:
        """Return all of them as Prometheus reads them.

        It is written once for each scan: it takes some 30 ms with 900 pods, and every pod of the
        cluster can ask for it as often as it likes.
        """
        with self._lock:
            changes = self._changes
            if self._written[0] != changes:
                self._written = changes, generate_latest(self.registry)
            return self._written[1]
