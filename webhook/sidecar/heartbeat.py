"""The heartbeat: how the kubelet's probes know that the enforcer works, and what they report.

No port: the pod's network is the workload's. A line in a file of our own volume says which process
guards, when it observed last, and how old that may get. On a busy node probes get a hundredth
of a core, so this file imports next to nothing.

The kubelet makes an Event of what a failing probe prints, and we have no token to make one by. So
the enforcer leaves a sentence beside its heartbeat, and a probe takes it to the kubelet:

| file | left by | removed by |
| --- | --- | --- |
| `verdict` | the guard, with each verdict | a liveness probe, which fails once to report it |
| `failure` | a self-test that failed | the next one that passes; startup probes read it |
| `waiting` | a sidecar whose pod has no GPU yet | nobody: it counts while that process lives |
| `passed` | a liveness probe that passed | the next one: only after a pass it may report |

Each file is replaced in one step, and there is one of each: nothing grows.
"""

import os
import time

RUN_FOLDER = "/run/vram-enforcer"
_FILE = "heartbeat"
_STALE_AFTER_INTERVALS = 3
_STALE_AFTER_S = 15.0
"""At least: a throttled process with a slow driver is late, not dead."""

_WAIT_STEP_S = 0.3

_VERDICT, _FAILURE, _PASSED, _WAITING = "verdict", "failure", "passed", "waiting"
_LONGEST = 1000
"""In bytes: an Event's message may be as long in each of its APIs, the kubelet's words included."""

_LONGEST_WAITING = 480
"""A probe may report two of them: what it found first, and at its end."""

PASSED_WITHIN_S = 40.0
"""How old a pass may be that lets a probe report; why: core/admission/sidecar/container.py."""

_FAILED = "the self-test failed: "


class Heartbeat:
    """Beats after each observation."""

    def __init__(self, folder: str, poll_interval_s: float) -> None:
        self._folder = folder
        self._who = _me()
        self._stale_after_s = max(_STALE_AFTER_S, _STALE_AFTER_INTERVALS * poll_interval_s)

    def beat(self) -> None:
        """Record that the pod was observed just now; raises OSError."""
        line = f"{self._who} {time.monotonic():.3f} {self._stale_after_s:.3f}\n"
        _leave(self._folder, _FILE, line)


def leave_verdict(folder: str, text: str) -> None:
    """Leave a verdict for the next probe to report; it replaces one that no probe took."""
    _try_to_leave(folder, _VERDICT, one_line(text))


def leave_failure(folder: str, text: str) -> None:
    """Leave why the self-test failed, for the startup probes."""
    _try_to_leave(folder, _FAILURE, f"{_me()} {one_line(text)}")


def leave_waiting(folder: str, text: str) -> None:
    """Leave what this process waits for, for the startup probes."""
    _try_to_leave(folder, _WAITING, f"{_me()} {one_line(text, _LONGEST_WAITING)}")


def forget_failure(folder: str) -> None:
    """Remove what an earlier self-test left, since one has passed."""
    _take(folder, _FAILURE)


def one_line(text: str, longest: int = _LONGEST) -> str:
    """Return a text as one line that any Event can hold, cut to so many bytes."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(shown.split()).encode()[:longest].decode(errors="ignore")


def answer(folder: str, kind: str, seconds: float) -> int:
    """Answer the kubelet: print why the probe fails, and return its exit code.

    Whatever happens to the files costs no more than an Event: what cannot be removed is not
    reported, for it would be again and again.
    """
    said = probe(folder)
    # Where the self-test fails, its container ends and takes us with it: what is said now counts.
    print(said, end="", flush=True)  # noqa: T201
    why = wait(folder, seconds) if said and seconds else said
    if kind == "liveness":
        passed = _take(folder, _PASSED)
        if not why and _is_recent(passed):
            why = _take(folder, _VERDICT)
        if not why:
            _try_to_leave(folder, _PASSED, f"{time.monotonic():.3f}")
    now = why or "guarding"
    print("" if now == said else f"; then: {now}" if said else now)  # noqa: T201
    return 1 if why else 0


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
        return _why_not(folder) or "not guarding yet: the self-test has not finished"
    except (OSError, ValueError) as error:
        return f"the heartbeat in {folder} cannot be read: {error}"
    if _started(pid) != started:
        over = f"process {pid}, which guarded, is over; no other has taken its place yet"
        return _why_not(folder) or over
    if age_s <= limit_s:  # never so for what is no number
        return ""
    return f"the last observation was {age_s:.0f} s ago, more than {limit_s:.0f}: stuck or stopped"


def wait(folder: str, seconds: float) -> str:
    """Do as `probe`, but give the enforcer some time, unless its self-test has failed.

    One probe that waits costs a starting sidecar less of its share than many that fail.
    """
    end_s = time.monotonic() + seconds
    while (why := probe(folder)) and time.monotonic() < end_s and not why.startswith(_FAILED):
        time.sleep(_WAIT_STEP_S)
    return why


def _why_not(folder: str) -> str:
    """Return what waits, or a self-test that failed, left; nothing where one passed since.

    What a process left that is over is of the container before: the volume outlives it.
    """
    lives, why = _left(folder, _WAITING)
    if lives:
        return why
    lives, why = _left(folder, _FAILURE)
    if lives:
        return f"{_FAILED}{why}"
    before = "not guarding yet: the self-test has not finished; the one before failed: "
    return f"{before}{why}" if why else ""


def _left(folder: str, name: str) -> tuple[bool, str]:
    """Return what a process left in a file, and whether it still lives."""
    try:
        with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            pid, started, why = file.read(2 * _LONGEST).split(" ", 2)
    except (OSError, ValueError):
        return False, ""
    return _started(pid) == started, why


def _is_recent(passed: str) -> bool:
    try:
        return time.monotonic() - float(passed) <= PASSED_WITHIN_S
    except ValueError:
        return False


def _leave(folder: str, name: str, text: str) -> None:
    """Write a file in one step; raises OSError."""
    path = f"{folder}/{name}"
    with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text)
    os.replace(f"{path}.new", path)  # noqa: PTH105


def _try_to_leave(folder: str, name: str, text: str) -> None:
    try:
        _leave(folder, name, text)
    except OSError:
        return


def _take(folder: str, name: str) -> str:
    """Return what a file says once it is taken away; nothing where it cannot be."""
    path = f"{folder}/{name}"
    try:
        # Renamed first: what is left meanwhile is another file, for the next probe.
        os.replace(path, f"{path}.taken")  # noqa: PTH105
        with open(f"{path}.taken", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            text = file.read(2 * _LONGEST)
        os.unlink(f"{path}.taken")  # noqa: PTH108
    except OSError:
        return ""
    return text


def _me() -> str:
    return f"{os.getpid()} {_started(os.getpid())}"


def _started(pid: int | str) -> str:
    """Return the start time as webhook.adapters.processes does, which is too large for a probe."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
