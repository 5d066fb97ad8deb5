"""Classes of drivers, by the table in the docstring."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.nvidia.drivers import (
    DriverClass,
    can_limit_cgroups,
    classify_driver,
    counts_unidentified,
    explain_driver,
    explain_support,
    has_wide_entries,
    supports_sidecar,
)

ROWS = re.findall(r"\| ([0-9.]+) +\| ([0-9.]+) +\| ([A-Z_]+) +\|", classify_driver.__doc__ or "")


def test_the_table_has_a_row_per_stretch_of_versions():
    assert len(ROWS) == 3
    assert {name for _, _, name in ROWS} == {found.name for found in DriverClass}


@pytest.mark.parametrize(("first", "last", "name"), ROWS)
def test_a_driver_is_judged_as_the_table_says(first, last, name):
    assert classify_driver(first) is DriverClass[name]
    assert classify_driver(last) is DriverClass[name]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("515.105.01", DriverClass.HOST_PIDS),
        ("525.147.05", DriverClass.HOST_PIDS),
        ("535.54.03", DriverClass.HOST_PIDS),
        ("535.86.10", DriverClass.HOST_PIDS),
        ("535.104.12", DriverClass.HOST_PIDS),
        ("535.113.01", DriverClass.BLIND),
        ("535.288.01", DriverClass.BLIND),
        ("545.23.08", DriverClass.BLIND),
        ("550.163.01", DriverClass.BLIND),
        ("555.42.06", DriverClass.BLIND),
        ("560.35.03", DriverClass.BLIND),
        ("565.57.01", DriverClass.WORKS),
        ("570.86.15", DriverClass.WORKS),
        ("580.65.06", DriverClass.WORKS),
        ("595.45.04", DriverClass.WORKS),
        ("615.12", DriverClass.WORKS),
        ("1000.1", DriverClass.WORKS),
        (" 570.86.15-0ubuntu1\n", DriverClass.WORKS),
    ],
)
def test_released_drivers_are_judged_by_number_not_by_text(version, expected):
    assert classify_driver(version) is expected
    if expected is not DriverClass.WORKS:
        assert version.strip() in explain_driver(version)


@pytest.mark.parametrize(
    "version",
    [
        "",
        "565",
        "565.",
        "v565.57.01",
        "565.57.01.2",
        "565.x",
        "565.\u0665\u0667.01",
        "-565.57",
        "N/A",
    ],
)
def test_a_version_that_cannot_be_read_counts_as_blind_and_says_so(version):
    assert classify_driver(version) is DriverClass.BLIND
    assert not supports_sidecar(version)
    assert "cannot be read" in explain_driver(version)
    assert "cannot be read" in explain_support(version)


@pytest.mark.parametrize(
    ("version", "wide"),
    [
        ("535.42.99", False), ("535.43.02", True), ("535.54.03", True), ("535.86.10", True),
        ("535.87", False), ("535.104.05", False), ("545.54", False), ("580.65.06", False),
        ("", False), ("535", False),
    ],
)  # fmt: skip
def test_entries_of_lists_are_wide_on_the_first_releases_of_535(version, wide):
    assert has_wide_entries(version) is wide


@given(st.text())
def test_no_text_at_all_makes_the_judgement_fail(version):
    assert (classify_driver(version) is DriverClass.WORKS) or explain_driver(version)
    assert explain_support(version)


@pytest.mark.parametrize(
    ("version", "supported"),
    [("570.86.15", True), ("570.0", True), ("615.12", True), ("569.99.99", False), ("70.1", False)],
)
def test_a_sidecar_needs_branch_570_or_newer(version, supported):
    assert supports_sidecar(version) is supported
    assert (version, "570 or newer" in explain_support(version)) == (
        explain_support(version).split()[1],
        not supported,
    )


@given(st.integers(0, 2000), st.integers(0, 99))
def test_it_was_seen_on_one_branch(major, minor):
    assert counts_unidentified(f"{major}.{minor}.1") is (major == 580)


@pytest.mark.parametrize(
    ("version", "limits"),
    [("615.71.09", True), ("1000.1", True), ("610.99", False), ("580.65.06", False), ("", False)],
)
def test_limits_are_of_r615_and_newer(version, limits):
    assert can_limit_cgroups(version) is limits
