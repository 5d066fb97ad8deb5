"""What pydantic finds wrong with a policy file, in our own sentences."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.policy.schema import field_schema
from webhook.adapters.yaml_documents import show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from webhook.adapters.yaml_documents import Path

_WANTED: Final = {
    "model_type": "a map of fields",
    "model_attributes_type": "a map of fields",
    "dict_type": "a map",
    "list_type": "a list",
    "string_type": "text",
    "int_type": "an integer",
    "bool_type": "true or false",
}
_KEY: Final = "[key]"
"""Where pydantic puts an error about a map's key instead of its value."""


def sentences(error: ValidationError) -> Iterator[tuple[Path, str]]:
    """Yield each error's path and what is wrong there and what to do."""
    for details in error.errors(include_url=False):
        path = tuple(part for part in details["loc"] if part != _KEY)
        yield path, _sentence(path, details)


def closest(word: str, known: list[str]) -> str:
    """Return the known word that was probably meant, or nothing."""
    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(word.lower()[:100], by_lower, n=1)
    return by_lower[found[0]] if found else ""


def _sentence(path: Path, details: ErrorDetails) -> str:
    kind, value = details["type"], details["input"]
    context: dict[str, Any] = details.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "extra_forbidden":
        return _unknown_field(path)
    if kind == "missing":
        return f"is missing; add it: {field_schema(path).get('description') or 'it is required'}"
    if kind in _WANTED:
        return _wrong_type(path, _WANTED[kind], value)
    if kind in {"enum", "literal_error"}:
        return _not_a_choice(value, field_schema(path).get("enum", []))
    if kind == "too_short":
        return "is an empty list; list a pattern or leave the field out"
    if kind in {"greater_than_equal", "less_than_equal"}:
        least, most = (field_schema(path).get(key) for key in ("minimum", "maximum"))
        return f"{value} is out of bounds; write an integer from {least} to {most}"
    return f"{show(value)} does not fit: {details['msg']}"


def _unknown_field(path: Path) -> str:
    known = list(field_schema(path[:-1]).get("properties", ()))
    meant = closest(str(path[-1]), known)
    question = f"did you mean {meant}? " if meant else ""
    return f"unknown field; {question}known fields: {', '.join(known)}"


def _wrong_type(path: Path, wanted: str, value: object) -> str:
    if value is None:
        is_optional = isinstance(path[-1] if path else 0, str) and path[-1] not in field_schema(
            path[:-1]
        ).get("required", ())
        return f"is empty; write {wanted}{', or leave the field out' * is_optional}"
    if isinstance(value, dict | list):
        return f"must be {wanted}, not {'a map' if isinstance(value, dict) else 'a list'}"
    found = show(value) if isinstance(value, str) else str(value).lower()
    return f"must be {wanted}, not {found}{'; put it in quotes' * (wanted == 'text')}"


def _not_a_choice(value: object, allowed: list[str]) -> str:
    choices = [choice for choice in allowed if choice]
    listed = f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if not isinstance(value, str):
        return f"must be {listed}"
    meant = closest(value, choices) if len(choices) > 1 else ""
    return f"{show(value)} is not {listed}{f'; did you mean {meant}?' if meant else ''}"
