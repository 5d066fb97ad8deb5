"""Elements, pictures, and the page around them: one file without script, complete in itself.

They are put together as a tree, so a page is well-formed and escaped whatever stands in a text.
Names may come from a tenant or a file: what cannot be shown is replaced, what is too long is cut.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Element = ET.Element
Child = Element | str

WIDTH: Final = 1080
"""Of every picture, in units that are pixels on a wide screen."""
_LETTER: Final = 7.0
"""How wide a character is at most, on average, in the pictures' small text."""
_LONGEST: Final = 2000
# What XML 1.0 does not allow (section 2.2), and what turns the direction of the text after it.
_UNSHOWN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def tag(name: str, /, *children: Child, **attributes: str | float) -> Element:
    """Return an element; `class_` is written `class`, and `stroke_width` `stroke-width`."""
    found = ET.Element(name)
    for key, value in attributes.items():
        shown = value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
        found.set(key.rstrip("_").replace("_", "-"), _UNSHOWN.sub("\ufffd", shown))
    last: Element | None = None
    for child in children:
        if isinstance(child, str):
            if last is None:
                found.text = (found.text or "") + _text(child)
            else:
                last.tail = (last.tail or "") + _text(child)
        else:
            found.append(child)
            last = child
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[str] = ()) -> Element:
    """Return a table whose rows begin with their name; other cells are figures, or `texts`."""
    classes = [{"class_": "text"} if name in texts else {} for name in head]
    names = (tag("th", name, scope="col", **one) for name, one in zip(head, classes, strict=True))
    lines = []
    for first, *cells in rows:
        named = tag("th", first, scope="row")
        figures = (tag("td", cell, **one) for cell, one in zip(cells, classes[1:], strict=True))
        lines.append(tag("tr", named, *figures))
    whole = tag("table", tag("thead", tag("tr", *names)), tag("tbody", *lines))
    return tag("div", whole, class_="wide")


def folded(summary: str, *children: Child) -> Element:
    """Return what is shown when a reader asks for it."""
    return tag("details", tag("summary", summary), *children)


def section(heading: str, explanation: str, *children: Child) -> Element:
    """Return a part of a page: what it shows, and how to read it."""
    return tag("section", tag("h2", heading), tag("p", explanation), *children)


def page(title: str, *children: Child) -> str:
    """Return the whole page as HTML that is well-formed XML, too.

    Its policy forbids scripts and whatever lies elsewhere, should something slip through.
    """
    # Empty elements are written with an end: HTML knows `<td/>` as a beginning only.
    body = ET.tostring(
        tag("body", tag("main", *children)), encoding="unicode", short_empty_elements=False
    )
    head = ET.tostring(tag("title", title), encoding="unicode")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\"/>\n"
        f"{head}\n<style>\n{_STYLE}</style>\n</head>\n{body}\n</html>\n"
    )


def picture(label: str, height: float, *children: Child) -> Element:
    """Return a picture; `label` is what it says to those who cannot see it."""
    drawn = tag(
        "svg",
        *children,
        viewBox=f"0 0 {WIDTH} {round(height)}",
        role="img",
        aria_label=label,
    )
    return tag("div", drawn, class_="wide")


def patterns() -> Element:
    """Return what `trouble` is filled with; once on a page."""
    dots = tag(
        "pattern",
        tag("rect", width=5, height=5, class_="dot-under"),
        tag("circle", cx=2.5, cy=2.5, r=1, class_="dot"),
        id="dots",
        width=5,
        height=5,
        patternUnits="userSpaceOnUse",
    )
    return tag("svg", tag("defs", dots), class_="defs", aria_hidden="true")


def words(x: float, y: float, content: str, class_: str = "") -> Element:
    """Return text whose base line begins here."""
    return tag("text", content, x=x, y=y, **({"class_": class_} if class_ else {}))


def rectangle(x: float, y: float, width: float, height: float, class_: str) -> Element:
    """Return a rectangle."""
    return tag("rect", x=x, y=y, width=width, height=height, class_=class_)


def legend(entries: Mapping[str, str]) -> Element:
    """Return what the classes of a picture mean."""
    items = []
    for class_, meaning in entries.items():
        sample = rectangle(1, 1, 24, 12, class_)
        drawn = tag("svg", sample, viewBox="0 0 26 14", aria_hidden="true")
        items.append(tag("li", drawn, meaning))
    return tag("ul", *items, class_="legend")


def cut(content: str, width: float) -> str:
    """Return text with its middle left out where it has no room: names differ at both ends."""
    most = max(4, int(width / _LETTER))
    if len(content) <= most:
        return content
    return f"{content[: most - most // 2 - 1]}…{content[-(most // 2) :]}"


def _text(value: str) -> str:
    cut = value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"
    return _UNSHOWN.sub("\ufffd", cut)


# The colours are those of Okabe and Ito, "Color Universal Design", 2008, which people with any kind
# of colour vision tell apart: blue and sky blue for what is taken, vermillion for trouble.
_STYLE: Final = """\
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1b1f24; --faint: #5b6470; --line: #d5dae0; --empty: #e4e8ec;
  --blue: #0072b2; --sky: #56b4e9; --vermillion: #d55e00; --on-sky: #10202c;
  --other: #b4bcc6; --other-used: #6d7783;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --ink: #e8ebee; --faint: #a2abb6; --line: #414a55; --empty: #39424d;
    --blue: #2d8fcb; --sky: #7cc7f2; --vermillion: #f0762b; --on-sky: #06121b;
    --other: #6b7683; --other-used: #b9c2cc;
  }
}
body { background: var(--paper); color: var(--ink); margin: 0;
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 40px 0 2px; }
p { margin: 0 0 12px; max-width: 100ch; }
section p { color: var(--faint); }
.lead { font-size: 17px; }
.wide { overflow-x: auto; }
svg { display: block; width: 100%; min-width: 900px; height: auto; }
svg text { font-size: 13px; fill: var(--ink); }
svg .faint { fill: var(--faint); }
svg .name { font-weight: 500; }
svg .end { text-anchor: end; }
svg .in-b { fill: var(--on-sky); font-size: 12px; }
.empty { fill: var(--empty); stroke: var(--faint); stroke-width: .6; }
.a { fill: var(--blue); } .b { fill: var(--sky); }
.p { fill: var(--other); } .o { fill: var(--other-used); }
.unknown { fill: none; stroke: var(--faint); stroke-dasharray: 3 3; }
.old { opacity: .55; } .gpu { opacity: 1; }
.trouble { fill: url(#dots); }
.dot-under { fill: var(--vermillion); } .dot { fill: var(--paper); }
.alarm { stroke: var(--vermillion); fill: none; stroke-width: 1.5; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 4px 0 10px; padding: 0;
  list-style: none; font-size: 13px; }
.legend li { display: flex; align-items: center; gap: 6px; }
.legend svg { width: 26px; min-width: 26px; height: 14px; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--faint); font-size: 13px; }
table { margin-bottom: 12px; border-collapse: collapse; font-size: 13px;
  font-variant-numeric: tabular-nums; }
th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, .text { text-align: left; white-space: normal; overflow-wrap: break-word; }
th:first-child { min-width: 12ch; } .text { min-width: 8ch; }
th { font-weight: 400; }
thead th { font-weight: 600; }
.troubles { padding: 10px 14px; border: 1px solid var(--line);
  border-left: 4px solid var(--vermillion); margin: 12px 0; }
.troubles ul { margin: 0; padding-left: 18px; } .troubles details { margin: 0; }
.defs { position: absolute; width: 0; min-width: 0; height: 0; }
"""
