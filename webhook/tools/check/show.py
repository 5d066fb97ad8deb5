"""How `check` writes what it found: lines for people, grouped, or JSON for programs."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Final

from webhook.core.words import counted
from webhook.tools.check.judge.findings import NEEDS_RIGHT, Level
from webhook.tools.check.judge.table import CheckVerdict, verdict
from webhook.tools.render.output import IN_ASCII, as_report, line_of, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from webhook.tools.check.judge.facts import Facts
    from webhook.tools.check.judge.table import Result

_SIGNS: Final[dict[Level | CheckVerdict, tuple[str, str]]] = {
    Level.OK: ("✓", "32"),
    Level.WARNING: ("!", "33"),
    Level.FAILED: ("✗", "31"),
    Level.NOT_CHECKED: ("-", "2"),
    CheckVerdict.WORKS: ("✓", "32"),
    CheckVerdict.FAILED: ("✗", "31"),
    CheckVerdict.UNKNOWN: ("?", "33"),
}
"""Of each level and verdict: the sign, and the colour (ECMA-48)."""


def as_text(results: Sequence[Result], *, pre: bool, ascii_only: bool, colour: bool) -> str:
    """Write one line per check and its cure below, then what that amounts to."""
    return "\n".join(_lines(results, pre=pre, ascii_only=ascii_only, colour=colour)) + "\n"


def as_json(results: Sequence[Result], facts: Facts, *, pre: bool) -> str:
    """Write all of it, unfolded.

    `verdict` is one of works, failed, unknown; a `result` of ok, warning, failed, notLookedAt.
    """
    values = {
        "mode": "pre" if pre else "installed",
        "command": facts.command,
        "server": {"url": facts.url, "version": facts.version},
        "namespace": facts.namespace,
        "passed": verdict(results) is CheckVerdict.WORKS,
        "verdict": verdict(results).name.lower(),
        "summary": {level.value: _counts(results)[level] for level in Level},
        "checks": [
            {
                "id": one.check.id,
                "group": one.group,
                "title": one.check.title,
                "result": one.finding.level.value,
                "detail": one.finding.detail,
                "cure": one.finding.cure,
                "objects": list(one.finding.about),
            }
            for one in results
        ],
    }
    return write_json(as_report("CheckReport", values))


def _lines(
    results: Sequence[Result], *, pre: bool, ascii_only: bool, colour: bool
) -> Iterator[str]:
    folded = {why for why, number in _whys(results).items() if number > 1}
    shown = [one for one in results if not (one.unseen and one.finding.detail in folded)]
    for group, members in groupby(shown, key=lambda one: one.group):
        yield from _headed(group)
        for one in members:
            yield from _of_one(one, ascii_only=ascii_only, colour=colour)
        yield ""
    if folded:
        yield from _headed("not looked at")
        sign = _sign(Level.NOT_CHECKED, ascii_only=ascii_only, colour=colour)
        for why, number in _whys(results).most_common():
            if why in folded:
                yield f"{sign} {line_of(why, ascii_only=ascii_only)}: {number} checks"
        yield ""
    yield _summary(results, pre=pre, ascii_only=ascii_only, colour=colour)


def _headed(group: str) -> Iterator[str]:
    yield group
    yield "-" * len(group)


def _whys(results: Sequence[Result]) -> Counter[str]:
    """Count why checks saw nothing that somebody with more rights could see."""
    return Counter(one.finding.detail for one in results if one.unseen)


def _summary(results: Sequence[Result], *, pre: bool, ascii_only: bool, colour: bool) -> str:
    counts, found = _counts(results), verdict(results)
    unseen = sum(_whys(results).values())
    are = "was" if unseen == 1 else "were"
    parts = [
        f"{counts[Level.OK]} ok",
        counted(counts[Level.WARNING], "warning"),
        f"{counts[Level.FAILED]} failed",
        f"{counts[Level.NOT_CHECKED]} not looked at",
    ]
    words = {
        (True, CheckVerdict.WORKS): "vramwarden can be installed here",
        (True, CheckVerdict.FAILED): "vramwarden cannot be installed here as it is",
        (False, CheckVerdict.WORKS): "vramwarden works",
        (False, CheckVerdict.FAILED): "vramwarden does not work as it should",
    }
    said = f"{words.get((pre, found))}: {', '.join(parts)}"
    if found is CheckVerdict.UNKNOWN:
        ask = "ask a cluster admin to run this, or to give you the rights above"
        if not any(why.startswith(NEEDS_RIGHT) for why in _whys(results)):
            ask = "it is said above why"
        said = f"nothing has failed, but {unseen} of {len(results)} {are} not looked at: {ask}"
    return f"{_sign(found, ascii_only=ascii_only, colour=colour)} {said}"


def _of_one(one: Result, *, ascii_only: bool, colour: bool) -> Iterator[str]:
    finding = one.finding
    sign = _sign(finding.level, ascii_only=ascii_only, colour=colour)
    detail = finding.detail
    if finding.level is Level.NOT_CHECKED:
        detail = f"not looked at: {detail}"
    title = one.check.title
    if not finding.cure:
        line = f"{title}: {detail}" if detail else title
        yield f"{sign} {line_of(line, ascii_only=ascii_only)}"
        return
    yield f"{sign} {title} [{one.check.id}]"
    yield f"    {line_of(detail, ascii_only=ascii_only)}"
    arrow = IN_ASCII["→"] if ascii_only else "→"
    yield f"    {arrow} {line_of(finding.cure, ascii_only=ascii_only)}"


def _counts(results: Sequence[Result]) -> Counter[Level]:
    return Counter(one.finding.level for one in results)


def _sign(level: Level | CheckVerdict, *, ascii_only: bool, colour: bool) -> str:
    sign, code = _SIGNS[level]
    text = IN_ASCII[sign] if ascii_only else sign
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text
