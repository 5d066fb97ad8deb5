"""Figures of an ended pod, and the bounds within which they are trusted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from tests.support.clusters import GIB, a_gpu, a_node, a_pod, held
from tests.support.page_commands import table_of
from tests.support.strategies import ANY_JSON
from webhook.core.bounds import MAX_RUN_STOPS
from webhook.core.enforcement.termination_message import TerminationMessage, write_message
from webhook.core.kinds.ended_pods import build_run, read_ended_pod
from webhook.core.kinds.histories import Run
from webhook.core.kinds.nodes import read_time
from webhook.core.kinds.workloads import Workload
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.placement.fit import Need
from webhook.core.placement.pod_state import PodState
from webhook.core.pod.gpus import Gpu

BEGAN, ENDED, DELETED = "2026-11-21T10:00:00Z", "2026-11-21T13:12:00Z", "2026-11-21T14:00:00Z"
STATE = PodState(
    uid="u1",
    name="team-a/llama-5d9c7-x2x2x",
    need=Need(16 * GIB),
    node="n1",
    uuids=("GPU-a",),
    terms=CapTerms(cap_bytes=16 * GIB, tolerance_bytes=0, delay_s=6.5, enforce=True),
)
FINISHED = replace(STATE, finished=True)
WORDS = TerminationMessage(16 * GIB, {"GPU-a": 6 * GIB}, 0, 11_000)
GPUS = (
    Gpu(uuid="GPU-a", memory_bytes=79 * GIB, product="H100", index=0, total_bytes=80 * GIB),
    Gpu(uuid="GPU-b", memory_bytes=79 * GIB, product="H100", index=1),
)


def terminated(words=None, at=ENDED, verdict=""):
    message = verdict + (write_message(words) if words else "")
    return {"terminated": {"finishedAt": at, "message": message, "exitCode": 0}}


def a_raw(*, enforcer=None, main=None, other=None, deleted=False, last=None):
    """Return a pod with these container states. A container with None has no status."""
    sidecar = {"name": "vram-enforcer", "state": enforcer, "lastState": last or {}}
    containers = [{"name": "main", "state": main}, {"name": "other", "state": other}]
    status = {
        "startTime": BEGAN,
        "initContainerStatuses": [item for item in [sidecar] if item["state"] is not None],
        "containerStatuses": [
            container for container in containers if container["state"] is not None
        ],
    }
    metadata = {"deletionTimestamp": DELETED} if deleted else {}
    return a_pod("llama-5d9c7-x2x2x", owner="Deployment/llama", status=status, metadata=metadata)


# The table of `read_ended_pod`, by the form of each row.
RUNS = {"running": {}}
ROWS = [
    ("over", FINISHED, a_raw(enforcer=terminated(WORDS), main=RUNS)),
    ("over", FINISHED, a_raw(main=terminated())),
    ("over", STATE, a_raw(enforcer=terminated(WORDS), deleted=True)),
    ("about to end", STATE, a_raw(enforcer=RUNS, main=terminated(), deleted=True)),
    ("about to end", STATE, a_raw(main=terminated(), other=RUNS, deleted=True)),
    ("about to end", STATE, a_raw(deleted=True)),
    ("None", FINISHED, a_raw()),
    ("None", FINISHED, a_raw(enforcer=RUNS, main=terminated())),
    ("None", STATE, a_raw(enforcer=terminated(WORDS), main=terminated())),
    ("None", replace(FINISHED, node=""), a_raw(enforcer=terminated(WORDS))),
    ("None", replace(FINISHED, need=None), a_raw(enforcer=terminated(WORDS))),
]


def test_the_table_names_what_is_tested():
    forms = {form.partition(":")[0] for *_, form in table_of(read_ended_pod)}
    assert forms == {row[0] for row in ROWS}


@pytest.mark.parametrize(("how", "state", "raw"), ROWS)
def test_when_a_pod_has_ended(how, state, raw):
    found = read_ended_pod(raw, state)
    if how == "None":
        assert found is None
    else:
        assert found is not None
        assert found.is_over == (how == "over")
        assert found.ended_s == read_time(ENDED if found.is_over else DELETED)


def test_what_is_read_of_a_pod():
    found = read_ended_pod(a_raw(enforcer=terminated(WORDS, verdict="self-test: fine\n")), FINISHED)
    assert found is not None
    assert found.workload == Workload("Deployment", "llama")
    assert (found.namespace, found.pod) == ("team-a", "llama-5d9c7-x2x2x")
    run = Run(
        pod=found.pod,
        ended_s=found.ended_s,
        requested_bytes=16 * GIB,
        gpus=1,
        peak_bytes=6 * GIB,
        stops=0,
        seconds=11_000.0,
        product="H100",
    )
    assert build_run(found, GPUS, None) == run


def test_a_sidecar_that_was_started_again_says_what_both_saw():
    before = terminated(TerminationMessage(16 * GIB, {"GPU-a": 9 * GIB, "GPU-b": GIB}, 2, 60))
    raw = a_raw(enforcer=terminated(WORDS), last=before)
    found = read_ended_pod(raw, FINISHED)
    assert found is not None
    peaks = {"GPU-a": 9 * GIB, "GPU-b": GIB}
    assert found.termination == TerminationMessage(16 * GIB, peaks, 2, 11_060)


def figures(peak=None, stops=None, uid="u1", **more):
    """Return the sentry's figures of a pod; the peak is in GiB."""
    return a_node("n1", a_gpu(79, held(uid, 16, None, peak, stops, **more), uuid="GPU-a")).figures


def ending(words):
    found = read_ended_pod(a_raw(enforcer=terminated(words)), FINISHED)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("words", "seen", "peak", "stops"),
    [
        (WORDS, figures(7, 1), 7 * GIB, 1),
        (WORDS, figures(5, 0), 6 * GIB, 0),
        (WORDS, figures(), 6 * GIB, 0),
        (WORDS, figures(9, 3, uid="other"), 6 * GIB, 0),
        (WORDS, None, 6 * GIB, 0),
        (None, figures(7, 1), 7 * GIB, 1),
        (None, figures(), None, 0),
        (None, None, None, 0),
    ],
)
def test_of_the_words_and_the_sentry_the_larger_counts(words, seen, peak, stops):
    run = build_run(ending(words), GPUS, seen)
    assert (run.peak_bytes, run.stops) == (peak, stops)


@pytest.mark.parametrize(
    ("by", "uid", "limited"),
    [
        ("driver", "u1", True),
        ("driver, late", "u1", True),
        ("driver", "other", False),
        ("sidecar", "u1", False),
        ("", "u1", False),
    ],
)
def test_the_driver_held_a_run_where_the_sentry_says_so(by, uid, limited):
    assert build_run(ending(WORDS), GPUS, figures(7, uid=uid, held_by=by)).limited is limited
    assert not build_run(ending(WORDS), GPUS, None).limited


@pytest.mark.parametrize(
    ("peaks", "gpus", "peak"),
    [
        ({"GPU-a": 500 * GIB}, GPUS, 80 * GIB),
        ({"GPU-x": 500 * GIB}, GPUS, None),
        ({"GPU-x": 5 * GIB}, (), 5 * GIB),
        ({"GPU-a": 0}, GPUS, None),
    ],
)
def test_nobody_held_more_than_a_gpu_of_the_node_has(peaks, gpus, peak):
    assert build_run(ending(replace(WORDS, peaks=peaks)), gpus, None).peak_bytes == peak


def test_nobody_was_guarded_for_longer_than_the_pod_was_there_and_stops_are_bounded():
    run = build_run(ending(replace(WORDS, seconds=10**8, stops=10**8)), GPUS, None)
    assert (run.seconds, run.stops) == (3 * 3600 + 12 * 60, MAX_RUN_STOPS)


@given(ANY_JSON, ANY_JSON, ANY_JSON)
def test_reading_never_fails(metadata, status, one):
    read_ended_pod({"metadata": metadata, "status": status}, FINISHED)
    read_ended_pod(a_raw(enforcer={"terminated": one}, last=one), FINISHED)
