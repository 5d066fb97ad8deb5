"""The sidecar's termination message: written, read back, and without effect if forged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.enforcement.messages import LogMessage
from webhook.core.enforcement.parameters import LONGEST_MESSAGE
from webhook.core.enforcement.termination_message import (
    MOST_MEBIBYTES,
    MOST_STOPS,
    TerminationMessage,
    read_message,
    read_process_name,
    read_verdict,
    write_message,
    write_process_name,
)
from webhook.core.formatting import PLAUSIBLE_GPU_BYTES

GIB = 2**30
GOOD = '{"v":1,"cap":17179869184,"peak":{"GPU-8f1":6549425356},"stops":0,"s":11520}'
WORDS = TerminationMessage(16 * GIB, {"GPU-8f1": 6_549_425_356}, 0, 11_520)


def test_the_words_for_people_and_for_programs():
    people = "ended: peak 6.1Gi of 16Gi on GPU-8f1, nothing was stopped, guarded for 3h12m"
    assert write_message(WORDS) == f"{people}\n{GOOD}\n"


@pytest.mark.parametrize(
    ("peaks", "stops", "people"),
    [
        ({"GPU-a": GIB, "GPU-b": 2 * GIB}, 1, "peak 2Gi of 16Gi on GPU-b, {} once"),
        ({}, 3, "no peak was measured, the cap is 16Gi, {} 3 times"),
    ],
)
def test_the_line_for_people(peaks, stops, people):
    written = write_message(TerminationMessage(16 * GIB, peaks, stops, 9))
    people = people.format("something was stopped")
    assert written.splitlines()[0] == f"ended: {people}, guarded for 9s"


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        ("stopping a process: why: it grew\nended: x\n{}\n", (LogMessage.STOPPING, "why: it grew")),
        ("cannot measure: no fig", (LogMessage.BLIND, "no fig")),
        ("self-test", (LogMessage.SELF_TEST, "")),
        ("ended: peak 6.1Gi of 16Gi\n" + GOOD, None),
        ("a stop: why", None),
        ("\nself-test: why", None),
        ("", None),
    ],
)
def test_the_verdict_is_the_first_line(message, verdict):
    assert read_verdict(message) == verdict


def test_a_verdict_has_no_more_than_the_kubelet_keeps():
    message, why = read_verdict("self-test: " + "x" * 2**20) or ("", "")
    assert len(f"{message}: {why}") == LONGEST_MESSAGE


UUIDS = st.text("0123456789abcdef-", min_size=1, max_size=36).map("GPU-{}".format)


@given(
    st.builds(
        TerminationMessage,
        st.integers(1, PLAUSIBLE_GPU_BYTES),
        st.dictionaries(UUIDS, st.integers(0, PLAUSIBLE_GPU_BYTES), max_size=16),
        st.integers(0, 999),
        st.integers(0, 10**8),
    ),
    st.text(max_size=200),
)
def test_what_is_written_is_read_back_behind_any_verdict(words, verdict):
    assert read_message(f"{verdict}\n{write_message(words)}") == words


def test_of_many_gpus_those_with_the_largest_peaks_are_kept():
    words = TerminationMessage(GIB, {f"GPU-{number}": number for number in range(64)}, 0, 1)
    read = read_message(write_message(words))
    assert read is not None
    assert read.peaks == {f"GPU-{number}": number for number in range(48, 64)}
    assert read.peak_bytes == words.peak_bytes


def test_the_words_of_a_pod_with_many_gpus_leave_room_for_a_verdict():
    words = TerminationMessage(
        PLAUSIBLE_GPU_BYTES,
        {f"GPU-{number:036}": PLAUSIBLE_GPU_BYTES for number in range(64)},
        9,
        9,
    )
    assert len(write_message(words)) < LONGEST_MESSAGE // 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("v", 2), ("cap", 0), ("cap", -1), ("cap", True), ("cap", 1.5),
        ("cap", PLAUSIBLE_GPU_BYTES + 1),
        ("stops", -1), ("stops", "3"), ("s", None), ("s", 10**12), ("peak", []),
        ("peak", {"GPU": -1}), ("peak", {"GPU": "1"}), ("peak", {"GPU": PLAUSIBLE_GPU_BYTES + 1}),
        ("peak", {"G" * 65: 1}), ("peak", {str(number): 1 for number in range(17)}),
    ],
)  # fmt: skip
def test_figures_that_cannot_be_are_not_read(key, value):
    assert read_message(GOOD) == WORDS
    assert read_message(json.dumps(json.loads(GOOD) | {key: value})) is None


@pytest.mark.parametrize(
    "message",
    [None, 7, "", "over the cap", GOOD[:-1], '{"a":' * 600, '{"v":' + "9" * 4_400 + "}", "{}"],
)
def test_other_messages_hold_no_words(message):
    assert read_message(message) is None


@given(st.text(max_size=100))
def test_reading_never_fails(text):
    read_message(text)
    read_message("{" + text)


MIB = 2**20


@pytest.mark.parametrize(
    ("stops", "peak_bytes", "name"),
    [
        (0, None, "vw s0"),
        (0, 0, "vw s0 0"),
        (3, 6144 * MIB, "vw s3 6144"),
        (3, 6145 * MIB - 1, "vw s3 6144"),
        (999, MOST_MEBIBYTES * MIB, "vw s999 9999999"),
        (10**9, 2**70, "vw s999 9999999"),
        (-1, -1, "vw s0 0"),
    ],
)
def test_the_name_has_stops_and_the_peak_rounded_down(stops, peak_bytes, name):
    assert write_process_name(stops, peak_bytes) == name


@given(st.integers(0, MOST_STOPS), st.none() | st.integers(0, MOST_MEBIBYTES * MIB))
def test_what_is_written_fits_the_kernel_and_is_read_again(stops, peak_bytes):
    name = write_process_name(stops, peak_bytes)
    assert len(name.encode()) <= 15
    peak = None if peak_bytes is None else peak_bytes // MIB * MIB
    assert read_process_name(name) == read_process_name(f"{name}\n") == (stops, peak)


@pytest.mark.parametrize(
    "text",
    [
        "", "python3\n", "vw", "vw s", "vw s ", "vw s1 ", "vw s-1 5", "vw s1 -5", "vw s+1",
        "vw s1 5 ", "vw s1  5", "vw s1\n5", "vw s1000", "vw s1 10000000", "vw s1 5\n\n",
        "vw s1_0 5", "vw s\u0663 5", "vw s\u00b2", "VW s1 5", " vw s1 5", "vw s1 5" + "0" * 100,
    ],
)  # fmt: skip
def test_any_other_name_says_nothing(text):
    assert read_process_name(text) is None


@given(st.text(max_size=40))
def test_whatever_a_tenant_writes_is_read_within_bounds(text):
    found = read_process_name(text)
    assert found is None or (0 <= found[0] <= MOST_STOPS and (found[1] or 0) >= 0)
