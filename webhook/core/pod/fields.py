"""Checked access to the fields of JSON objects.

The functions `get_*` raise MalformedObjectError if the type differs from Kubernetes' API, so that
no rule mistakes a malformed field for an absent one. The path of the containing object is passed in
parts and joined only for an error, since errors are rare.

`as_object`, `as_objects`, `find_object` and `find_string` treat malformed values as absent. Use
these for output, searches and comparisons, not for decisions about a pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Final

from webhook.core.bounds import MAX_GPU_COUNT
from webhook.core.pod.findings import MalformedObjectError, quote
from webhook.names import GPU_COUNT_ANNOTATION, GPU_MEMORY_ANNOTATION

Json = dict[str, Any]

EXAMPLE_AMOUNT: Final = "8Gi"
"""Example amount for messages without a better suggestion."""
MAX_GPU_GIB: Final = 1024
"""Largest memory of a GPU, in GiB. A larger number without a unit is read as MiB or bytes."""
_MIB: Final = 2**20


_NOTHING: Final[Mapping[str, Any]] = {}


def get_object(holder: Mapping[str, Any], key: str, *path: str) -> Mapping[str, Any]:
    """Return an object field. An absent or null field is an empty object."""
    value = holder.get(key)
    if value is None:
        return _NOTHING
    if type(value) is not dict:
        raise MalformedObjectError(_join(*path, key), "an object", value)
    return value


def get_string_map(
    holder: Mapping[str, Any], key: str, *path: str, by_hand: bool = False
) -> Mapping[str, str]:
    """Return a map of strings, such as labels. An absent or null field is an empty map.

    `by_hand`: users write the map in YAML, so the error suggests missing quotes.
    """
    value = get_object(holder, key, *path)
    for name, text in value.items():
        if type(text) is not str:
            where = f"{_join(*path, key)}[{name}]"
            cure = _suggest_text(name, text) if by_hand else ""
            raise MalformedObjectError(where, "a string", text, cure)
    return value


# This function and `get_strings` repeat the loop. A decision reads several hundred lists, and a
# shared loop would make this a quarter slower.
def get_objects(holder: Mapping[str, Any], key: str, *path: str) -> list[Json]:
    """Return a list of objects. An absent or null field is an empty list."""
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
    """Return a list of strings. An absent or null field is an empty list."""
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
    """Return a string field. An absent or null field is an empty string."""
    value = holder.get(key)
    if value is None:
        return ""
    if type(value) is not str:
        raise MalformedObjectError(_join(*path, key), "a string", value)
    return value


def get_boolean(holder: Mapping[str, Any], key: str, *path: str) -> bool | None:
    """Return a boolean field, or None if absent or null."""
    value = holder.get(key)
    if value is not None and type(value) is not bool:
        raise MalformedObjectError(_join(*path, key), "a boolean", value)
    return value


def get_integer(holder: Mapping[str, Any], key: str, *path: str) -> int | None:
    """Return an integer field, or None if absent or null."""
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
    """Return advice on a string that YAML parsed as another type, or an empty string."""
    if type(value) not in (bool, int, float):
        return ""
    number = 0.0 if type(value) is bool else float(str(value))
    if name == GPU_MEMORY_ANNOTATION and not _MIB <= number < inf:
        return f"; write a size with its unit, e.g. {guess_amount(number) or EXAMPLE_AMOUNT}"
    counts = type(value) is int and 1 <= number <= MAX_GPU_COUNT
    if name == GPU_COUNT_ANNOTATION and not counts:
        return '; write a whole number in quotes, e.g. "1"'
    return f"; put it in quotes: {quote(str(value).lower() if type(value) is bool else value)}"


def guess_amount(number: float) -> str:
    """Return a number with its probable unit, or an empty string if it may be a number of bytes."""
    if not 0 < number < _MIB:
        return ""
    if number < 1:
        return f"{max(1, round(number * 1024))}Mi"
    return f"{number:.15g}{'Gi' if number <= MAX_GPU_GIB else 'Mi'}"


def _join(*path: str) -> str:
    return ".".join(filter(None, path))


def as_object(value: object) -> Json:
    """Return the value if it is an object, or an empty object."""
    return value if isinstance(value, dict) else {}


def find_object(value: object, *keys: str) -> Json:
    """Return the object at a path of keys, or an empty object."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return as_object(value)


def find_string(value: object, *keys: str) -> str:
    """Return the string at a path of keys, or an empty string."""
    found = find_object(value, *keys[:-1]).get(keys[-1])
    return found if isinstance(found, str) else ""


def as_objects(value: object, most: int | None = None) -> list[Json]:
    """Return the objects among the first `most` values of a list; none for another type."""
    return (
        [item for item in value[:most] if isinstance(item, dict)] if isinstance(value, list) else []
    )


def replace_by_name(items: list[Any], name: str, wanted: Json | None) -> list[Any]:
    """Return a list in which `wanted` is the only item named `name`; None removes these items.

    The new item replaces the first of these items, or is appended. An unchanged list is not copied.
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
