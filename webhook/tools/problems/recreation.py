"""Admission of a stored pod if it were created again, and why it has no VRAM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Final

from webhook.core.admission.decide import evaluate
from webhook.core.admission.decision import Decision, Phase
from webhook.core.admission.workload_review import create_request
from webhook.core.pod.demand import read_demand, requests_vram
from webhook.core.pod.findings import MalformedObjectError, Reason, quote
from webhook.core.pod.views import read_pod
from webhook.core.policy.match import NamespaceUnknownError
from webhook.names import MIRROR_POD_ANNOTATION
from webhook.tools.problems.creation import ASK, DENIED, parse_denial, parse_finding
from webhook.tools.problems.problem import Code, Problem, Severity
from webhook.tools.snapshot.admission_rules import AdmissionRules
from webhook.tools.snapshot.cluster import DryRunAnswer
from webhook.tools.snapshot.pod import ClusterPod


class PodOutcome(Enum):
    """Outcome of creating a stored pod again."""

    EXEMPT = auto()
    """The namespace is exempt, so the API server does not call the webhook."""
    UNREAD = auto()
    """Unknown, because the pod is too large to be read."""
    UNKNOWN = auto()
    """Unknown, because the policy or labels of the namespace are unknown."""
    NO_RULE = auto()
    """No rule applies to the pod, or it is a static pod."""
    DENIED = auto()
    TRANSLATED = auto()
    """The pod requests GPU memory, has none now, and would get it."""
    ALLOWED = auto()


def decide_recreation(pod: ClusterPod, rules: AdmissionRules) -> tuple[PodOutcome, Decision | None]:
    """Return the outcome for a stored pod if it were created now, and the policy's decision.

    The decision is None if the policy does not apply, as for static pods, which the kubelet starts
    without admission.
    """
    if rules.exempts(pod.namespace):
        return PodOutcome.EXEMPT, None
    if not isinstance(pod.raw.get("spec"), dict):
        return PodOutcome.UNREAD, None
    if MIRROR_POD_ANNOTATION in pod.annotations:
        return PodOutcome.NO_RULE, None
    if rules.policy is None:
        return PodOutcome.UNKNOWN, None
    creation = create_request(pod.as_created(), pod.namespace)
    try:
        decision = evaluate(creation, rules.policy, rules.cluster, Phase.MUTATE)
    except NamespaceUnknownError:
        return PodOutcome.UNKNOWN, None
    if decision.skip:
        return PodOutcome.NO_RULE, decision
    if not decision.allowed:
        return PodOutcome.DENIED, decision
    is_translated = not pod.managed and requests_vram(pod.raw)
    return PodOutcome.TRANSLATED if is_translated else PodOutcome.ALLOWED, decision


_MOST_SHOWN: Final = 5


_COPY: Final = "a pod like it, tried as you and not stored,"


_CREATED_BEFORE: Final = (
    "it was created before the policy gave such pods GPU memory, or while vramwarden was away"
)


_AGAIN: Final = "create it again"


_AGAIN_OR_ASK: Final = f"{_AGAIN}; if that does not help, {ASK}"


def find_not_mutated(
    pod: ClusterPod,
    trial: DryRunAnswer | None,
    decision: Decision | None,
    *,
    exempt: bool,
) -> Iterator[Problem]:
    """Yield the reasons why a pod that requests VRAM has none.

    `trial` is the dry run of a copy of the pod, or None if impossible. `decision` is that of the
    policy in force, or None if it is unreadable. `exempt` is True if the webhook configuration
    exempts the namespace.

    | the copy | policy for the namespace | reason |
    | --- | --- | --- |
    | any, and the pod is static | any | admission does not mutate static pods |
    | gets its VRAM | any | the webhook was not called when the pod was created |
    | is denied by vramwarden | any | the webhook was not called, and the findings |
    | is unchanged, or was not created | any, and the namespace is exempt | the exemption |
    | is unchanged, or was not created | no rule, or Ignore | the policy |
    | is unchanged, or was not created | Audit | the rule, and the findings |
    | is unchanged, or was not created | Warn, with findings | the rule, and the findings |
    | is unchanged | Warn or Enforce | the namespace must be exempt |
    | was not created | Warn or Enforce | the webhook was not called, and the findings |
    | is unchanged | unreadable | the policy only warns or records, or the namespace is exempt |
    | was not created | unreadable | one of all these |

    In the last two rows, a malformed amount is also reported.
    """
    tried = trial is not None and trial.pod is not None
    warned = _as_warnings(trial.warnings if trial else ())
    warned_by_us = [warning for warning in warned if warning.code is not Code.CREATION_DENIED][
        :_MOST_SHOWN
    ]
    if MIRROR_POD_ANNOTATION in pod.annotations:
        detail = "it is a static pod: its kubelet starts it from a file, so it can have no share"
        fix = "create it as a Deployment or DaemonSet through the API server"
        yield Problem(Code.STATIC_POD, Severity.WARNING, detail, fix)
    elif trial and trial.pod and trial.pod.managed:
        detail = f"{_CREATED_BEFORE}; {_COPY} gets what it asks for"
        yield Problem(Reason.UNMUTATED, Severity.WARNING, detail, _AGAIN)
    elif trial and DENIED.search(trial.denial):
        yield Problem(Reason.UNMUTATED, Severity.WARNING, f"{_CREATED_BEFORE}; {_COPY} is denied")
        yield from parse_denial(trial.denial)
    elif exempt:
        yield _exempt_problem(pod)
    elif decision:
        yield from _rule_problems(pod, decision, tried=tried)
    elif tried and warned_by_us:
        detail = f"the policy only warns here (action Warn): {_COPY} stays without GPU memory"
        yield Problem(Code.NOT_IN_FORCE, Severity.INFO, detail)
        yield from warned_by_us
    elif tried:
        detail = f"{_COPY} stays as it is: the policy only records here (action Audit), or leaves "
        fix = f"{ASK} which of the two"
        yield Problem(Code.NOT_IN_FORCE, Severity.WARNING, f"{detail}this namespace alone", fix)
        yield from _malformed_amounts(pod)
    else:
        detail = (
            "nothing in its resources is counted: vramwarden did not see it when it was created, "
            "or the policy only records or warns here, or leaves its namespace alone"
        )
        fix = f"{_AGAIN_OR_ASK} what the policy does here"
        yield Problem(Reason.UNMUTATED, Severity.WARNING, detail, fix)
        yield from _malformed_amounts(pod)


def _rule_problems(pod: ClusterPod, decision: Decision, *, tried: bool) -> Iterator[Problem]:
    """Yield the problems in a decision. `tried` is True if a copy was created unmutated."""
    rule, wrong = f"rule {quote(decision.rule)}", [*find_violations(decision)][:_MOST_SHOWN]
    if decision.skip:
        detail = f"{rule} has action Ignore: it leaves such pods alone"
        if not decision.rule:
            detail = "no rule of the policy matches it, so it is left alone"
        yield Problem(Code.NOT_IN_FORCE, Severity.WARNING, detail, ASK)
    elif decision.silent:
        detail = f"{rule} has action Audit: it only records, so what the pod asks for has no "
        fix = "nothing yet; once your platform team changes that, create the pod again"
        yield Problem(Code.NOT_IN_FORCE, Severity.INFO, f"{detail}effect yet", fix)
        yield from wrong
    elif decision.allowed and wrong:
        detail = f"{rule} has action Warn: it says what is wrong with a pod, and lets it run "
        yield Problem(Code.NOT_IN_FORCE, Severity.INFO, f"{detail}without GPU memory")
        yield from wrong
    elif tried:
        yield _exempt_problem(pod)
    else:
        yield Problem(Reason.UNMUTATED, Severity.WARNING, _CREATED_BEFORE, _AGAIN_OR_ASK)
        yield from wrong


def _exempt_problem(pod: ClusterPod) -> Problem:
    detail = (
        f"vramwarden is not asked about pods of namespace {pod.namespace}: it is exempt, by its "
        "name or its label vramwarden.io/webhook"
    )
    fix = f"run it in another namespace, or {ASK}"
    return Problem(Code.NOT_IN_FORCE, Severity.WARNING, detail, fix)


def find_violations(decision: Decision) -> Iterator[Problem]:
    """Yield the findings of a policy's decision as problems."""
    if decision.malformed:
        yield Problem(Code.CREATION_DENIED, Severity.WARNING, decision.malformed)
    for finding in decision.findings:
        yield Problem(finding.reason, Severity.WARNING, f"{finding.path}: {finding.detail}")


def _malformed_amounts(pod: ClusterPod) -> Iterator[Problem]:
    try:
        yield from _as_warnings(map(str, read_demand(read_pod(pod.raw))[1][:_MOST_SHOWN]))
    except MalformedObjectError:
        return


def _as_warnings(lines: Iterable[str]) -> Iterator[Problem]:
    return (parse_finding(line, Severity.WARNING) for line in lines)
