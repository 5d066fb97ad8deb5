"""Text and JSON of `vramwarden check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from webhook.core.formatting import format_count, join_names
from webhook.tools.check.table import CheckOutcome, CheckResult, CheckVerdict, verdict
from webhook.tools.problems.problem import CLUSTER, Problem
from webhook.tools.render.output import IN_ASCII, as_report, known, line_of, write_json
from webhook.tools.snapshot.facts import NEEDS_RIGHT
from webhook.tools.snapshot.installation import Installation

_SIGNS: Final[dict[CheckResult | CheckVerdict, tuple[str, str]]] = {
    CheckResult.OK: ("✓", "32"),
    CheckResult.WARNING: ("!", "33"),
    CheckResult.FAILED: ("✗", "31"),
    CheckResult.NOT_CHECKED: ("-", "2"),
    CheckVerdict.WORKS: ("✓", "32"),
    CheckVerdict.FAILED: ("✗", "31"),
    CheckVerdict.UNKNOWN: ("?", "33"),
}
"""Sign and colour (ECMA-48) of each result and verdict."""


def as_text(
    outcomes: Sequence[CheckOutcome], *, is_before: bool, ascii_only: bool, colour: bool
) -> str:
    """Return a line for each check, with a fix below each problem, and the verdict.

    A line is what was found, never what the check claims: a failing claim reads as the fact.
    """

    def sign(of: CheckResult | CheckVerdict) -> str:
        sign, code = _SIGNS[of]
        text = IN_ASCII[sign] if ascii_only else sign
        return f"\x1b[{code}m{text}\x1b[0m" if colour else text

    arrow = IN_ASCII["→"] if ascii_only else "→"
    whys = Counter(str(one.unavailable) for one in outcomes if one.is_hidden)
    folded = {why for why, number in whys.items() if number > 1}
    shown = [one for one in outcomes if not (one.is_hidden and str(one.unavailable) in folded)]
    lines: list[tuple[str, str]] = []
    for group, members in groupby(shown, key=lambda one: one.group):
        lines += [("", group), ("", "-" * len(group))]
        for one in members:
            lines.append((sign(one.result), _found(one)))
            if one.problems:
                lines.append((f"    {arrow}", one.problems[0].fix))
            if others := _others(one.problems):
                lines.append(("   ", f"also {others}"))
        lines.append(("", ""))
    if folded:
        title = "not looked at"
        lines += [("", title), ("", "-" * len(title))]
        for why, number in whys.most_common():
            if why in folded:
                lines.append((sign(CheckResult.NOT_CHECKED), f"{why}: {number} checks"))
        lines.append(("", ""))
    lines.append((sign(verdict(outcomes)), _summary(outcomes, whys, is_before=is_before)))
    texts = ((mark, line_of(text, ascii_only=ascii_only)) for mark, text in lines)
    return "".join(f"{mark} {line}\n" if mark else f"{line}\n" for mark, line in texts)


def _found(one: CheckOutcome) -> str:
    """Return the finding of a check; of problems the first, with all objects that have it."""
    if not one.problems:
        what = f"not looked at: whether {one.check.claim}"
        return f"{what}: {one.unavailable}" if one.unavailable else one.seen
    first = one.problems[0]
    alike = [other for other in one.problems if _is_alike(other, first)]
    about = "" if first.subject == CLUSTER else f"{_names(alike)}: "
    return f"{about}{first.message} [{one.check.id}]"


def _others(problems: Sequence[Problem]) -> str:
    """Return the objects that have other problems than the first, with the codes of these."""
    by_code: dict[str, list[Problem]] = {}
    for one in problems:
        if not _is_alike(one, problems[0]):
            by_code.setdefault(one.code, []).append(one)
    return ", ".join(f"{_names(found)} ({code})" for code, found in by_code.items())


def _is_alike(one: Problem, other: Problem) -> bool:
    return (one.code, one.severity, one.message) == (other.code, other.severity, other.message)


def _names(problems: Sequence[Problem]) -> str:
    return join_names(sorted(str(one.subject) for one in problems))


def _summary(outcomes: Sequence[CheckOutcome], whys: Counter[str], *, is_before: bool) -> str:
    counts, found = Counter(one.result for one in outcomes), verdict(outcomes)
    unseen = sum(whys.values())
    if found is CheckVerdict.UNKNOWN:
        ask = "ask a cluster admin to run this, or to give you the rights above"
        if not any(why.startswith(NEEDS_RIGHT) for why in whys):
            ask = "it is said above why"
        were = "was" if unseen == 1 else "were"
        of = f"{unseen} of {len(outcomes)}"
        return f"nothing has failed, but {of} {were} not looked at: {ask}"
    parts = [
        f"{counts[CheckResult.OK]} ok",
        format_count(counts[CheckResult.WARNING], "warning"),
        f"{counts[CheckResult.FAILED]} failed",
        f"{counts[CheckResult.NOT_CHECKED]} not looked at",
    ]
    words = {
        (True, CheckVerdict.WORKS): "vramwarden can be installed here",
        (True, CheckVerdict.FAILED): "vramwarden cannot be installed here as it is",
        (False, CheckVerdict.WORKS): "vramwarden works",
        (False, CheckVerdict.FAILED): "vramwarden does not work as it should",
    }
    return f"{words[is_before, found]}: {', '.join(parts)}"


def as_json(outcomes: Sequence[CheckOutcome], facts: Installation) -> str:
    """Return a CheckReport with all problems.

    `verdict` is one of works, failed, unknown; a `result` of ok, warning, failed, notLookedAt.
    """
    counts = Counter(one.result for one in outcomes)
    values = {
        "mode": "pre" if facts.is_before else "installed",
        "command": facts.command_version,
        "server": known(url=facts.kube.url, version=facts.attempt(lambda: facts.version)),
        "namespace": facts.namespace,
        "passed": verdict(outcomes) is CheckVerdict.WORKS,
        "verdict": verdict(outcomes).name.lower(),
        "summary": {result.value: counts[result] for result in CheckResult},
        "checks": [
            {
                "id": one.check.id,
                "group": one.group,
                "claim": one.check.claim,
                "result": one.result.value,
                "detail": one.seen or str(one.unavailable or ""),
                "problems": [problem.json for problem in one.problems],
            }
            for one in outcomes
        ],
    }
    return write_json(as_report("CheckReport", values))
