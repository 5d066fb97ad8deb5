"""Elements, and the page around them: one file without script that loads nothing from elsewhere.

They are put together as a tree, so a page is well-formed and escaped whatever stands in a text.
Names may come from a tenant or a file: what cannot be shown is replaced, what is too long is cut.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Element = ET.Element
Child = Element | str

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


def _text(value: str) -> str:
    cut = value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"
    return _UNSHOWN.sub("\ufffd", cut)


# The colours are those of Okabe and Ito, "Color Universal Design", 2008, which people with any kind
# of colour vision tell apart: blue and sky blue for what is taken, orange for what is lost,
# vermillion for trouble.
_STYLE: Final = """\
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1b1f24; --faint: #5b6470; --line: #d5dae0; --empty: #e4e8ec;
  --blue: #0072b2; --sky: #56b4e9; --orange: #e69f00; --vermillion: #d55e00;
  --purple: #b3598c; --orange-line: #b27900; --on-blue: #ffffff; --on-sky: #10202c;
  --other: #b4bcc6; --other-used: #6d7783;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --ink: #e8ebee; --faint: #a2abb6; --line: #414a55; --empty: #39424d;
    --blue: #2d8fcb; --sky: #7cc7f2; --orange: #f0b12f; --vermillion: #f0762b;
    --purple: #d98fbb; --orange-line: #f0b12f; --on-blue: #06121b; --on-sky: #06121b;
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
svg text { font-size: 12px; fill: var(--ink); }
svg .faint { fill: var(--faint); }
svg .name { font-weight: 500; }
svg .strong { font-weight: 600; font-size: 13px; }
svg .end { text-anchor: end; }
svg .middle { text-anchor: middle; }
svg .grid { stroke: var(--line); stroke-width: 1; fill: none; }
svg .in-a { fill: var(--on-blue); font-size: 11px; }
svg .in-b { fill: var(--on-sky); font-size: 11px; }
.empty { fill: var(--empty); stroke: var(--faint); stroke-width: .6; }
.back { fill: var(--empty); }
.a { fill: var(--blue); } .b { fill: var(--sky); }
.p { fill: var(--other); } .o { fill: var(--other-used); }
.unknown { fill: none; stroke: var(--faint); stroke-dasharray: 3 3; }
.old { opacity: .55; } .gpu { opacity: 1; }
.hatched { fill: url(#hatch); }
.trouble { fill: url(#dots); }
.hatch-line { stroke: var(--orange); stroke-width: 2; }
.hatch-under { fill: var(--orange); fill-opacity: .3; }
.dot-under { fill: var(--vermillion); } .dot { fill: var(--paper); }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.s0 { stroke: var(--blue); } .s1 { stroke: var(--orange-line); stroke-dasharray: 7 3; }
.s2 { stroke: var(--purple); stroke-dasharray: 2 3; stroke-width: 2.5; }
.f0 { fill: var(--blue); } .f1 { fill: var(--orange); } .f2 { fill: var(--purple); }
.alarm { stroke: var(--vermillion); fill: none; stroke-width: 1.5; }
.limit { stroke: var(--ink); stroke-dasharray: 4 3; fill: none; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 4px 0 10px; padding: 0;
  list-style: none; font-size: 13px; }
.legend li { display: flex; align-items: center; gap: 6px; }
.legend svg { width: 26px; min-width: 26px; height: 14px; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--faint); font-size: 13px; }
table { margin-bottom: 12px; border-collapse: collapse; font-size: 13px;
  font-variant-numeric: tabular-nums; }
th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, .text { text-align: left; white-space: normal; overflow-wrap: anywhere; }
th { font-weight: 400; }
thead th { font-weight: 600; }
.figures td, .figures th { font-size: 14px; padding-right: 28px; }
.troubles { padding: 10px 14px; border: 1px solid var(--line);
  border-left: 4px solid var(--vermillion); margin: 12px 0; }
.troubles ul { margin: 0; padding-left: 18px; } .troubles details { margin: 0; }
.defs { position: absolute; width: 0; min-width: 0; height: 0; }
"""
