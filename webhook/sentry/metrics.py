"""The sentry's metrics: what the last look showed, so who is gone leaves no figure behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from webhook.sentry.audit import Unmanaged

_BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class _Snapshot(Collector):
    """Yields what was shown last; the whole of it is one reference, which another thread reads."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.shown: tuple[float, tuple[Unmanaged, ...]] | None = None

    def collect(self) -> Iterator[Metric]:
        if self.shown is None:
            return
        looked_s, unmanaged = self.shown
        last = GaugeMetricFamily(
            "vramwarden_sentry_last_look_timestamp_seconds",
            "Unix time of the last look at the GPUs that the driver answered.",
            labels=["node"],
        )
        last.add_metric([self._node], looked_s)
        yield last
        held = GaugeMetricFamily(
            "vramwarden_gpu_memory_unmanaged_bytes",
            "Memory held by a pod without a promise, or by processes of no pod (pod_uid empty). "
            "Absent while the list of who was promised what cannot be followed.",
            labels=["node", "gpu", "uuid", "pod_uid"],
        )
        for one in unmanaged:
            labels = [self._node, str(one.gpu.index), one.gpu.uuid.lower(), one.pod]
            held.add_metric(labels, one.held_bytes)
        yield held


class SentryMetrics:
    """The metrics, in a registry of their own."""

    def __init__(self, node: str) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self._snapshot = _Snapshot(node)
        registry.register(self._snapshot)
        duration = Histogram(
            "vramwarden_sentry_look_duration_seconds",
            "How long a look at all GPUs took: NVML opened, read and closed.",
            ["node"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._duration = duration.labels(node)
        stops = Counter(
            "vramwarden_sentry_stops",
            "What was stopped for holding more than its cap: one process, or all of a pod.",
            ["node", "of"],
            registry=registry,
        )
        self._stops = {of: stops.labels(node, of) for of in ("process", "pod")}

    def looked(self, took_s: float) -> None:
        """Count a look."""
        self._duration.observe(took_s)

    def show(self, looked_s: float, unmanaged: tuple[Unmanaged, ...]) -> None:
        """Show a look that the driver answered, at this Unix time."""
        self._snapshot.shown = looked_s, unmanaged

    def stopped(self, of: str) -> None:
        """Count a stop of a `process` or a `pod`."""
        self._stops[of].inc()

    def exposition(self) -> bytes:
        """Return all of them as Prometheus reads them."""
        return generate_latest(self._registry)
