"""Policies as objects: how one takes part among the files, and what its status says.

    kubectl get vrampolicies

The object NAME takes part as if it were a file NAME.yaml of the folder, in JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.bounds import COLUMN_LETTERS, STATUS_LETTERS, STATUS_PROBLEMS
from webhook.adapters.policy.files import FailedExample, PolicyText
from webhook.names import VRAM_POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from webhook.adapters.policy.source import PolicyReview
    from webhook.adapters.yaml_documents import Problem

    Json = dict[str, Any]

IN_FORCE: Final = "InForce"
"""Type of the condition."""


def policy_text(name: str, data: bytes) -> PolicyText:
    """Return how an object takes part: by its name, and in messages as what kubectl calls it."""
    return PolicyText(f"{name}.yaml", f"{VRAM_POLICIES}/{name}", data, is_object=True)


def status_of(text: PolicyText, generation: int, judged: PolicyReview) -> Json:
    """Return the status of an object that was judged; without when it came to be so.

    | in force | problems | reason |
    | --- | --- | --- |
    | what it holds | any | `InForce` |
    | not, or something older | of itself, in its form | `Invalid` |
    | " | of itself, examples alone | `ExamplesFailed` |
    | " | of others alone | `OthersInvalid`: files and objects are judged as one |
    """
    own = [problem for problem in judged.problems if problem.file == text.shown]
    others = [problem for problem in judged.problems if problem.file != text.shown]
    failed = [problem for problem in own if isinstance(problem, FailedExample)]
    errors = [problem for problem in own if not isinstance(problem, FailedExample)]
    holds = judged.in_force.get(text.name) == text.data
    if holds:
        reason, message = IN_FORCE, ""
    elif errors:
        reason, message = "Invalid", _first(errors, "problem")
    elif failed:
        reason, message = "ExamplesFailed", _first(failed, "example")
    else:
        reason = "OthersInvalid"
        message = f"waits for {_first(others, 'problem', whole=True)}"
    if not holds:
        before = text.name in judged.in_force
        message += (
            "; what it held before stays in force" if before else "; nothing of it is in force"
        )
    mine = [example for example in judged.policy.examples if _is_of(example.where, text.shown)]
    rules = [rule for rule in judged.policy.rules if _is_of(rule.where, text.shown)]
    return {
        "observedGeneration": generation,
        "inForce": holds,
        "digest": judged.policy.short_digest,
        "rules": len(rules) if holds else None,
        "examples": len(mine) if holds else None,
        "message": _cut(message, COLUMN_LETTERS) or "its rules count",
        "errors": [
            {"path": _cut(problem.path), "message": _cut(problem.detail)}
            for problem in errors[:STATUS_PROBLEMS]
        ],
        "examplesFailed": [
            {"name": _cut(problem.example), "message": _cut(problem.detail)}
            for problem in failed[:STATUS_PROBLEMS]
        ],
        "conditions": [
            {
                "type": IN_FORCE,
                "status": str(holds),
                "reason": reason,
                "message": _cut(message),
                "observedGeneration": generation,
            }
        ],
    }


def with_times(status: Json, stored: Mapping[str, Any], now: str) -> Json:
    """Return a status with the time since which each condition has been as it is."""
    before = {one.get("type"): one for one in _objects(stored.get("conditions"))}

    def timed(condition: Json) -> Json:
        was = before.get(condition["type"]) or {}
        same = was.get("status") == condition["status"]
        since = was.get("lastTransitionTime") if same else None
        return {**condition, "lastTransitionTime": since or now}

    return {**status, "conditions": [timed(one) for one in status["conditions"]]}


def says(stored: Mapping[str, Any], status: Json) -> bool:
    """Say whether a stored status says the same, whenever it came to be so."""
    conditions = [
        {key: value for key, value in one.items() if key != "lastTransitionTime"}
        for one in _objects(stored.get("conditions"))
    ]
    return {**dict.fromkeys(status), **stored, "conditions": conditions} == status


def _objects(value: object) -> list[Json]:
    given = value if isinstance(value, list) else []
    return [one for one in given if isinstance(one, dict)]


def _is_of(where: str, shown: str) -> bool:
    return where.rpartition(":")[0] == shown


def _first(problems: Iterable[Problem], what: str, *, whole: bool = False) -> str:
    """Say the first of some problems, and how many more there are."""
    first, *rest = problems
    said = str(first) if whole else ": ".join(filter(None, (first.path, first.detail)))
    more = f" (and {len(rest)} more {what}{'s' * (len(rest) > 1)})" if rest else ""
    return f"{_cut(said, STATUS_LETTERS - 128)}{more}"


def _cut(text: str, most: int = STATUS_LETTERS) -> str:
    """Return a text that is short enough for a status."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
