"""How `check` writes what it found: lines for people, grouped, or JSON for programs."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Final

from webhook.core.words import counted
from webhook.tools.check.judge.findings import Level
from webhook.tools.shared.output import as_report, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from webhook.tools.check.judge.facts import Facts
    from webhook.tools.check.judge.table import Result

_SIGNS: Final = {
    Level.OK: ("✓", "[ok]", "32"),
    Level.WARNING: ("!", "[!]", "33"),
    Level.FAILED: ("✗", "[x]", "31"),
    Level.NOT_CHECKED: ("-", "[-]", "2"),
}
"""Of each level: the sign, the same in ASCII, and the colour (ECMA-48)."""
_MOST_NAMES: Final = 100
"""Objects that JSON names; a cluster may have 5,000 nodes."""


def has_failed(results: Sequence[Result]) -> bool:
    """Say whether anything does not work."""
    return any(one.finding.level is Level.FAILED for one in results)


def as_text(results: Sequence[Result], *, pre: bool, ascii_only: bool, colour: bool) -> str:
    """Write one line per check and its cure below, then what that amounts to."""
    return "\n".join(_lines(results, pre=pre, ascii_only=ascii_only, colour=colour)) + "\n"


def as_json(results: Sequence[Result], facts: Facts, *, pre: bool) -> str:
    """Write all of it; `result` is one of ok, warning, failed, notLookedAt."""
    values = {
        "mode": "pre" if pre else "installed",
        "command": facts.command,
        "server": {"url": facts.url, "version": facts.version},
        "namespace": facts.namespace,
        "passed": not has_failed(results),
        "summary": {level.value: _counts(results)[level] for level in Level},
        "checks": [
            {
                "id": one.check.id,
                "group": one.group,
                "title": one.check.title,
                "result": one.finding.level.value,
                "detail": one.finding.detail,
                "cure": one.finding.cure,
                "objects": list(one.finding.about[:_MOST_NAMES]),
                "objectCount": len(one.finding.about),
            }
            for one in results
        ],
    }
    return write_json(as_report("CheckReport", values))


def _lines(
    results: Sequence[Result], *, pre: bool, ascii_only: bool, colour: bool
) -> Iterator[str]:
    for group, members in groupby(results, key=lambda one: one.group):
        yield group
        yield "-" * len(group)
        for one in members:
            yield from _of_one(one, ascii_only=ascii_only, colour=colour)
        yield ""
    counts = _counts(results)
    parts = [
        f"{counts[Level.OK]} ok",
        counted(counts[Level.WARNING], "warning"),
        f"{counts[Level.FAILED]} failed",
        f"{counts[Level.NOT_CHECKED]} not looked at",
    ]
    failed = bool(counts[Level.FAILED])
    said = {
        (True, False): "vramwarden can be installed here",
        (True, True): "vramwarden cannot be installed here as it is",
        (False, False): "vramwarden works",
        (False, True): "vramwarden does not work as it should",
    }[pre, failed]
    sign = _sign(Level.FAILED if failed else Level.OK, ascii_only=ascii_only, colour=colour)
    yield f"{sign} {said}: {', '.join(parts)}"


def _of_one(one: Result, *, ascii_only: bool, colour: bool) -> Iterator[str]:
    finding = one.finding
    sign = _sign(finding.level, ascii_only=ascii_only, colour=colour)
    detail = finding.detail
    if finding.level is Level.NOT_CHECKED:
        detail = f"not looked at: {detail}"
    title = one.check.title
    if not finding.cure:
        line = f"{title}: {detail}" if detail else title
        yield f"{sign} {_printable(line, ascii_only=ascii_only)}"
        return
    yield f"{sign} {title} [{one.check.id}]"
    yield f"    {_printable(detail, ascii_only=ascii_only)}"
    arrow = "->" if ascii_only else "→"
    yield f"    {arrow} {_printable(finding.cure, ascii_only=ascii_only)}"


def _counts(results: Sequence[Result]) -> Counter[Level]:
    return Counter(one.finding.level for one in results)


def _sign(level: Level, *, ascii_only: bool, colour: bool) -> str:
    sign, plain, code = _SIGNS[level]
    text = plain if ascii_only else sign
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def _printable(text: str, *, ascii_only: bool) -> str:
    """Show what could steer a terminal as escapes: objects are named by others."""
    text = text.replace("…", "...") if ascii_only else text
    return "".join(
        char if char.isprintable() and (not ascii_only or char.isascii()) else ascii(char)[1:-1]
        for char in text
    )
