"""Every row of the survey of other projects' tests is tested in a test_peers file, or listed."""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.core.admission.survey import ELSEWHERE, TESTED


def test_every_row_of_the_survey_is_tested_or_listed():
    # Importing a file notes its rows, so this holds when it runs alone as well.
    for path in Path(__file__).parent.glob("test_peers_*.py"):
        importlib.import_module(f"tests.core.admission.{path.stem}")
    assert set(ELSEWHERE) & TESTED == set()
    assert sorted([*ELSEWHERE, *TESTED]) == list(range(1, 83))
