"""Pictures of the README: no external resources, and no page is cut off."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree as ET

import pytest

from deploy.picture import HEIGHT, WIDTH, top_page, top_picture
from tests.support.paths import ROOT
from tests.tools.top.pages import pictures, read_page

SVG = "{http://www.w3.org/2000/svg}"
FOLDER = ROOT / "deploy" / "pictures"


def test_the_picture_of_top_is_as_high_as_its_page():
    """Measure the page again when its lines change; see HEIGHT in deploy/picture.py."""
    root = read_page(top_page())
    for folded in root.findall(".//details"):
        folded[1:] = []
    lines = Counter(item.tag for item in root.iter() if item.tag in {"h1", "h2", "p", "li", "tr"})
    (picture,) = pictures(root).values()
    bars = sum("bar" in item.get("class", "").split() for item in picture.iter())
    measured = {"h1": 1, "h2": 3, "p": 5, "li": 9, "tr": 8}
    assert (lines, bars, WIDTH, HEIGHT) == (measured, 6, 940, 1090)


def test_the_picture_of_top_holds_the_whole_page_but_what_is_folded():
    page = read_page(top_page())
    for folded in page.findall(".//details"):
        folded[1:] = []
    body, *inner = (item.tag for item in page.find("body").iter())
    picture = ET.fromstring(top_picture())  # noqa: S314 - our own picture
    names = [item.tag.partition("}")[2] for item in picture.iter()]
    assert names == ["svg", "title", "foreignObject", body, "style", *inner]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_needs_nothing_from_elsewhere_and_has_a_dark_side(path):
    text = path.read_text()
    root = ET.fromstring(text)  # noqa: S314 - our own picture
    assert root.tag == f"{SVG}svg"
    assert root.find(f"{SVG}title").text
    assert not {item.tag.rpartition("}")[2] for item in root.iter()} & {
        "script",
        "image",
        "a",
        "use",
    }
    assert {*re.findall(r"https?://[^\"]*", text)} <= {SVG[1:-1], "http://www.w3.org/1999/xhtml"}
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 60_000
