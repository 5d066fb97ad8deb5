"""Who holds a pod to its cap, whether the driver was to do so, and what it denied the pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.enforcement.sufficient_request import MARGIN_PERCENT, sufficient_request
from webhook.core.kinds.histories import fills, held_bytes
from webhook.core.kinds.nodes import (
    BY_DRIVER,
    HELD_BY_DRIVER,
    HELD_BY_SENTRY,
    HELD_LATE,
    held_by,
    read_time,
    sentry_fault,
)
from webhook.core.node.limits import LIMIT_COMES_S
from webhook.core.pod.fields import part, text_of
from webhook.core.words import amount, exactly, span
from webhook.names import CAP_HELD_CONDITION, DRIVER_LIMIT_ANNOTATION, ENFORCER_CONTAINER
from webhook.tools.explain.judge.eligible import (
    NO_SENTRY,
    Mismatch,
    holds_caps,
    requires_sentry,
    why_no_limit,
)
from webhook.tools.explain.judge.enforcer_log import line_for
from webhook.tools.explain.judge.report import Cause, OtherReason, Severity, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from webhook.core.kinds.histories import Run
    from webhook.core.kinds.nodes import NodeFigures, PodFigures
    from webhook.core.placement.assignments import PodState
    from webhook.tools.explain.judge.report import PodFacts
    from webhook.tools.snapshot.pod import ClusterPod

HELD: Final = "held by"
_FAILS: Final = "an allocation beyond {} fails inside the program with an out-of-memory error"
_MEANS: Final = {
    HELD_BY_DRIVER: f"the driver: {_FAILS}; nothing is stopped",
    HELD_LATE: f"the driver, but late: {_FAILS}; what it held before is outside of that, and what "
    "exceeds the cap with it is stopped",
    "sidecar": "its sidecar: what exceeds {} is stopped, about a second later",
    HELD_BY_SENTRY: "the sentry of its node, from outside: what exceeds {} is stopped, within 15 s",
}
_BY_SENTRY: Final = "the sentry of its node: what exceeds {} is stopped, a few seconds later"
_KILLED: Final = {0, 137, 143}
"""Exit codes of who ended well, or by SIGKILL or SIGTERM, which somebody else sent."""
_AGAIN: Final = (
    "or delete the pod: created again, it waits for no limit on a node without the label "
    "vramwarden.io/driver-limit, unless its rule requires one"
)


def held_notes(
    facts: PodFacts,
    pod: ClusterPod,
    state: PodState,
    node: NodeFigures | None,
    figures: Sequence[PodFigures],
) -> Iterator[tuple[str, str]]:
    """Yield who holds a pod to its cap now, and what that means for its programs."""
    by, means = held_by(figures), _MEANS.get(held_by(figures))
    if by == HELD_BY_SENTRY and requires_sentry(pod):
        means = None if lacks_sentry(facts, node) else _BY_SENTRY
    if means and state.hold:
        several = " on each" if len(figures) > 1 else ""
        yield HELD, means.format(f"{exactly(state.hold.cap_bytes)}{several}")


def without_limit(
    facts: PodFacts,
    pod: ClusterPod,
    what: State,
    node: NodeFigures | None,
    figures: Sequence[PodFigures],
    told: str,
) -> Iterator[Cause]:
    """Yield that the driver was to hold a pod, by the annotation `driver-limit`, and does not.

    | the pod | held by | then |
    | --- | --- | --- |
    | has no such annotation | any | nothing |
    | any | the driver | nothing |
    | starts | another, or unknown | it waits for the limit |
    | runs | sidecar or sentry, or its sidecar logged that | the limit was lost |

    `told` is the reason that the sidecar logged last.
    """
    by = held_by(figures)
    if by in BY_DRIVER or DRIVER_LIMIT_ANNOTATION not in pod.annotations:
        return
    why, fix = f": {told}" if told else "", "the log of vramwarden's limiter there says why"
    if node and not holds_caps(node):
        why += f"; {why_no_limit(node)}"
        fix = "ask your platform team to see to it (vramwarden check)"
    reason = Mismatch.NO_DRIVER_LIMIT
    if what is State.STARTING:
        since_s = read_time(pod.part("status").get("startTime"))
        late = since_s is not None and facts.now_s - since_s > LIMIT_COMES_S
        severity = Severity.ERROR if late else Severity.INFO
        detail = f"it starts nothing before the driver holds it to its cap{why}"
        yield Cause(severity, reason, detail, f"{fix}; {_AGAIN}" if late else "")
    elif what is State.RUNNING and (by or told):
        detail = f"the driver no longer holds it to its cap{why}"
        yield Cause(Severity.INFO, reason, detail, fix)


def without_sentry(facts: PodFacts, pod: ClusterPod, node: NodeFigures | None) -> Iterator[Cause]:
    """Yield that nothing holds a pod by Sentry to its cap now, if its node has no such sentry."""
    if requires_sentry(pod) and lacks_sentry(facts, node):
        detail = f"nothing holds it to its cap now: {NO_SENTRY}"
        fix = "ask your platform team to see to the sentry there (vramwarden check)"
        yield Cause(Severity.INFO, Mismatch.NO_SENTRY, detail, fix)


def lacks_sentry(facts: PodFacts, node: NodeFigures | None) -> bool:
    """Return True if the figures of nodes could be read, and the node's prove no sentry that acts.

    It has to act on each GPU that the node advertises, or if that is unknown, that figures name.
    """
    seen = (facts.seen or {}).get(node.name) if node else None
    gpus = (seen.gpus if seen else ()) or (node.gpus if node else ())
    return facts.nodes is not None and sentry_fault(node, gpus, facts.now_s) is not None


def denied_by_driver(
    facts: PodFacts,
    pod: ClusterPod,
    state: PodState,
    figures: Sequence[PodFigures],
    peaks: Sequence[int],
) -> Iterator[Cause]:
    """Yield that a container ended by itself when the pod held all that the driver gives it.

    The size of the denied allocation is unknown, so the amount advised is a try.

    | held by | the most it held | a container ended | then |
    | --- | --- | --- | --- |
    | the driver | fills its cap | by an error of its own | this |
    | unknown, and its binding was to the driver | likewise | likewise | this |
    | else | any | any | nothing |
    """
    by = held_by(figures)
    promised = not by and DRIVER_LIMIT_ANNOTATION in pod.annotations
    cap, peak = state.hold.cap_bytes if state.hold else 0, max(peaks, default=0)
    if not ((by in BY_DRIVER or promised) and cap and fills(peak, cap)):
        return
    found = max(_failures(pod), default=None)
    if found is None:
        return
    at_s, name, code = found
    when = f"{span(facts.now_s - at_s)} ago: " if at_s else ""
    detail = (
        f"{when}container {name} ended by itself (exit code {code}), and the pod had held "
        f"{amount(peak)} of {exactly(cap)}: the cap was hit, and the driver denied an allocation "
        f"beyond it. How large that was is not known, so {MARGIN_PERCENT} % more is a try"
    )
    fix = line_for(pod, sufficient_request(max(cap, peak)), facts.nodes)
    yield Cause(Severity.WARNING, OtherReason.CAP_HIT, detail, fix)


def filled(facts: PodFacts, run: Run) -> Iterator[Cause]:
    """Yield that a pod which is gone had filled a cap that the driver held, if it had."""
    if run.limited and fills(run.peak_bytes or 0, run.asked_bytes):
        detail = "it filled its cap, beyond which the driver denies memory: that may be too small"
        fix = line_for(None, sufficient_request(held_bytes(run) or 0), facts.nodes)
        yield Cause(Severity.INFO, OtherReason.CAP_HIT, detail, fix)


def held_from_outside(pod: ClusterPod, fix: str, now_s: float) -> Iterator[Cause]:
    """Yield what the sentry did, which leaves a condition and not only an Event."""
    found = pod.condition(CAP_HELD_CONDITION)
    if found is None or found.status != "False":
        return
    at_s = read_time(found.since)
    when = "" if at_s is None else f"{span(now_s - at_s)} ago, by the node's sentry: "
    yield Cause(Severity.WARNING, OtherReason.CAP_EXCEEDED, when + found.message, fix)


def _failures(pod: ClusterPod) -> Iterator[tuple[float, str, int]]:
    """Yield when a container of the user's ended with an error of its own, which, and its code."""
    for one in pod.statuses():
        name = text_of(one, "name")
        for when in ("state", "lastState") if name != ENFORCER_CONTAINER else ():
            ended = part(one, when, "terminated")
            code = ended.get("exitCode")
            if type(code) is int and code not in _KILLED and ended.get("reason") != "OOMKilled":
                yield read_time(ended.get("finishedAt")) or 0.0, name, code
