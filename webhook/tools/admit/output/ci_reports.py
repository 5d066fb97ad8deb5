"""Verdicts for continuous integration: GitHub annotations, JUnit, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from webhook import __version__
from webhook.core.pod.fields import find_string
from webhook.names import GROUP_VERSION
from webhook.tools.admit.verdicts.manifest_text import ManifestText, counts
from webhook.tools.admit.verdicts.verdict import (
    MIGRATED,
    NOT_MIGRATED,
    NOTE,
    UNREAD,
    UNREAD_KEY,
    WARNING,
    PodVerdict,
    Remark,
    VerdictKind,
    object_name,
    remarks,
)
from webhook.tools.manifests.ci import JUnitCase, annotation
from webhook.tools.manifests.ci import junit as write_junit
from webhook.tools.manifests.documents import ManifestObject

UNREADABLE: Final = "Unreadable"
_COUNTED: Final = {
    VerdictKind.TRANSLATED: "translated",
    VerdictKind.ALREADY: "alreadyTranslated",
    VerdictKind.DENIED: "denied",
    VerdictKind.WARNED: "warned",
    VerdictKind.LEFT_ALONE: "leftAlone",
    VerdictKind.NOT_JUDGED: "notJudged",
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
    """Return GitHub workflow commands: an error for each denying finding, a warning for others."""
    written = ""
    for source in sources:
        if one := source.unreadable:
            written += annotation("error", source.name, one.line, one.text, UNREADABLE)
        for verdict in source.verdicts:
            for command, one in _commands(verdict):
                text = f"{verdict.title}: {one.text}"
                written += annotation(command, source.name, one.line, text, one.reason)
    return written


def _commands(verdict: PodVerdict) -> Iterator[tuple[str, Remark]]:
    if verdict.sort in {
        VerdictKind.DENIED,
        VerdictKind.WARNED,
    }:  # under Audit, findings are only recorded
        command = "warning" if verdict.allowed else "error"
        yield from ((command, finding) for finding in verdict.findings)
    if verdict.guidance:
        yield "notice", Remark(verdict.line, verdict.guidance)
    if verdict.sort is VerdictKind.NOT_JUDGED:
        yield "notice", Remark(verdict.line, verdict.summary)
    for word, item in remarks(verdict):
        yield _COMMANDS[word], item


def junit(sources: Iterable[ManifestText]) -> str:
    """Return a JUnit report with a suite per file and a case per pod or pod template."""
    return write_junit("vramwarden admit", {source.name: _cases(source) for source in sources})


def _cases(source: ManifestText) -> list[JUnitCase]:
    if one := source.unreadable:
        why = (UNREADABLE, one.text)
        name = source.name
        return [JUnitCase(name=name, file=name, line=one.line, failure=why, is_error=True)]
    return [_case(source.name, verdict) for verdict in source.verdicts]


def _case(file: str, verdict: PodVerdict) -> JUnitCase:
    said = [] if not verdict.allowed else [verdict.summary]
    said += [f"{word}: {item.text}" for word, item in remarks(verdict)]
    return JUnitCase(
        name=verdict.title,
        file=file,
        line=verdict.line,
        failure=None if verdict.passed else _failure(verdict),
        output=tuple(said),
    )


def _failure(verdict: PodVerdict) -> tuple[str, str]:
    """Return the reasons and the message of a failed case."""
    if not verdict.allowed:
        reasons = dict.fromkeys(finding.reason for finding in verdict.findings)
        return ",".join(reasons), verdict.summary
    said = [*remarks(verdict)]
    if problems := [item.text for word, item in said if word == NOT_MIGRATED]:
        return _NOT_MIGRATED_REASON, f"{NOT_MIGRATED}: {'; '.join(problems)}"
    if unread := [item.text for word, item in said if word == UNREAD]:
        return UNREAD_KEY, "; ".join(unread)
    warned = [item.text for word, item in said if word == WARNING]
    return "Warning", "; ".join(warned) or verdict.summary


def as_json(sources: Sequence[ManifestText]) -> str:
    """Return the verdicts as JSON.

    | field | is |
    | --- | --- |
    | verdicts[].object | apiVersion, kind, namespace, name |
    | verdicts[].path | path of the template in the object; empty for a pod |
    | verdicts[].file, line | line of the object, or of its problem |
    | verdicts[].decision | as in the webhook's log and audit annotations |
    | verdicts[].findings[] | reason, field, line and sentence; also of keys that nothing reads |
    | verdicts[].warnings[], notes[] | field, line and sentence |
    | verdicts[].migration | with --migrate: product, asks, problems and notes as findings |
    | withoutTemplate[] | object, file, line |
    | unreadable[] | file, line, sentence |
    """
    verdicts = [_verdict(source.name, verdict) for source in sources for verdict in source.verdicts]
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
        "allowed": all(verdict["allowed"] for verdict in verdicts) and not unreadable,
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


def _verdict(file: str, verdict: PodVerdict) -> dict[str, Any]:
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
            {"reason": finding.reason, **_remark(finding, "field")}
            for finding in (*verdict.findings, *verdict.unread)
        ],
        "warnings": [_remark(warning, "field") for warning in verdict.warnings],
        "notes": [_remark(item, "field") for item in verdict.noted],
        "rule": decision.rule if decision else "",
        "policy": decision.policy if decision else "",
        "asks": verdict.asked if verdict.allowed else "",
        **_migration_fields(verdict),
    }


def _remark(one: Remark, *field: str) -> dict[str, Any]:
    return {**dict.fromkeys(field, one.path), "line": one.line, "sentence": one.text}


def _migration_fields(verdict: PodVerdict) -> dict[str, Any]:
    migration = verdict.migration
    if migration is None:
        return {}
    said = {
        word: [_remark(item, "field") for kind, item in remarks(verdict) if kind == word]
        for word in (NOT_MIGRATED, NOTE)
    }
    made = {"product": migration.product, "asks": migration.asks}
    return {"migration": {**made, "problems": said[NOT_MIGRATED], "notes": said[NOTE]}}


def _object(found: ManifestObject, namespace: str = "") -> dict[str, str]:
    return {
        "apiVersion": found.version,
        "kind": found.kind,
        "namespace": namespace or find_string(found.value, "metadata", "namespace"),
        "name": object_name(found),
    }
