"""The enforcer's journal: its verdicts are for `kubectl describe`, too."""

from __future__ import annotations

import _thread
import contextlib
import os
from functools import partial
from typing import Any, Final

from webhook.adapters.journal import Journal
from webhook.sidecar.heartbeat import leave_verdict

_LONGEST_MESSAGE: Final = 4096  # the kubelet's bound, in bytes


class EnforcerJournal(Journal):
    """Writes events and verdicts.

    Without a buffer: what stayed in one would make Python end with 120 instead of our exit code.
    """

    def __init__(self, descriptor: int, termination_log: str, run_folder: str = "") -> None:
        """Leave verdicts in `run_folder`, for the probes to report; in none where it is empty."""
        super().__init__(partial(os.write, descriptor))
        self._termination_log = termination_log
        self._run_folder = run_folder
        self.writing = _thread.allocate_lock()
        """Held while a verdict is written: whoever ends the process takes it first."""

    def verdict(
        self, level: str, message: str, why: str, *, report: bool = True, **values: Any
    ) -> None:
        """Write an event whose sentence is to be the container's termination message, too.

        The kubelet made that file; where there is none, nobody would read it. It is written first:
        whoever saw the event finds it, and SIGKILL between the two, or within, leaves a message.
        What is to `report` becomes an Event of the pod by the next probe.
        """
        with self.writing:
            self._write_termination_log(f"{message}: {why}\n")
            if report and self._run_folder:
                leave_verdict(self._run_folder, f"{message}: {why}")
            self.event(level, message, why=why, **values)

    def _write_termination_log(self, message: str) -> None:
        text = message.encode(errors="replace")[:_LONGEST_MESSAGE]
        text = text.decode(errors="ignore").encode()  # not cut within a letter
        with contextlib.suppress(OSError):
            file = os.open(self._termination_log, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(file, text)
                os.ftruncate(file, len(text))
            finally:
                os.close(file)
