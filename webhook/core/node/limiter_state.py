"""What a node's limiter did, as it leaves it in a file for the sentry; read by nobody else.

The limiter has no right to write to the API server, so it says this here, and the sentry carries
it on: the proof into `GPUNode`, how each pod is held into that too, and the rest as Events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from webhook.core.bounds import LONGEST_SENTENCE, LONGEST_UUID, LONGEST_WORD
from webhook.core.nvidia.drivers import Proof
from webhook.core.pod.fields import Json, as_object, as_objects

STATE_FILE: Final = "state.json"
"""In the folder `webhook.names.LIMITER_FOLDER`."""
LARGEST_FILE_BYTES: Final = 2**20
WRITE_INTERVAL_S: Final = 10.0
"""So often it is written anew at least."""
STALE_AFTER_S: Final = 60.0
"""What is older proves nothing: its writer has gone."""
MOST_LIMITED: Final = 1024
MOST_EVENTS: Final = 64


@dataclass(frozen=True, slots=True)
class PodLimitState:
    """A pod that the driver holds on one of its GPUs."""

    uid: str
    gpu: str
    hard_bytes: int
    used_bytes: int
    """As the driver counts."""
    late: bool
    """Something of it may have held memory before, which the driver never counts."""


@dataclass(frozen=True, slots=True)
class LimitEvent:
    """Something that happened to a pod's limit, for an Event on that pod."""

    number: int
    """Counts up for as long as the limiter runs; with `started_s` it is told once."""
    uid: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterState:
    """All of it, at one moment (Unix time)."""

    written_s: float
    started_s: float
    proof: Proof
    limited: tuple[PodLimitState, ...] = ()
    events: tuple[LimitEvent, ...] = ()


def write_limiter_state(state: LimiterState) -> str:
    """Return the file's text."""
    proof = state.proof
    return json.dumps(
        {
            "written": state.written_s,
            "started": state.started_s,
            "proof": {"holds": proof.holds, "backEnd": proof.back_end, "why": proof.why},
            "limited": [
                {
                    "uid": one.uid,
                    "gpu": one.gpu,
                    "hard": one.hard_bytes,
                    "used": one.used_bytes,
                    "late": one.late,
                }
                for one in state.limited[:MOST_LIMITED]
            ],
            "told": [
                {"number": one.number, "uid": one.uid, "why": one.why[:LONGEST_SENTENCE]}
                for one in state.events[-MOST_EVENTS:]
            ],
        }
    )


def read_limiter_state(text: str) -> LimiterState | None:
    """Read the file's text; None where it is not as we write it. Never fails."""
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
    limited = [_limited(one) for one in as_objects(raw.get("limited"), MOST_LIMITED)]
    events = [_event(one) for one in as_objects(raw.get("told"), MOST_EVENTS)]
    return LimiterState(
        written_s=written,
        started_s=started,
        proof=Proof(
            proof["holds"],
            _text(proof, "backEnd", LONGEST_WORD),
            _text(proof, "why", LONGEST_SENTENCE),
        ),
        limited=tuple(one for one in limited if one),
        events=tuple(event for event in events if event),
    )


def _limited(raw: Json) -> PodLimitState | None:
    uid, gpu = _text(raw, "uid", LONGEST_UUID), _text(raw, "gpu", LONGEST_UUID)
    hard, used, late = raw.get("hard"), raw.get("used"), raw.get("late")
    if uid and gpu and type(hard) is type(used) is int and type(late) is bool:
        return PodLimitState(uid, gpu, hard, used, late)
    return None


def _event(raw: Json) -> LimitEvent | None:
    number, uid, why = raw.get("number"), _text(raw, "uid", LONGEST_UUID), raw.get("why")
    if type(number) is int and uid and isinstance(why, str):
        return LimitEvent(number, uid, why[:LONGEST_SENTENCE])
    return None


def _text(raw: Mapping[str, object], key: str, longest: int) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) and len(value) <= longest else ""
