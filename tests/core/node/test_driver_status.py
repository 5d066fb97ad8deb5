"""Consequences of a driver that fails or hangs: the docstring's table, row by row."""

from dataclasses import replace
from itertools import product
from typing import NamedTuple

import pytest

from tests.support.page_commands import table_of
from webhook.core.node import access
from webhook.core.node.access import (
    CHANGED_AFTER_S,
    LOADED_AFTER_S,
    STUCK_AFTER_S,
    DriverStatus,
    explain_unready,
    is_hanging,
    needs_new_container,
    record_scan,
)
from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import Fault

START = DriverStatus(scanned_s=0.0, answered_s=0.0)
FINE = Scan(driver_version="570.86.15")


def failing(fault, **more):
    return Scan(failed=f"it says {fault.value}", fault=fault, **more)


def after(*scans):
    """Return the status after scans, each given with its time."""
    found = START
    for now_s, scan in scans:
        found = record_scan(found, scan, now_s)
    return found


class Row(NamedTuple):
    """A row of the table in `needs_new_container`'s docstring, with `any` expanded."""

    fault: Fault | None
    worked: bool
    loaded: bool
    after_s: float
    since_loaded: bool


def rows():
    cells = table_of(needs_new_container)
    said = {name for name, *_ in cells}
    words = {"any": (True, False), "yes": (True,), "no": (False,)}
    faults = {
        "answered": (None,),
        "any other": [fault for fault in Fault if fault.name not in said],
    }
    for name, worked, loaded, longer, new in cells:
        assert (new == "yes") == (longer != "any")
        after_s = getattr(access, longer) if new == "yes" else float("inf")
        for case in product(faults.get(name) or (Fault[name],), words[worked], words[loaded]):
            yield Row(*case, after_s, longer == "LOADED_AFTER_S")


def test_the_table_says_each_case_once():
    cases = [row[:3] for row in rows()]
    assert len(cases) == len(set(cases)) == (len(Fault) + 1) * 4


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: "-".join(map(str, row)))
def test_a_new_container_is_needed_where_the_table_says(row):
    before = [(100.0, FINE)] if row.worked else []
    scan = FINE if row.fault is None else failing(row.fault, driver_loaded=row.loaded)
    found = after(*before, (100.0, scan), (110.0, scan))
    since_s = 100.0 if row.worked or row.since_loaded else 0.0
    assert not needs_new_container(found, since_s + min(row.after_s, 1e9))
    assert needs_new_container(found, since_s + row.after_s + 0.1) == (row.after_s < 1e9)
    assert found.why == ("" if row.fault is None else f"it says {row.fault.value}")


MISSING, NOT_LOADED = (failing(fault) for fault in (Fault.LIBRARY_MISSING, Fault.DRIVER_DOWN))


@pytest.mark.parametrize("scan", [MISSING, NOT_LOADED])
def test_it_counts_from_when_the_kernel_had_a_driver_without_a_gap(scan):
    loaded = replace(scan, driver_loaded=True)
    found = after((0.0, scan), (500.0, loaded), (520.0, scan), (540.0, loaded), (560.0, loaded))
    assert not needs_new_container(found, 540.0 + LOADED_AFTER_S)
    assert needs_new_container(found, 540.1 + LOADED_AFTER_S)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("worked", [True, False])
@pytest.mark.parametrize("loaded", [True, False])
def test_it_is_unready_while_the_driver_never_came_and_says_what_is_missing(fault, worked, loaded):
    scan = failing(fault, driver_loaded=loaded)
    found = after(*([(0.0, FINE)] if worked else []), (1.0, scan))
    waits = fault is Fault.LIBRARY_MISSING or (fault is Fault.DRIVER_DOWN and not worked)
    why = explain_unready(found)
    assert why.startswith(f"{scan.failed}; the node's kernel has" if waits else "")
    assert bool(why) == waits
    assert ("no NVIDIA driver yet" in why) == (waits and not loaded)
    hints = waits and loaded and fault is Fault.LIBRARY_MISSING
    assert all(
        (hint in why) == hints
        for hint in ("agent.runtimeClassName", "helm upgrade", "agent.gpuAccess")
    )


def test_it_is_ready_once_the_driver_answers():
    assert explain_unready(START) == explain_unready(after((0.0, MISSING), (1.0, FINE))) == ""


def test_an_answer_in_between_begins_the_patience_again():
    changed = failing(Fault.DRIVER_CHANGED)
    found = after((0.0, FINE), (10.0, changed), (30.0, FINE), (31.0, changed))
    assert not needs_new_container(found, 30.0 + CHANGED_AFTER_S)
    assert needs_new_container(found, 30.1 + CHANGED_AFTER_S)


def test_a_driver_that_answers_needs_nothing_however_long_ago():
    found = after((0.0, failing(Fault.DRIVER_CHANGED)), (1.0, FINE))
    assert found == DriverStatus(scanned_s=1.0, answered_s=1.0, worked=True)
    assert not needs_new_container(found, 1e9)


def test_a_driver_without_any_scan_needs_no_container():
    assert not needs_new_container(START, 1e9)


@pytest.mark.parametrize("scan", [FINE, failing(Fault.DRIVER_DOWN)], ids=["fine", "down"])
def test_a_scan_that_does_not_come_hangs_and_one_that_fails_does_not(scan):
    found = after((1000.0, scan))
    due_s = 1000.0 + 30.0 + STUCK_AFTER_S
    assert not is_hanging(found, due_s, 30.0)
    assert is_hanging(found, due_s + 0.1, 30.0)
    assert not is_hanging(after((1000.0, scan), (due_s, scan)), due_s + 0.1, 30.0)


def test_a_driver_that_hangs_from_the_start_is_detected_too():
    assert is_hanging(START, STUCK_AFTER_S + 30.1, 30.0)
