"""Short text forms of amounts, durations and names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.formatting import (
    format_amount,
    format_count,
    format_duration,
    format_exact,
    join_names,
    replace_unprintable,
    shorten,
)
from webhook.core.pod.quantity import parse_quantity

MIB, GIB, TIB = 2**20, 2**30, 2**40


@pytest.mark.parametrize(
    ("size", "up", "down", "asked"),
    [
        (0, "0", "0", "0Mi"),
        (1, "1Mi", "0", "1Mi"),
        (512 * MIB, "512Mi", "512Mi", "512Mi"),
        (GIB - 1, "1Gi", "1023Mi", "1024Mi"),
        (GIB, "1Gi", "1Gi", "1Gi"),
        (GIB + 1, "1.1Gi", "1Gi", "1025Mi"),
        (8 * GIB, "8Gi", "8Gi", "8Gi"),
        (6_582_037_381, "6.2Gi", "6.1Gi", "6278Mi"),
        (29 * GIB // 4, "7.3Gi", "7.2Gi", "7.25Gi"),
        (7630 * MIB, "7.5Gi", "7.4Gi", "7630Mi"),
        (12_400 * MIB, "12.2Gi", "12.1Gi", "12400Mi"),
        (round(58.77 * GIB), "58.8Gi", "58.7Gi", "60181Mi"),
        (round(99.99 * GIB), "100Gi", "99.9Gi", "102390Mi"),
        (round(282.3 * GIB), "283Gi", "282Gi", "289076Mi"),
        (5000 * GIB, "5,000Gi", "5,000Gi", "5000Gi"),
        (10 * TIB, "10Ti", "10Ti", "10240Gi"),
        (round(617.19 * TIB), "618Ti", "617Ti", "647170622Mi"),
        (-3 * GIB, "-3Gi", "-3Gi", "-3072Mi"),
        (-GIB - 1, "-1Gi", "-1.1Gi", "-1024Mi"),
    ],
)
def test_what_is_used_rounds_up_and_what_is_free_down_and_what_is_asked_for_is_exact(
    size, up, down, asked
):
    assert (format_amount(size), format_amount(size, down=True), format_exact(size)) == (
        up,
        down,
        asked,
    )


def in_bytes(said):
    return parse_quantity(said.replace(",", ""))


@given(st.integers(0, 2**60))
def test_no_more_is_said_to_be_free_and_no_less_to_be_used_than_there_is(size):
    assert in_bytes(format_amount(size, down=True)) <= size <= in_bytes(format_amount(size))
    assert size <= in_bytes(format_exact(size)) < size + MIB


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-3, "0s"),
        (14.9, "14s"),
        (40, "40s"),
        (119, "119s"),
        (120, "2m"),
        (540, "9m"),
        (3700, "61m"),
        (7199, "119m"),
        (7200, "2h"),
        (11_520, "3h12m"),
        (172_799, "47h59m"),
        (187_201, "2d"),
        (432_000, "5d"),
    ],
)
def test_a_time_is_said_in_its_largest_units(seconds, said):
    assert format_duration(seconds) == said


def test_numbers_have_their_words():
    said = [format_count(n, "GPU") for n in (0, 1, 2, 8000)]
    assert said == ["0 GPUs", "1 GPU", "2 GPUs", "8,000 GPUs"]
    assert [format_count(n, "class") for n in (0, 1)] == ["0 classes", "1 class"]
    assert [format_count(n, "policy") for n in (2, 1)] == ["2 policies", "1 policy"]
    assert format_count(3, "day") == "3 days"


@pytest.mark.parametrize(
    ("names", "said"),
    [("", ""), ("a", "a"), ("cab", "c, a, b"), ("cabde", "c, a, b and 2 more")],
)
def test_of_many_names_the_first_are_said(names, said):
    assert join_names(names) == said


def test_a_row_of_names_is_as_long_as_it_may_be():
    assert join_names(map(str, range(2000)), 1) == "0 and 1,999 more"


@pytest.mark.parametrize(("text", "said"), [("", ""), ("abcd", "abcd"), ("abcde", "abc…")])
def test_what_is_too_long_is_cut_and_says_so(text, said):
    assert shorten(text, 4) == said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("NVIDIA H200", "NVIDIA H2"),
        ("\x1b]0;é\x07\n\u202e\ud800", "?]0;é????"),
    ],
)
def test_a_text_of_a_node_is_cut_and_steers_no_terminal(text, shown):
    assert replace_unprintable(text, 9) == shown
