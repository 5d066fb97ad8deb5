"""Paths in a checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
DEPLOY = ROOT / "deploy"
POLICIES = ROOT / "policies"
REVIEWS = TESTS / "reviews"
"""AdmissionReviews as sent by an API server."""
GOLDEN = TESTS / "golden"
