"""The report as a table for people, and as JSON for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.kinds.nodes import write_time
from webhook.core.words import amount, counted, exactly, span
from webhook.tools.render.output import as_report, known, plain_table, write_json, write_lines
from webhook.tools.report.judge import IDLE_S

if TYPE_CHECKING:
    from webhook.tools.report.judge import IdlePods, ReplicaCounts, RolloutReport

_HEADS: Final = ("NAMESPACE", "RULE", "NOW", "REASON", "PODS", "WORKLOADS", "EXAMPLE")
_HEADS_OVER: Final = ("NAMESPACE", "POD", "NODE", "GPU", "CAP", "PEAK", "TIMES", "SINCE")
_RIGHT: Final = frozenset({"PODS", "WORKLOADS", "GPU", "CAP", "PEAK", "TIMES", "SINCE"})


def as_text(found: RolloutReport) -> str:
    """Draw the report for people."""
    of = f"of {counted(found.pods, 'pod')} to which its rules apply"
    lines = [f"If every rule enforced ({found.policy}), {of}:", ""]
    lines += _denied(found)
    lines += ["", *_over_cap(found)]
    if found.untranslated:
        lines += ["", f"{counted(found.untranslated, 'pod')} would get the GPU memory asked for."]
    if found.idle:
        lines += ["", _idle(found.idle)]
    if found.exempt_pods:
        lines += ["", _exempt(found)]
    for one in found.counted:
        lines += ["", *_counted(one, found.now_s)]
    if found.missing:
        lines += ["", *(f"Not known: {sentence}" for sentence in found.missing)]
    return write_lines(lines)


def _idle(idle: IdlePods) -> str:
    pods = counted(idle.pods, "pod")
    return (
        f"{amount(idle.held_bytes)} are held by {pods} that did nothing for more than "
        f"{IDLE_S // 3600:.0f} h (vramwarden top pods -A -o wide)."
    )


def _exempt(found: RolloutReport) -> str:
    pods = counted(found.exempt_pods, "pod")
    namespaces = counted(found.exempt_namespaces, "exempt namespace")
    are = "is" if found.exempt_pods == 1 else "are"
    by = f", by the chart's defaults: {found.why_usual}" if found.why_usual else ""
    return f"{pods} in {namespaces} {are} not judged{by}."


def _denied(found: RolloutReport) -> list[str]:
    if not found.denied:
        return ["No pod would be denied."]
    rows = [
        (one.namespace, one.rule, one.action, one.reason, str(one.pods), str(len(one.workloads)),
         one.example)
        for one in found.denied
    ]  # fmt: skip
    heads, *drawn = plain_table(_HEADS, rows, _RIGHT)
    lines = [f"{counted(found.denied_pods, 'pod')} would be denied.", "", heads]
    for row, one in zip(drawn, found.denied, strict=True):
        lines += [row, f"    {one.sentence}"]
    return lines


def _over_cap(found: RolloutReport) -> list[str]:
    if not found.over_cap:
        return ["No pod would have been stopped."]
    rows = [
        (one.namespace, one.pod, one.node, str(one.gpu), exactly(one.cap_bytes),
         "-" if one.peak_bytes is None else amount(one.peak_bytes), str(one.times),
         f"{span(found.now_s - one.since_s)} ago")
        for one in found.over_cap
    ]  # fmt: skip
    return [
        "These would have been stopped at their cap.",
        "",
        *plain_table(_HEADS_OVER, rows, _RIGHT),
    ]


def _counted(one: ReplicaCounts, now_s: float) -> list[str]:
    since = "" if one.since_s is None else f" in {span(now_s - one.since_s)}"
    found = [
        f"{decision} {count} ({', '.join(f'{why} {many}' for why, many in sorted(by.items()))})"
        for decision, by in sorted(one.reviews.items())
        if (count := sum(by.values()))
    ]
    return [f"Replica {one.replica} counted{since}: {'; '.join(found) or 'nothing wrong'}."]


def as_json(found: RolloutReport) -> str:
    """Write the report for programs; what is not known is absent."""
    values = {
        "policy": found.policy,
        "pods": found.pods,
        "deniedPods": found.denied_pods,
        "untranslatedPods": found.untranslated,
        "exemptPods": found.exempt_pods,
        "exemptNamespaces": found.exempt_namespaces,
        "denied": [
            {
                "namespace": one.namespace,
                "rule": one.rule,
                "action": one.action,
                "reason": one.reason,
                "pods": one.pods,
                "workloads": len(one.workloads),
                "example": one.example,
                "message": one.sentence,
            }
            for one in found.denied
        ],
        "overCap": [
            {
                "namespace": one.namespace,
                "pod": one.pod,
                "node": one.node,
                "gpu": one.gpu,
                "capBytes": one.cap_bytes,
                **known(peakBytes=one.peak_bytes),
                "times": one.times,
                "since": write_time(one.since_s),
            }
            for one in found.over_cap
        ],
        **known(
            idle=found.idle
            and {
                "pods": found.idle.pods,
                "heldBytes": found.idle.held_bytes,
                "forMoreThanSeconds": int(IDLE_S),
            }
        ),
        "replicas": [
            {
                "name": one.replica,
                **({} if one.since_s is None else {"since": write_time(one.since_s)}),
                "reviews": one.reviews,
            }
            for one in found.counted
        ],
        "missing": list(found.missing),
    }
    return write_json(as_report("RolloutReport", values))
