"""A pod that has no GPU memory, though it may seem to ask for some; and what a denial says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from webhook.core.admission.rules.hints import candidates, near_miss
from webhook.core.pod.demand import asks_for_vram, read_demand
from webhook.core.pod.fields import as_objects, part
from webhook.core.pod.findings import GUIDANCE, SEPARATOR, MalformedObjectError, Reason, quoted
from webhook.core.pod.foreign import FOREIGN_RESOURCES
from webhook.core.pod.views import read_pod
from webhook.core.policy.values import Action
from webhook.core.words import named
from webhook.names import GPU_MEMORY_ANNOTATION, PREFIX, VRAM_RESOURCE
from webhook.tools.explain.judge.report import Cause, OtherReason, Report, Severity, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from webhook.core.pod.findings import Finding
    from webhook.tools.explain.judge.report import Anew, PodFacts, Ruling
    from webhook.tools.snapshot.pod import ClusterPod

_DENIED: Final = re.compile(r'admission webhook "[a-z]+\.vramwarden\.io" denied the request: ')
_BY_SECOND_LINE: Final = re.compile(
    r"'vramwarden-second-line' .*: vramwarden: (create the pod again; .*)\. If it (.*)"
)
"""The fence's denial of a pod that was not translated, and what to do if that does not help."""
_REASONS: Final = {one.value: one for one in Reason}
MOST_SHOWN: Final = 5
"""Of what is wrong with a pod."""
_TRIED: Final = "a pod like it, tried as you and not stored,"
_BEFORE: Final = (
    "it was created before the policy gave such pods GPU memory, or while vramwarden was away"
)
_AGAIN: Final = "create it again"
_ASK: Final = "ask your platform team"
_AGAIN_OR_ASK: Final = f"{_AGAIN}; if that does not help, {_ASK}"
_LATER: Final = "nothing yet; once your platform team changes that, create the pod again"


def refusal(text: str) -> Iterator[Cause]:
    """Yield what a denial says: each of our findings, others' text as it is."""
    denied = _DENIED.search(text)
    if denied is None and (untranslated := _BY_SECOND_LINE.search(text)):
        said, more = untranslated.groups()
        yield Cause(Severity.ERROR, Reason.UNMUTATED, said, f"if it {more}")
        return
    if denied is None:
        yield Cause(Severity.ERROR, OtherReason.CREATION_DENIED, text)
        return
    said, _, guidance = text[denied.end() :].partition(f". {GUIDANCE}")
    for line in said.split(SEPARATOR):
        yield _finding(line, Severity.ERROR) or Cause(
            Severity.ERROR, OtherReason.CREATION_DENIED, line
        )
    if guidance:
        yield Cause(Severity.INFO, OtherReason.CREATION_DENIED, f"{GUIDANCE}{guidance}")


def _finding(line: str, severity: Severity) -> Cause | None:
    """Return a finding by its line of a message; None if the line is none."""
    reason, _, sentence = line.partition(": ")
    return Cause(severity, _REASONS[reason], sentence) if reason in _REASONS else None


def seems_to_ask(pod: ClusterPod) -> bool:
    """Say whether a pod asks for VRAM, whether that can be read or not."""
    try:
        return asks_for_vram(pod.raw)
    except MalformedObjectError:
        return False


def without_demand(facts: PodFacts, pod: ClusterPod) -> Report:
    """Explain a pod that takes no VRAM, though it may seem to ask for some."""
    if seems_to_ask(pod):
        headline = f"{facts.title} asks for VRAM, and has none."
        return facts.report(State.NO_DEMAND, headline, _why_none(facts, pod))
    causes = []
    if idioms := dict(_idioms(pod)):
        line = next(filter(None, idioms.values()), f"{GPU_MEMORY_ANNOTATION}: 8Gi, for example")
        fix = f"{line}, as an annotation of the pod"
        detail = f"vramwarden does not read {named(idioms)}"
        causes.append(Cause(Severity.INFO, OtherReason.NOT_READ, detail, fix))
    return facts.report(State.NO_DEMAND, f"{facts.title} asks for no VRAM.", causes)


def _why_none(facts: PodFacts, pod: ClusterPod) -> Iterator[Cause]:
    """Yield why a pod that asks has nothing.

    | one like it, tried | policy, for its namespace | the cause |
    | --- | --- | --- |
    | gets its VRAM | any | it was not seen when it was created |
    | is denied | any | what is wrong with it |
    | stays as it is, or was not tried | is never asked: exempt | that |
    | stays as it is, or was not tried | no rule, or Ignore | that |
    | stays as it is, or was not tried | Audit | the rule, and what is wrong with the pod |
    | stays as it is, or was not tried | Warn, and something is wrong | the same |
    | stays as it is | Warn or Enforce | nobody asked vramwarden: exempt |
    | was not tried | Warn or Enforce | it was not seen, and what is wrong with it |
    | stays as it is | cannot be read | it only warns or records, or the namespace is exempt |
    | was not tried | cannot be read | one of all these |

    In the last two rows also what is wrong with it under any policy: an amount that is none.
    """
    anew = facts.anew
    trial, ruling = (anew.trial, anew.ruling) if anew else (None, None)
    if trial and trial.translated:
        detail = f"{_BEFORE}; {_TRIED} gets what it asks for"
        yield Cause(Severity.WARNING, Reason.UNMUTATED, detail, _AGAIN)
    elif trial and _DENIED.search(trial.denial):
        detail = f"{_BEFORE}; {_TRIED} is denied"
        yield Cause(Severity.WARNING, Reason.UNMUTATED, detail)
        yield from refusal(trial.denial)
    elif anew and anew.exempt:
        yield _exempt(facts)
    elif ruling:
        yield from _ruled(facts, ruling, tried=bool(trial and not trial.denial))
    else:
        yield from _unruled(anew, pod)


def _ruled(facts: PodFacts, ruling: Ruling, *, tried: bool) -> Iterator[Cause]:
    """Yield what the policy says of a pod, of which one like it was not translated if `tried`."""
    rule, wrong = f"rule {quoted(ruling.rule)}", list(_wrong(ruling))
    if ruling.action is None:
        detail = "no rule of the policy matches it, so it is left alone"
        yield Cause(Severity.WARNING, OtherReason.NOT_IN_FORCE, detail, _ASK)
    elif ruling.action is Action.IGNORE:
        detail = f"{rule} has action Ignore: it leaves such pods alone"
        yield Cause(Severity.WARNING, OtherReason.NOT_IN_FORCE, detail, _ASK)
    elif ruling.action is Action.AUDIT:
        has = "has action Audit: it only records, so what the pod asks for has no effect yet"
        yield Cause(Severity.INFO, OtherReason.NOT_IN_FORCE, f"{rule} {has}", _LATER)
        yield from wrong
    elif ruling.action is Action.WARN and wrong:
        has = (
            "has action Warn: it says what is wrong with a pod, and lets it run without GPU memory"
        )
        yield Cause(Severity.INFO, OtherReason.NOT_IN_FORCE, f"{rule} {has}")
        yield from wrong
    elif tried:
        yield _exempt(facts)
    else:
        yield Cause(Severity.WARNING, Reason.UNMUTATED, _BEFORE, _AGAIN_OR_ASK)
        yield from wrong


def _wrong(ruling: Ruling) -> Iterator[Cause]:
    if ruling.malformed:
        yield Cause(Severity.WARNING, OtherReason.CREATION_DENIED, ruling.malformed)
    yield from _found(ruling.findings)


def _wrong_anywhere(pod: ClusterPod) -> Iterator[Cause]:
    try:
        yield from _found(read_demand(read_pod(pod.raw))[1])
    except MalformedObjectError:
        return


def _found(findings: Sequence[Finding]) -> Iterator[Cause]:
    for one in findings[:MOST_SHOWN]:
        yield Cause(Severity.WARNING, one.reason, f"{one.path}: {one.detail}")


def _exempt(facts: PodFacts) -> Cause:
    detail = (
        f"vramwarden is not asked about pods of namespace {facts.namespace}: it is exempt, by its "
        "name or its label vramwarden.io/webhook"
    )
    fix = f"run it in another namespace, or {_ASK}"
    return Cause(Severity.WARNING, OtherReason.NOT_IN_FORCE, detail, fix)


def _unruled(anew: Anew | None, pod: ClusterPod) -> Iterator[Cause]:
    """Yield what is known where the policy may not be read."""
    trial = anew.trial if anew else None
    if trial is None or trial.denial:
        detail = (
            "nothing in its resources is counted: vramwarden did not see it when it was created, "
            "or the policy only records or warns here, or leaves its namespace alone"
        )
        fix = f"{_AGAIN_OR_ASK} what the policy does here"
        yield Cause(Severity.WARNING, Reason.UNMUTATED, detail, fix)
        yield from _wrong_anywhere(pod)
        return
    warned = (_finding(text, Severity.WARNING) for text in trial.warnings[:MOST_SHOWN])
    wrong = [cause for cause in warned if cause]
    if wrong:
        detail = f"the policy only warns here (action Warn): {_TRIED} stays without GPU memory"
        yield Cause(Severity.INFO, OtherReason.NOT_IN_FORCE, detail)
        yield from wrong
        return
    detail = (
        f"{_TRIED} stays as it is: the policy only records here (action Audit), or leaves this "
        "namespace alone"
    )
    yield Cause(Severity.WARNING, OtherReason.NOT_IN_FORCE, detail, f"{_ASK} which of the two")
    yield from _wrong_anywhere(pod)


def _idioms(pod: ClusterPod) -> Iterator[tuple[str, str]]:
    """Yield what seems to ask for GPU memory, and the line to write instead where it is clear."""
    for field in ("annotations", "labels"):
        entries = pod.part("metadata", field)
        for key in candidates(entries):
            line = "" if key.startswith(PREFIX) else near_miss(key, str(entries[key]))
            if line:
                yield f"the {field.removesuffix('s')} {key}", line
    for container in as_objects(pod.part("spec").get("containers")):
        for key in part(container, "resources", "limits"):
            if key in FOREIGN_RESOURCES or (key.startswith(PREFIX) and key != VRAM_RESOURCE):
                yield f"the resource {key}", ""
