"""Reads pages as programs do: well-formed, without script, with nothing from elsewhere."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET


def read_page(text):
    """Return the page's root element; what a page may not hold fails the test."""
    doctype, _, rest = text.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    root = ET.fromstring(rest)  # noqa: S314 - our own page
    names = {element.tag for element in root.iter()}
    assert not names & {"script", "link", "img", "iframe", "object", "image", "use", "a", "form"}
    for element in root.iter():
        for key, value in element.attrib.items():
            assert key not in {"href", "src"}, (element.tag, key)
            assert key != "style" or re.fullmatch(r"width: [0-9.]+%", value), value
            assert not key.startswith("on"), (element.tag, key)
            assert "url(" not in value, value
    style = "".join(element.text for element in root.iter("style"))
    assert "url(" not in style
    assert "@import" not in style
    classes = {one for element in root.iter() for one in element.get("class", "").split()}
    assert {one for one in classes if not re.search(rf"\.{one}\b", style)} == set()
    return root


def pictures(root):
    """Return the pictures, by what they say to those who cannot see them."""
    found = [one for one in root.iter() if one.get("role") == "img"]
    assert all(one.get("aria-label") for one in found)
    return {one.get("aria-label"): one for one in found}


def texts(root):
    """Return all that a page says, as one text."""
    body = root.find("body")
    return "\n".join(filter(str.strip, body.itertext()))


def sections(root):
    """Return the sections by their heading."""
    return {section.find("h2").text: section for section in root.iter("section")}


def tables(element):
    """Return the tables below an element, as lists of rows of cells."""
    return [
        [[cell.text or "" for cell in row] for row in table.iter("tr")]
        for table in element.iter("table")
    ]
