"""Shared set-up: how often Hypothesis tries, and the plugins."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Assertions in helpers show the values that they compare, like those in test files.
FOLDERS = sorted(path.parent.name for path in Path(__file__).parent.glob("*/__init__.py"))
pytest.register_assert_rewrite(*(f"tests.{folder}" for folder in FOLDERS))
pytest_plugins = [
    "tests.support.measurement_table",
    "tests.support.api_server_fixtures",
    "tests.support.control_plane_fixtures",
    "tests.support.fast_lane",
    "tests.support.promtool",
]

# Ten thousand collected tests stay in memory. Traversing them as often as Python does by default
# takes a fifth of the time of short tests, so the collector ignores them once all are collected.
gc.set_threshold(50_000, 20, 100)


def pytest_collection_finish():
    gc.freeze()


settings.register_profile(
    "default",
    max_examples=100,
    deadline=None,  # the machine is noisy; time is measured by `make bench`
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fast", parent=settings.get_profile("default"), max_examples=10)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
