"""Metrics of the webhook, in base units; each label has a fixed set of values."""

from __future__ import annotations

from functools import partial
from typing import Final

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

from certs import Status
from webhook import __version__
from webhook.core.policy.model import Policy

# A review takes a fraction of a millisecond; the API server's own histogram begins at 5 ms.
_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class Metrics:
    """The webhook's metrics, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        PlatformCollector(self.registry)
        ProcessCollector(registry=self.registry)
        self.counter = counter = partial(Counter, registry=self.registry)
        self.gauge = gauge = partial(Gauge, registry=self.registry)
        self._requests = counter(
            "vramwarden_admission_requests",
            "Answered reviews, by webhook, operation, decision and first reason.",
            ["webhook", "operation", "decision", "reason"],
        )
        self._request_counters: dict[tuple[str, str, str, str], Counter] = {}
        self._duration = Histogram(
            "vramwarden_admission_duration_seconds",
            "Time from the last byte of a review to the first byte of its answer.",
            ["webhook"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._durations: dict[str, Histogram] = {}
        self.in_flight = gauge(
            "vramwarden_admission_in_flight", "Requests that are being received or answered."
        )
        self._rejected = counter(
            "vramwarden_http_rejected",
            "Requests rejected without a decision, by HTTP status code.",
            ["code"],
        )
        self._closed = counter(
            "vramwarden_http_connections_closed",
            "Connections closed by the webhook: too many connections (`too_many`), a request that "
            "took too long (`timeout`), or data that no API server sends (`protocol`).",
            ["reason"],
        )
        for reason in ("too_many", "timeout", "protocol"):  # exported before the first event
            self._closed.labels(reason)
        self._patch_checks = counter(
            "vramwarden_patch_checks",
            "Patches that the webhook applied itself before it sent them, by result: the first "
            "under each policy, then one in 256. `failed` is a bug in vramwarden.",
            ["result"],
        )
        for result in ("passed", "failed"):  # exported before the first event
            self._patch_checks.labels(result)
        self.policy_loads = counter(
            "vramwarden_policy_loads",
            "Policies read after a change, by result; an invalid policy is `rejected`.",
            ["result"],
        )
        self.policy_stale = gauge(
            "vramwarden_policy_stale",
            "1 while the policy files are invalid and the last valid policy stays in force.",
        )
        self.policy_loaded_at = gauge(
            "vramwarden_policy_last_load_timestamp_seconds",
            "Unix time at which the policy in force was loaded.",
        )
        self._policy_rules = gauge(
            "vramwarden_policy_rules",
            "Number of rules of the policy in force; with 0 every pod is left unchanged.",
        )
        self._policy = Info("vramwarden_policy", "The policy in force.", registry=self.registry)
        self.certificate_loads = counter(
            "vramwarden_certificate_loads",
            "Serving certificates read after a change, by result; an unusable certificate is "
            "`rejected`.",
            ["result"],
        )
        self.certificate_days_left = gauge(
            "vramwarden_certificate_days_left", "Days until the certificate expires.", ["role"]
        )
        self.certificate_expiry = gauge(
            "vramwarden_certificate_expiry_timestamp_seconds",
            "Unix time at which the certificate expires.",
            ["role"],
        )
        build = Info("vramwarden_build", "This release.", registry=self.registry)
        build.info({"version": __version__})
        for result in ("loaded", "rejected"):  # exported before the first event
            self.policy_loads.labels(result)

    def count(
        self, webhook: str, operation: str, decision: str, reason: str, duration_s: float
    ) -> None:
        """Count an answered review by its first reason."""
        if operation not in _OPERATIONS:
            operation = "other"
        self._count_request(webhook, operation, decision, reason)
        histogram = self._durations.get(webhook)
        if histogram is None:
            histogram = self._durations[webhook] = self._duration.labels(webhook)
        histogram.observe(duration_s)

    def _count_request(self, webhook: str, operation: str, decision: str, reason: str) -> None:
        """Count a review; looking up a dictionary is faster than `Counter.labels`."""
        labels = webhook, operation, decision, reason
        counter = self._request_counters.get(labels)
        if counter is None:
            counter = self._request_counters[labels] = self._requests.labels(*labels)
        counter.inc()

    def count_unread(self, webhook: str, reason: str) -> None:
        """Count a review that was denied without being decoded."""
        self._count_request(webhook, "other", "denied", reason)

    def count_patch_check(self, *, passed: bool) -> None:
        """Count the check of a patch before it was sent."""
        self._patch_checks.labels("passed" if passed else "failed").inc()

    def count_rejected(self, code: int) -> None:
        """Count a request that was rejected before a decision."""
        self._rejected.labels(str(code)).inc()

    def count_closed(self, reason: str) -> None:
        """Count a connection that the webhook closed."""
        self._closed.labels(reason).inc()

    def show_policy(self, policy: Policy) -> None:
        """Publish the policy in force."""
        self._policy.info({"digest": policy.short_digest})
        self._policy_rules.set(len(policy.rules))

    def show_certificates(self, status: Status) -> None:
        """Publish the validity of the serving certificate and its CA."""
        certificates = {"serving": status.serving, "ca": next(iter(status.authorities), None)}
        for role, certificate in certificates.items():
            if certificate is not None:
                self.certificate_days_left.labels(role).set(certificate.days_left)
                self.certificate_expiry.labels(role).set(certificate.not_after.timestamp())

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class PlacementMetrics:
    """Metrics of placement; created only if GPUs are assigned at binding."""

    def __init__(self, metrics: Metrics) -> None:
        self.conflicts = metrics.counter(
            "vramwarden_placement_conflicts",
            "Writes of a node's assignment list that failed because another replica wrote first.",
        )
        self.watch_failed = metrics.gauge(
            "vramwarden_placement_watch_failed",
            "1 while the webhook cannot watch pods, nodes or requests of agents; bindings are "
            "still decided.",
            ["resource"],
        )
        for resource in ("pods", "nodes", "agent_requests"):
            self.watch_failed.labels(resource)
        self.entries = metrics.gauge(
            "vramwarden_placement_entries",
            "Pods in the nodes' assignment lists, as this replica last read them.",
        )
        self.waiting = metrics.gauge(
            "vramwarden_placement_waiting",
            "Pods that were bound while the webhook did not answer and have no GPU yet; their "
            "containers with VRAM do not start before.",
        )
        self.late = metrics.counter(
            "vramwarden_placement_late_assignments",
            "Attempts to assign GPUs to pods that have none after their binding: `assigned`; "
            "`no_room` on the node yet; `deleted`, so that the controller creates another pod; "
            "`unneeded`, since the pod changed or another replica was first; `forbidden`, since "
            "the webhook lacks a right; `failed`.",
            ["outcome"],
        )
        for outcome in ("assigned", "unneeded", "no_room", "deleted", "forbidden", "failed"):
            self.late.labels(outcome)


class HistoryMetrics:
    """Metrics of the histories of workloads; created only if histories are kept."""

    def __init__(self, metrics: Metrics) -> None:
        self.runs = metrics.counter(
            "vramwarden_history_runs",
            "Ended pods, by whether their peak was kept in a history.",
            ["result"],
        )
        for result in ("kept", "dropped"):
            self.runs.labels(result)
        self.writes = metrics.counter(
            "vramwarden_history_writes",
            "Writes of histories: `written`; `conflict` with another replica, retried; `failed`; "
            "`deleted`, since too old or too many.",
            ["result"],
        )
        for result in ("written", "conflict", "failed", "deleted"):
            self.writes.labels(result)


class SharedCertificateMetrics:
    """Metrics of shared certificates; created only if replicas share them in a Secret."""

    def __init__(self, metrics: Metrics) -> None:
        self.ca_bundle_published = metrics.gauge(
            "vramwarden_ca_bundle_published",
            "1 while every caBundle contains the CA of the serving certificate.",
        )
        self.syncs = metrics.counter(
            "vramwarden_certificate_syncs",
            "Reconciliations of the Secret and the caBundles, by result.",
            ["result"],
        )
        for result in ("done", "failed"):
            self.syncs.labels(result)
        self.synced_at = metrics.gauge(
            "vramwarden_certificate_last_sync_timestamp_seconds",
            "Unix time at which the Secret and the caBundles were last reconciled.",
        )


_OPERATIONS: Final = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
