"""Output of commands: JSON for programs, and tables that fit the terminal.

Of a table, what is too wide is cut in its middle, then left out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Final, TextIO

from webhook.core.formatting import escape_unprintable, shorten
from webhook.names import SEEING_API_VERSION

Json = dict[str, Any]

_BREAKS: Final = re.compile(r" *[\t-\r\u2028\u2029][ \t-\r\u2028\u2029]*")
_LONGEST_LINE: Final = 4096
"""Characters of a line that is printed."""
_GAP: Final = 2
_MOST_LINES: Final = 4
"""Maximum number of lines of a sentence at the end of a row."""


IN_ASCII: Final = {"✓": "[ok]", "✗": "[x]", "!": "[!]", "-": "[-]", "?": "[?]", "→": "->"}
"""Replacements for signs on a stream that takes only ASCII."""


def takes_signs(stream: TextIO) -> bool:
    """Return True if signs and bars can be written to a stream, also if it is no terminal."""
    try:
        "✓█→".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def is_dumb() -> bool:
    """Return True if the terminal writes only lines."""
    return os.environ.get("TERM", "") in {"dumb", ""}


def takes_colour(stream: TextIO) -> bool:
    """Return True if output is coloured: on a terminal, unless the environment forbids it.

    Source: https://no-color.org.
    """
    return stream.isatty() and not (os.environ.get("NO_COLOR") or is_dumb())


def as_report(kind: str, values: Json) -> Json:
    """Return a report as programs know it, with its kind and version first."""
    return {"apiVersion": SEEING_API_VERSION, "kind": kind, **values}


def write_json(report: Json) -> str:
    """Write a report; in ASCII, so that any terminal and any program takes it."""
    return json.dumps(report, indent=2) + "\n"


def known(**values: object) -> Json:
    """Return an object without what is None or empty text: what is not known is absent."""
    return {key: value for key, value in values.items() if value is not None and value != ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: a title and a text for each row."""

    title: str
    texts: Sequence[str]
    draw: Callable[[int, int], str] | None = None
    """Draws the text of a row, or of the title (-1), with a width; may return more than ASCII."""
    most: int = 0
    """Number of characters that `draw` takes if they fit."""
    right: bool = False
    least: int = 0
    """May be cut to so many characters; 0: never."""
    at_end: bool = False
    """Holds sentences: the last column, whose texts go on below."""
    optional: int = 0
    """Left out where the rest does not fit: the largest number first; 0: never."""
    style: Callable[[str, int], str] | None = None
    """Colours a text, given the number of its row."""

    def __post_init__(self) -> None:
        """Clean title and texts, so that no table has to be given clean ones."""
        object.__setattr__(self, "title", clean(self.title))
        object.__setattr__(self, "texts", [*map(clean, self.texts)])


def clean(text: str) -> str:
    """Return a text of others for a cell: ASCII of the same length, nothing moves a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if " " <= one <= "~" else "?" for one in text)


def printable(text: str, *, ascii_only: bool = False) -> str:
    """Return a text of others for a line: nothing steers a terminal, line breaks become spaces.

    What is not printable is shown as an escape, in ASCII all else, too.
    """
    text = _BREAKS.sub(" ", text)
    text = text.replace("…", "...") if ascii_only else text
    return escape_unprintable(text, ascii_only=ascii_only)


def write_lines(lines: Iterable[str], *, ascii_only: bool = False) -> str:
    """Write lines for people, as `line_of` returns each."""
    return "".join(f"{line_of(line, ascii_only=ascii_only)}\n" for line in lines)


def line_of(text: str, *, ascii_only: bool = False) -> str:
    """Return a printable text, cut if it is too long."""
    return printable(shorten(text, _LONGEST_LINE), ascii_only=ascii_only)


def cut(text: str, width: int, dots: str) -> str:
    """Shorten a text to a width in its middle, since names differ in their ends."""
    if len(text) <= width:
        return text
    room = width - len(dots)
    if room <= 0:
        return text[:width]
    tail = room // 2
    return text[: room - tail] + dots + text[len(text) - tail :]


def table(columns: Sequence[Column], width: int | None, dots: str) -> list[str]:
    """Return the lines of a table, its titles first; None for a width cuts nothing."""
    shown = _shown(columns, width)
    rows = max((len(one.texts) for one, _ in shown), default=0)
    return [line for number in range(-1, rows) for line in _row(shown, number, dots)]


def plain_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str]
) -> list[str]:
    """Return the lines of a table of any width, those columns of which are at the `right`."""
    texts = zip(*rows, strict=True)
    columns = [
        Column(title=head, texts=cells, right=head in right)
        for head, cells in zip(heads, texts, strict=True)
    ]
    return table(columns, None, "")


def _row(columns: Sequence[tuple[Column, int]], number: int, dots: str) -> list[str]:
    """Return the line of a row, or of the titles (-1); a sentence may have more lines."""
    parts, below = [], []
    for column, size in columns:
        text, paint = column.title, None
        if number >= 0:
            text, paint = column.texts[number], column.style
        if column.draw:
            text = column.draw(number, size)
        lines = _wrapped(text, size, dots) if column.at_end else [cut(text, size, dots)]
        pad = " " * (size - len(lines[0]))
        first, *below = [paint(line, number) for line in lines] if paint else lines
        parts.append(pad + first if column.right else first + pad)
    indent = " " * sum(size + _GAP for _, size in columns[:-1])
    return [(" " * _GAP).join(parts).rstrip(), *(indent + line for line in below)]


def _wrapped(text: str, width: int, dots: str) -> list[str]:
    """Return a sentence in a few lines."""
    if len(text) <= width:
        return [text]
    *lines, last = wrap(text, width)
    if len(lines) >= _MOST_LINES:
        rest = " ".join([*lines[_MOST_LINES - 1 :], last])
        lines, last = lines[: _MOST_LINES - 1], rest[: width - len(dots)].rstrip() + dots
    return [*lines, last]


def _natural(column: Column) -> int:
    return column.most or max(len(column.title), *(len(text) for text in column.texts), 0)


def _shown(columns: Sequence[Column], width: int | None) -> list[tuple[Column, int]]:
    """Return the columns that are shown, and how wide.

    | too wide | then |
    | --- | --- |
    | by a little | of bars and sentences the one with most to spare is cut by a character |
    | and these have nothing to spare | the same of all others |
    | even so | the next optional column is left out, and all begins again |
    | and none is left | bars are cut further |
    """
    shown = list(columns)
    while True:
        widths = [_natural(one) for one in shown]
        least = [
            max(one.least, len(one.title)) if one.least else have
            for one, have in zip(shown, widths, strict=True)
        ]
        over = 0 if width is None else sum(widths) + _GAP * (len(shown) - 1) - width
        while over > 0:
            spare = [max(0, have - need) for have, need in zip(widths, least, strict=True)]
            if not any(spare):
                break
            pairs = zip(spare, shown, strict=True)
            first = [one if column.draw or column.at_end else 0 for one, column in pairs]
            of_these = first if any(first) else spare
            widths[of_these.index(max(of_these))] -= 1
            over -= 1
        optional = [one for one in shown if one.optional]
        if over <= 0 or not optional:
            for at, one in enumerate(shown):
                if one.draw and over > 0:
                    over, widths[at] = over - widths[at] + 1, max(1, widths[at] - over)
            return list(zip(shown, widths, strict=True))
        shown.remove(max(optional, key=lambda one: one.optional))
