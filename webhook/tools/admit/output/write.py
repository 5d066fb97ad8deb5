"""Output of `vramwarden admit`: manifests, patches or a diff, and a line per object."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, TextIO

from webhook.adapters.review_json import patch_bytes
from webhook.core.formatting import format_count
from webhook.tools.admit.output import ci_reports
from webhook.tools.admit.output.summary import describe
from webhook.tools.admit.verdicts.manifest_text import ManifestText, counts
from webhook.tools.admit.verdicts.verdict import (
    MIGRATED,
    NOT_MIGRATED,
    NOTE,
    UNREAD,
    WARNING,
    PodVerdict,
    object_title,
    remarks,
)
from webhook.tools.manifests.documents import join
from webhook.tools.render.output import printable, supports_colour

_RED, _GREEN, _YELLOW, _CYAN, _BOLD = "31", "32", "33", "36", "1"
_SUMMARY_COLOURS: Final = {
    "denied": _RED,
    "translated": _GREEN,
    "already translated": _GREEN,
    WARNING: _YELLOW,
    UNREAD: _RED,
    NOT_MIGRATED: _RED,
    MIGRATED: _GREEN,
}
_LINE_START: Final = re.compile(r"(?<=\n)")
_DIFF_COLOURS: Final = {"---": _BOLD, "+++": _BOLD, "@@": _CYAN, "+": _GREEN, "-": _RED}
_SHOWN_KINDS: Final = 5


class Output(StrEnum):
    """Formats of standard output."""

    YAML = "yaml"
    JSON = "json"
    PATCH = "patch"
    DIFF = "diff"
    SUMMARY = "summary"
    GITHUB = "github"
    JUNIT = "junit"
    REPORT = "report"


_MANIFESTS: Final = frozenset({Output.YAML, Output.JSON, Output.PATCH})
"""Formats for programs. They are not written if a file is unreadable."""
_SAYS_ALL: Final = frozenset({Output.SUMMARY, Output.GITHUB})
"""Formats that contain each verdict. Standard error does not repeat the verdicts."""


def show(
    sources: Sequence[ManifestText],
    output: Output,
    stdout: TextIO,
    stderr: TextIO,
    *,
    verbose: bool = False,
) -> None:
    """Write the results in a format: manifests to `stdout`, verdicts to `stderr`."""
    is_held = output in _MANIFESTS and any(source.unreadable for source in sources)
    for source in sources:
        if source.unreadable:
            number, why = source.unreadable.line, source.unreadable.text
            place = f"{source.name}:{number}" if number else source.name
            error = printable(f"Error: {place}: {why}")
            stderr.write(_painted(error, _RED, stderr) + "\n")
        for verdict in source.verdicts:
            if output not in _SAYS_ALL:
                _report(source.name, verdict, stderr)
            if output is Output.PATCH and not is_held:
                stderr.flush()
                stdout.write(patch_bytes(verdict.patch).decode() + "\n")
                stdout.flush()
        for other in source.others:
            said = [(other.line, "no pod template")] if verbose else []
            said += [(note.line, f"{NOTE}: {note.text}") for note in other.notes]
            for line, text in said:
                shown = printable(f"{source.name}:{line}: {object_title(other.object)}: {text}")
                stderr.write(f"{shown}\n")
    if is_held:
        if len(sources) > 1:
            stderr.write("No manifests are printed: first correct what cannot be read.\n")
    elif output is Output.YAML:
        stdout.write(join(_after(source) for source in sources))
    elif output is Output.JSON:
        documents = [document for source in sources for document in source.after]
        stdout.write(_as_json([document.value for document in documents if document.value]))
    elif output is Output.DIFF:
        for source in sources:
            _diff(source, stdout)
    elif output is Output.SUMMARY:
        _summarize(sources, stdout)
    elif write := _REPORTS.get(output):
        stdout.write(write(sources))
    stdout.flush()
    if count := tally(sources):
        stderr.write(f"{printable(count)}\n")


def _summarize(sources: Sequence[ManifestText], stdout: TextIO) -> None:
    for source in sources:
        for verdict in source.verdicts:
            for line in describe(source.name, verdict):
                said = line.rpartition(f" {verdict.title}: ")[2].lstrip()
                _write_line(line, said, stdout)


_REPORTS: Final = {
    Output.GITHUB: ci_reports.github,
    Output.JUNIT: ci_reports.junit,
    Output.REPORT: ci_reports.as_json,
}


def tally(sources: Sequence[ManifestText]) -> str:
    """Return the final line, which counts results; empty if no input is readable."""
    others = [other for source in sources for other in source.others]
    made = [
        verdict.migration for source in sources for verdict in source.verdicts if verdict.migration
    ]
    migrated = {
        MIGRATED: sum(bool(item.asks) for item in made),
        NOT_MIGRATED: sum(bool(item.problems) for item in made),
    }
    parts = [f"{count} {what}" for what, count in migrated.items() if count]
    parts += [f"{count} {what}" for what, count in counts(sources).items()]
    words = [
        word for source in sources for verdict in source.verdicts for word, _ in remarks(verdict)
    ]
    for word in (UNREAD, WARNING):
        parts += [format_count(words.count(word), word)] if word in words else []
    if policies := sum(other.is_policy for other in others):
        parts.append(f"{format_count(policies, 'policy')} (see `vramwarden policy check`)")
    kinds = Counter(other.object.kind or "(no kind)" for other in others if not other.is_policy)
    if kinds:
        shown = [f"{count} {kind}" for kind, count in kinds.most_common(_SHOWN_KINDS)]
        more = ", ..." * (len(kinds) > _SHOWN_KINDS)
        parts.append(f"{kinds.total()} without a pod template ({', '.join(shown)}{more})")
    unread = sum(bool(source.unreadable) for source in sources)
    if unread and (parts or unread > 1):
        parts.append(f"{unread} unreadable")
    return ", ".join(parts)


def _report(name: str, verdict: PodVerdict, stderr: TextIO) -> None:
    said = [(line.line, line.text) for line in verdict.summary_lines]
    said += [(item.line, f"{word}: {item.text}") for word, item in remarks(verdict)]
    for number, line in said:
        _write_line(f"{name}:{number}: {verdict.title}: {line}", line, stderr)


def _write_line(line: str, said: str, stream: TextIO) -> None:
    """Write a line in the colour of the verdict or remark that `said` begins with."""
    start = next((start for start in _SUMMARY_COLOURS if said.startswith(start)), "")
    stream.write(_painted(printable(line), _SUMMARY_COLOURS.get(start, ""), stream) + "\n")


def _after(source: ManifestText) -> str:
    """Return the manifests after admission, or the original text if nothing changed."""
    if all(new is old for new, old in zip(source.after, source.before, strict=True)):
        return source.text
    return join(document.text for document in source.after)


def _as_json(values: list[Any]) -> str:
    value = values[0] if len(values) == 1 else {"apiVersion": "v1", "kind": "List", "items": values}
    return json.dumps(value, indent=4, ensure_ascii=False) + "\n"


def _diff(source: ManifestText, stdout: TextIO) -> None:
    """Write a unified diff. Changed JSON documents are compared as YAML."""
    pairs = list(zip(source.before, source.after, strict=True))
    before = join(old.text if new is old else old.as_yaml for old, new in pairs)
    after = join(new.text for _, new in pairs)
    lines = difflib.unified_diff(
        _lines(before),
        _lines(after),
        source.name,
        f"{source.name} ({'migrated' if source.is_migrated else 'admitted'})",
    )
    for line in lines:
        text = line.removesuffix("\n")
        code = next((code for start, code in _DIFF_COLOURS.items() if text.startswith(start)), "")
        stdout.write(_painted(text, code, stdout) + "\n")
        if not line.endswith("\n"):
            stdout.write("\\ No newline at end of file\n")


def _lines(text: str) -> list[str]:
    """Split at line feeds only, as diffs require."""
    return [line for line in _LINE_START.split(text) if line]


def _painted(text: str, code: str, stream: TextIO) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if code and supports_colour(stream) else text
