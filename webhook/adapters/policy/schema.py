"""JSON Schema of policy files, and sentences for pydantic's validation errors.

pydantic does not generate the schema, since the published file must not depend on the installed
pydantic release.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from webhook.adapters.policy.fields import Shape
from webhook.adapters.policy.models import PolicyFile
from webhook.adapters.yaml_documents import Path, show

SCHEMA_ID: Final = "https://vramwarden.io/v1alpha1/vrampolicy.schema.json"

_PLAIN: Final[dict[object, dict[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    Any: {},
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a policy document."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "VRAMPolicy",
        **_whole_schema(),
    }


def field_schema(path: Path) -> dict[str, Any]:
    """Return the JSON Schema of the field at a path; empty if the field does not exist."""
    schema = _whole_schema()
    for part in path:
        inside = schema.get("properties", {}).get(part)
        schema = inside or schema.get("items") or schema.get("additionalProperties") or {}
    return schema


@cache
def _whole_schema() -> dict[str, Any]:
    return _schema(PolicyFile)


def _schema(kind: Any) -> dict[str, Any]:
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        shapes = [extra.schema for extra in arguments[1:] if isinstance(extra, Shape)]
        return {
            key: value for part in (_schema(arguments[0]), *shapes) for key, value in part.items()
        }
    if origin in {Union, UnionType}:
        inner = _schema(next(option for option in arguments if option is not NoneType))
        types = inner["type"] if isinstance(inner["type"], list) else [inner["type"]]
        return {**inner, "type": [*types, "null"]}
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is dict:
        values = _schema(arguments[1])
        names = {key: value for key, value in _schema(arguments[0]).items() if key != "type"}
        keys = {"propertyNames": names} if names else {}
        return {"type": "object", **keys, **({"additionalProperties": values} if values else {})}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _object(kind)
    return {"type": "string", "enum": [member.value for member in kind]}


def _object(model: type[BaseModel]) -> dict[str, Any]:
    hints = hints_of(model, include_extras=True)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for attribute, field in model.model_fields.items():
        name = str(field.alias)
        description = " ".join((field.description or "").split())
        properties[name] = {**_schema(hints[attribute]), "description": description}
        if field.is_required():
            required.append(name)
        elif not isinstance(field.default, BaseModel):
            default = field.default
            properties[name]["default"] = default.value if isinstance(default, Enum) else default
    return {
        "type": "object",
        "description": model.__doc__,
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


_WANTED: Final = {
    "model_type": "a map of fields",
    "model_attributes_type": "a map of fields",
    "dict_type": "a map",
    "list_type": "a list",
    "string_type": "text",
    "int_type": "an integer",
    "bool_type": "true or false",
}
_SHOWN_FIELDS: Final = 5
"""Number of fields listed if there are many and the intended one can be guessed."""
_ALSO_CALLED: Final = {
    "Enforce": ("deny", "block", "reject"),
    "Warn": ("notify",),
    "Audit": ("dryrun", "log", "observe", "record", "report"),
    "Ignore": ("allow", "exempt", "none", "off", "skip"),
}
"""Names of actions in other policy engines."""
_KEY: Final = "[key]"
"""Pydantic's path segment for an error of a mapping's key."""


def sentences(error: ValidationError) -> Iterator[tuple[Path, str]]:
    """Yield the path of each error, and a sentence with cause and remedy."""
    for details in error.errors(include_url=False):
        path = tuple(part for part in details["loc"] if part != _KEY)
        yield path, _sentence(path, details)


def closest(word: str, known: list[str]) -> str:
    """Return the known word most similar to `word`; empty if none is similar."""
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
        return _missing(path)
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


def _missing(path: Path) -> str:
    schema = field_schema(path)
    only = schema.get("enum", ())
    if len(only) == 1:
        return f'is missing; add "{path[-1]}: {only[0]}"'
    return f"is missing; add it: {schema.get('description') or 'it is required'}"


def _unknown_field(path: Path) -> str:
    """Return a sentence that lists the known fields, or the first ones if the list is long."""
    known = list(field_schema(path[:-1]).get("properties", ()))
    meant = closest(str(path[-1]), known)
    if not meant:
        return f"unknown field; known fields: {', '.join(known)}"
    shown = known if len(known) <= _SHOWN_FIELDS + 1 else known[:_SHOWN_FIELDS]
    more = f" and {len(known) - len(shown)} more" if len(shown) < len(known) else ""
    return f"unknown field; did you mean {meant}? known fields: {', '.join(shown)}{more}"


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
    meant = meant or next(
        (choice for choice in choices if value.lower() in _ALSO_CALLED.get(choice, ())), ""
    )
    return f"{show(value)} is not {listed}{f'; did you mean {meant}?' if meant else ''}"
