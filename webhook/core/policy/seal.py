"""Seal what replicas keep together in a ConfigMap, so that they know what one of them wrote.

With the token of the webhook's account anybody could write there, so the seal takes a key that is
mounted as a file and that no account of ours may read from the API server. It says when, too: an
older text that is put back is not what a replica wrote now. Without a key anybody can seal.
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
    at = str(int(now_s))
    return {**data, SEAL_KEY: f"{at} {_code(data, at, key)}"}


def seal_age_s(data: Mapping[str, str], names: Iterable[str], key: bytes, now_s: float) -> float:
    """Return how long ago a replica sealed these keys; infinite where none did."""
    at, _, code = data.get(SEAL_KEY, "").partition(" ")
    ours = _code({name: data.get(name) for name in names}, at, key)
    if not hmac.compare_digest(code.encode(errors="replace"), ours.encode()):
        return math.inf
    is_time = at.isascii() and at.isdecimal() and len(at) <= _LONGEST_TIME
    return abs(now_s - int(at)) if is_time else math.inf


def _code(data: Mapping[str, str | None], at: str, key: bytes) -> str:
    text = json.dumps([at, sorted(data.items())])
    return hmac.digest(key, text.encode(), "sha256").hex()
