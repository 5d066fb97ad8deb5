"""What the enforcer says, how it reads durations, and when it reads the lists."""

import pytest

from webhook.core.enforcement.explanation import explain_stop
from webhook.core.enforcement.pacing import (
    LIST_EVERY_S,
    LIST_FLOOR_S,
    MOVED_BYTES,
    Pace,
    wants_lists,
)
from webhook.core.enforcement.step import Excess, Process
from webhook.core.pod.duration import parse_seconds

GIB = 2**30
CAP = 4 * GIB


@pytest.mark.parametrize(
    ("text", "want"), [("500ms", 0.5), ("1s", 1), ("1m30s", 90), ("2h", 7200), ("0.25", 0.25)]
)
def test_durations_are_read_as_go_writes_them(text, want):
    assert parse_seconds(text) == want


@pytest.mark.parametrize("text", ["", "s", "1d", "-1s", "1s ", "1 s", "1s2", "inf", "1e3s"])
def test_what_is_no_duration_is_rejected(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_seconds(text)


def test_an_explanation_names_the_process_the_figures_and_the_request_that_was_enough():
    process = Process(42, 7, "python train.py", "ab" * 32)
    excess = Excess(
        gpu="GPU-1",
        used_bytes=5 * GIB,
        sum_bytes=6 * GIB,
        cap_bytes=CAP,
        peak_bytes=6 * GIB + 1,
        grew_bytes=GIB,
        grew_within_s=2.0,
    )
    text = explain_stop(process, excess)
    for part in (
        "GPU GPU-1: process 42 (python train.py) of container abababababab holds 5Gi",
        "other processes of the pod 1Gi",
        "the cap is 4Gi",
        "by 1Gi within 2.0 s",
        "the pod's peak was 6.1Gi",
        "vramwarden.io/gpu-memory: 6145Mi",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("judging", "total", "since_s", "want"),
    [
        (True, 0, 0.0, True),
        (False, CAP + MOVED_BYTES, LIST_FLOOR_S / 2, False),
        (False, None, LIST_FLOOR_S, True),
        (False, CAP + 2 * MOVED_BYTES, LIST_FLOOR_S, True),
        (False, CAP - 1, LIST_FLOOR_S, False),
        (False, CAP, LIST_EVERY_S, True),
        (False, CAP, LIST_EVERY_S / 2, False),
    ],
)
def test_lists_are_read_where_something_moved_or_time_is_up(judging, total, since_s, want):
    pace = Pace(listed_at_s=100.0, listed_total_bytes=CAP, highest_bytes=CAP)
    assert wants_lists(pace, total, CAP, 100.0 + since_s, judging=judging) is want


@pytest.mark.parametrize(
    ("total", "since_s", "want"),
    [
        (GIB + MOVED_BYTES, LIST_FLOOR_S, True),
        (GIB + MOVED_BYTES, LIST_FLOOR_S / 2, False),
        (GIB + MOVED_BYTES - 1, LIST_FLOOR_S, False),
        (GIB - MOVED_BYTES, LIST_FLOOR_S, False),
    ],
)
def test_a_total_higher_than_at_any_list_is_a_peak_to_be_seen(total, since_s, want):
    pace = Pace().after(90.0, GIB, 0.0).after(100.0, GIB // 2, 0.0)
    assert wants_lists(pace, total, CAP, 100.0 + since_s, judging=False) is want


def test_peaks_cost_no_more_lists_than_fit_into_a_gpu():
    pace, lists = Pace().after(0.0, 0, 0.0), 0
    for second in range(1, 9):
        for total in (second * GIB // 2, 0):  # up and down within the cap
            if wants_lists(pace, total, CAP, float(second), judging=False):
                pace, lists = pace.after(0.0, total, 0.0), lists + 1
    assert lists == 8


def test_a_crowded_gpu_is_read_half_as_often():
    pace = Pace(listed_at_s=100.0, listed_total_bytes=CAP, call_s=0.05)
    assert not wants_lists(pace, None, CAP, 100.0 + LIST_FLOOR_S, judging=False)
    assert wants_lists(pace, None, CAP, 100.0 + 2 * LIST_FLOOR_S, judging=False)


def test_a_long_command_is_cut_in_the_sentence():
    process = Process(42, 7, "python " + "x" * 200)
    text = explain_stop(
        process,
        Excess(
            gpu="GPU-1",
            used_bytes=5 * GIB,
            sum_bytes=6 * GIB,
            cap_bytes=CAP,
            peak_bytes=6 * GIB + 1,
            grew_bytes=GIB,
            grew_within_s=2.0,
        ),
    )
    assert f"process 42 (python {'x' * 72}…) holds" in text
