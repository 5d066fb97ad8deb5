"""Where things lie in a checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
POLICIES = ROOT / "policies"
REVIEWS = ROOT / "tests" / "reviews"
"""AdmissionReviews as an API server sent them."""
GOLDEN = ROOT / "tests" / "golden"
