"""Seal what replicas keep together in a ConfigMap, so that they know what one of them wrote.

With the token of the webhook's account anybody could write there, so the seal takes a key that is
mounted as a file and that no account of ours may read from the API server. It says when, too: an
older text that is put back is not what a replica wrote now. And it names what it seals, so that
releases which write more or less of it know each other's during an upgrade. Without a key anybody
can seal.
"""

from __future__ import annotations

import hmac
import json
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SEAL_KEY: Final = "seal.v1"
_LONGEST_TIME: Final = 12


def sealed(data: Mapping[str, str], key: bytes, now_s: float) -> dict[str, str]:
    """Return the `data` of a ConfigMap with its seal; keys of others beside it are not sealed."""
    head = f"{int(now_s)} {','.join(sorted(data))}"
    return {**data, SEAL_KEY: f"{head} {_code(data, head, key)}"}


def seal_age_s(data: Mapping[str, str], names: Iterable[str], key: bytes, now_s: float) -> float:
    """Return how long ago a replica sealed these keys; infinite where none did.

    One of another release seals some more of them, or less.
    """
    head, _, code = data.get(SEAL_KEY, "").rpartition(" ")
    at, _, listed = head.partition(" ")
    covered, wanted = set(listed.split(",")), set(names)
    ours = _code({name: data.get(name) for name in covered}, head, key)
    is_ours = hmac.compare_digest(code.encode(errors="replace"), ours.encode())
    if not is_ours or not (covered <= wanted or covered >= wanted):
        return math.inf
    is_time = at.isascii() and at.isdecimal() and len(at) <= _LONGEST_TIME
    return abs(now_s - int(at)) if is_time else math.inf


def _code(data: Mapping[str, str | None], head: str, key: bytes) -> str:
    text = json.dumps([head, sorted(data.items())])
    return hmac.digest(key, text.encode(errors="replace"), "sha256").hex()
