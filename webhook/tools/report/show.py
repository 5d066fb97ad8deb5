"""The report as a table for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from webhook.core.formatting import format_amount, format_count, format_duration, format_exact
from webhook.core.kinds.nodes import write_time
from webhook.tools.problems.creation import find_denial
from webhook.tools.problems.problem import Problem, Severity
from webhook.tools.problems.recreation import PodOutcome
from webhook.tools.render.output import as_report, known, plain_table, write_json, write_lines
from webhook.tools.report.judge import OverCap, RolloutReport
from webhook.tools.snapshot.workloads import WorkloadState

_HEADS: Final = ("NAMESPACE", "RULE", "NOW", "REASON", "PODS", "WORKLOADS", "EXAMPLE")
_HEADS_OVER: Final = ("NAMESPACE", "POD", "NODE", "GPU", "CAP", "PEAK", "TIMES", "SINCE")
_HEADS_NOW: Final = ("NAMESPACE", "WORKLOAD", "REASON", "MISSING")
_RIGHT: Final = frozenset({"PODS", "WORKLOADS", "GPU", "CAP", "PEAK", "TIMES", "SINCE", "MISSING"})


def as_text(found: RolloutReport) -> str:
    """Draw the report for people."""
    of = f"of {format_count(found.pods, 'pod')} to which its rules apply"
    lines = [f"If every rule enforced ({found.policy}), {of}:", ""]
    lines += _denied(found)
    if found.denied_workloads:
        lines += ["", *_denied_workloads(found)]
    if found.over_cap is not None:
        lines += ["", *_over_cap(found.over_cap, found.now_s)]
    if translated := found.counts[PodOutcome.TRANSLATED]:
        lines += ["", f"{format_count(translated, 'pod')} would get the GPU memory asked for."]
    if found.counts[PodOutcome.EXEMPT]:
        lines += ["", _exempt(found)]
    if found.missing:
        lines += ["", *(f"Not known: {sentence}" for sentence in found.missing)]
    return write_lines(lines)


def _exempt(found: RolloutReport) -> str:
    pods = format_count(found.counts[PodOutcome.EXEMPT], "pod")
    namespaces = format_count(found.exempt_namespaces, "exempt namespace")
    are = "is" if found.counts[PodOutcome.EXEMPT] == 1 else "are"
    by = f", by the chart's defaults: {found.why_usual}" if found.why_usual else ""
    return f"{pods} in {namespaces} {are} not judged{by}."


def _denied(found: RolloutReport) -> list[str]:
    if not found.denied:
        return ["No existing pod would be denied."]
    rows = [[*map(str, one)] for one in found.denied]
    total = f"{format_count(found.counts[PodOutcome.DENIED], 'pod')} would be denied."
    return [total, "", *_with_sentences(_HEADS, rows)]


def _denied_workloads(found: RolloutReport) -> list[str]:
    rows = [
        [one.namespace, f"{one.kind}/{one.name}", ", ".join(_reasons(one)), str(one.missing or "-"),
         _problems(one)[0].message]
        for one in found.denied_workloads
    ]  # fmt: skip
    total = f"{format_count(len(rows), 'workload')} cannot create pods because of vramwarden."
    return [total, "", *_with_sentences(_HEADS_NOW, rows)]


def _problems(workload: WorkloadState) -> list[Problem]:
    return [one for one in find_denial(workload.denial) if one.severity is Severity.ERROR]


def _reasons(workload: WorkloadState) -> list[str]:
    return [*dict.fromkeys(str(one.code) for one in _problems(workload))]


def _with_sentences(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; the last text of each row is a sentence below it."""
    head, *drawn = plain_table(heads, [row[:-1] for row in rows], _RIGHT)
    below = ((line, f"    {row[-1]}") for line, row in zip(drawn, rows, strict=True))
    return [head, *chain.from_iterable(below)]


def _over_cap(pods: Sequence[OverCap], now_s: float) -> list[str]:
    if not pods:
        return ["No pod with onExcess: Report was over its cap."]
    rows = [
        (one.pod.namespace, one.pod.name, one.node, str(one.gpu.index),
         format_exact(one.figures.cap_bytes),
         "-" if one.figures.peak_bytes is None else format_amount(one.figures.peak_bytes),
         str(one.figures.would_stop), f"{format_duration(now_s - one.since_s)} ago")
        for one in pods
    ]  # fmt: skip
    return [
        "These would have been stopped at their cap.",
        "",
        *plain_table(_HEADS_OVER, rows, _RIGHT),
    ]


def as_json(found: RolloutReport) -> str:
    """Write the report for programs; what is not known is absent."""
    values = {
        "policy": found.policy,
        "pods": found.pods,
        "deniedPods": found.counts[PodOutcome.DENIED],
        "untranslatedPods": found.counts[PodOutcome.TRANSLATED],
        "exemptPods": found.counts[PodOutcome.EXEMPT],
        "exemptNamespaces": found.exempt_namespaces,
        "denied": [one._asdict() for one in found.denied],
        "deniedWorkloads": [
            known(
                namespace=one.namespace,
                kind=one.kind,
                name=one.name,
                reasons=_reasons(one),
                missingPods=one.missing or None,
                message="; ".join(problem.message for problem in _problems(one)),
            )
            for one in found.denied_workloads
        ],
        "missing": list(found.missing),
    }
    if found.over_cap is not None:
        values["overCap"] = [
            known(
                namespace=one.pod.namespace,
                pod=one.pod.name,
                node=one.node,
                gpu=one.gpu.index,
                capBytes=one.figures.cap_bytes,
                peakBytes=one.figures.peak_bytes,
                times=one.figures.would_stop,
                since=write_time(one.since_s),
            )
            for one in found.over_cap
        ]
    return write_json(as_report("RolloutReport", values))
