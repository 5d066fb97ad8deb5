"""Which metrics there are, by the real registries, and what PromQL expressions ask for."""

from __future__ import annotations

import re
from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
from webhook.core.nvidia.drivers import SeenGpu
from webhook.sentry.metrics import SentryMetrics
from webhook.server.metrics import Metrics, PlacementMetrics, SharedCertificateMetrics


def webhook_exposition():
    """Return what the webhook shows with all of its parts."""
    metrics = Metrics()
    SharedCertificateMetrics(metrics)
    PlacementMetrics(metrics)
    metrics.count("mutate", "CREATE", "denied", "TooLarge", 0.001)
    metrics.count_proof(held=True)
    metrics.certificate_expiry.labels("serving").set(1)
    metrics.certificate_days_left.labels("serving").set(1)
    metrics._policy.info({"digest": "abc"})
    return metrics.exposition().decode()


def sentry_exposition():
    """Return what a sentry shows of a GPU with a pod, and memory without a promise."""
    metrics = SentryMetrics("n1")
    pod = PodFigures(uid="uid", cap_bytes=8, used_bytes=4, peak_bytes=5, stops=1, processes=1)
    gpu = GpuFigures(
        uuid="GPU-1",
        index=0,
        product="H100",
        total_bytes=100,
        usable_bytes=90,
        promised_bytes=8,
        used_bytes=7,
        free_bytes=82,
        unattributed_bytes=1,
        pods=(pod,),
    )
    node = NodeFigures(
        name="n1", observed_s=0.0, driver_version="580.95.05", enforcement="sidecar", gpus=(gpu,)
    )
    seen = SeenGpu(uuid="GPU-1", product="H100", index=0, usable_bytes=None)
    metrics.show(node, {"uid": "team/p"}, {seen: {"other": 3}}, 1.0)
    metrics.scanned(0.01)
    metrics.stopped("pod")
    return metrics.exposition().decode()


def known_metrics():
    """Return each sample's name with the labels that it has."""
    found = defaultdict(set)
    for text in (webhook_exposition(), sentry_exposition()):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] |= sample.labels.keys()
    return dict(found)


_METRIC = re.compile(r"\b(vramwarden_\w+)(?:\{([^}]*)\})?")
_GROUPS = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right) \(([^)]*)\)")


def asked_of(expression):
    """Return the metrics of an expression, each with the labels that it is selected by."""
    return [
        (name, set(re.findall(r"(\w+) *(?:=~|!~|!=|=)", matchers)))
        for name, matchers in _METRIC.findall(expression)
    ]


def grouped_by(expression):
    """Return the labels by which an expression groups or joins."""
    return {one.strip() for group in _GROUPS.findall(expression) for one in group.split(",")} - {""}


def unknown(expression, known, besides=()):
    """Return what an expression asks for and no registry has."""
    asked = asked_of(expression)
    wrong = [name for name, _ in asked if name not in known]
    labels = set().union(*(known.get(name, set()) for name, _ in asked), besides)
    for name, selected in asked:
        wrong += [f"{name}: {one}" for one in selected - known.get(name, set()) - set(besides)]
    return wrong + sorted(grouped_by(expression) - labels)
