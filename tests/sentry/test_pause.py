"""Pause of the sentry until the next scan."""

from __future__ import annotations

import pytest

from webhook.sentry.scanner import DUTY, HURRY, IDLE_S, SOON_S, pause_s

NAMES = ("ending", "judging", "may_act", "listed", "held")


@pytest.mark.parametrize(
    ("true", "expected_s"),
    [
        (NAMES, 0.25),
        (NAMES[1:], 0.5),
        (NAMES[2:], 1.0),
        (NAMES[3:], 10.0),
        (("listed",), 10.0),
        (("held",), 10.0),
        ((), 45.0),
    ],
)
def test_the_table_of_the_docstring(true, expected_s):
    said = {name: name in true for name in NAMES}
    assert pause_s(0.001, **said) == expected_s


@pytest.mark.parametrize(
    ("true", "took_s", "expected_s"),
    [
        (NAMES, 0.5, 1.0),
        (NAMES[1:], 0.5, 1.0),
        (NAMES[1:], 100.0, HURRY * 100.0),
        (NAMES[2:], 0.1, 2.0),
        (NAMES[2:], 0.5, SOON_S),
        (NAMES[2:], 100.0, HURRY * 100.0),
        (NAMES[3:], 1.0, DUTY * 1.0),
        (NAMES[3:], 5.0, IDLE_S),
        (NAMES[3:], 100.0, HURRY * 100.0),
        ((), 5.0, IDLE_S),
        ((), 100.0, HURRY * 100.0),
    ],
)
def test_after_a_scan_that_took_long(true, took_s, expected_s):
    assert pause_s(took_s, **{name: name in true for name in NAMES}) == expected_s


@pytest.mark.parametrize(
    ("true", "took_s", "poll_s", "expected_s"),
    [
        (NAMES[2:], 0.001, 1.0, 1.0),
        (NAMES[2:], 0.001, 30.0, 1.0),
        (NAMES[2:], 0.001, 0.4, 0.4),
        (NAMES[2:], 0.001, 0.1, 0.25),
        (NAMES[2:], 0.1, 1.0, 1.0),  # not 2.0: no other enforcer measures these pods
        (NAMES[2:], 0.6, 1.0, HURRY * 0.6),
        (NAMES[1:], 0.001, 1.0, 0.5),
        (NAMES[1:], 0.001, 0.4, 0.4),
        (NAMES[1:], 0.001, 0.1, 0.25),
        (NAMES, 0.001, 1.0, 0.25),
        (NAMES, 0.001, 0.1, 0.25),
    ],
)
def test_with_pods_by_sentry_it_scans_as_often_as_their_poll_but_at_most_every_quarter_second(
    true, took_s, poll_s, expected_s
):
    said = {name: name in true for name in NAMES}
    assert pause_s(took_s, **said, poll_s=poll_s) == expected_s


@pytest.mark.parametrize("took_s", [0.01, 0.1, 0.3])
def test_an_excess_ends_in_fifteen_seconds_though_looks_are_slow(took_s):
    said = dict.fromkeys(NAMES, True) | {"ending": False}
    calm_s = took_s + pause_s(took_s, **said | {"judging": False})
    judged_s, scans = 0.0, 1
    while judged_s < 11.5 or scans < 2:
        judged_s += took_s + pause_s(took_s, **said)
        scans += 1
    assert calm_s + judged_s + took_s < 15.0
