"""What a driver that fails, or hangs, asks for: the table, row by row."""

import pytest

from webhook.core.node.driver import (
    CHANGED_AFTER_S,
    REVOKED_AFTER_S,
    STUCK_AFTER_S,
    Driver,
    after_scan,
    hangs,
    needs_new_container,
)
from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import Fault

START = Driver(0.0, 0.0)
FINE = Scan(driver_version="570.86.15")


def failing(fault):
    return Scan(failed=f"it says {fault.value}", fault=fault)


def after(*scans):
    """Return what is remembered after scans, each with its time."""
    driver = START
    for now_s, scan in scans:
        driver = after_scan(driver, scan, now_s)
    return driver


NEEDS = {
    (Fault.DRIVER_CHANGED, True): CHANGED_AFTER_S,
    (Fault.DRIVER_CHANGED, False): CHANGED_AFTER_S,
    (Fault.UNKNOWN, True): REVOKED_AFTER_S,
}


@pytest.mark.parametrize("worked", [True, False], ids=["worked", "never worked"])
@pytest.mark.parametrize("fault", Fault)
def test_a_new_container_is_needed_where_nothing_else_helps(fault, worked):
    before = [(100.0, FINE)] if worked else []
    driver = after(*before, (100.0, failing(fault)), (110.0, failing(fault)))
    after_s = NEEDS.get((fault, worked), float("inf"))
    silent_since_s = 100.0 if worked else 0.0
    assert not needs_new_container(driver, silent_since_s + min(after_s, 1e9))
    assert needs_new_container(driver, silent_since_s + after_s + 0.1) == (after_s < 1e9)
    assert driver.why == f"it says {fault.value}"


def test_an_answer_in_between_begins_the_patience_again():
    changed = failing(Fault.DRIVER_CHANGED)
    driver = after((0.0, FINE), (10.0, changed), (30.0, FINE), (31.0, changed))
    assert not needs_new_container(driver, 30.0 + CHANGED_AFTER_S)
    assert needs_new_container(driver, 30.1 + CHANGED_AFTER_S)


def test_a_driver_that_answers_needs_nothing_however_long_ago():
    driver = after((0.0, failing(Fault.DRIVER_CHANGED)), (1.0, FINE))
    assert driver == Driver(1.0, 1.0, worked=True)
    assert not needs_new_container(driver, 1e9)


def test_a_driver_without_any_scan_needs_no_container():
    assert not needs_new_container(START, 1e9)


@pytest.mark.parametrize("scan", [FINE, failing(Fault.DRIVER_DOWN)], ids=["fine", "down"])
def test_a_scan_that_does_not_come_hangs_and_one_that_fails_does_not(scan):
    driver = after((1000.0, scan))
    due_s = 1000.0 + 30.0 + STUCK_AFTER_S
    assert not hangs(driver, due_s, 30.0)
    assert hangs(driver, due_s + 0.1, 30.0)
    assert not hangs(after((1000.0, scan), (due_s, scan)), due_s + 0.1, 30.0)


def test_a_driver_that_hangs_from_the_start_is_detected_too():
    assert hangs(START, STUCK_AFTER_S + 30.1, 30.0)
