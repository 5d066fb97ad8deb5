"""Durations are parsed exactly without `fractions`, which would cost the sidecar memory."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from webhook.core.pod.duration import parse_ms, parse_seconds

MS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
NUMBERS = st.integers(0, 4000).map(str) | st.decimals(0, 99, places=4).map("{:f}".format)
PARTS = st.lists(st.tuples(NUMBERS, st.sampled_from(sorted(MS))), min_size=1, max_size=3)


@given(PARTS)
@example([("0.0001", "h"), ("0.0004", "s"), ("0.6", "ms")])  # fractions with a whole sum
def test_a_duration_is_the_exact_sum_of_its_parts(parts):
    text = "".join(number + unit for number, unit in parts)
    want = sum(Fraction(number) * MS[unit] for number, unit in parts)
    if want.denominator == 1:
        assert parse_ms(text) == want
    else:
        with pytest.raises(ValueError, match="is finer than a millisecond; write whole"):
            parse_ms(text)


@pytest.mark.parametrize(
    ("text", "want"), [("500ms", 0.5), ("1s", 1), ("1m30s", 90), ("2h", 7200), ("0.25", 0.25)]
)
def test_seconds_may_be_a_bare_number(text, want):
    assert parse_seconds(text) == want


WRONG = ["", "s", "1d", "-1s", "1s ", "1 s", "1s2", "inf", "1e3s", "٣s", "1s\n", "1.s", ".5s"]


@pytest.mark.parametrize("text", [*WRONG, "0." + "0" * 40 + "s", "1" * 32 + "h"])
def test_what_is_no_duration_says_what_to_write(text):
    sentence = "is not a duration; write e.g. 500ms, 1s or 1m30s"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        parse_ms(text)
    with pytest.raises(ValueError, match=f"^{re.escape(repr(text))} {re.escape(sentence)}$"):
        parse_seconds(text)
