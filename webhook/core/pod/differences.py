"""Where two JSON values differ, for people who wrote one of them down by hand."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from webhook.core.pod.findings import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_VALUE: Final = 100
_ABSENT: Final = object()


def differences(wanted: Any, got: Any, path: str) -> Iterator[str]:
    """Yield a line for each place where two values differ: its path, what was wanted and got.

    Items of lists are compared by their place. Objects and lists that only one of the two has are
    one difference.
    """
    if isinstance(wanted, dict) and isinstance(got, dict):
        for key in dict.fromkeys((*wanted, *got)):
            below = f"{path}[{key}]" if "/" in key or "." in key else f"{path}.{key}"
            yield from differences(wanted.get(key, _ABSENT), got.get(key, _ABSENT), below)
    elif isinstance(wanted, list) and isinstance(got, list):
        pairs = zip_longest(wanted, got, fillvalue=_ABSENT)
        for index, (one, other) in enumerate(pairs):
            yield from differences(one, other, f"{path}[{index}]")
    elif type(wanted) is not type(got) or wanted != got:  # True equals 1
        yield f"wanted {path}: {shown(wanted)}, got {shown(got)}"


def shown(value: Any) -> str:
    """Return a value as JSON, cut to what fits into a line."""
    if value is _ABSENT:
        return "none"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return shortened(text, _LONGEST_VALUE)
