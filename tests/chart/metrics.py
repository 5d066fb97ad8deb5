"""Metrics in the actual registries, and metrics that PromQL expressions use."""

from __future__ import annotations

import re
from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from deploy.references import sentry_metrics, webhook_metrics


def webhook_exposition():
    """Return the webhook's exposition with all parts enabled."""
    return webhook_metrics().exposition().decode()


def known_metrics():
    """Return the labels of each sample, keyed by metric name."""
    found = defaultdict(set)
    for text in (webhook_exposition(), sentry_metrics().exposition().decode()):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] |= sample.labels.keys()
    return dict(found)


_METRIC = re.compile(r"\b(vramwarden_\w+)(?:\{([^}]*)\})?")
_GROUPS = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right) \(([^)]*)\)")


def asked_of(expression):
    """Return the metrics in an expression, each with the labels of its selector."""
    expression = re.sub('"[^"]*"', '""', expression)  # a value may look like a metric
    return [
        (name, set(re.findall(r"(\w+) *(?:=~|!~|!=|=)", matchers)))
        for name, matchers in _METRIC.findall(expression)
    ]


def grouped_by(expression):
    return {item.strip() for group in _GROUPS.findall(expression) for item in group.split(",")} - {
        ""
    }


def unknown(expression, known, besides=()):
    """Return the metrics and labels of an expression that no registry has."""
    asked = asked_of(expression)
    wrong = [name for name, _ in asked if name not in known]
    labels = set().union(*(known.get(name, set()) for name, _ in asked), besides)
    for name, selected in asked:
        wrong += [f"{name}: {item}" for item in selected - known.get(name, set()) - set(besides)]
    return wrong + sorted(grouped_by(expression) - labels)
