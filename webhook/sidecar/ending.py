"""The end: SIGTERM and SIGINT stop the program wherever it is, in a call that hangs as well.

Python runs handlers between two of its instructions only: not while a driver does not answer, and
late where the sidecar gets a hundredth of a busy core. So a thread waits for the signal and ends
the process itself: no exception finds its way out, NVML is not asked once more, and the interpreter
does not tidy up.

Before `end_on_signals` the kernel ends the process (143), which has done nothing yet. What hangs
within the kernel is ended by no signal, not by SIGKILL either.
"""

from __future__ import annotations

import _thread
import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from webhook.sidecar.journal import EnforcerJournal

STOPPED: Final = 0

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_VERDICT_S: Final = 0.5
"""How long a verdict that is being written may hold up the end: a disk may hang, too."""


def end_on_signals(journal: EnforcerJournal) -> None:
    """End the process with `STOPPED` once it is told to; call it once, in the main thread."""
    near, far = os.pipe()
    os.set_blocking(far, False)
    signal.set_wakeup_fd(far, warn_on_full_buffer=False)
    _thread.start_new_thread(_end, (near, journal))
    for number in _ENDING:
        signal.signal(number, _go_on)


def _go_on(_number: int, _frame: object) -> None:
    """Do nothing: a signal without a handler would not be written to the pipe."""


def _end(told: int, journal: EnforcerJournal) -> None:
    while os.read(told, 1)[0] not in _ENDING:
        pass  # a probe woke us
    journal.writing.acquire(timeout=_VERDICT_S)
    journal.event("info", "stopped")
    os._exit(STOPPED)
