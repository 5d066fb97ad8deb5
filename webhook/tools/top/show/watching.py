"""`vramwarden top -w`: the same again and again, on a screen of its own or as lines of JSON."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import TextIO

    from webhook.tools.top.judge import TopReport

_ENTER: Final = "\033[?1049h\033[?25l\033[?7l"
"""The alternate screen, no cursor, nothing wraps (xterm's control sequences, "Private Modes")."""
_LEAVE: Final = "\033[?7h\033[?25h\033[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\033[H", "\033[K", "\033[J"
_GLANCE_S: Final = 0.3
"""How late a key, a new size or new figures are noticed at most."""
_QUIT: Final = frozenset(b"qQ")


class Reader:
    """Reads reports on a thread of its own, so that no key waits for an API server."""

    def __init__(
        self, read: Callable[[], TopReport], every_s: float, failures: tuple[type[Exception], ...]
    ) -> None:
        """Prepare; a failure to read is kept as its sentence, beside the report before it."""
        self._read = read
        self._every_s = every_s
        self._failures = failures
        self.report: TopReport | None = None
        self.failure = ""
        self.number = 0
        """Of attempts so far: it changes when there is something new to draw."""

    def start(self, first: TopReport) -> None:
        """Go on reading after a first report, until the program ends."""
        self.report = first
        threading.Thread(target=self._run, name="top", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(self._every_s)
            self.once()

    def once(self) -> None:
        """Read once."""
        try:
            self.report, self.failure = self._read(), ""
        except self._failures as error:
            self.failure = " ".join(str(error).split())
        self.number += 1


@contextmanager
def _screen(out: TextIO, keys: int | None) -> Iterator[None]:
    """Take the terminal; give it back as it was in every case, also while we are suspended."""
    before = None if keys is None else termios.tcgetattr(keys)

    def take() -> None:
        if keys is not None:
            tty.setcbreak(keys)
        out.write(_ENTER)
        out.flush()

    def give_back() -> None:
        if keys is not None and before is not None:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
        out.write(_LEAVE)
        out.flush()

    def suspend(number: int, frame: FrameType | None) -> None:
        del frame
        del number
        give_back()
        os.kill(os.getpid(), signal.SIGSTOP)  # goes on here after `fg`
        take()

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        sys.exit(128 + number)

    handlers = {signal.SIGTSTP: suspend, signal.SIGTERM: end, signal.SIGHUP: end}
    old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    take()
    try:
        yield
    finally:
        give_back()
        for number, handler in old.items():
            signal.signal(number, handler)


def watch_screen(
    reader: Reader, draw: Callable[[TopReport, str, os.terminal_size], list[str]], out: TextIO
) -> None:
    """Draw a reader's reports until `q`; `out` is a terminal.

    Again where there is something new, or the terminal has another size.
    """
    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    with _screen(out, keys):
        shown: object = None
        while True:
            size = os.get_terminal_size(out.fileno())
            if shown != (reader.number, size) and reader.report is not None:
                shown = reader.number, size
                lines = draw(reader.report, reader.failure, size)[: size.lines]
                body = "\r\n".join(line + _CLEAR_LINE for line in lines)
                out.write(_HOME + body + _CLEAR_BELOW)
                out.flush()
            if _asked_to_quit(keys):
                return


def _asked_to_quit(keys: int | None) -> bool:
    """Wait a moment for a key."""
    if keys is None:
        time.sleep(_GLANCE_S)
        return False
    ready, _, _ = select.select([keys], [], [], _GLANCE_S)
    if not ready:
        return False
    pressed = os.read(keys, 64)
    return not pressed or not _QUIT.isdisjoint(pressed)
