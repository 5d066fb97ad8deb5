"""State of a node's limiter, in a file that the sentry reads.

The limiter may not write to the API server, so the sentry publishes the state. `GPUNode` shows the
proof and how each pod is limited; Events show the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from webhook.core.bounds import MAX_SENTENCE_LENGTH, MAX_UUID_LENGTH, MAX_WORD_LENGTH
from webhook.core.nvidia.drivers import Proof
from webhook.core.pod.fields import Json, as_object, as_objects

STATE_FILE: Final = "state.json"
"""File in the folder `webhook.names.LIMITER_FOLDER`."""
LARGEST_FILE_BYTES: Final = 2**20
WRITE_INTERVAL_S: Final = 10.0
"""Maximum interval between two writes, in seconds."""
STALE_AFTER_S: Final = 60.0
"""Age after which a state proves nothing, in seconds: its writer has stopped."""
MOST_LIMITED: Final = 1024
MOST_EVENTS: Final = 64


@dataclass(frozen=True, slots=True)
class PodLimitState:
    """Limit that the driver enforces for a pod on one of its GPUs."""

    uid: str
    gpu: str
    hard_bytes: int
    used_bytes: int
    """Memory in use according to the driver, in bytes."""
    late: bool
    """True if processes of the pod may have allocated memory before the limit was set, which the
    driver never counts."""


@dataclass(frozen=True, slots=True)
class LimitEvent:
    """A change of a pod's limit, for an Event on that pod."""

    number: int
    """Sequence number while the limiter runs; identifies the Event together with `started_s`."""
    uid: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterState:
    """Complete state at one moment; times are Unix times."""

    written_s: float
    started_s: float
    proof: Proof
    limited: tuple[PodLimitState, ...] = ()
    events: tuple[LimitEvent, ...] = ()


def write_limiter_state(state: LimiterState) -> str:
    """Return the content of the file."""
    proof = state.proof
    return json.dumps(
        {
            "written": state.written_s,
            "started": state.started_s,
            "proof": {"holds": proof.holds, "backEnd": proof.back_end, "why": proof.why},
            "limited": [
                {
                    "uid": limit.uid,
                    "gpu": limit.gpu,
                    "hard": limit.hard_bytes,
                    "used": limit.used_bytes,
                    "late": limit.late,
                }
                for limit in state.limited[:MOST_LIMITED]
            ],
            "told": [
                {"number": event.number, "uid": event.uid, "why": event.why[:MAX_SENTENCE_LENGTH]}
                for event in state.events[-MOST_EVENTS:]
            ],
        }
    )


def read_limiter_state(text: str) -> LimiterState | None:
    """Parse the content of the file; return None if it is malformed. Never raises."""
    if len(text) > LARGEST_FILE_BYTES:
        return None
    try:
        raw = as_object(json.loads(text))
    except (ValueError, RecursionError):
        return None
    written, started, proof = raw.get("written"), raw.get("started"), as_object(raw.get("proof"))
    if type(written) is not float or type(started) is not float:
        return None
    if type(proof.get("holds")) is not bool:
        return None
    limited = [_read_limit(limit) for limit in as_objects(raw.get("limited"), MOST_LIMITED)]
    events = [_read_event(event) for event in as_objects(raw.get("told"), MOST_EVENTS)]
    return LimiterState(
        written_s=written,
        started_s=started,
        proof=Proof(
            proof["holds"],
            _text(proof, "backEnd", MAX_WORD_LENGTH),
            _text(proof, "why", MAX_SENTENCE_LENGTH),
        ),
        limited=tuple(limit for limit in limited if limit),
        events=tuple(event for event in events if event),
    )


def _read_limit(raw: Json) -> PodLimitState | None:
    uid, gpu = _text(raw, "uid", MAX_UUID_LENGTH), _text(raw, "gpu", MAX_UUID_LENGTH)
    hard, used, late = raw.get("hard"), raw.get("used"), raw.get("late")
    if uid and gpu and type(hard) is type(used) is int and type(late) is bool:
        return PodLimitState(uid, gpu, hard, used, late)
    return None


def _read_event(raw: Json) -> LimitEvent | None:
    number, uid, why = raw.get("number"), _text(raw, "uid", MAX_UUID_LENGTH), raw.get("why")
    if type(number) is int and uid and isinstance(why, str):
        return LimitEvent(number, uid, why[:MAX_SENTENCE_LENGTH])
    return None


def _text(raw: Mapping[str, object], key: str, longest: int) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) and len(value) <= longest else ""
