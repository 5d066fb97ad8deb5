"""Amounts and times in few characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.words import amount, counted, span

MIB, GIB, TIB = 2**20, 2**30, 2**40


@pytest.mark.parametrize(
    ("size", "said", "said_down"),
    [
        (0, "0", "0"),
        (1, "0Mi", "0Mi"),
        (512 * MIB, "512Mi", "512Mi"),
        (GIB - 1, "1Gi", "1023Mi"),
        (GIB, "1Gi", "1Gi"),
        (6400 * MIB, "6.3Gi", "6.2Gi"),
        (round(58.77 * GIB), "58.8Gi", "58.7Gi"),
        (round(99.99 * GIB), "100Gi", "99.9Gi"),
        (round(282.6 * GIB), "283Gi", "282Gi"),
        (5000 * GIB, "5,000Gi", "5,000Gi"),
        (10 * TIB, "10Ti", "10Ti"),
        (round(617.19 * TIB), "617Ti", "617Ti"),
        (-3 * GIB, "-3Gi", "-3Gi"),
    ],
)
def test_an_amount_has_three_digits_or_so(size, said, said_down):
    assert (amount(size), amount(size, down=True)) == (said, said_down)


@given(st.integers(0, 2**60))
def test_down_never_says_more_than_there_is(size):
    said = amount(size, down=True).replace(",", "")
    unit = {"Mi": MIB, "Gi": GIB, "Ti": TIB}.get(said[-2:], 1)
    assert float(said.removesuffix("Mi").removesuffix("Gi").removesuffix("Ti")) * unit <= size


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-3, "0s"),
        (14.9, "14s"),
        (119, "119s"),
        (120, "2m"),
        (540, "9m"),
        (7199, "119m"),
        (7200, "2h"),
        (11_520, "3h12m"),
        (172_799, "47h59m"),
        (432_000, "5d"),
    ],
)
def test_a_time_is_said_in_its_largest_units(seconds, said):
    assert span(seconds) == said


def test_numbers_have_their_words():
    assert [counted(n, "GPU") for n in (0, 1, 2, 8000)] == [
        "0 GPUs",
        "1 GPU",
        "2 GPUs",
        "8,000 GPUs",
    ]
