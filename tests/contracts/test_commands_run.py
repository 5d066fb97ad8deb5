"""Every command of every page is run literally by a test, or listed as not run."""

from __future__ import annotations

import re

import pytest

from tests.support.command_coverage import MADE, NOT_RUN, RUN, commands_of, every_command
from tests.support.paths import ROOT

ENTRIES = [
    *((pattern, place) for place, patterns in RUN.items() for pattern in patterns),
    *((rf"\S+: {pattern}", place) for pattern, (place, _) in MADE.items()),
    *NOT_RUN.items(),
]
TAKES = re.compile(
    r"^from tests\.support\.(page_commands|command_coverage) import"
    r" .*\b(asked|commands|commands_of)\b.*\b\2\(",
    re.MULTILINE | re.DOTALL,
)


@pytest.mark.parametrize(("page", "command"), dict.fromkeys(every_command()), ids=str)
def test_a_command_is_run_in_one_place(page, command):
    places = [place for pattern, place in ENTRIES if re.match(pattern, f"{page}: {command}")]
    assert len(places) == 1, f"{places}: give it one entry in tests/support/command_coverage.py"


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in ENTRIES])
def test_an_entry_has_a_command(pattern):
    assert any(re.match(pattern, ": ".join(item)) for item in every_command())


@pytest.mark.parametrize("place", RUN)
def test_who_runs_commands_takes_them_from_the_pages(place):
    text = (ROOT / place).read_text()
    if place == ".ci/run":
        assert [item for _, item in commands_of(ROOT / place) if f"timed {item}" not in text] == []
    else:
        assert TAKES.search(text)


@pytest.mark.parametrize("pattern", MADE)
def test_who_runs_a_recipe_runs_what_the_makefile_does(pattern):
    place, words = MADE[pattern]
    target = re.match(r"make ([\w-]+)", pattern)[1]
    makefile = (ROOT / "Makefile").read_text()
    (recipe,) = re.findall(rf"^{target}:.*\n((?:\t.+\n)+)", makefile, re.MULTILINE)
    assert words in recipe
    assert words in (ROOT / place).read_text()
