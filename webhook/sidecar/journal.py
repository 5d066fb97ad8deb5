"""The enforcer's log, whose verdicts and final figures `kubectl describe` also shows."""

from __future__ import annotations

import _thread
import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.journal import Journal
from webhook.core.enforcement.parameters import LONGEST_MESSAGE
from webhook.sidecar.heartbeat import write_verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from webhook.core.enforcement.messages import LogMessage

    FinalFigures = tuple[str, Mapping[str, Any]]

LOCK_TIMEOUT_S: Final = 0.5
"""Maximum wait for a verdict that is being written when the process ends, in seconds: a disk may
hang."""


class EnforcerJournal(Journal):
    """Writer of log events and verdicts.

    Output is unbuffered. Otherwise Python would exit with 120 instead of the enforcer's exit code
    if a buffer cannot be written.
    """

    def __init__(self, descriptor: int, termination_log: str, run_folder: str = "") -> None:
        """Verdicts are written to `run_folder` for the probes, unless it is empty."""
        super().__init__(partial(os.write, descriptor))
        self._termination_log = termination_log
        self._run_folder = run_folder
        self._verdict = ""
        self._ends = False
        self._writing = _thread.allocate_lock()
        """Held while a verdict is written; a thread that ends the process acquires it first."""
        self.final_figures: Callable[[], FinalFigures | None] = _no_figures
        """Returns the pod's figures as a message and as log values; callable in any thread."""

    def verdict(
        self, level: str, message: LogMessage, why: str, *, report: bool = True, **values: Any
    ) -> None:
        """Log an event whose sentence is also the container's termination message.

        The message's file exists if the kubelet created it; otherwise it has no reader. It is
        written before the event, so that a SIGKILL in between leaves a message. With `report` the
        next probe makes it an Event of the pod.
        """
        with self._writing:
            self._verdict = f"{message}: {why}\n"
            self._write_termination_log(self.final_figures() if self._ends else None)
            if report and self._run_folder:
                write_verdict(self._run_folder, f"{message}: {why}")
            self.event(level, message, why=why, **values)

    def append_final_figures(self) -> None:
        """Write the final figures after the last verdict and after each later verdict.

        A guard may continue after SIGTERM until SIGKILL ends it.
        """
        with self._writing:
            self._ends = True
            self._write_termination_log(self.final_figures())

    def end(self) -> None:
        """Write the final figures to the message and the log; later verdicts are not written."""
        if not self._writing.acquire(timeout=LOCK_TIMEOUT_S):
            return  # the main thread hangs while writing a verdict, which then is the last one
        words = self.final_figures()
        self._write_termination_log(words)
        if words:
            self.event("info", "last words", **words[1])

    def _write_termination_log(self, words: FinalFigures | None) -> None:
        behind = words[0].encode() if words else b""
        if not (self._verdict or behind):
            return
        text = self._verdict.encode(errors="replace")[: LONGEST_MESSAGE - len(behind)]
        text = text.decode(errors="ignore").encode() + behind  # never truncated within a character
        with contextlib.suppress(OSError):
            file = os.open(self._termination_log, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(file, text)
                os.ftruncate(file, len(text))
            finally:
                os.close(file)


def _no_figures() -> None:
    return None
