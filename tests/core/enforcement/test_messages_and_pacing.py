"""Messages of the enforcer, and when it reads process lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.enforcement.messages import explain_stop, sufficient_request
from webhook.core.enforcement.model import Excess, Process
from webhook.core.enforcement.pacing import (
    LIST_EVERY_S,
    LIST_FLOOR_S,
    MOVED_BYTES,
    Pace,
    wants_lists,
)

GIB = 2**30
CAP = 4 * GIB


EXCESS = Excess(
    gpu="GPU-1",
    used_bytes=5 * GIB,
    sum_bytes=6 * GIB,
    cap_bytes=CAP,
    peak_bytes=6 * GIB + 1,
    grew_bytes=GIB,
    grew_within_s=2.0,
)


def test_an_explanation_names_the_process_the_figures_and_the_request_that_would_do():
    text = explain_stop(Process(42, 7, "python train.py", "ab" * 32), EXCESS)
    for part in (
        "GPU GPU-1: process 42 (python train.py) of container abababababab holds 5Gi",
        "other processes of the pod 1Gi",
        "the cap is 4Gi",
        "by 1Gi within 2.0 s",
        "the pod's peak was 6.1Gi, so write vramwarden.io/gpu-memory: 7Gi (the peak and 15 %)",
    ):
        assert part in text


@given(st.integers(0, 2**50))
def test_the_margin_is_fifteen_percent_and_no_more_than_a_grain(peak):
    found = sufficient_request(peak)
    assert found * 100 >= peak * 115
    grain = GIB if found > 8 * GIB else GIB // 4
    assert found % grain == 0
    assert 0 < found < peak * 1.15 + grain + 1


def test_a_long_command_is_cut_in_the_sentence():
    text = explain_stop(Process(42, 7, "python " + "x" * 200), EXCESS)
    assert f"process 42 (python {'x' * 72}…) holds" in text


SLOW = {"call_s": 0.05}  # a GPU with many processes
LIMITED = {"limited": True}  # the total is the driver's count for the pod


@pytest.mark.parametrize(
    ("judging", "total", "since_s", "more", "want"),
    [
        (True, 0, 0.0, {}, True),
        (False, CAP, LIST_FLOOR_S, LIMITED, True),
        (False, CAP, LIST_FLOOR_S / 2, LIMITED, False),
        (False, CAP - MOVED_BYTES, LIST_FLOOR_S, {}, False),
        (False, CAP + MOVED_BYTES, LIST_FLOOR_S / 2, {}, False),
        (False, None, LIST_FLOOR_S, {}, True),
        (False, CAP + 2 * MOVED_BYTES, LIST_FLOOR_S, {}, True),
        (False, CAP - 1, LIST_FLOOR_S, {}, False),
        (False, CAP, LIST_EVERY_S, {}, True),
        (False, CAP, LIST_EVERY_S / 2, {}, False),
        (False, None, LIST_FLOOR_S, SLOW, False),  # slow lists are read half as often
        (False, None, 2 * LIST_FLOOR_S, SLOW, True),
    ],
)
def test_lists_are_read_where_something_moved_or_time_is_up(judging, total, since_s, more, want):
    slow = {} if more is LIMITED else more
    pace = Pace(listed_at_s=100.0, listed_total_bytes=CAP, highest_bytes=CAP, **slow)
    limited, now_s = more is LIMITED, 100.0 + since_s
    assert wants_lists(pace, total, CAP, now_s, judging=judging, limited=limited) is want


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
        for total in (second * GIB // 2, 0):  # rises and falls within the cap
            if wants_lists(pace, total, CAP, float(second), judging=False):
                pace, lists = pace.after(0.0, total, 0.0), lists + 1
    assert lists == 8
