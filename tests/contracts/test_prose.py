"""Docstrings in plain English: the number with a marker of the old dialect only falls."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PRODUCT = ("webhook", "certs", "deploy")
MARKERS = {
    "a question word as a noun": (
        r"^(What|Who|Whose|Whom|Why|How|When|Where|Whether|Which)\b"
        r"|^(Return|Yield) (what|who|whose|whom)\b"
    ),
    "a preposition without its noun": r"^(As|At|By|For|From|In|Of|On|Per|So|To|With)\b",
    "who without a person": (
        r"\b(and|as|at|by|for|from|is|know|knows|of|on|or|say|says|see|sees|tell|tells|than|to|with)"
        r" who(se|m)?\b|\b[Ww]hoever\b|[,;:(] ?who\b|^Who\b"
    ),
    "say, tell, let or have": r"^(Say|Tell|Let|Have)\b",
}
"""Patterns 1, 2, 3 and 5: start with the noun, name the actor, and write "Return True if ..."."""
FOUND = {
    "deploy": 11,
    "deploy.chart.vramwarden": 2,
    "webhook": 19,
    "webhook.adapters": 44,
    "webhook.adapters.kube": 73,
    "webhook.adapters.policy": 36,
    "webhook.agent": 24,
    "webhook.cli": 10,
    "webhook.core": 6,
    "webhook.core.admission": 71,
    "webhook.core.enforcement": 45,
    "webhook.core.kinds": 50,
    "webhook.core.node": 64,
    "webhook.core.nvidia": 32,
    "webhook.core.placement": 38,
    "webhook.core.pod": 63,
    "webhook.core.policy": 54,
    "webhook.limiter": 31,
    "webhook.nodekit": 8,
    "webhook.sentry": 88,
    "webhook.server": 81,
    "webhook.server.placement": 23,
    "webhook.sidecar": 43,
    "webhook.tools": 1,
    "webhook.tools.admit": 47,
    "webhook.tools.manifests": 16,
    "webhook.tools.simulate": 3,
}
"""Docstrings with a marker, by package. Lower a number when you rewrite some; never raise one."""


def docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of modules, classes and functions, and the strings below attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield text


def is_dialect(docstring: str) -> bool:
    return any(re.search(marker, docstring) for marker in MARKERS.values())


def counted() -> dict[str, int]:
    """Return the number of docstrings with a marker by package; a package without any is absent."""
    found: Counter[str] = Counter()
    for top in PRODUCT:
        for path in sorted((ROOT / top).rglob("*.py")):
            package = ".".join(path.parent.relative_to(ROOT).parts[:3])
            found[package] += sum(map(is_dialect, docstrings(path.read_text())))
    return {package: number for package, number in sorted(found.items()) if number}


def test_the_number_of_docstrings_in_dialect_only_falls():
    found = counted()
    differ = {
        package: f"{FOUND.get(package, 0)} -> {found.get(package, 0)}"
        for package in sorted(FOUND.keys() | found.keys())
        if FOUND.get(package, 0) != found.get(package, 0)
    }
    assert not differ, (
        f"Docstrings with a marker: {differ}. If a number rose, rewrite yours in plain English;"
        " if it fell, lower it in FOUND"
    )


@pytest.mark.parametrize(
    "docstring",
    [
        "What the sentry acts on.",
        "Of a table.",
        "Return who waits.",
        "A list of who waits.",
        "Cancelled by who does not wait any more.",
        "Say whether a line may be written.",
        "Names, whoever wrote them.",
    ],
)
def test_a_marker_is_found(docstring):
    assert is_dialect(docstring)


@pytest.mark.parametrize(
    "docstring",
    [
        "Return True if a line may be written.",
        "Pods that the sentry may stop.",
        "The user who asked.",
        "Format of a table.",
        "Return the reason why a pod waits.",
    ],
)
def test_plain_english_has_no_marker(docstring):
    assert not is_dialect(docstring)
