"""Verdicts as continuous integration reads them: GitHub's annotations, JUnit, JSON.

Sources: docs.github.com, "Workflow commands for GitHub Actions"; the JUnit XML that GitLab, Jenkins
and others read (testmoapp/junitxml describes it).
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any, Final

from webhook import __version__
from webhook.names import SEEING_API_VERSION
from webhook.tools.admit.judge.texts import counts
from webhook.tools.admit.judge.verdict import (
    MIGRATED,
    NOT_MIGRATED,
    NOTE,
    Remark,
    Sort,
    name_of,
    printable,
    remarks,
)
from webhook.tools.shared.manifests.documents import text_of
from webhook.tools.shared.manifests.files import STANDARD_INPUT, name_of_input

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from webhook.tools.admit.judge.texts import ManifestText
    from webhook.tools.admit.judge.verdict import JudgedPod
    from webhook.tools.shared.manifests.documents import ManifestObject

_STANDARD_INPUT: Final = name_of_input(STANDARD_INPUT)
_COUNTED: Final = {
    Sort.TRANSLATED: "translated",
    Sort.ALREADY: "alreadyTranslated",
    Sort.DENIED: "denied",
    Sort.WARNED: "warned",
    Sort.LEFT_ALONE: "leftAlone",
}
_NOT_MIGRATED_REASON: Final = "NotMigrated"
_COMMANDS: Final = {
    "warning": "warning",
    "hint": "notice",
    MIGRATED: "notice",
    NOT_MIGRATED: "error",
    NOTE: "notice",
}


def github(sources: Iterable[ManifestText]) -> str:
    """Return workflow commands: an error for each finding that denies, a warning for others."""
    return "".join(
        f"{_command(command, source.name, verdict, one)}\n"
        for source in sources
        for verdict in source.verdicts
        for command, one in _commands(verdict)
    )


def _commands(verdict: JudgedPod) -> Iterator[tuple[str, Remark]]:
    if verdict.sort in {Sort.DENIED, Sort.WARNED}:  # under Audit findings are recorded alone
        command = "warning" if verdict.allowed else "error"
        yield from ((command, one) for one in verdict.findings)
    if verdict.guidance:
        yield "notice", Remark(verdict.line, verdict.guidance)
    for word, one in remarks(verdict):
        yield _COMMANDS[word], one


def _command(command: str, file: str, verdict: JudgedPod, one: Remark) -> str:
    properties = {} if file == _STANDARD_INPUT else {"file": file}
    properties |= {"line": str(one.line), "title": one.reason or "vramwarden"}
    written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{command} {written}::{_data(f'{verdict.title}: {one.text}')}"


def _data(text: str) -> str:
    """Escape as GitHub's runner reads it: no text of a manifest begins a command of its own."""
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return printable(escaped)


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def junit(sources: Sequence[ManifestText]) -> str:
    """Return one test case per pod or pod template, and a suite per file."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    total = [verdict for source in sources for verdict in source.verdicts]
    lines.append(f'<testsuites name="vramwarden admit" {_totals(total)}>')
    for source in sources:
        lines.append(f'  <testsuite name="{_xml(source.name)}" {_totals(source.verdicts)}>')
        for verdict in source.verdicts:
            lines += _case(source.name, verdict)
        lines.append("  </testsuite>")
    lines.append("</testsuites>")
    return "\n".join(lines) + "\n"


def _totals(verdicts: Sequence[JudgedPod]) -> str:
    failures = sum(not verdict.passed for verdict in verdicts)
    return f'tests="{len(verdicts)}" failures="{failures}" errors="0"'


def _case(file: str, verdict: JudgedPod) -> Iterator[str]:
    about = {"name": verdict.title, "classname": file, "file": file, "line": str(verdict.line)}
    written = " ".join(f'{key}="{_xml(value)}"' for key, value in about.items())
    yield f"    <testcase {written}>"
    if not verdict.passed:
        reasons, why = _failure(verdict)
        message = _xml(why)
        yield f'      <failure type="{_xml(reasons)}" message="{message}">{message}</failure>'
    said = [] if not verdict.allowed else [verdict.summary]
    said += [f"{word}: {one.text}" for word, one in remarks(verdict)]
    if said:
        yield "      <system-out>" + "\n".join(map(_xml, said)) + "</system-out>"
    yield "    </testcase>"


def _failure(verdict: JudgedPod) -> tuple[str, str]:
    """Return the reasons of a failed case, and its sentence."""
    if verdict.allowed:
        problems = [one.text for word, one in remarks(verdict) if word == NOT_MIGRATED]
        return _NOT_MIGRATED_REASON, f"{NOT_MIGRATED}: {'; '.join(problems)}"
    return ",".join(dict.fromkeys(one.reason for one in verdict.findings)), verdict.summary


def _xml(text: str) -> str:
    """Escape for XML, which knows no control characters, however they are written."""
    return escape(printable(text))


def report(sources: Sequence[ManifestText]) -> str:
    """Return the verdicts as JSON.

    | field | is |
    | --- | --- |
    | verdicts[].object | apiVersion, kind, namespace, name |
    | verdicts[].path | where in the object the template stands; empty for a pod |
    | verdicts[].file, line | where in the manifests, or what is wrong with it |
    | verdicts[].decision | as the webhook's log and audit annotations have it |
    | verdicts[].findings[] | reason, field, line and sentence |
    | verdicts[].migration | with --migrate: product, asks, problems and notes as findings |
    | withoutTemplate[] | object, file, line |
    """
    verdicts = [_verdict(source.name, one) for source in sources for one in source.verdicts]
    without = [
        {"object": _object(other.object), "file": source.name, "line": other.line}
        for source in sources
        for other in source.others
    ]
    counted = counts(sources)
    made = {
        "apiVersion": SEEING_API_VERSION,
        "kind": "AdmitReport",
        "release": __version__,
        "allowed": all(one["allowed"] for one in verdicts),
        "summary": {
            **{name: counted.get(sort, 0) for sort, name in _COUNTED.items()},
            "withoutTemplate": len(without),
        },
        "verdicts": verdicts,
        "withoutTemplate": without,
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
        "findings": [{"reason": one.reason, **_remark(one, "field")} for one in verdict.findings],
        "warnings": [_remark(one) for one in verdict.warnings],
        "hints": [_remark(one) for one in verdict.hints],
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
        "namespace": namespace or text_of(found.value, "metadata", "namespace"),
        "name": name_of(found),
    }
