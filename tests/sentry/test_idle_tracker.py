"""Idle times of pods, from the responses of a driver on an H100 (580.159.04)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sentry.fakes import OTHER, TRAINER, a_scan, held
from webhook.sentry.scanner import ProcessScan
from webhook.sentry.usage import STORED_S, IdleTracker

US = 1_000_000
ON_A = {"GPU-a": (held(50, 900), held(51, 30), held(60, 40, OTHER), held(70, 1, ""))}
ON_BOTH = ON_A | {"GPU-b": (held(60, 600, OTHER),)}


def told(idleness, *readings, lists=ON_A, every_s=10, first=1):
    """Add readings from 10 s on; return the idle times of pods after each."""
    found = []
    for number, samples in enumerate(readings, first):
        ran = samples if isinstance(samples, dict) and "GPU-a" in samples else {"GPU-a": samples}
        scan = replace(a_scan(**{gpu[-1]: lists[gpu] for gpu in lists}), ran=ran)
        idleness.on_scan(scan, lists, float(every_s * number))
        found.append({uid: at_s for uid, at_s in idleness.since_s.items() if uid})
    return found


@pytest.mark.parametrize(
    ("readings", "since"),
    [
        ([{}], {}),
        ([{}, {}, {}], {TRAINER: 10.0, OTHER: 10.0}),
        ([{50: (9, True)}, {50: (19, True)}], {OTHER: 10.0}),
        ([{50: (9, True)}, {50: (19, False)}, {50: (29, False)}], {TRAINER: 10.0, OTHER: 10.0}),
        ([{50: (9, True)}, {50: (19, True)}, {50: (29, False)}], {TRAINER: 20.0, OTHER: 10.0}),
        ([{50: (9, True)}, {50: (19, False), 60: (18, False)}], {TRAINER: 10.0}),
        (
            [{50: (9, True)}, {50: (15, False), 60: (19, False)}, {60: (29, False)}],
            {TRAINER: 10.0, OTHER: 20.0},
        ),
        ([{50: (8, False), 60: (9, True)}, {50: (8, False), 60: (19, False)}, {60: (29, False)}],
         {TRAINER: 10.0, OTHER: 10.0}),
        ([{50: (9, True), 60: (8, True)}, {50: (19, True)}, {50: (29, True), 60: (8, False)}],
         {OTHER: 10.0}),
        ([{}, {51: (19, False)}], {OTHER: 10.0}),
        ([{}, {70: (19, True), 99: (19, True)}], {TRAINER: 10.0, OTHER: 10.0}),
        ([{}, {}, None], {}),
        ([{}, {}, None, {}], {}),
        ([{}, {}, None, {}, {}], {TRAINER: 10.0, OTHER: 10.0}),
        ([None, None, None], {}),
    ],
    ids=[
        "one reading",
        "nobody ran",
        "one runs",
        "who ran last goes on being sampled",
        "one ran until the second",
        "another took a moment, and that one took over again",
        "another took over, and is the one that ran last now",
        "an old sample that is told again",
        "one that was told before that",
        "one of several processes ran for the first time",
        "who ran was of no pod, or is nobody we know",
        "it does not tell now",
        "it told once since",
        "it tells again",
        "it never tells",
    ],
)  # fmt: skip
def test_a_pod_idles_since_it_was_seen_to_run_or_to_hold_memory(readings, since):
    micro = [
        reading and {pid: (at * US, did) for pid, (at, did) in reading.items()}
        for reading in readings
    ]
    assert told(IdleTracker(), *micro)[-1] == since


@pytest.mark.parametrize(
    ("on_a", "on_b", "since", "later"),
    [
        ({}, {}, 10.0, 10.0),
        ({}, {60: (19 * US, True)}, None, 20.0),
        ({60: (19 * US, True)}, {}, None, 20.0),
        ({}, None, None, None),
    ],
    ids=["nothing runs", "on one it runs", "on the other", "one does not tell"],
)
def test_a_pod_with_several_gpus_idles_only_where_it_does_on_all(on_a, on_b, since, later):
    quiet = {"GPU-a": {}, "GPU-b": on_b and {}}
    readings = [quiet, {"GPU-a": on_a, "GPU-b": on_b}, quiet]
    found = told(IdleTracker(), *readings, lists=ON_BOTH)
    assert [item.get(OTHER) for item in found] == [None, since, later]
    assert found[-1][TRAINER] == 10.0


def test_who_ended_since_the_last_reading_ran_as_well():
    idleness = IdleTracker()
    told(idleness, {}, {})
    left = {"GPU-a": ON_A["GPU-a"][1:]}
    assert TRAINER not in told(idleness, {50: (29 * US, True)}, lists=left, first=3)[-1]
    assert told(idleness, {}, lists=left, first=4)[-1][TRAINER] == 30.0


def test_who_lets_go_of_its_memory_is_not_known_and_begins_anew():
    idleness = IdleTracker()
    told(idleness, {}, {})
    assert told(idleness, {}, lists={"GPU-a": ON_A["GPU-a"][:2]}, first=3)[-1] == {TRAINER: 10.0}
    assert told(idleness, {}, first=4)[-1] == {TRAINER: 10.0, OTHER: 40.0}


def test_who_let_go_of_its_memory_is_not_known_from_the_next_list_on():
    idleness = IdleTracker()
    told(idleness, {}, {})
    on_a = ON_A["GPU-a"]
    for listed, since in ((on_a, {TRAINER, OTHER}), (on_a[2:], {OTHER}), ((), set())):
        idleness.on_scan(a_scan(*listed), {"GPU-a": listed}, 21.0)
        assert idleness.since_s.keys() - {""} == since


def test_of_a_gpu_that_is_gone_nothing_is_known():
    idleness = IdleTracker()
    told(idleness, {}, {})
    idleness.on_scan(ProcessScan(failed="gone"), ON_A, 25.0)
    assert idleness.since_s == {}
    assert told(idleness, {}, {}, first=3) == [{}, {TRAINER: 10.0, OTHER: 10.0}]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(
    ("old_s", "first", "since"),
    [
        (STORED_S - 1, {}, {TRAINER: 5.0, OTHER: 1000.0}),
        (STORED_S, {}, {TRAINER: 1000.0, OTHER: 1000.0}),
        (STORED_S - 1, {50: (1, True)}, {TRAINER: 1000.0, OTHER: 1000.0}),
    ],
    ids=["it idled just now", "that was long ago", "it runs again"],
)
def test_what_an_earlier_sentry_knew_counts_for_who_idles_still(early, old_s, first, since):
    idleness = IdleTracker()
    for seeds in (early, not early):
        if seeds:
            idleness.seed({TRAINER: 5.0}, 1000.0 - old_s)
        else:
            told(idleness, first, every_s=1000)
    assert told(idleness, {}, every_s=1010)[-1] == since
    idleness.seed({TRAINER: 1.0}, 1010.0)  # too late: this sentry has its own times already
    assert told(idleness, {}, every_s=1020)[-1] == since
