"""Text and JSON of `vramwarden check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from webhook.core.formatting import format_count, join_names
from webhook.tools.check.checks import CheckOutcome, CheckResult, CheckVerdict, find_verdict
from webhook.tools.problems.problem import CLUSTER, Problem
from webhook.tools.render.output import IN_ASCII, known, make_report, printable_line, write_json
from webhook.tools.snapshot.cluster import NEEDS_RIGHT
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
"""Sign and ECMA-48 colour, keyed by result or verdict."""


def as_text(
    outcomes: Sequence[CheckOutcome], *, is_before: bool, ascii_only: bool, colour: bool
) -> str:
    """Return a line per check, the fix below each problem, and the verdict.

    Lines state what was found. The claim of a failed check could be mistaken for a fact.
    """

    def sign(of: CheckResult | CheckVerdict) -> str:
        sign, code = _SIGNS[of]
        text = IN_ASCII[sign] if ascii_only else sign
        return f"\x1b[{code}m{text}\x1b[0m" if colour else text

    arrow = IN_ASCII["→"] if ascii_only else "→"
    whys = Counter(str(outcome.unavailable) for outcome in outcomes if outcome.is_hidden)
    folded = {why for why, number in whys.items() if number > 1}
    shown = [
        outcome
        for outcome in outcomes
        if not (outcome.is_hidden and str(outcome.unavailable) in folded)
    ]
    lines: list[tuple[str, str]] = []
    for group, members in groupby(shown, key=lambda outcome: outcome.group):
        lines += [("", group), ("", "-" * len(group))]
        for outcome in members:
            lines.append((sign(outcome.result), _describe_outcome(outcome)))
            if outcome.problems:
                lines.append((f"    {arrow}", outcome.problems[0].fix))
            if others := _describe_others(outcome.problems):
                lines.append(("   ", f"also {others}"))
        lines.append(("", ""))
    if folded:
        title = "not looked at"
        lines += [("", title), ("", "-" * len(title))]
        for why, number in whys.most_common():
            if why in folded:
                lines.append((sign(CheckResult.NOT_CHECKED), f"{why}: {number} checks"))
        lines.append(("", ""))
    lines.append((sign(find_verdict(outcomes)), _summarize(outcomes, whys, is_before=is_before)))
    texts = ((mark, printable_line(text, ascii_only=ascii_only)) for mark, text in lines)
    return "".join(f"{mark} {line}\n" if mark else f"{line}\n" for mark, line in texts)


def _describe_outcome(outcome: CheckOutcome) -> str:
    """Return the line of a check: its first problem, with all objects that have this problem."""
    if not outcome.problems:
        what = f"not looked at: whether {outcome.check.claim}"
        return f"{what}: {outcome.unavailable}" if outcome.unavailable else outcome.seen
    first = outcome.problems[0]
    alike = [other for other in outcome.problems if _is_alike(other, first)]
    about = "" if first.subject == CLUSTER else f"{_subject_names(alike)}: "
    return f"{about}{first.message} [{outcome.check.id}]"


def _describe_others(problems: Sequence[Problem]) -> str:
    """Return the objects that have problems other than the first, grouped by code."""
    by_code: dict[str, list[Problem]] = {}
    for problem in problems:
        if not _is_alike(problem, problems[0]):
            by_code.setdefault(problem.code, []).append(problem)
    return ", ".join(f"{_subject_names(found)} ({code})" for code, found in by_code.items())


def _is_alike(first: Problem, second: Problem) -> bool:
    return (first.code, first.severity, first.message) == (
        second.code,
        second.severity,
        second.message,
    )


def _subject_names(problems: Sequence[Problem]) -> str:
    return join_names(sorted(str(problem.subject) for problem in problems))


def _summarize(outcomes: Sequence[CheckOutcome], whys: Counter[str], *, is_before: bool) -> str:
    counts, found = Counter(outcome.result for outcome in outcomes), find_verdict(outcomes)
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

    `verdict` is works, failed or unknown; each `result` is ok, warning, failed or notLookedAt.
    """
    counts = Counter(outcome.result for outcome in outcomes)
    values = {
        "mode": "pre" if facts.is_before else "installed",
        "command": facts.command_version,
        "server": known(url=facts.kube.url, version=facts.attempt(lambda: facts.version)),
        "namespace": facts.namespace,
        "passed": find_verdict(outcomes) is CheckVerdict.WORKS,
        "verdict": find_verdict(outcomes).name.lower(),
        "summary": {result.value: counts[result] for result in CheckResult},
        "checks": [
            {
                "id": outcome.check.id,
                "group": outcome.group,
                "claim": outcome.check.claim,
                "result": outcome.result.value,
                "detail": outcome.seen or str(outcome.unavailable or ""),
                "problems": [problem.json for problem in outcome.problems],
            }
            for outcome in outcomes
        ],
    }
    return write_json(make_report("CheckReport", values))
