"""What all pages have in common."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.tools.top.pages import read_page, texts
from webhook.tools.top.show import drawing
from webhook.tools.top.show.drawing import cut, page, section, table, tag


@given(st.text(max_size=50))
def test_whatever_stands_in_a_text_the_page_is_well_formed_and_says_it(text):
    root = read_page(page(text, tag("p", text, "b", tag("i", text), text, title=text)))
    shown = re.sub(drawing._UNSHOWN, "\ufffd", text)
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


def test_a_name_without_room_loses_its_middle():
    assert cut("short", 100) == "short"
    assert cut("node-with-a-long-name-17", 70) == "node…me-17"
