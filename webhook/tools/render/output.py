"""Output of commands: JSON, tables that fit the terminal, and a progress line.

In a table that is too wide, strings are shortened in their middle first; then columns are dropped.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from stat import S_ISFIFO
from textwrap import wrap
from threading import Event, Thread
from typing import Any, Final, Self, TextIO, TypeVar

from webhook.core.formatting import escape_unprintable, shorten
from webhook.names import GROUP_VERSION

Json = dict[str, Any]

_BREAKS: Final = re.compile(r" *[\t-\r\u2028\u2029][ \t-\r\u2028\u2029]*")
_LONGEST_LINE: Final = 4096
"""Maximum length of a printed line, in characters."""
_GAP: Final = 2
_MOST_LINES: Final = 4
"""Maximum number of lines of a wrapped cell in the last column."""


IN_ASCII: Final = {"✓": "[ok]", "✗": "[x]", "!": "[!]", "-": "[-]", "?": "[?]", "→": "->"}
"""ASCII replacements, keyed by the sign."""


def supports_unicode(stream: TextIO) -> bool:
    """Return True if a stream's encoding supports signs and bars."""
    try:
        "✓█→".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def is_dumb_terminal() -> bool:
    """Return True if the terminal cannot move its cursor."""
    return os.environ.get("TERM", "") in {"dumb", ""}


def supports_colour(stream: TextIO) -> bool:
    """Return True if the stream is a terminal and the environment does not disable colours.

    Source: https://no-color.org.
    """
    return stream.isatty() and not (os.environ.get("NO_COLOR") or is_dumb_terminal())


def make_report(kind: str, values: Json) -> Json:
    """Return a JSON report, which begins with its version and kind."""
    return {"apiVersion": GROUP_VERSION, "kind": kind, **values}


def write_json(report: Json) -> str:
    """Return a report as ASCII, which every terminal and program can read."""
    return json.dumps(report, indent=2) + "\n"


def known(**values: object) -> Json:
    """Return an object of the values that are neither None nor empty."""
    return {key: value for key, value in values.items() if value is not None and value != ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: its title, and a string for each row."""

    title: str
    texts: Sequence[str]
    draw: Callable[[int, int], str] | None = None
    """Draws the cell of a row, or the title for row -1, at a given width.

    The result may contain characters other than ASCII.
    """
    drawn_width: int = 0
    """Preferred width of `draw`, in characters."""
    align_right: bool = False
    min_width: int = 0
    """Minimum width to which strings are shortened, in characters; 0 if they must stay whole."""
    wraps: bool = False
    """True for the last column if its sentences wrap onto further lines."""
    drop_order: int = 0
    """Drop order; the largest number is dropped first. 0 if the column is never dropped."""
    style: Callable[[str, int], str] | None = None
    """Function that colours the cell of a row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", clean(self.title))
        object.__setattr__(self, "texts", [*map(clean, self.texts)])


def clean(text: str) -> str:
    """Return an untrusted string for a cell: printable ASCII of the same length."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def printable(text: str, *, ascii_only: bool = False) -> str:
    """Return an untrusted string for a line, without control characters and line breaks.

    Line breaks become spaces. Unprintable characters become escapes. With `ascii_only`, other
    characters outside ASCII do too.
    """
    text = _BREAKS.sub(" ", text)
    text = text.replace("…", "...") if ascii_only else text
    return escape_unprintable(text, ascii_only=ascii_only)


def write_lines(lines: Iterable[str], *, ascii_only: bool = False) -> str:
    """Join printable lines into one string."""
    return "".join(f"{printable_line(line, ascii_only=ascii_only)}\n" for line in lines)


def printable_line(text: str, *, ascii_only: bool = False) -> str:
    """Return a printable string, shortened to the maximum length of a line."""
    return printable(shorten(text, _LONGEST_LINE), ascii_only=ascii_only)


def cut(text: str, width: int, dots: str) -> str:
    """Shorten a string in its middle to a width, since names differ at their ends."""
    if len(text) <= width:
        return text
    room = width - len(dots)
    if room <= 0:
        return text[:width]
    tail = room // 2
    return text[: room - tail] + dots + text[len(text) - tail :]


def table(columns: Sequence[Column], width: int | None, dots: str) -> list[str]:
    """Return the lines of a table, titles first. Nothing is shortened if `width` is None."""
    shown = _fit_columns(columns, width)
    rows = max((len(column.texts) for column, _ in shown), default=0)
    return [line for number in range(-1, rows) for line in _draw_row(shown, number, dots)]


def plain_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str]
) -> list[str]:
    """Return the lines of a table of any width; `right` has titles of right-aligned columns."""
    texts = zip(*rows, strict=True)
    columns = [
        Column(title=head, texts=cells, align_right=head in right)
        for head, cells in zip(heads, texts, strict=True)
    ]
    return table(columns, None, "")


def _draw_row(columns: Sequence[tuple[Column, int]], number: int, dots: str) -> list[str]:
    """Return the lines of a row, or of the titles for row -1. Only sentences wrap."""
    parts, below = [], []
    for column, size in columns:
        text, paint = column.title, None
        if number >= 0:
            text, paint = column.texts[number], column.style
        if column.draw:
            text = column.draw(number, size)
        lines = _wrap_sentence(text, size, dots) if column.wraps else [cut(text, size, dots)]
        pad = " " * (size - len(lines[0]))
        first, *below = [paint(line, number) for line in lines] if paint else lines
        parts.append(pad + first if column.align_right else first + pad)
    indent = " " * sum(size + _GAP for _, size in columns[:-1])
    return [(" " * _GAP).join(parts).rstrip(), *(indent + line for line in below)]


def _wrap_sentence(text: str, width: int, dots: str) -> list[str]:
    if len(text) <= width:
        return [text]
    *lines, last = wrap(text, width)
    if len(lines) >= _MOST_LINES:
        rest = " ".join([*lines[_MOST_LINES - 1 :], last])
        lines, last = lines[: _MOST_LINES - 1], rest[: width - len(dots)].rstrip() + dots
    return [*lines, last]


def _natural_width(column: Column) -> int:
    return column.drawn_width or max(len(column.title), *(len(text) for text in column.texts), 0)


def _fit_columns(columns: Sequence[Column], width: int | None) -> list[tuple[Column, int]]:
    """Return the columns to show, with their widths.

    | table too wide | effect |
    | --- | --- |
    | initially | the bar or sentence furthest above its minimum loses a character |
    | bars and sentences have their minimum | another column loses a character |
    | all columns have their minimum | the next optional column is dropped, and widths are reset |
    | no optional column is left | bars are cut below their minimum |
    """
    shown = list(columns)
    while True:
        widths = [_natural_width(column) for column in shown]
        least = [
            max(column.min_width, len(column.title)) if column.min_width else width
            for column, width in zip(shown, widths, strict=True)
        ]
        over = 0 if width is None else sum(widths) + _GAP * (len(shown) - 1) - width
        while over > 0:
            spare = [
                max(0, width - least_width)
                for width, least_width in zip(widths, least, strict=True)
            ]
            if not any(spare):
                break
            pairs = zip(spare, shown, strict=True)
            first = [free if column.draw or column.wraps else 0 for free, column in pairs]
            of_these = first if any(first) else spare
            widths[of_these.index(max(of_these))] -= 1
            over -= 1
        optional = [column for column in shown if column.drop_order]
        if over <= 0 or not optional:
            for at, column in enumerate(shown):
                if column.draw and over > 0:
                    over, widths[at] = over - widths[at] + 1, max(1, widths[at] - over)
            return list(zip(shown, widths, strict=True))
        shown.remove(max(optional, key=lambda column: column.drop_order))


T = TypeVar("T")

SILENT_S: Final = 2.0
"""Delay before the first progress line, in seconds."""
EVERY_S: Final = 0.1
_WIDTH: Final = 80
_ERASE: Final = "\r\x1b[K"
"""Return to the start of the line and erase it (ECMA-48, EL)."""


class Progress:
    """Progress line that a thread writes during the work in a block.

    `describe` returns the progress text. `wait` sleeps for some seconds, and returns True if the
    work has ended.

    The line is rewritten in place on standard error, and erased at the end. Nothing is written in
    the first two seconds, if standard error is no terminal, if the terminal is `dumb`, or if
    standard output is a pipe, whose reader may draw on the same terminal.
    """

    def __init__(
        self, describe: Callable[[], str], wait: Callable[[float], bool] | None = None
    ) -> None:
        self.describe = describe
        self._stream = sys.stderr
        self._ended = Event()
        self._wait = wait or self._ended.wait
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        if _can_be_erased(self._stream):
            self._thread = Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join()

    def _show(self) -> None:
        with suppress(OSError):  # the terminal may be gone
            every_s = SILENT_S
            while not self._wait(every_s):
                text = cut(clean(self.describe()), _terminal_width(self._stream) - 1, "...")
                self._stream.write(f"{_ERASE}{text}")
                self._stream.flush()
                every_s = EVERY_S
            if every_s == EVERY_S:
                self._stream.write(_ERASE)
                self._stream.flush()


def count_progress(items: Iterable[T], text: str) -> Iterator[T]:
    """Yield the items and show their number in place of `{}` in `text`."""
    count = 0
    with Progress(lambda: text.format(f"{count:,}")):
        for count, item in enumerate(items, 1):  # noqa: B007 - the other thread reads it
            yield item


def _can_be_erased(stream: TextIO) -> bool:
    if not stream.isatty() or is_dumb_terminal():
        return False
    try:
        return not S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # standard error is closed, or replaced in a test
        return False


def _terminal_width(stream: TextIO) -> int:
    with suppress(OSError):
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH
    return _WIDTH
