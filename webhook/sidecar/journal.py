"""The enforcer's journal: its verdicts and final figures are for `kubectl describe`, too."""

from __future__ import annotations

import _thread
import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.journal import Journal
from webhook.core.enforcement.parameters import LONGEST_MESSAGE
from webhook.sidecar.heartbeat import leave_verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from webhook.core.enforcement.messages import LogMessage

    FinalFigures = tuple[str, Mapping[str, Any]]

WRITING_S: Final = 0.5
"""How long a verdict that is being written may hold up the end: a disk may hang, too."""


class EnforcerJournal(Journal):
    """Writes events and verdicts.

    Without a buffer: what stayed in one would make Python end with 120 instead of our exit code.
    """

    def __init__(self, descriptor: int, termination_log: str, run_folder: str = "") -> None:
        """Leave verdicts in `run_folder`, for the probes to report; in none where it is empty."""
        super().__init__(partial(os.write, descriptor))
        self._termination_log = termination_log
        self._run_folder = run_folder
        self._verdict = ""
        self._ends = False
        self._writing = _thread.allocate_lock()
        """Held while a verdict is written: whoever ends the process takes it first."""
        self.final_figures: Callable[[], FinalFigures | None] = _nothing
        """What there is to say of the pod, as text and as an event's values; safe in any thread."""

    def verdict(
        self, level: str, message: LogMessage, why: str, *, report: bool = True, **values: Any
    ) -> None:
        """Write an event whose sentence is to be the container's termination message, too.

        The kubelet made that file; where there is none, nobody would read it. It is written first:
        whoever saw the event finds it, and SIGKILL between the two, or within, leaves a message.
        What is to `report` becomes an Event of the pod by the next probe.
        """
        with self._writing:
            self._verdict = f"{message}: {why}\n"
            self._write_termination_log(self.final_figures() if self._ends else None)
            if report and self._run_folder:
                leave_verdict(self._run_folder, f"{message}: {why}")
            self.event(level, message, why=why, **values)

    def begin_to_end(self) -> None:
        """Have the final figures stand behind the last verdict, and behind each one that follows.

        A guard may go on after SIGTERM, and end by SIGKILL.
        """
        with self._writing:
            self._ends = True
            self._write_termination_log(self.final_figures())

    def end(self) -> None:
        """Write the final figures, as an event too; no verdict is written after them."""
        if not self._writing.acquire(timeout=WRITING_S):
            return  # the main thread hangs as it writes a verdict, and that one stands
        words = self.final_figures()
        self._write_termination_log(words)
        if words:
            self.event("info", "last words", **words[1])

    def _write_termination_log(self, words: FinalFigures | None) -> None:
        """Write the last verdict, and the final figures behind it."""
        behind = words[0].encode() if words else b""
        if not (self._verdict or behind):
            return
        text = self._verdict.encode(errors="replace")[: LONGEST_MESSAGE - len(behind)]
        text = text.decode(errors="ignore").encode() + behind  # not cut within a letter
        with contextlib.suppress(OSError):
            file = os.open(self._termination_log, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(file, text)
                os.ftruncate(file, len(text))
            finally:
                os.close(file)


def _nothing() -> None:
    return None
