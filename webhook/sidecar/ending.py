"""The end: SIGTERM and SIGINT stop the program wherever it is, in a call that hangs as well.

Python runs handlers between two of its instructions only: not while a driver does not answer, and
late where the sidecar gets a hundredth of a busy core. So a thread waits for the signal and ends
the process itself: no exception finds its way out, NVML is not asked once more, and the interpreter
does not tidy up.

The kubelet ends a native sidecar after the other containers, so it then ends at once. A SIGTERM
that comes while a container that held memory still runs may be the workload's: the guard goes on,
and ends after that container or by SIGKILL.

Before `end_on_signals` the kernel ends the process (143), which has done nothing yet. What hangs
within the kernel is ended by no signal, not by SIGKILL either.
"""

from __future__ import annotations

import _thread
import os
import signal
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.sidecar.journal import EnforcerJournal

STOPPED: Final = 0

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_CHECK_S: Final = 0.2
"""Between questions whether the guard is needed still."""

_WORDS_S: Final = 1.0
"""How long the final figures may hold up the end: a disk may hang, too."""


def end_on_signals(journal: EnforcerJournal) -> None:
    """End the process with `STOPPED` once it is told to; call it once, in the main thread."""
    near, far = os.pipe()
    os.set_blocking(far, False)
    signal.set_wakeup_fd(far, warn_on_full_buffer=False)
    _thread.start_new_thread(_end, (near, journal))
    for number in _ENDING:
        signal.signal(number, _go_on)


def delay_exit_while(is_needed: Callable[[], bool]) -> None:
    """Let SIGTERM end the process only once this says no; it is asked in another thread."""
    global _is_needed  # noqa: PLW0603 - signals are the process's, too
    _is_needed = is_needed


def _is_needed() -> bool:
    return False


def _go_on(_number: int, _frame: object) -> None:
    """Do nothing: a signal without a handler would not be written to the pipe."""


def _end(told: int, journal: EnforcerJournal) -> None:
    while (number := os.read(told, 1)[0]) not in _ENDING:
        pass  # a probe woke us
    if number == signal.SIGTERM and _is_needed():
        why = "told to stop, and guarding on while the kubelet ends the other containers"
        journal.event("info", "guarding on", why=why)
        _in_time(journal.begin_to_end)
        while _is_needed():
            time.sleep(_CHECK_S)
    leave_final_figures(journal)
    journal.event("info", "stopped")
    os._exit(STOPPED)


def leave_final_figures(journal: EnforcerJournal) -> None:
    """Write what the pod held at most; whoever calls this ends the process next."""
    _in_time(journal.end)


def _in_time(write: Callable[[], None]) -> None:
    """Write in a thread of its own, and wait no longer than `_WORDS_S`."""
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        try:
            write()
        finally:
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the pod has as many as it may
        run()
    done.acquire(timeout=_WORDS_S)
