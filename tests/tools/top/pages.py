"""Parse pages, which must be well-formed without scripts and external resources."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET


def read_page(text):
    """Return the root element; assert that the page contains nothing forbidden."""
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
    classes = {name for element in root.iter() for name in element.get("class", "").split()}
    assert {
        gpu_class for gpu_class in classes if not re.search(rf"\.{gpu_class}\b", style)
    } == set()
    return root


def pictures(root):
    """Return the pictures, keyed by label."""
    found = [element for element in root.iter() if element.get("role") == "img"]
    assert all(element.get("aria-label") for element in found)
    return {element.get("aria-label"): element for element in found}


def texts(root):
    body = root.find("body")
    return "\n".join(filter(str.strip, body.itertext()))


def sections(root):
    return {section.find("h2").text: section for section in root.iter("section")}


def tables(element):
    """Return the tables in an element, as lists of rows of cells."""
    return [
        [[cell.text or "" for cell in row] for row in table.iter("tr")]
        for table in element.iter("table")
    ]
