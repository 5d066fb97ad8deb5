"""The page of supported versions matches the code and cites a source for each row."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import yaml

from tests.support.charts import CHART
from tests.support.paths import DEPLOY, ROOT
from webhook.core.nvidia.drivers import (
    DriverClass,
    can_limit_cgroups,
    classify_driver,
    has_wide_entries,
    supports_sidecar,
)

PAGE = (DEPLOY / "support.md").read_text()
SEEN_ON_GPUS = (ROOT / "tests" / "gpu" / "README.md").read_text()
STATES = {"measured", "expected", "not"}


def tables():
    """Yield header and rows of each table, with rows as lists of cells."""
    for block in re.findall(r"(?:^\|.+\|\n)+", PAGE, re.MULTILINE):
        head, _, *rows = [line.strip("| ").split(" | ") for line in block.splitlines()]
        yield head, rows


LEGEND, *TABLES = tables()
ROWS = [(head, row) for head, rows in TABLES for row in rows]


def rows_of(section):
    """Return the rows of a section's table, keyed by first cell, with cells keyed by column."""
    (table,) = [(head, rows) for head, rows in TABLES if head[0] == section]
    return {row[0]: dict(zip(table[0], row, strict=True)) for row in table[1]}


DRIVERS, VERSIONS, GPUS = rows_of("driver"), rows_of("version"), rows_of("GPU")


def test_the_legend_explains_each_state_and_no_other():
    assert {row[0] for row in LEGEND[1]} == STATES


@pytest.mark.parametrize(("head", "row"), ROWS, ids=[row[0] for _, row in ROWS])
def test_each_row_has_its_states_and_a_source(head, row):
    cells = dict(zip(head, row, strict=True))
    states = [cells.pop(name) for name in head if name in {"state", "limiter"} or "by `" in name]
    assert states
    assert set(states) <= STATES
    assert "](" in row[-1]


def spans():
    """Yield first and last branch of each driver row, and the row's cells."""
    for name, cells in DRIVERS.items():
        first, *rest = map(int, re.findall(r"\d+", name))
        if name.startswith("before "):
            yield 1, first - 1, cells
        else:
            yield first, 9999 if name.endswith(" and newer") else (rest or [first])[0], cells


def test_the_drivers_follow_one_another():
    ends = [(first, last) for first, last, _ in spans()]
    assert ends[0][0] == 1
    assert ends[-1][1] == 9999
    assert all(last + 1 == first for (_, last), (first, _) in pairwise(ends))


@pytest.mark.parametrize(("first", "last", "cells"), [*spans()], ids=list(DRIVERS))
def test_a_driver_can_what_the_code_says(first, last, cells):
    for version in (f"{first}.0", f"{last}.999.99"):
        assert supports_sidecar(version) == (cells["by `Sidecar`"] != "not")
        assert can_limit_cgroups(version) == (cells["limiter"] != "not")


def test_the_versions_between_are_those_of_the_code():
    note = DRIVERS["535 to 569"]["note"]
    (memory,) = re.findall(r"before (\d+\.\d+\.\d+)", note)
    assert classify_driver(memory) is DriverClass.WORKS
    assert classify_driver(memory.rpartition(".")[0]) is DriverClass.BLIND
    ((first, last),) = re.findall(r"(535\.\d+) to (535\.\d+) use another form", note)
    wide = [minor for minor in range(1000) if has_wide_entries(f"535.{minor}")]
    assert (first, last) == (f"535.{wide[0]}", f"535.{wide[-1]}")


def test_what_was_measured_on_a_gpu_is_what_was_seen_there():
    seen = set(re.findall(r"driver (\d+)\.\d", SEEN_ON_GPUS))
    assert {name for name, cells in DRIVERS.items() if "measured" in cells.values()} == seen
    cards = {name for name, cells in GPUS.items() if cells["state"] == "measured"}
    assert cards == set(re.findall(r"NVIDIA (H\w+)", SEEN_ON_GPUS))


def test_the_oldest_kubernetes_is_the_charts():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (oldest,) = re.findall(r">=(1\.\d+)\.0-0", chart["kubeVersion"])
    states = {version: cells["state"] for version, cells in VERSIONS.items()}
    *older, first = [version for version in states if version != "newer"][:2]
    assert (older, first) == ([f"1.{int(oldest[2:]) - 1} and older"], oldest)
    assert [version for version, state in states.items() if state == "not"] == older


def test_what_runs_every_week_is_measured():
    weekly = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text())
    runs = weekly["jobs"]["run"]["strategy"]["matrix"]["include"]
    tried = {run["kubernetes"].removesuffix(".x") for run in runs}
    assert {VERSIONS[version]["state"] for version in tried} == {"measured"}


def test_void_works_from_the_version_from_which_the_chart_installs_it():
    (version,) = [name for name, cells in VERSIONS.items() if "fence.void" in str(cells)]
    template = (CHART / "templates/_fence.tpl").read_text()
    assert f'semverCompare ">={version}.0-0"' in template


def test_the_readme_claims_no_more_than_the_page():
    first = (ROOT / "README.md").read_text().partition("\n\n")[2].partition("\n\n")[0]
    assert "(deploy/support.md)" in first
    assert not re.search(r"\b(any|every|all)\b", first)
