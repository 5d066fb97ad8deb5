"""Docstrings in plain English: the share with a marker of dialect only decreases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.prose import Docstring, share_with_marker

LIMITS = {"webhook": 0.05, "certs": 0.05, "deploy": 0.05, "tests": 0.06}
"""Maximum share by folder. Lower it when you rewrite docstrings; never raise it."""


@pytest.mark.parametrize("folder", LIMITS)
def test_the_share_of_docstrings_in_dialect_only_falls(folder):
    share = share_with_marker(ROOT / folder)
    assert share <= LIMITS[folder], (
        f"{share:.1%} of the docstrings in {folder} have a marker; rewrite yours in plain English:"
        f" python -m tests.support.prose --list {folder}"
    )


@pytest.mark.parametrize(
    ("docstring", "marker"),
    [
        ("What the sentry acts on.", "question"),
        ("Of a table.", "fragment"),
        ("Say whether a line may be written.", "say"),
        ("Return who waits.", "return what"),
        ("A list of who waits.", "nobody"),
        ("Cancelled by who does not wait any more.", "nobody"),
        ("Names, whoever wrote them.", "nobody"),
        ("None where it cannot be read.", "where"),
        ("The limit may stay so long.", "so much"),
        ("The driver told of no process.", "told"),
        ("A kind of its own.", "stands"),
    ],
)
def test_a_marker_is_found(docstring, marker):
    assert Docstring(Path(), 1, docstring).markers == [marker]


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
    assert not Docstring(Path(), 1, docstring).markers
