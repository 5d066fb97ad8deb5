"""Progress of long work: one line on standard error, rewritten in place and erased at the end.

None is written in the first two seconds. None is written if it could not be erased or would be
kept: standard error is no terminal, the terminal is `dumb`, or standard output is a pipe, whose
reader may draw on the same terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from stat import S_ISFIFO
from threading import Event, Thread
from typing import Final, Self, TextIO, TypeVar

from webhook.tools.render.output import clean, cut, is_dumb

T = TypeVar("T")

SILENT_S: Final = 2.0
"""Work that takes less writes nothing."""
EVERY_S: Final = 0.1
_WIDTH: Final = 80
_ERASE: Final = "\r\x1b[K"
"""Return to the start of the line, and erase it (ECMA-48, EL)."""


class Progress:
    """Progress of the work in a block, as `say` returns it to another thread.

    `wait` waits for a number of seconds, and returns True if the work has ended.
    """

    def __init__(self, say: Callable[[], str], wait: Callable[[float], bool] | None = None) -> None:
        self.say = say
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
        """Erase the line: what follows is the answer."""
        self._ended.set()
        if self._thread:
            self._thread.join()

    def _show(self) -> None:
        with suppress(OSError):  # the terminal may be gone
            every_s = SILENT_S
            while not self._wait(every_s):
                text = cut(clean(self.say()), _width(self._stream) - 1, "...")
                self._stream.write(f"{_ERASE}{text}")
                self._stream.flush()
                every_s = EVERY_S
            if every_s == EVERY_S:
                self._stream.write(_ERASE)
                self._stream.flush()


def counted_off(items: Iterable[T], said: str) -> Iterator[T]:
    """Yield the items, with their number so far as progress: at `{}` in `{} of 50 pods`."""
    done = 0
    with Progress(lambda: said.format(f"{done:,}")):
        for done, item in enumerate(items, 1):  # noqa: B007 - the other thread reads it
            yield item


def _can_be_erased(stream: TextIO) -> bool:
    if not stream.isatty() or is_dumb():
        return False
    try:
        return not S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # it is closed, or a test's
        return False


def _width(stream: TextIO) -> int:
    with suppress(OSError):
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH
    return _WIDTH
