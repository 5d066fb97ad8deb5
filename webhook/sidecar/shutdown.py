"""Shutdown: SIGTERM and SIGINT end the program at any point, even in a call that hangs.

Python runs signal handlers only between two bytecode instructions: never while the driver hangs,
and late if the sidecar gets a hundredth of a busy core. So a thread waits for the signal and ends
the process itself. No exception is raised, NVML is not called again, and the interpreter does not
clean up.

The kubelet stops a native sidecar after the other containers, so the sidecar normally ends at once.
If SIGTERM arrives while a container that held memory still runs, the workload may have sent it. The
guard then continues, and ends after that container or by SIGKILL.

Before `exit_on_signals` the kernel ends the process (143), which has done nothing yet. No signal,
not even SIGKILL, ends a process that hangs in the kernel.
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
_CHECK_INTERVAL_S: Final = 0.2
"""Interval between checks whether the guard is still needed, in seconds."""

_WRITE_TIMEOUT_S: Final = 1.0
"""Timeout of writing the final figures, in seconds, since a disk may hang."""


def exit_on_signals(journal: EnforcerJournal) -> None:
    """Exit with `STOPPED` on SIGTERM or SIGINT; call it once, in the main thread."""
    near, far = os.pipe()
    os.set_blocking(far, False)
    signal.set_wakeup_fd(far, warn_on_full_buffer=False)
    _thread.start_new_thread(_wait_for_signal, (near, journal))
    for number in _ENDING:
        signal.signal(number, _ignore)


def delay_exit_while(is_needed: Callable[[], bool]) -> None:
    """Delay the exit on SIGTERM while `is_needed` returns True; another thread calls it."""
    global _is_needed  # noqa: PLW0603 - signals are the process's, too
    _is_needed = is_needed


def _is_needed() -> bool:
    return False


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: only signals with a handler are written to the pipe."""


def _wait_for_signal(pipe: int, journal: EnforcerJournal) -> None:
    while (number := os.read(pipe, 1)[0]) not in _ENDING:
        pass  # the wake-up signal of a probe
    if number == signal.SIGTERM and _is_needed():
        why = "told to stop, and guarding on while the kubelet ends the other containers"
        journal.event("info", "guarding on", why=why)
        _run_with_timeout(journal.append_final_figures)
        while _is_needed():
            time.sleep(_CHECK_INTERVAL_S)
    write_final_figures(journal)
    journal.event("info", "stopped")
    os._exit(STOPPED)


def write_final_figures(journal: EnforcerJournal) -> None:
    """Write the pod's final figures; the caller ends the process afterwards."""
    _run_with_timeout(journal.end)


def _run_with_timeout(write: Callable[[], None]) -> None:
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        try:
            write()
        finally:
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the pod has reached its limit of threads
        run()
    done.acquire(timeout=_WRITE_TIMEOUT_S)
