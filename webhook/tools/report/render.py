"""The report as tables for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from webhook.core.formatting import format_amount, format_count, format_duration, format_exact
from webhook.core.kinds.nodes import write_time
from webhook.tools.problems.creation import parse_denial
from webhook.tools.problems.problem import Problem, Severity
from webhook.tools.problems.recreation import PodOutcome
from webhook.tools.render.output import known, make_report, plain_table, write_json, write_lines
from webhook.tools.report.report import OverCap, RolloutReport
from webhook.tools.snapshot.workloads import WorkloadState

_HEADS: Final = ("NAMESPACE", "RULE", "NOW", "REASON", "PODS", "WORKLOADS", "EXAMPLE")
_HEADS_OVER: Final = ("NAMESPACE", "POD", "NODE", "GPU", "CAP", "PEAK", "TIMES", "SINCE")
_HEADS_NOW: Final = ("NAMESPACE", "WORKLOAD", "REASON", "MISSING")
_RIGHT: Final = frozenset({"PODS", "WORKLOADS", "GPU", "CAP", "PEAK", "TIMES", "SINCE", "MISSING"})


def as_text(found: RolloutReport) -> str:
    """Return the report as tables."""
    of = f"of {format_count(found.pods, 'pod')} to which its rules apply"
    lines = [f"If every rule enforced ({found.policy}), {of}:", ""]
    lines += _denied_lines(found)
    if found.denied_workloads:
        lines += ["", *_denied_workload_lines(found)]
    if found.over_cap is not None:
        lines += ["", *_over_cap_lines(found.over_cap, found.now_s)]
    if translated := found.counts[PodOutcome.TRANSLATED]:
        lines += ["", f"{format_count(translated, 'pod')} would get the GPU memory asked for."]
    if found.counts[PodOutcome.EXEMPT]:
        lines += ["", _exempt_sentence(found)]
    if found.missing:
        lines += ["", *(f"Not known: {sentence}" for sentence in found.missing)]
    return write_lines(lines)


def _exempt_sentence(found: RolloutReport) -> str:
    pods = format_count(found.counts[PodOutcome.EXEMPT], "pod")
    namespaces = format_count(found.exempt_namespaces, "exempt namespace")
    are = "is" if found.counts[PodOutcome.EXEMPT] == 1 else "are"
    by = f", by the chart's defaults: {found.why_default_scope}" if found.why_default_scope else ""
    return f"{pods} in {namespaces} {are} not judged{by}."


def _denied_lines(found: RolloutReport) -> list[str]:
    if not found.denied:
        return ["No existing pod would be denied."]
    rows = [[*map(str, group)] for group in found.denied]
    total = f"{format_count(found.counts[PodOutcome.DENIED], 'pod')} would be denied."
    return [total, "", *_table_with_sentences(_HEADS, rows)]


def _denied_workload_lines(found: RolloutReport) -> list[str]:
    rows = [
        [workload.namespace, f"{workload.kind}/{workload.name}", ", ".join(_reasons(workload)),
         str(workload.missing or "-"), _denial_errors(workload)[0].message]
        for workload in found.denied_workloads
    ]  # fmt: skip
    total = f"{format_count(len(rows), 'workload')} cannot create pods because of vramwarden."
    return [total, "", *_table_with_sentences(_HEADS_NOW, rows)]


def _denial_errors(workload: WorkloadState) -> list[Problem]:
    return [
        problem for problem in parse_denial(workload.denial) if problem.severity is Severity.ERROR
    ]


def _reasons(workload: WorkloadState) -> list[str]:
    return [*dict.fromkeys(str(problem.code) for problem in _denial_errors(workload))]


def _table_with_sentences(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with the last cell of each row as a sentence below the row."""
    head, *drawn = plain_table(heads, [row[:-1] for row in rows], _RIGHT)
    below = ((line, f"    {row[-1]}") for line, row in zip(drawn, rows, strict=True))
    return [head, *chain.from_iterable(below)]


def _over_cap_lines(pods: Sequence[OverCap], now_s: float) -> list[str]:
    if not pods:
        return ["No pod with onExcess: Report was over its cap."]
    rows = [
        (pod.pod.namespace, pod.pod.name, pod.node, str(pod.gpu.index),
         format_exact(pod.figures.cap_bytes),
         "-" if pod.figures.peak_bytes is None else format_amount(pod.figures.peak_bytes),
         str(pod.figures.would_stop), f"{format_duration(now_s - pod.since_s)} ago")
        for pod in pods
    ]  # fmt: skip
    return [
        "These would have been stopped at their cap.",
        "",
        *plain_table(_HEADS_OVER, rows, _RIGHT),
    ]


def as_json(found: RolloutReport) -> str:
    """Return the report as JSON; unknown values are absent."""
    values = {
        "policy": found.policy,
        "pods": found.pods,
        "deniedPods": found.counts[PodOutcome.DENIED],
        "untranslatedPods": found.counts[PodOutcome.TRANSLATED],
        "exemptPods": found.counts[PodOutcome.EXEMPT],
        "exemptNamespaces": found.exempt_namespaces,
        "denied": [group._asdict() for group in found.denied],
        "deniedWorkloads": [
            known(
                namespace=workload.namespace,
                kind=workload.kind,
                name=workload.name,
                reasons=_reasons(workload),
                missingPods=workload.missing or None,
                message="; ".join(problem.message for problem in _denial_errors(workload)),
            )
            for workload in found.denied_workloads
        ],
        "missing": list(found.missing),
    }
    if found.over_cap is not None:
        values["overCap"] = [
            known(
                namespace=pod.pod.namespace,
                pod=pod.pod.name,
                node=pod.node,
                gpu=pod.gpu.index,
                capBytes=pod.figures.cap_bytes,
                peakBytes=pod.figures.peak_bytes,
                times=pod.figures.would_stop,
                since=write_time(pod.since_s),
            )
            for pod in found.over_cap
        ]
    return write_json(make_report("RolloutReport", values))
