"""Checked access to the fields of an object that came as JSON.

Every reader takes its holder's path and raises MalformedObjectError where the type is not the one
of Kubernetes' API, so no rule ever mistakes a malformed field for an absent one. The path may come
in parts, which are joined for a message only: there are far more fields than messages.

`as_object`, `as_objects`, `find_object` and `find_string` treat malformed values as absent. They
are for output, searches and comparisons, not for decisions about a pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Final

from webhook.core.bounds import MOST_GPUS_ASKED
from webhook.core.pod.findings import MalformedObjectError, quote
from webhook.names import GPU_COUNT_ANNOTATION, GPU_MEMORY_ANNOTATION

Json = dict[str, Any]

EXAMPLE_AMOUNT: Final = "8Gi"
"""A size to write, where nobody knows better."""
MAX_GPU_GIB: Final = 1024
"""As much memory as a GPU may have: a larger number without a unit is meant in smaller ones."""
_MIB: Final = 2**20


_NOTHING: Final[Mapping[str, Any]] = {}


def get_object(holder: Mapping[str, Any], key: str, *path: str) -> Mapping[str, Any]:
    """Return an object field; absent and null read as empty."""
    value = holder.get(key)
    if value is None:
        return _NOTHING
    if type(value) is not dict:
        raise MalformedObjectError(_join(*path, key), "an object", value)
    return value


def get_string_map(
    holder: Mapping[str, Any], key: str, *path: str, by_hand: bool = False
) -> Mapping[str, str]:
    """Return a map of strings, as labels and annotations are; absent and null read as empty.

    What people write `by_hand` is YAML, and may lack quotes; the error says so.
    """
    value = get_object(holder, key, *path)
    for name, text in value.items():
        if type(text) is not str:
            where = f"{_join(*path, key)}[{name}]"
            cure = _suggest_text(name, text) if by_hand else ""
            raise MalformedObjectError(where, "a string", text, cure)
    return value


# This function and `get_strings` repeat the loop: a decision reads some hundred lists, and a shared
# loop would make that a quarter slower.
def get_objects(holder: Mapping[str, Any], key: str, *path: str) -> list[Json]:
    """Return a list of objects; absent and null read as empty."""
    value = holder.get(key)
    if value is None:
        return []
    if type(value) is list:
        for item in value:
            if type(item) is not dict:
                break
        else:
            return value
    raise _list_error(dict, "an object", value, _join(*path, key))


def get_strings(holder: Mapping[str, Any], key: str, *path: str) -> list[str]:
    """Return a list of strings; absent and null read as empty."""
    value = holder.get(key)
    if value is None:
        return []
    if type(value) is list:
        for item in value:
            if type(item) is not str:
                break
        else:
            return value
    raise _list_error(str, "a string", value, _join(*path, key))


def get_string(holder: Mapping[str, Any], key: str, *path: str) -> str:
    """Return a string field; absent and null read as empty."""
    value = holder.get(key)
    if value is None:
        return ""
    if type(value) is not str:
        raise MalformedObjectError(_join(*path, key), "a string", value)
    return value


def get_boolean(holder: Mapping[str, Any], key: str, *path: str) -> bool | None:
    """Return a boolean field; None where it is absent or null."""
    value = holder.get(key)
    if value is not None and type(value) is not bool:
        raise MalformedObjectError(_join(*path, key), "a boolean", value)
    return value


def get_integer(holder: Mapping[str, Any], key: str, *path: str) -> int | None:
    """Return an integer field; None where it is absent or null."""
    value = holder.get(key)
    if value is not None and type(value) is not int:
        raise MalformedObjectError(_join(*path, key), "an integer", value)
    return value


def _list_error(kind: type, wanted: str, found: Any, path: str) -> MalformedObjectError:
    if type(found) is not list:
        return MalformedObjectError(path, "a list", found)
    index = next(index for index, item in enumerate(found) if type(item) is not kind)
    return MalformedObjectError(f"{path}[{index}]", wanted, found[index])


def _suggest_text(name: str, value: object) -> str:
    """Return what to do about what YAML made of a text; in quotes it may be no amount, either."""
    if type(value) not in (bool, int, float):
        return ""
    number = 0.0 if type(value) is bool else float(str(value))
    if name == GPU_MEMORY_ANNOTATION and not _MIB <= number < inf:
        return f"; write a size with its unit, e.g. {guess_amount(number) or EXAMPLE_AMOUNT}"
    counts = type(value) is int and 1 <= number <= MOST_GPUS_ASKED
    if name == GPU_COUNT_ANNOTATION and not counts:
        return '; write a whole number in quotes, e.g. "1"'
    return f"; put it in quotes: {quote(str(value).lower() if type(value) is bool else value)}"


def guess_amount(number: float) -> str:
    """Return the amount that a number was probably meant to be; empty where bytes may be meant."""
    if not 0 < number < _MIB:
        return ""
    if number < 1:
        return f"{max(1, round(number * 1024))}Mi"
    return f"{number:.15g}{'Gi' if number <= MAX_GPU_GIB else 'Mi'}"


def _join(*path: str) -> str:
    return ".".join(filter(None, path))


def as_object(value: object) -> Json:
    """Return an object as it is, anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def find_object(value: object, *keys: str) -> Json:
    """Return an object within an object; an empty one where it is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return as_object(value)


def find_string(value: object, *keys: str) -> str:
    """Return a text within an object; an empty one where it is none."""
    found = find_object(value, *keys[:-1]).get(keys[-1])
    return found if isinstance(found, str) else ""


def as_objects(value: object, most: int | None = None) -> list[Json]:
    """Return the objects among the first of a list; none of anything else."""
    return [one for one in value[:most] if isinstance(one, dict)] if isinstance(value, list) else []


def replace_by_name(items: list[Any], name: str, wanted: Json | None) -> list[Any]:
    """Return a list in which one name is only that of the `wanted` item; None for no such item.

    The wanted item takes the place of the first of that name, or comes last. A list that this does
    not change is returned itself.
    """
    places = [index for index, item in enumerate(items) if item.get("name") == name]
    if wanted is None:
        return [item for item in items if item.get("name") != name] if places else items
    if not places:
        return [*items, wanted]
    first = places[0]
    if len(places) == 1 and items[first] == wanted:
        return items
    rest = (item for item in items[first + 1 :] if item.get("name") != name)
    return [*items[:first], wanted, *rest]
