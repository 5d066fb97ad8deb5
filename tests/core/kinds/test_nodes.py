"""Stored objects: figures can be read back, and malformed parts are left out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clusters import NOW_S, a_gpu, a_node, held
from webhook.core.kinds.nodes import (
    SentryFault,
    find_sentry_fault,
    read_gpu_node,
    read_time,
    write_gpu_node,
    write_time,
)
from webhook.core.node.inventory import RESIZED
from webhook.core.nvidia.drivers import Proof
from webhook.core.pod.gpus import FAULT_LOST, FAULT_SILENT

HELD = {"heldBy": "driver", "idleSince": "2026-11-21T20:15:04Z"}
PROVEN = {"proven": True, "backEnd": "misc", "why": "", "of": "a newer release"}


@pytest.mark.parametrize(
    ("driver_limit", "pod", "limit", "figures"),
    [
        (PROVEN, HELD, Proof(True, "misc"), ("driver", read_time(HELD["idleSince"]))),
        ({"proven": False, "why": "x"}, {}, Proof(False, "", "x"), ("", None)),
        ({"proven": "true"}, {"heldBy": 5, "idleSince": "x"}, None, ("", None)),
        (None, {}, None, ("", None)),
    ],
    ids=["all", "not proven", "malformed", "absent"],
)
def test_how_pods_are_held_and_since_when_they_idle_is_read(driver_limit, pod, limit, figures):
    stored = write_gpu_node(a_node("n1", a_gpu(9, held("u1", 8))).figures)
    stored["status"]["driverLimit"] = driver_limit
    stored["status"]["gpus"][0]["pods"][0] |= pod
    found = read_gpu_node(stored)
    (of_pod,) = found.gpus[0].pods
    assert (found.limit, (of_pod.held_by, of_pod.idle_since_s)) == (limit, figures)


LONG = "\x1b[31m" + "x" * 5000


def test_no_text_of_a_stored_object_is_long_or_steers_a_terminal():
    stored = write_gpu_node(a_node("n1", a_gpu(9, held("u1", 8))).figures)
    status = stored["status"]
    status |= dict.fromkeys(("driverVersion", "enforcement", "notShared", "held"), LONG)
    status["driverLimit"] = PROVEN | {"backEnd": LONG, "why": LONG}
    status["gpus"][0] |= {"product": LONG, "fault": LONG}
    status["gpus"][0]["pods"][0] |= {"uid": LONG, "heldBy": LONG}
    found = read_gpu_node(stored)
    (gpu,) = found.gpus
    texts = {
        64: [found.driver_version, found.enforcement, found.limit.back_end],
        96: [gpu.product],
        120: [gpu.fault],
        256: [found.held, found.not_shared],
        1024: [found.limit.why],
    }
    texts[64] += [gpu.pods[0].uid, gpu.pods[0].held_by]
    cut = {limit: f"?[31m{'x' * (limit - 5)}" for limit in texts}
    assert texts == {limit: [cut[limit]] * len(texts[limit]) for limit in texts}


@pytest.mark.parametrize(
    ("stored", "read"), [(True, True), (False, False), (None, False), (1, False), ("true", False)]
)
def test_only_true_says_that_the_sentry_acts_and_that_a_gpu_is_measured(stored, read):
    written = write_gpu_node(a_node("n1", a_gpu(9)).figures)
    written["status"]["acts"] = written["status"]["gpus"][0]["measured"] = stored
    found = read_gpu_node(written)
    assert (found.acts, found.gpus[0].measured) == (read, read)
    assert read_gpu_node(write_gpu_node(found)) == found


@pytest.mark.parametrize(
    "malformed",
    [{"uuid": LONG}, {"uuid": "G" * 49}, {"uuid": "*"}, {"index": 10**300}, {"index": True}],
    ids=["raw", "long", "every", "large", "bool"],
)
def test_a_gpu_of_a_stored_object_that_is_malformed_is_left_out(malformed):
    stored = write_gpu_node(a_node("n1", a_gpu(9), a_gpu(8)).figures)
    stored["status"]["gpus"][0] |= malformed
    assert [gpu.index for gpu in read_gpu_node(stored).gpus] == [1]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2026-11-21T20:15:04Z", "2026-11-21T20:15:04Z"),
        ("2026-11-21T20:15:04.999999999Z", "2026-11-21T20:15:04Z"),
        ("2026-11-21T21:15:04+01:00", "2026-11-21T20:15:04Z"),
        ("2026-11-21T20:15:04", None),  # no time zone
        ("9999-12-31T23:59:59-10:00", None),
        ("0001-01-01T00:00:00+10:00", None),
        ("10000-01-01T00:00:00Z", None),
        ("yesterday", None),
        (1795000000, None),
        (None, None),
    ],
)
def test_a_time_is_read_with_its_zone_or_not_at_all(written, read):
    found = read_time(written)
    assert (None if found is None else write_time(found)) == read


ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


WHOLE = st.datetimes(datetime(1971, 1, 1), timezones=ZONES)  # noqa: DTZ001 - drawn with a zone


@given(WHOLE.map(lambda at: at.replace(microsecond=0)))
def test_whatever_is_read_can_be_written(at):
    found = read_time(at.isoformat())
    if found is None:
        assert at.year == 9999
    else:
        assert datetime.fromisoformat(write_time(found)) == at.astimezone(UTC)


NOW = {"age_s": 0, "acts": True, "measured": (True, True), "fault": ""}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"age_s": 120}, None),
        ({"age_s": 121}, SentryFault.NO_SENTRY),
        ({"age_s": -121}, SentryFault.NO_SENTRY),
        ({"acts": False}, SentryFault.DOES_NOT_ACT),
        ({"measured": (True, False)}, SentryFault.NOT_MEASURED),
        ({"measured": (True,)}, SentryFault.NOT_MEASURED),
        ({"measured": (True,), "fault": FAULT_LOST}, None),
        ({"measured": (True, False), "fault": FAULT_SILENT}, None),
        ({"measured": (True, False), "fault": RESIZED}, SentryFault.NOT_MEASURED),
    ],
)
def test_figures_prove_a_sentry_that_acts_on_each_gpu_that_answers(change, fault):
    given = NOW | change
    gpus = [a_gpu(79, uuid=f"GPU-{n}", measured=item) for n, item in enumerate(given["measured"])]
    figures = replace(a_node("n1", *gpus, age_s=given["age_s"]).figures, acts=given["acts"])
    shared = [a_gpu(79, uuid="GPU-0"), a_gpu(79, uuid="GPU-1", fault=given["fault"])]
    assert find_sentry_fault(figures, shared, NOW_S) == fault
    assert find_sentry_fault(None, shared, NOW_S) is SentryFault.NO_SENTRY
