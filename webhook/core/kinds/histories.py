"""History of a workload: peaks of its last pods, stored in a `VRAMHistory`, and advice.

The last twenty runs are stored individually, since users trust figures "of the last 20 pods".
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from webhook.core.bounds import MAX_STRING_LENGTH
from webhook.core.enforcement.messages import MARGIN_PERCENT, sufficient_request
from webhook.core.enforcement.termination_message import MOST_SECONDS
from webhook.core.formatting import PLAUSIBLE_GPU_BYTES, format_count, format_exact, shorten
from webhook.core.formatting import format_amount as in_words
from webhook.core.kinds.nodes import read_time, write_time
from webhook.core.kinds.workloads import Workload
from webhook.core.nvidia.programs import warn_of_size
from webhook.core.pod.fields import Json, as_object
from webhook.core.pod.quantity import MIB
from webhook.names import GROUP_VERSION, MAX_NAME_LENGTH, VRAM_HISTORY_KIND

MAX_RUNS: Final = 20
MAX_AGE_S: Final = 30 * 86_400.0
"""Maximum age of a run's end in seconds; older runs are dropped."""
MAX_CLOCK_SKEW_S: Final = 86_400.0
"""Maximum error of a node's clock, in seconds. A run that ends further in the future is forged."""
MIN_RUNS: Final = 5
MIN_TOTAL_S: Final = 3_600.0
"""Minimum number of measured runs for advice, and their minimum total duration in seconds."""
MAX_WARNING_CHARS: Final = 120

_GIB: Final = 2**30
_RECENT_RUNS: Final = 5
_WORTH_BYTES: Final = 2 * _GIB
_FULL: Final = 97
"""Minimum peak, in percent of the cap, that counts as filling the cap."""
_DNS_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_LONGEST_PREFIX: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run of one pod that ended."""

    pod: str
    """Name of the pod."""
    ended_s: float
    """Unix time at which the pod ended."""
    requested_bytes: int
    """Cap per GPU, in bytes."""
    gpus: int
    peak_bytes: int | None
    """Largest peak on any of the pod's GPUs; None if not measured."""
    stops: int
    seconds: float
    """Number of seconds for which the pod's memory was monitored."""
    product: str = ""
    limited: bool = False
    """True if the driver enforced the cap, so that any need beyond the peak is unknown."""


@dataclass(frozen=True, slots=True)
class History:
    """The last runs of a workload."""

    namespace: str
    kind: str
    """Kind, such as `Deployment`, `Job`, `CronJob` or `Pod`."""
    workload: str
    runs: tuple[Run, ...] = ()
    """Runs, newest last."""


class Verdict(enum.Enum):
    """Verdict on a workload's request."""

    NEVER = "never"
    """The workload requests more than any GPU has."""
    FEW = "few"
    """Too few runs were measured."""
    MORE = "more"
    DENIED = "denied"
    """The driver may have refused memory beyond the cap, so the need is unknown."""
    FILLS = "fills"
    """The workload uses all memory that it gets, so the need is unknown."""
    LESS = "less"
    FITS = "fits"


@dataclass(frozen=True, slots=True)
class Advice:
    """Amount that a workload should request, and the reason."""

    amount_bytes: int | None
    """Bytes per GPU; None if no change is needed or too little is known."""
    why: str
    """Sentence in the column WHY of `vramwarden advise`."""
    verdict: Verdict = Verdict.FEW


def history_name(workload: Workload) -> str:
    """Return the name of a workload's VRAMHistory, such as `deployment-llama`.

    | kind and name in lower case | the object's name |
    | --- | --- |
    | were lower case but for the kind, a DNS name, at most 253 characters | these, with a dash |
    | else | valid characters of the first 40, and a hash |

    Kubernetes: Object Names and IDs, "DNS Subdomain Names".
    """
    name = f"{workload.kind.lower()}-{workload.name}"
    if len(name) <= MAX_NAME_LENGTH and _DNS_NAME.fullmatch(name):
        return name
    kept = re.sub("[^a-z0-9]+", "-", name.lower()[:_LONGEST_PREFIX]).strip("-")
    digest = hashlib.sha256(str(workload).encode(errors="replace")).hexdigest()[:12]
    return f"{kept}-{digest}" if kept else digest


def read_history(raw: Mapping[str, Any]) -> History | None:
    """Return the history in a stored object, or None if the object names no workload.

    Never fails: malformed runs are left out, and only the last twenty are read. A user who may
    write such objects can only deceive readers in one namespace.
    """
    metadata, status = as_object(raw.get("metadata")), as_object(raw.get("status"))
    workload = as_object(status.get("workload"))
    kind, name = _text(workload, "kind"), _text(workload, "name")
    namespace = _text(metadata, "namespace")
    if not (kind and name and namespace):
        return None
    runs = status.get("runs")
    found = runs[-MAX_RUNS:] if isinstance(runs, list) else []
    kept = tuple(run for item in found if (run := _run(as_object(item))))
    return History(namespace, kind, name, kept)


def write_history(history: History) -> Json:
    """Return the VRAMHistory object of a history.

    The status has `workload`, `summary` (strings for the columns of `kubectl get`), `advice` (a
    sentence) and `runs`, in MiB.
    """
    advice = advise(history)
    name = history_name(Workload(history.kind, history.workload))
    asked, peak = requested_bytes(history), peak_bytes(history)
    summary = {
        "runs": str(len(history.runs)),
        "asks": "-" if asked is None else format_exact(asked),
        "peak": "-" if peak is None else in_words(peak),
        "advice": "-" if advice.amount_bytes is None else format_exact(advice.amount_bytes),
    }
    return {
        "apiVersion": GROUP_VERSION,
        "kind": VRAM_HISTORY_KIND,
        "metadata": {"name": name, "namespace": history.namespace},
        "status": {
            "workload": {"kind": history.kind, "name": history.workload},
            "summary": summary,
            "advice": advice.why,
            "runs": [_write_run(run) for run in history.runs],
        },
    }


def append(history: History, run: Run, now_s: float) -> History:
    """Return a history with a run added: the newest twenty, none older than thirty days.

    | the run | then |
    | --- | --- |
    | of a pod and an end that are there already | the same history: a pod counts once |
    | older than thirty days, or than each of twenty others | the same history |
    | ends more than a day from now | the same history |
    | any other | added in order of its end; old, surplus and future runs are dropped |
    """
    if any(_key(run) == _key(found_run) for found_run in history.runs):
        return history
    known = [found_run for found_run in (*history.runs, run) if _counts(found_run, now_s)]
    runs = sorted(known, key=lambda item: item.ended_s)[-MAX_RUNS:]
    return replace(history, runs=tuple(runs)) if run in runs else history


def _counts(run: Run, now_s: float) -> bool:
    return -MAX_CLOCK_SKEW_S <= now_s - run.ended_s <= MAX_AGE_S


def has_run(history: History, pod: str, began_s: float) -> bool:
    """Return True if the history has a run of this pod that ended after `began_s`.

    Two pods of one name never exist at the same time, so a later run of this name is the same
    pod's.
    """
    return any(run.pod == pod and run.ended_s >= began_s for run in history.runs)


def is_expired(history: History, now_s: float) -> bool:
    """Return True if no run is recent, so that the history may be deleted."""
    return not any(_counts(run, now_s) for run in history.runs)


def requested_bytes(history: History) -> int | None:
    """Return the amount per GPU that the last pod requested, in bytes."""
    return history.runs[-1].requested_bytes if history.runs else None


def peak_bytes(history: History) -> int | None:
    """Return the largest peak of all runs, or None if no peak was measured."""
    return max(
        (held for run in history.runs if (held := peak_or_cap_bytes(run)) is not None), default=None
    )


def count_measured_runs(history: History) -> int:
    """Return the number of runs with a known peak."""
    return sum(1 for run in history.runs if peak_or_cap_bytes(run) is not None)


def median_peak_bytes(history: History) -> int | None:
    """Return the median of the peaks, or None if too few peaks were measured."""
    held = sorted(held for run in history.runs if (held := peak_or_cap_bytes(run)) is not None)
    return held[(len(held) - 1) // 2] if len(held) >= MIN_RUNS else None


def stops(history: History) -> int:
    """Return the number of runs that were stopped for exceeding the cap."""
    return sum(1 for run in history.runs if run.stops)


def advise(history: History, asked: int | None = None, largest_bytes: int | None = None) -> Advice:
    """Return the amount to request, given the requested bytes per GPU (default: the last pod's).

    `amount` is the `sufficient_request` of the largest peak. A stopped run counts with at least its
    cap. The first matching row applies:

    | asks | runs | verdict | amount |
    | --- | --- | --- | --- |
    | for more than the largest GPU has | any | never | none |
    | any | fewer than 5 that were measured, or less than an hour in sum | few | none |
    | for less than the amount | one of the last 5 was stopped | more | the amount |
    | any | each filled its cap | fills | none |
    | for less than the amount | one of the last 5 filled the driver's cap | denied | none |
    | amount is at most 2/3 of it, and 2Gi less | none was stopped or denied | less | the amount |
    | any | any | fits | none |

    A peak of at least 97 % fills the cap. If no GPU has the amount, the amount is None and the
    sentence says so.
    """
    asked = requested_bytes(history) if asked is None else asked
    if asked is not None and largest_bytes is not None and asked > largest_bytes:
        has = in_words(largest_bytes, down=True)
        why = f"the largest GPU here has {has}: such a pod will never start"
        return Advice(None, why, Verdict.NEVER)
    runs = [run for run in history.runs if peak_or_cap_bytes(run) is not None]
    seconds = sum(run.seconds for run in runs)
    need = peak_bytes(history)
    if len(runs) < MIN_RUNS or seconds < MIN_TOTAL_S or need is None or asked is None:
        return Advice(None, _too_little(len(history.runs), len(runs)), Verdict.FEW)
    amount = sufficient_request(need)
    if amount > asked and any(run.stops for run in history.runs[-_RECENT_RUNS:]):
        why = f"stopped at its cap; the largest held {in_words(need)}"
        if largest_bytes is not None and amount > largest_bytes:
            why += f", and no GPU here has {format_exact(amount)}"
            return Advice(None, why, Verdict.MORE)
        return Advice(amount, why, Verdict.MORE)
    denied = amount > asked and any(map(filled_driver_cap, history.runs[-_RECENT_RUNS:]))
    if all(fills(peak_or_cap_bytes(run) or 0, run.requested_bytes) for run in runs):
        why = "fills what it gets: look at --gpu-memory-utilization"
        why += ", or its cap is too small" if denied else ""
        return Advice(None, why, Verdict.FILLS)
    if denied:
        why = "filled its cap, beyond which the driver denies: it may be too small"
        return Advice(None, why, Verdict.DENIED)
    saves = asked - amount
    known = not (stops(history) or any(map(filled_driver_cap, history.runs)))
    if amount * 3 <= asked * 2 and saves >= _WORTH_BYTES and known:
        of = "a pod" if history.runs[-1].gpus == 1 else "on each GPU of a pod"
        why = f"largest peak + {MARGIN_PERCENT} %; saves {format_exact(saves)} {of}"
        return Advice(amount, why, Verdict.LESS)
    return Advice(None, "asks for what it needs, or near to that", Verdict.FITS)


def fills(peak_bytes: int, cap_bytes: int) -> bool:
    """Return True if a peak is at least 97 % of the cap."""
    return peak_bytes * 100 >= cap_bytes * _FULL


def warn(history: History | None, asked: int, largest_bytes: int | None = None) -> str:
    """Return the warning for a pod that requests `asked` bytes per GPU, or an empty string.

    The warning has at most `MAX_WARNING_CHARS` characters; the name of the workload is cut first.
    """
    too_large = warn_of_size(asked, largest_bytes)
    if too_large or history is None:
        return too_large
    asks = f"asks for {format_exact(asked)}"
    advice = advise(history, asked, largest_bytes)
    if advice.amount_bytes is None:
        return ""
    count, amount = len(history.runs), format_exact(advice.amount_bytes)
    if advice.verdict is Verdict.MORE:
        before = f"{asks}; {stops(history)} of the last {count} pods of "
        cap = max((run.requested_bytes for run in history.runs if run.stops), default=asked)
        at = "that" if cap == asked else format_exact(cap)
        after = f" were stopped at {at}; {amount} would do"
    else:
        peak = in_words(peak_bytes(history) or 0)
        known = count_measured_runs(history)
        of = f"the last {count}" if known == count else f"{known} measured of the last {count}"
        before = f"{asks}; {of} pods of "
        after = f" peaked at {peak}; {amount} would do (vramwarden advise)"
    room = MAX_WARNING_CHARS - len(before) - len(after)
    return before + shorten(f"{history.kind} {history.workload}", room) + after


def _too_little(runs: int, count_measured_runs: int) -> str:
    if count_measured_runs >= MIN_RUNS:
        return "ran for less than an hour in sum; advice begins with that"
    of = f", {count_measured_runs} of them measured" if count_measured_runs < runs else ""
    return f"{format_count(runs, 'run')}{of}; advice begins with {MIN_RUNS}"


def peak_or_cap_bytes(run: Run) -> int | None:
    """Return a run's peak, or the larger of peak and cap if it was stopped or refused memory."""
    if run.stops or filled_driver_cap(run):
        return max(run.requested_bytes, run.peak_bytes or 0)
    return run.peak_bytes


def filled_driver_cap(run: Run) -> bool:
    """Return True if the driver may have refused a run more memory than its cap."""
    return run.limited and fills(run.peak_bytes or 0, run.requested_bytes)


def _key(run: Run) -> tuple[str, int]:
    return run.pod, int(run.ended_s)


def _write_run(run: Run) -> Json:
    written: Json = {
        "pod": run.pod,
        "endedAt": write_time(run.ended_s),
        "askedMi": -(-run.requested_bytes // MIB),
        "gpus": run.gpus,
        "stops": run.stops,
        "seconds": int(run.seconds),
    }
    if run.peak_bytes is not None:
        written["peakMi"] = -(-run.peak_bytes // MIB)
    if run.product:
        written["product"] = run.product
    if run.limited:
        written["limited"] = True
    return written


def _run(raw: Json) -> Run | None:
    pod, ended_s = _text(raw, "pod"), read_time(raw.get("endedAt"))
    asked, peak = (
        _within(raw.get(key), PLAUSIBLE_GPU_BYTES // MIB) for key in ("askedMi", "peakMi")
    )
    gpus, stopped, seconds = (
        _within(raw.get(key), MOST_SECONDS) for key in ("gpus", "stops", "seconds")
    )
    if not (pod and asked) or ended_s is None:
        return None
    return Run(
        pod=pod,
        ended_s=ended_s,
        requested_bytes=asked * MIB,
        gpus=gpus or 1,
        peak_bytes=None if peak is None else peak * MIB,
        stops=stopped or 0,
        seconds=float(seconds or 0),
        product=_text(raw, "product"),
        limited=raw.get("limited") is True,
    )


def _within(value: object, most: int) -> int | None:
    return value if type(value) is int and 0 <= value <= most else None


def _text(raw: Json, key: str) -> str:
    """Return a string, or "" if it would control a terminal."""
    value = raw.get(key)
    return value[:MAX_STRING_LENGTH] if isinstance(value, str) and value.isprintable() else ""
