"""Problems of a pod that was denied at its creation, or has no GPU memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from webhook.core.admission.decision import Decision
from webhook.core.admission.rules.near_misses import comparable_keys, correction
from webhook.core.formatting import join_names
from webhook.core.pod.demand import read_demand, requests_vram
from webhook.core.pod.fields import as_objects, find_object
from webhook.core.pod.findings import MESSAGE_PREFIX, SEPARATOR, MalformedObjectError, Reason, quote
from webhook.core.pod.other_products import OTHER_PRODUCTS_BY_RESOURCE
from webhook.core.pod.views import read_pod
from webhook.names import (
    API_GROUP,
    GPU_MEMORY_ANNOTATION,
    MIRROR_POD_ANNOTATION,
    PREFIX,
    VRAM_RESOURCE,
)
from webhook.tools.problems.problem import Code, Problem, Severity
from webhook.tools.snapshot.facts import DryRunAnswer
from webhook.tools.snapshot.pod import ClusterPod

_DENIED: Final = re.compile(r'admission webhook "[a-z]+\.vramwarden\.io" denied the request: ')
_OWN_WEBHOOKS: Final = f".{API_GROUP}"
_BY_SECOND_LINE: Final = re.compile(
    r"'vramwarden-second-line' .*: vramwarden: (create the pod again; .*)\. If it (.*)"
)
"""The fence's denial of a pod that was not mutated, and what to do if that does not help."""
_UNREACHABLE: Final = re.compile(r'failed calling webhook "([^"]{1,253})"')
_UNREACHABLE_CAUSES: Final = (
    ("signed by unknown authority", "the API server does not trust its certificate"),
    ("certificate has expired", "its certificate has expired"),
    ("no endpoints available", "no replica is ready"),
    ("connection refused", "nothing listens where its Service leads"),
    ("deadline exceeded", "it does not answer in time"),
    ("not found", "its Service is gone"),
)
"""Texts of an API server that cannot call a webhook, and what they mean."""
_REASONS: Final = {one.value: one for one in Reason}
_FIELD: Final = re.compile(r"(spec\.[a-zA-Z]+)\[(\d{1,4})\]\.resources\.[a-z]+\[([^\]]{1,317})\]: ")
_MOST_SHOWN: Final = 5
_TRIED: Final = "a pod like it, tried as you and not stored,"
_BEFORE: Final = (
    "it was created before the policy gave such pods GPU memory, or while vramwarden was away"
)
_AGAIN: Final = "create it again"
_ASK: Final = "ask your platform team"
_AGAIN_OR_ASK: Final = f"{_AGAIN}; if that does not help, {_ASK}"


def unreachable_cause(text: str) -> tuple[str, str] | None:
    """Return the webhook that the API server could not call, and why; None for another denial."""
    found = _UNREACHABLE.search(text)
    if found is None:
        return None
    whys = (why for words, why in _UNREACHABLE_CAUSES if words in text)
    return found[1], next(whys, "the API server does not reach it")


def is_own_denial(text: str) -> bool:
    """Return True if vramwarden denied a pod, or the API server could not call it about one."""
    if unreachable := unreachable_cause(text):
        return unreachable[0].endswith(_OWN_WEBHOOKS)
    return bool(_DENIED.search(text) or _BY_SECOND_LINE.search(text))


def find_denial(text: str, template: ClusterPod | None = None) -> Iterator[Problem]:
    """Yield the problems in an API server's denial of a pod: our findings, other texts whole.

    The fix of a finding about a resource that the workload's `template` lacks names its writer.
    """
    if unreachable := unreachable_cause(text):
        webhook, why = unreachable
        ours = webhook.endswith(_OWN_WEBHOOKS)
        whose = "vramwarden's webhook" if ours else f"webhook {webhook} of another product"
        detail = f"the API server cannot call {whose} ({why}), so it denied the pod: {text}"
        fix = f"nothing is wrong with the pod: {_ASK}" + (" (vramwarden check)" if ours else "")
        yield Problem(Code.WEBHOOK_UNREACHABLE, Severity.ERROR, detail, fix)
        return
    if found := _BY_SECOND_LINE.search(text):
        said, more = found.groups()
        yield Problem(Reason.UNMUTATED, Severity.ERROR, said, f"if it {more}")
        return
    denied = _DENIED.search(text)
    if denied is None:
        yield Problem(Code.CREATION_DENIED, Severity.ERROR, text)
        return
    said, _, guidance = text[denied.end() :].partition(f". {MESSAGE_PREFIX}")
    for line in said.split(SEPARATOR):
        yield _finding(line, Severity.ERROR, template)
    if guidance:
        yield Problem(Code.CREATION_DENIED, Severity.INFO, f"{MESSAGE_PREFIX}{guidance}")


def _finding(line: str, severity: Severity, template: ClusterPod | None = None) -> Problem:
    """Return a finding by its line of a message; one that is not ours is Code.CREATION_DENIED."""
    reason, _, sentence = line.partition(": ")
    if reason not in _REASONS:
        return Problem(Code.CREATION_DENIED, severity, line)
    fix, field = "", _FIELD.match(sentence)
    if field and template:
        kind, index, resource = field.groups()
        listed = as_objects(find_object(template.raw, "spec").get(kind.removeprefix("spec.")))
        container = listed[int(index)] if int(index) < len(listed) else {}
        limits = find_object(container, "resources", "limits")
        if resource not in {**find_object(container, "resources", "requests"), **limits}:
            fix = f"the template has no {resource}: a LimitRange or another webhook wrote it"
    return Problem(_REASONS[reason], severity, sentence, fix)


def seems_to_ask(pod: ClusterPod) -> bool:
    """Return True if a pod requests VRAM, whether that can be read or not."""
    try:
        return requests_vram(pod.raw)
    except MalformedObjectError:
        return False


def find_foreign_requests(pod: ClusterPod) -> Iterator[Problem]:
    """Yield requests for GPU memory that vramwarden does not read."""
    found: dict[str, str] = {}
    for field in ("annotations", "labels"):
        entries = pod.part("metadata", field)
        for key in comparable_keys(entries):
            line = "" if key.startswith(PREFIX) else correction(key, str(entries[key]))
            if line:
                found[f"the {field.removesuffix('s')} {key}"] = line
    for container in as_objects(pod.part("spec").get("containers")):
        for key in find_object(container, "resources", "limits"):
            if key in OTHER_PRODUCTS_BY_RESOURCE or (
                key.startswith(PREFIX) and key != VRAM_RESOURCE
            ):
                found[f"the resource {key}"] = ""
    if found:
        line = next(filter(None, found.values()), f"{GPU_MEMORY_ANNOTATION}: 8Gi, for example")
        detail = f"vramwarden does not read {join_names(found)}"
        fix = f"{line}, as an annotation of the pod"
        yield Problem(Code.NOT_READ, Severity.INFO, detail, fix)


def find_not_mutated(
    pod: ClusterPod,
    trial: DryRunAnswer | None,
    decision: Decision | None,
    *,
    exempt: bool,
) -> Iterator[Problem]:
    """Yield why a pod that requests VRAM has none.

    `trial` is a dry run of a pod like it, None if impossible; `decision` that of the policy in
    force, None if the policy cannot be read; `exempt` whether the webhook configuration leaves its
    namespace out.

    | a pod like it, tried | policy, for its namespace | the cause |
    | --- | --- | --- |
    | any: it is a static pod | any | admission does not mutate such pods |
    | gets its VRAM | any | it was not seen when it was created |
    | is denied by us | any | the same, and what is wrong with it |
    | stays as it is, or was not tried | is never asked: exempt | that |
    | stays as it is, or was not tried | no rule, or Ignore | that |
    | stays as it is, or was not tried | Audit | the rule, and what is wrong with the pod |
    | stays as it is, or was not tried | Warn, and something is wrong | the same |
    | stays as it is | Warn or Enforce | vramwarden was not asked: exempt |
    | was not tried | Warn or Enforce | it was not seen, and what is wrong with it |
    | stays as it is | cannot be read | it only warns or records, or the namespace is exempt |
    | was not tried | cannot be read | one of all these |

    In the last two rows also what is wrong with it under any policy: an amount that is none.
    """
    tried = trial is not None and trial.pod is not None
    warned = _as_warnings(trial.warnings if trial else ())
    warned_by_us = [one for one in warned if one.code is not Code.CREATION_DENIED][:_MOST_SHOWN]
    if MIRROR_POD_ANNOTATION in pod.annotations:
        detail = "it is a static pod: its kubelet starts it from a file, so it can have no share"
        fix = "create it as a Deployment or DaemonSet through the API server"
        yield Problem(Code.STATIC_POD, Severity.WARNING, detail, fix)
    elif trial and trial.pod and trial.pod.managed:
        detail = f"{_BEFORE}; {_TRIED} gets what it asks for"
        yield Problem(Reason.UNMUTATED, Severity.WARNING, detail, _AGAIN)
    elif trial and _DENIED.search(trial.denial):
        yield Problem(Reason.UNMUTATED, Severity.WARNING, f"{_BEFORE}; {_TRIED} is denied")
        yield from find_denial(trial.denial)
    elif exempt:
        yield _not_asked(pod)
    elif decision:
        yield from _by_rule(pod, decision, tried=tried)
    elif tried and warned_by_us:
        detail = f"the policy only warns here (action Warn): {_TRIED} stays without GPU memory"
        yield Problem(Code.NOT_IN_FORCE, Severity.INFO, detail)
        yield from warned_by_us
    elif tried:
        detail = f"{_TRIED} stays as it is: the policy only records here (action Audit), or leaves "
        fix = f"{_ASK} which of the two"
        yield Problem(Code.NOT_IN_FORCE, Severity.WARNING, f"{detail}this namespace alone", fix)
        yield from _malformed_demand(pod)
    else:
        detail = (
            "nothing in its resources is counted: vramwarden did not see it when it was created, "
            "or the policy only records or warns here, or leaves its namespace alone"
        )
        fix = f"{_AGAIN_OR_ASK} what the policy does here"
        yield Problem(Reason.UNMUTATED, Severity.WARNING, detail, fix)
        yield from _malformed_demand(pod)


def _by_rule(pod: ClusterPod, decision: Decision, *, tried: bool) -> Iterator[Problem]:
    """Yield the policy's decision for a pod; `tried`: one like it was created and not mutated."""
    rule, wrong = f"rule {quote(decision.rule)}", [*find_violations(decision)][:_MOST_SHOWN]
    if decision.skip:
        detail = f"{rule} has action Ignore: it leaves such pods alone"
        if not decision.rule:
            detail = "no rule of the policy matches it, so it is left alone"
        yield Problem(Code.NOT_IN_FORCE, Severity.WARNING, detail, _ASK)
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
        yield _not_asked(pod)
    else:
        yield Problem(Reason.UNMUTATED, Severity.WARNING, _BEFORE, _AGAIN_OR_ASK)
        yield from wrong


def _not_asked(pod: ClusterPod) -> Problem:
    detail = (
        f"vramwarden is not asked about pods of namespace {pod.namespace}: it is exempt, by its "
        "name or its label vramwarden.io/webhook"
    )
    fix = f"run it in another namespace, or {_ASK}"
    return Problem(Code.NOT_IN_FORCE, Severity.WARNING, detail, fix)


def find_violations(decision: Decision) -> Iterator[Problem]:
    """Yield the problems of a pod by a decision of the policy."""
    if decision.malformed:
        yield Problem(Code.CREATION_DENIED, Severity.WARNING, decision.malformed)
    for one in decision.findings:
        yield Problem(one.reason, Severity.WARNING, f"{one.path}: {one.detail}")


def _malformed_demand(pod: ClusterPod) -> Iterator[Problem]:
    try:
        yield from _as_warnings(map(str, read_demand(read_pod(pod.raw))[1][:_MOST_SHOWN]))
    except MalformedObjectError:
        return


def _as_warnings(lines: Iterable[str]) -> Iterator[Problem]:
    return (_finding(line, Severity.WARNING) for line in lines)
