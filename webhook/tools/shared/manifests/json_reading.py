"""Read streams of JSON objects as `kubectl` does; numbers keep their digits."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, Final

from webhook.tools.shared.manifests.reading import KUBECTL, MAX_DIGITS, ExactFloat, ManifestError

_SPACE: Final = re.compile(r"[ \t\r\n]*")


class NotJsonError(ValueError):
    """A text is not a stream of JSON objects."""


def read_json(text: str) -> list[tuple[int, Any]]:
    """Return a stream of JSON objects, each with where it ends; raises NotJsonError."""
    found: list[tuple[int, Any]] = []
    position = _after_space(text, 0)
    try:
        while position < len(text):
            value, end = _DECODER.raw_decode(text, position)
            _check_json(value, 1)
            position = _after_space(text, end)
            found.append((position, value))
    except json.JSONDecodeError as error:
        raise NotJsonError from error
    except RecursionError:
        raise ManifestError(KUBECTL.too_deep) from None
    return found


def _after_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return space.end() if space else position


def _check_json(value: Any, depth: int) -> None:
    if depth > KUBECTL.max_depth:
        raise ManifestError(KUBECTL.too_deep)
    children = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, list)):
        for child in children:
            _check_json(child, depth + 1)
    elif isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ManifestError("a string holds half of a surrogate pair; write the complete character")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = next(name for name, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ManifestError(f'key "{twice}" is set twice in one object; keep one')
    return result


def _number(text: str) -> int | float:
    if len(text) <= MAX_DIGITS:
        return int(text) if text.lstrip("-").isdigit() else _finite(text)
    return _finite(text)


def _finite(text: str) -> ExactFloat:
    value = ExactFloat(text)
    if not math.isfinite(value):
        raise ManifestError(f"{text[:20]}... is too large a number; write a smaller one")
    return value


def _no_constant(name: str) -> Any:
    raise ManifestError(f"{name} is a number that JSON does not have; write a finite number")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_number,
    parse_float=_finite,
    parse_constant=_no_constant,
)
