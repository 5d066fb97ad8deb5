"""Names and patterns with `*`, which policies use for namespaces, classes, users and resources."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

# A resource's name has a domain of at most 253 characters, a slash, and 63 more.
_LONGEST_REMEMBERED: Final = 512


def matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    """Say whether a name is in a list of names and `*` patterns."""
    # Names are the user's: long ones, remembered, would fill the memory.
    return (_remembered if len(name) <= _LONGEST_REMEMBERED else _matches)(name, patterns)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return _compiled(patterns).fullmatch(name) is not None


_NOTHING: Final = re.compile("(?!)")
_remembered = lru_cache(maxsize=1024)(_matches)


@lru_cache(maxsize=1024)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    if not patterns:
        return _NOTHING
    return re.compile("|".join(map(_expression, patterns)), re.DOTALL)


def _expression(pattern: str) -> str:
    head, *rest = map(re.escape, pattern.split("*"))
    if not rest:
        return head
    # Each text is taken where it first occurs, for good: many stars must not cost exponential time.
    middle = "".join(f"(?>.*?{text})" for text in rest[:-1])
    return f"{head}{middle}.*{rest[-1]}"
