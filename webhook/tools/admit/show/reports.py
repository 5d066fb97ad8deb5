"""Verdicts as continuous integration reads them: GitHub's annotations, JUnit, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from webhook import __version__
from webhook.core.pod.fields import find_string
from webhook.names import GROUP_VERSION
from webhook.tools.admit.judge.texts import ManifestText, counts
from webhook.tools.admit.judge.verdict import (
    MIGRATED,
    NOT_MIGRATED,
    NOTE,
    UNREAD,
    UNREAD_KEY,
    WARNING,
    JudgedPod,
    Remark,
    Sort,
    name_of,
    remarks,
)
from webhook.tools.manifests.ci import JUnitCase, annotation
from webhook.tools.manifests.ci import junit as write_junit
from webhook.tools.manifests.documents import ManifestObject

UNREADABLE: Final = "Unreadable"
_COUNTED: Final = {
    Sort.TRANSLATED: "translated",
    Sort.ALREADY: "alreadyTranslated",
    Sort.DENIED: "denied",
    Sort.WARNED: "warned",
    Sort.LEFT_ALONE: "leftAlone",
    Sort.NOT_JUDGED: "notJudged",
}
_NOT_MIGRATED_REASON: Final = "NotMigrated"
_COMMANDS: Final = {
    UNREAD: "error",
    WARNING: "warning",
    MIGRATED: "notice",
    NOT_MIGRATED: "error",
    NOTE: "notice",
}


def github(sources: Iterable[ManifestText]) -> str:
    """Return workflow commands: an error for each finding that denies, a warning for others."""
    written = ""
    for source in sources:
        if one := source.unreadable:
            written += annotation("error", source.name, one.line, one.text, UNREADABLE)
        for verdict in source.verdicts:
            for command, one in _commands(verdict):
                text = f"{verdict.title}: {one.text}"
                written += annotation(command, source.name, one.line, text, one.reason)
    return written


def _commands(verdict: JudgedPod) -> Iterator[tuple[str, Remark]]:
    if verdict.sort in {Sort.DENIED, Sort.WARNED}:  # under Audit findings are recorded alone
        command = "warning" if verdict.allowed else "error"
        yield from ((command, one) for one in verdict.findings)
    if verdict.guidance:
        yield "notice", Remark(verdict.line, verdict.guidance)
    if verdict.sort is Sort.NOT_JUDGED:
        yield "notice", Remark(verdict.line, verdict.summary)
    for word, one in remarks(verdict):
        yield _COMMANDS[word], one


def junit(sources: Iterable[ManifestText]) -> str:
    """Return one test case per pod or pod template, and a suite per file."""
    return write_junit("vramwarden admit", {source.name: _cases(source) for source in sources})


def _cases(source: ManifestText) -> list[JUnitCase]:
    if one := source.unreadable:
        why = (UNREADABLE, one.text)
        name = source.name
        return [JUnitCase(name=name, file=name, line=one.line, failure=why, is_error=True)]
    return [_case(source.name, verdict) for verdict in source.verdicts]


def _case(file: str, verdict: JudgedPod) -> JUnitCase:
    said = [] if not verdict.allowed else [verdict.summary]
    said += [f"{word}: {one.text}" for word, one in remarks(verdict)]
    return JUnitCase(
        name=verdict.title,
        file=file,
        line=verdict.line,
        failure=None if verdict.passed else _failure(verdict),
        output=tuple(said),
    )


def _failure(verdict: JudgedPod) -> tuple[str, str]:
    """Return the reasons of a failed case, and its sentence."""
    if not verdict.allowed:
        reasons = dict.fromkeys(one.reason for one in verdict.findings)
        return ",".join(reasons), verdict.summary
    said = [*remarks(verdict)]
    if problems := [one.text for word, one in said if word == NOT_MIGRATED]:
        return _NOT_MIGRATED_REASON, f"{NOT_MIGRATED}: {'; '.join(problems)}"
    if unread := [one.text for word, one in said if word == UNREAD]:
        return UNREAD_KEY, "; ".join(unread)
    warned = [one.text for word, one in said if word == WARNING]
    return "Warning", "; ".join(warned) or verdict.summary


def report(sources: Sequence[ManifestText]) -> str:
    """Return the verdicts as JSON.

    | field | is |
    | --- | --- |
    | verdicts[].object | apiVersion, kind, namespace, name |
    | verdicts[].path | where in the object the template stands; empty for a pod |
    | verdicts[].file, line | where in the manifests, or what is wrong with it |
    | verdicts[].decision | as the webhook's log and audit annotations have it |
    | verdicts[].findings[] | reason, field, line and sentence; also of keys that nothing reads |
    | verdicts[].warnings[], notes[] | field, line and sentence |
    | verdicts[].migration | with --migrate: product, asks, problems and notes as findings |
    | withoutTemplate[] | object, file, line |
    | unreadable[] | file, line, sentence |
    """
    verdicts = [_verdict(source.name, one) for source in sources for one in source.verdicts]
    without = [
        {"object": _object(other.object), "file": source.name, "line": other.line}
        for source in sources
        for other in source.others
    ]
    unreadable = [
        {"file": source.name, **_remark(source.unreadable)}
        for source in sources
        if source.unreadable
    ]
    counted = counts(sources)
    made = {
        "apiVersion": GROUP_VERSION,
        "kind": "AdmitReport",
        "release": __version__,
        "allowed": all(one["allowed"] for one in verdicts) and not unreadable,
        "summary": {
            **{name: counted.get(sort, 0) for sort, name in _COUNTED.items()},
            "withoutTemplate": len(without),
            "unreadable": len(unreadable),
        },
        "verdicts": verdicts,
        "withoutTemplate": without,
        "unreadable": unreadable,
    }
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def _verdict(file: str, verdict: JudgedPod) -> dict[str, Any]:
    decision = verdict.decision
    return {
        "object": _object(verdict.target.object, verdict.namespace),
        "path": verdict.target.found.field,
        "file": file,
        "line": verdict.line,
        "decision": verdict.outcome,
        "allowed": verdict.allowed,
        "sentence": verdict.summary,
        "reasons": list(decision.reasons) if decision else [],
        "findings": [
            {"reason": one.reason, **_remark(one, "field")}
            for one in (*verdict.findings, *verdict.unread)
        ],
        "warnings": [_remark(one, "field") for one in verdict.warnings],
        "notes": [_remark(one, "field") for one in verdict.noted],
        "rule": decision.rule if decision else "",
        "policy": decision.policy if decision else "",
        "asks": verdict.asked if verdict.allowed else "",
        **_migration(verdict),
    }


def _remark(one: Remark, *field: str) -> dict[str, Any]:
    return {**dict.fromkeys(field, one.path), "line": one.line, "sentence": one.text}


def _migration(verdict: JudgedPod) -> dict[str, Any]:
    """Return what became of a pod before it was judged; nothing without a migration."""
    migration = verdict.migration
    if migration is None:
        return {}
    said = {
        word: [_remark(one, "field") for kind, one in remarks(verdict) if kind == word]
        for word in (NOT_MIGRATED, NOTE)
    }
    made = {"product": migration.product, "asks": migration.asks}
    return {"migration": {**made, "problems": said[NOT_MIGRATED], "notes": said[NOTE]}}


def _object(found: ManifestObject, namespace: str = "") -> dict[str, str]:
    return {
        "apiVersion": found.version,
        "kind": found.kind,
        "namespace": namespace or find_string(found.value, "metadata", "namespace"),
        "name": name_of(found),
    }
