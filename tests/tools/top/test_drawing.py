"""What all pages have in common."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.pages import read_page, texts
from webhook.tools.top.show.drawing import charts, elements
from webhook.tools.top.show.drawing.elements import page, section, table, tag


@given(st.text(max_size=50))
def test_whatever_stands_in_a_text_the_page_is_well_formed_and_says_it(text):
    root = read_page(page(text, tag("p", text, "b", tag("i", text), text, title=text)))
    shown = re.sub(elements._UNSHOWN, "\ufffd", text)
    parsed = shown.replace("\r\n", "\n").replace("\r", "\n")  # XML 1.0, section 2.11
    (paragraph,) = root.iter("p")
    assert paragraph.text in (f"{parsed}b", f"{shown}b")
    assert paragraph.find("i").tail in (parsed or None, shown or None)
    assert (root.find("head/title").text or "") in (parsed, shown)


def test_text_that_looks_like_markup_stays_text():
    attack = '"><script>alert(1)</script><img src=x onerror=alert(1)>&lt;'
    root = read_page(
        page(attack, section(attack, attack, table([attack, "x"], [[attack, attack]])))
    )
    assert texts(root) == "\n".join([*[attack] * 3, "x", attack, attack])


def test_text_cannot_turn_the_direction_of_what_follows_nor_be_endless():
    root = read_page(page("x", tag("p", "a\u202eb\u2066c\x00\x1b[2J"), tag("p", "x" * 10**6)))
    first, second = root.iter("p")
    assert first.text == "a\ufffdb\ufffdc\ufffd\ufffd[2J"
    assert len(second.text) == 2000


def test_no_script_runs_and_nothing_is_loaded_even_if_one_slips_through():
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in page("x")


def test_elements_without_content_have_an_end():
    assert "<td></td>" in page("x", table(["", ""], [["a", ""]]))


@pytest.mark.parametrize(
    ("most", "count", "expected"),
    [
        (4, 4, [0, 1, 2, 3, 4]),
        (48, 4, [0, 20, 40]),
        (49_816, 4, [0, 20_000, 40_000]),
        (1, 2, [0, 1]),
        (0, 4, [0]),
        (9, 4, [0, 5]),
    ],
)
def test_amounts_at_an_axis_are_round(most, count, expected):
    assert charts.amounts(most, count) == expected


@given(st.floats(0, 1e15), st.integers(1, 9))
def test_an_axis_has_no_more_marks_than_it_may(most, count):
    for ticks in (charts.amounts(most, count), charts.times(most, count)):
        assert 1 <= len(ticks) <= count + 1
        assert ticks == sorted(ticks)
        assert ticks[-1] <= most


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (0.4, "0s"), (59.6, "1m"), (90, "1m30s"), (3630, "1h"), (86400 * 3 + 3600, "3d1h")],
)
def test_times_are_short(seconds, said):
    assert charts.short_time(seconds) == said


def test_a_name_without_room_loses_its_middle():
    assert charts.cut("short", 100) == "short"
    assert charts.cut("node-with-a-long-name-17", 70) == "node…me-17"


def test_a_line_keeps_its_height_until_the_next_point():
    assert charts.steps([(0, 1), (2, 5)], 3) == [(0, 1), (2, 1), (2, 5), (3, 5)]
    assert charts.steps([], 3) == []


def test_a_box_turns_values_into_places():
    box = charts.Box(10, 20, 100, 50, 4, 5)
    assert (box.x(0), box.x(4), box.y(0), box.y(5)) == (10, 110, 70, 20)
