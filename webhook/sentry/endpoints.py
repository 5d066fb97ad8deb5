"""The sentry's port: Prometheus metrics of the last scan, and responses to probes.

A pod or GPU that is gone has no series. Dashboards and alerting rules rely on names and labels of
metrics, so these do not change.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any, Final
from wsgiref.types import StartResponse

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from webhook.adapters.plain_http import PlainHttpServer
from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
from webhook.core.nvidia.drivers import ScannedGpu
from webhook.core.pod.gpus import EnforceBy
from webhook.sentry.usage import Unmanaged

OnGpus = list[tuple[str, GpuFigures, PodFigures]]
"""Pods on GPUs, each with its `namespace/name` and GPU."""

MAX_PODS: Final = 256
"""Maximum number of pods with their own series; of pods without an assignment, the largest get
one. The others are summed as the pod `_other`: Prometheus would replace an empty label by the
name of the sentry's pod."""

MOST_PODS_ON_GPUS: Final = 900
"""Maximum number of pods with their own series, counting a pod once per GPU. With four figures
each, all series stay below the `sampleLimit` of the PodMonitor, above which Prometheus drops
the scrape."""


_OTHER: Final = "_other"
_GPU: Final = ["node", "gpu", "uuid"]
_POD: Final = ["namespace", "pod"]
_PEAK: Final = "memory_peak_bytes"

_BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

_FIGURES_OF_GPUS: Final[tuple[tuple[str, str, Callable[[GpuFigures], int | None]], ...]] = (
    ("total", "Total memory of the GPU.", lambda gpu: gpu.total_bytes),
    ("usable", "Memory of the GPU that pods can share: the total less the driver's reserve.",
     lambda gpu: gpu.usable_bytes),
    ("promised", "Memory promised to pods on the GPU; a pod that sees every GPU counts on each.",
     lambda gpu: gpu.promised_bytes),
    ("used", "Memory in use on the GPU, as the driver reports it for the device.",
     lambda gpu: gpu.used_bytes),
    ("free", "Memory of the GPU that can still be promised; negative if too much was promised.",
     lambda gpu: gpu.free_bytes),
    ("unattributed", "Used memory that the driver lists for no process: contexts, managed memory.",
     lambda gpu: gpu.unattributed_bytes),
)  # fmt: skip

_FIGURES_OF_PODS: Final[tuple[tuple[str, str, Callable[[PodFigures], int | None]], ...]] = (
    ("memory_cap_bytes", "Memory cap of the pod on the GPU.", lambda pod: pod.cap_bytes),
    ("memory_used_bytes", "Memory that the pod uses on the GPU; absent if it cannot be measured.",
     lambda pod: pod.used_bytes),
    (_PEAK, "Highest measured use of the pod on the GPU.", lambda pod: pod.peak_bytes),
    ("processes", "Processes of the pod that the driver lists on the GPU.",
     lambda pod: pod.processes),
)  # fmt: skip


class _Snapshot(Collector):
    """Yields the last figures, which are one reference that another thread reads.

    Unknown figures are absent, so that a failed read is not mistaken for an idle GPU.
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
                "vramwarden_sentry_last_scan_timestamp_seconds",
                "Unix time of the last successful scan of the GPUs.",
                labels=["node"],
            )
            last.add_metric([self._node], self.scanned_s)
            yield last
        if self.shown is None:
            return
        node, names, unmanaged = self.shown
        yield from self._gpu_metrics(node)
        yield self._unmanaged_metrics(unmanaged)
        if self._of_pods:
            yield from self._pod_metrics(node, names)

    def _gpu_metrics(self, node: NodeFigures) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "vramwarden_gpu_info",
            "One per GPU of the node, always 1; for joins.",
            labels=[*_GPU, "product", "driver_version", "enforcement"],
        )
        for gpu in node.gpus:
            info.add_metric(
                [*self._gpu(gpu), gpu.product, node.driver_version, node.enforcement], 1
            )
        yield info
        healthy = GaugeMetricFamily(
            "vramwarden_gpu_healthy",
            "1 if the GPU works, 0 if it is missing or the agent reports it broken; at most two "
            "minutes late.",
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

    def _unmanaged_metrics(self, unmanaged: Unmanaged) -> Metric:
        held = GaugeMetricFamily(
            "vramwarden_gpu_memory_unmanaged_bytes",
            "Memory held by a pod without a promise, or by processes outside of pods (`pod_uid` is "
            "empty). Absent while the assignment list cannot be watched.",
            labels=[*_GPU, "pod_uid"],
        )
        all_held = [(gpu, *item) for gpu, pods in unmanaged.items() for item in pods.items()]
        for gpu, pod, held_bytes in sorted(all_held, key=lambda item: -item[2])[:MAX_PODS]:
            held.add_metric([*self._gpu(gpu), pod], held_bytes)
        return held

    def _pod_metrics(self, node: NodeFigures, names: Mapping[str, str]) -> Iterator[Metric]:
        """Yield metrics of each pod on each GPU, and a sum per GPU of pods beyond the maximum.

        A sum has no peak, since the pods' peaks were at different times.
        """
        kept, rest = _split_listed_pods(node, names)
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
        yield self._idle_metrics(kept, node.observed_s)
        if self.counts:
            yield self._stop_metrics(kept, rest)

    def _idle_metrics(self, kept: OnGpus, observed_s: float) -> Metric:
        idle = GaugeMetricFamily(
            "vramwarden_sentry_pod_idle_seconds",
            "Time since a kernel of the pod last ran, by samples every 10 s, if the pod holds GPU "
            "memory. Absent while a kernel runs, and on drivers without samples.",
            labels=["node", *_POD],
        )
        since_s = {name: pod.idle_since_s for name, _, pod in kept}
        for name, at_s in since_s.items():
            if at_s is not None:
                idle.add_metric([self._node, *name.split("/")], max(0.0, observed_s - at_s))
        return idle

    def _stop_metrics(self, kept: OnGpus, rest: OnGpus) -> Metric:
        stops = CounterMetricFamily(
            "vramwarden_pod_stops",
            "Stops of a process or of the whole pod because the pod exceeded its cap.",
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

    def _gpu(self, gpu: GpuFigures | ScannedGpu) -> list[str]:
        return [self._node, str(gpu.index), gpu.uuid.lower()]


def _split_listed_pods(node: NodeFigures, names: Mapping[str, str]) -> tuple[OnGpus, OnGpus]:
    """Return the first pods of the list, which get their own series, and the remaining pods."""
    pods: dict[str, OnGpus] = {name: [] for name in names.values()}
    for gpu in node.gpus:
        for pod in gpu.pods:
            pods[names[pod.uid]].append((names[pod.uid], gpu, pod))
    kept: OnGpus = []
    rest: OnGpus = []
    for number, theirs in enumerate(filter(None, pods.values())):
        fits = number < MAX_PODS and len(kept) + len(theirs) <= MOST_PODS_ON_GPUS
        (kept if fits and not rest else rest).extend(theirs)
    return kept, rest


class SentryMetrics:
    """Metrics of the sentry in a separate registry."""

    def __init__(self, node: str, *, of_pods: bool = True) -> None:
        self.registry = registry = CollectorRegistry()
        self._lock = Lock()
        self._changes = 0
        """Number of changes of the metrics; only the main thread increments it."""
        self._written = -1, b""
        """Number of changes at the last exposition, and its content."""
        self._snapshot = _Snapshot(node, of_pods=of_pods)
        registry.register(self._snapshot)
        duration = Histogram(
            "vramwarden_sentry_scan_duration_seconds",
            "Duration of a scan of all GPUs: NVML opened, read and closed.",
            ["node"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._duration = duration.labels(node)
        stops = Counter(
            "vramwarden_sentry_stops",
            "Stops by the sentry of pods above their cap: of one process, or of the whole pod.",
            ["node", "target", "enforcer"],
            registry=registry,
        )
        self._stops = {
            (target, enforcer): stops.labels(node, target, enforcer)
            for target in ("process", "pod")
            for enforcer in (EnforceBy.SIDECAR, EnforceBy.SENTRY)
        }

        would_stop = Counter(
            "vramwarden_sentry_would_stop",
            "Excesses that were only reported, because of onExcess: Report or sentry.act=false.",
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
        """Publish the figures of a scan.

        `scanned_s` is the Unix time of the scan, None if the driver did not respond. `names` has
        `namespace/name` keyed by UID, in the order of the list. `counts` is True if stops counted
        by the previous sentry are included. A counter that starts lower and then rises to their
        number would look like that many new stops.
        """
        self._snapshot.scanned_s = scanned_s or self._snapshot.scanned_s
        self._snapshot.counts = counts
        self._snapshot.shown = node, names, unmanaged
        self._changes += 1

    def stopped(self, target: str, enforcer: EnforceBy) -> None:
        """Count a stop of a `process` or a `pod`; `enforcer` is set by the pod's rule."""
        self._stops[target, enforcer].inc()
        self._changes += 1

    def would_stop(self) -> None:
        """Count an excess for which nothing was stopped."""
        self._would_stop.inc()
        self._changes += 1

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format.

        They are formatted once per scan: that takes about 30 ms with 900 pods, and every pod of the
        cluster can request them at any rate.
        """
        with self._lock:
            changes = self._changes
            if self._written[0] != changes:
                self._written = changes, generate_latest(self.registry)
            return self._written[1]


LATE_S: Final = 60.0
"""Maximum delay of a scan, in seconds: a driver may be slow, and a restart loses state. Later,
SIGALRM ends the process, and the kubelet restarts it. A liveness probe would not suffice,
since a flood of requests to the port could make it fail."""

_TEXT: Final = "text/plain; charset=utf-8"


class Liveness:
    """State behind /livez and /readyz; the main thread writes it, the server's thread reads it."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        alarm: Callable[[int], object] = lambda _: None,
    ) -> None:
        """`alarm` schedules the end of the process in that many seconds (alarm(2))."""
        self._clock = clock
        self._alarm = alarm
        self.expect(0.0)
        self.obstacle = "no scan yet"
        """Reason why caps cannot be enforced now; empty if they can."""

    def expect(self, pause_s: float) -> None:
        """Expect the next scan after a pause."""
        self._due_s = self._clock() + pause_s
        self._alarm(math.ceil(pause_s + LATE_S))

    def dead(self) -> str:
        """Return the reason why a restart might help; empty if there is none."""
        late_s = self._clock() - self._due_s
        return f"a scan has been due for {late_s:.0f} s" if late_s > LATE_S else ""

    def unready(self) -> str:
        """Return the reason why the sentry cannot work; empty if it can."""
        return self.dead() or self.obstacle


def serve(host: str, port: int, liveness: Liveness, metrics: SentryMetrics) -> int:
    """Serve on a daemon thread; return the port. Raises OSError if the port is in use."""

    def answer(environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        status, kind, body = _answer(environ["PATH_INFO"], liveness, metrics)
        start(status, [("Content-Type", kind)])
        return [body]

    return PlainHttpServer(host, port).start(answer)


def _answer(path: str, liveness: Liveness, metrics: SentryMetrics) -> tuple[str, str, bytes]:
    if path == "/metrics":
        return "200 OK", CONTENT_TYPE_LATEST, metrics.exposition()
    if path not in {"/livez", "/readyz"}:
        return "404 Not Found", _TEXT, b"this port has /livez, /readyz and /metrics\n"
    why_not = liveness.dead() if path == "/livez" else liveness.unready()
    status = "503 Service Unavailable" if why_not else "200 OK"
    return status, _TEXT, f"{why_not or 'ok'}\n".encode()
