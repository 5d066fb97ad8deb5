"""The server's metrics, by Prometheus' conventions: base units, totals, closed label sets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from webhook import __version__

if TYPE_CHECKING:
    from certs import Status
    from webhook.core.policy.values import Policy

# A review takes a fraction of a millisecond; the API server's own histogram begins at 5 ms.
_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class Metrics:
    """The server's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        PlatformCollector(self.registry)
        ProcessCollector(registry=self.registry)
        self.counter = counter = partial(Counter, registry=self.registry)
        self.gauge = gauge = partial(Gauge, registry=self.registry)
        self._requests = counter(
            "vramwarden_admission_requests",
            "Reviews answered, by webhook, operation, decision and first reason.",
            ["webhook", "operation", "decision", "reason"],
        )
        self._counted: dict[tuple[str, str, str, str], Counter] = {}
        self._duration = Histogram(
            "vramwarden_admission_duration_seconds",
            "Seconds from a review's last byte in to its answer's first byte out.",
            ["webhook"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._durations: dict[str, Histogram] = {}
        self.in_flight = gauge(
            "vramwarden_admission_in_flight", "Requests whose body is being received or answered."
        )
        self._refused = counter(
            "vramwarden_http_refused",
            "Requests rejected before a decision, by HTTP status code.",
            ["code"],
        )
        self._closed = counter(
            "vramwarden_http_connections_closed",
            "Connections closed because there were too many (full), they took too long (slow), or "
            "they sent what no API server does (unfair).",
            ["reason"],
        )
        for reason in ("full", "slow", "unfair"):  # shown before the first of each
            self._closed.labels(reason)
        self._proofs = counter(
            "vramwarden_patch_proofs",
            "Patches that were applied before they were sent, the first under each policy and "
            "then one in 256, by result; failed is a bug of ours.",
            ["result"],
        )
        self._proven = {held: self._proofs.labels(result) for held, result in _RESULTS.items()}
        self.policy_loads = counter(
            "vramwarden_policy_loads",
            "Policies read after a change, by result; one that is not valid counts as `refused`.",
            ["result"],
        )
        self.policy_stale = gauge(
            "vramwarden_policy_stale",
            "1 while the policy files are invalid and the last good policy is in force.",
        )
        self.policy_loaded_at = gauge(
            "vramwarden_policy_last_load_timestamp_seconds", "When the policy in force was loaded."
        )
        self._policy_rules = gauge(
            "vramwarden_policy_rules",
            "Rules of the policy in force; 0 means that every pod is left alone.",
        )
        self._policy = Info("vramwarden_policy", "The policy in force.", registry=self.registry)
        self.certificate_loads = counter(
            "vramwarden_certificate_loads",
            "Serving certificates read after a change, by result; one that cannot be used counts "
            "as `refused`.",
            ["result"],
        )
        self.certificate_days_left = gauge(
            "vramwarden_certificate_days_left", "Days until a certificate expires.", ["role"]
        )
        self.certificate_expiry = gauge(
            "vramwarden_certificate_expiry_timestamp_seconds",
            "When a certificate expires.",
            ["role"],
        )
        build = Info("vramwarden_build", "This release.", registry=self.registry)
        build.info({"version": __version__})
        for result in ("loaded", "refused"):  # shown before the first of each
            self.policy_loads.labels(result)

    def count(
        self, webhook: str, operation: str, decision: str, reason: str, duration_s: float
    ) -> None:
        """Count an answer, by its first reason."""
        if operation not in _OPERATIONS:
            operation = "other"
        self._answered(webhook, operation, decision, reason)
        taken = self._durations.get(webhook)
        if taken is None:
            taken = self._durations[webhook] = self._duration.labels(webhook)
        taken.observe(duration_s)

    def _answered(self, webhook: str, operation: str, decision: str, reason: str) -> None:
        """Count by labels of closed sets; to find the counter of some anew took longer than it."""
        labels = webhook, operation, decision, reason
        counted = self._counted.get(labels)
        if counted is None:
            counted = self._counted[labels] = self._requests.labels(*labels)
        counted.inc()

    def count_unread(self, webhook: str, reason: str) -> None:
        """Count a review that was denied without being decoded."""
        self._answered(webhook, "other", "denied", reason)

    def count_proof(self, *, held: bool) -> None:
        """Count a patch that was applied before it was sent."""
        self._proven[held].inc()

    def count_refused(self, code: int) -> None:
        """Count a request rejected before a decision."""
        self._refused.labels(str(code)).inc()

    def count_closed(self, reason: str) -> None:
        """Count a connection that was closed without being asked to."""
        self._closed.labels(reason).inc()

    def show_policy(self, policy: Policy) -> None:
        """Show which policy is in force."""
        self._policy.info({"digest": policy.short_digest})
        self._policy_rules.set(len(policy.rules))

    def show_certificates(self, found: Status) -> None:
        """Show how long serving certificate and CA are valid."""
        shown = {"serving": found.serving, "ca": next(iter(found.authorities), None)}
        for role, certificate in shown.items():
            if certificate is not None:
                self.certificate_days_left.labels(role).set(certificate.days_left)
                self.certificate_expiry.labels(role).set(certificate.not_after.timestamp())

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class PlacementMetrics:
    """Metrics of placement; created only where GPUs are chosen at binding."""

    def __init__(self, metrics: Metrics) -> None:
        self.conflicts = metrics.counter(
            "vramwarden_placement_conflicts",
            "Writes of a node's list of GPUs that another replica won.",
        )
        self.unfollowed = metrics.gauge(
            "vramwarden_placement_unfollowed",
            "1 while pods, nodes or questions of nodes cannot be watched; bindings are still "
            "decided.",
            ["resource"],
        )
        for resource in ("pods", "nodes", "questions"):
            self.unfollowed.labels(resource)
        self.entries = metrics.gauge(
            "vramwarden_placement_entries",
            "Pods in the lists of which pod has which GPU, as this replica last read them.",
        )
        self.waiting = metrics.gauge(
            "vramwarden_placement_waiting",
            "Pods that were bound without us and have no GPU yet; no container of them with VRAM "
            "starts meanwhile.",
        )
        self.late = metrics.counter(
            "vramwarden_placement_late",
            "Tries to give GPUs to pods that were bound without us: `assigned`; `waits` for room "
            "on its node; `deleted`, for its controller to make another; `settled` by another "
            "replica; `forbidden`, since the webhook lacks a right; `failed`.",
            ["outcome"],
        )
        for outcome in ("assigned", "settled", "waits", "deleted", "forbidden", "failed"):
            self.late.labels(outcome)


class HistoryMetrics:
    """Metrics of the histories of workloads; created only where they are kept."""

    def __init__(self, metrics: Metrics) -> None:
        self.runs = metrics.counter(
            "vramwarden_history_runs",
            "Pods that ended, by whether their peak was kept in a history.",
            ["result"],
        )
        for result in ("kept", "dropped"):
            self.runs.labels(result)
        self.writes = metrics.counter(
            "vramwarden_history_writes",
            "Histories written, lost to another replica and read again, failed, or swept.",
            ["result"],
        )
        for result in ("written", "conflict", "failed", "swept"):
            self.writes.labels(result)


class SharedCertificateMetrics:
    """Metrics of shared certificates; created only where replicas share them in a Secret."""

    def __init__(self, metrics: Metrics) -> None:
        self.ca_bundle_published = metrics.gauge(
            "vramwarden_ca_bundle_published",
            "1 while every caBundle holds the CA of the certificate that is served.",
        )
        self.syncs = metrics.counter(
            "vramwarden_certificate_syncs",
            "Times the Secret and the caBundles were reconciled, by result.",
            ["result"],
        )
        for result in ("done", "failed"):
            self.syncs.labels(result)
        self.synced_at = metrics.gauge(
            "vramwarden_certificate_last_sync_timestamp_seconds",
            "When the Secret and the caBundles were last reconciled.",
        )


_RESULTS: Final = {True: "held", False: "failed"}
_OPERATIONS: Final = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
