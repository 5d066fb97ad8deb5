"""The heartbeat: what the kubelet's probes know the enforcer by.

No port: the pod's network is the workload's. A line in a file of our own volume says which process
guards, since which look, and how old that look may get. Probes run at a hundredth of a core, so
this file imports next to nothing.
"""

import os
import time

RUN_FOLDER = "/run/vram-enforcer"
_FILE = "heartbeat"
_STALE_AFTER_INTERVALS = 3
_STALE_AFTER_S = 15.0
"""At least: a throttled process with a slow driver is late, not dead."""

_WAIT_STEP_S = 0.3


class Heartbeat:
    """Beats after each look."""

    def __init__(self, folder: str, poll_interval_s: float) -> None:
        self._path = f"{folder}/{_FILE}"
        self._who = f"{os.getpid()} {_started(os.getpid())}"
        self._stale_after_s = max(_STALE_AFTER_S, _STALE_AFTER_INTERVALS * poll_interval_s)

    def beat(self) -> None:
        """Tell that a look was made just now; raises OSError."""
        beside = f"{self._path}.new"
        with open(beside, "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(f"{self._who} {time.monotonic():.3f} {self._stale_after_s:.3f}\n")
        os.replace(beside, self._path)  # noqa: PTH105


def probe(folder: str) -> str:
    """Return why the probe fails, or nothing where the enforcer is at work.

    The first beat comes after the self-test, so one answer serves startup and liveness. A beat of a
    process that is over is from before a restart: the volume outlives it.
    """
    try:
        with open(f"{folder}/{_FILE}", encoding="ascii") as file:  # noqa: PTH123
            pid, started, beat_s, stale_after_s = file.read(200).split()
        age_s, limit_s = time.monotonic() - float(beat_s), float(stale_after_s)
    except FileNotFoundError:
        return "not guarding yet: the self-test has not passed"
    except (OSError, ValueError) as error:
        return f"the heartbeat in {folder} cannot be read: {error}"
    if _started(pid) != started:
        return f"process {pid}, which guarded, is over; no other has taken its place yet"
    if age_s <= limit_s:  # never so for what is no number
        return ""
    return f"the last look was {age_s:.0f} s ago, more than {limit_s:.0f}: stuck or stopped"


def wait(folder: str, seconds: float) -> str:
    """Do as `probe`, but give the enforcer some time.

    One probe that waits costs a starting sidecar less of its share than many that fail.
    """
    end_s = time.monotonic() + seconds
    while (why := probe(folder)) and time.monotonic() < end_s:
        time.sleep(_WAIT_STEP_S)
    return why


def _started(pid: int | str) -> str:
    """Return the start time as webhook.adapters.processes does, which is too large for a probe."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
