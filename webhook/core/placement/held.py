"""What a pod is held to: read from the sidecar that holds it, as that will read it itself.

Never from an annotation, which may change: a tenant cannot edit the sidecar of a pod. Whoever gets
past admission can write any, and thereby says when their own pod is stopped, and no other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.core.enforcement.bounds import (
    GRACE,
    POLL_INTERVAL,
    Span,
    parse_cap,
    parse_stops,
    parse_tolerance,
)
from webhook.core.pod.duration import parse_seconds
from webhook.names import (
    CAP_BYTES_ENV,
    ENFORCER_COMMAND,
    GRACE_ENV,
    ON_EXCESS_ENV,
    POLL_INTERVAL_ENV,
    TOLERANCE_ENV,
)

if TYPE_CHECKING:
    from webhook.core.pod.views import Container, Pod

CONFIRMING_S: Final = 0.5
"""The longest pause between two measurements over the cap (`JUDGING_S` of the sidecar's guard)."""

_READ: Final = (CAP_BYTES_ENV, TOLERANCE_ENV, POLL_INTERVAL_ENV, GRACE_ENV, ON_EXCESS_ENV)
_COMMAND: Final = list(ENFORCER_COMMAND)
_LONGEST: Final = 64  # characters of a variable; no amount and no duration has more
_UNSET: Final = ("",) * len(_READ)


class HeldTo(NamedTuple):
    """What an enforcer goes by."""

    cap_bytes: int
    tolerance_bytes: int
    late_s: float
    """How long it may take to stop a process: a poll, the confirmation, the grace."""
    stops: bool = True
    """Whether it stops anything; otherwise it only reports an excess."""


def held_to(pod: Pod) -> HeldTo | None:
    """Return what a pod's sidecar goes by; None where nobody is to act on what it says.

    | containers of the reserved name | their variables | then |
    | --- | --- | --- |
    | one, with our command alone | each set once at most, by values that it would accept | as set |
    | one, with our command alone | anything else | None |
    | none, several, or with another command | any | None |
    """
    if len(pod.enforcers) != 1:
        return None
    (enforcer,) = pod.enforcers
    if enforcer.raw.get("command") != _COMMAND or enforcer.raw.get("args"):
        return None
    written = _written(enforcer)
    return _read(*written) if written else None


def held_without_sidecar(cap_bytes: int) -> HeldTo:
    """Return what a cap means by the defaults, for a pod that is measured alone."""
    read = _read(str(cap_bytes), *_UNSET[1:])
    return read or HeldTo(cap_bytes, 0, 0.0)


def _written(enforcer: Container) -> list[str] | None:
    """Return the variables in the order of `_READ`, empty where unset; None for no plain text.

    The rest of the environment is not looked at: this is done for each change of a pod.
    """
    found: dict[str, str] = {}
    for entry in enforcer.env():
        name = entry["name"]
        if name in _READ:
            value = entry.get("value") or ""
            if name in found or len(value) > _LONGEST or entry.get("valueFrom"):
                return None
            found[name] = value.strip()
    return [found.get(name, "") for name in _READ]


# By numbers and by what policies say; one that got past admission only costs others the memory.
@lru_cache(maxsize=256)
def _read(cap: str, tolerance: str, poll: str, grace: str, excess: str) -> HeldTo | None:
    try:
        stops = parse_stops(excess)
        cap_bytes = parse_cap(cap)
        tolerance_bytes = parse_tolerance(tolerance, cap_bytes)
        poll_s, grace_s = _seconds(poll, POLL_INTERVAL), _seconds(grace, GRACE)
    except ValueError:
        return None
    late_s = poll_s + min(poll_s, CONFIRMING_S) + grace_s
    return HeldTo(cap_bytes, tolerance_bytes, round(late_s, 3), stops)


def _seconds(text: str, span: Span) -> float:
    least_s, most_s = map(parse_seconds, (span.least, span.most))
    return parse_seconds(text or span.default, least_s, most_s)
