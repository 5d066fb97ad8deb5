"""The shape of a policy file as JSON Schema, and as the reader of errors needs it.

The schema is made here instead of by pydantic, whose output changes from release to release: the
published file must not depend on which one is installed.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from pydantic import BaseModel

from webhook.adapters.policy.fields import Shape
from webhook.adapters.policy.models import PolicyFile

if TYPE_CHECKING:
    from webhook.adapters.yaml_documents import Path

SCHEMA_ID: Final = "https://vramwarden.io/v1alpha1/vrampolicy.schema.json"

_PLAIN: Final[dict[object, dict[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    Any: {},
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one policy document."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "VRAMPolicy",
        **_whole_schema(),
    }


def field_schema(path: Path) -> dict[str, Any]:
    """Return the part of the JSON Schema that stands for a path; empty where nothing does."""
    schema = _whole_schema()
    for part in path:
        inside = schema.get("properties", {}).get(part)
        schema = inside or schema.get("items") or schema.get("additionalProperties") or {}
    return schema


@cache
def _whole_schema() -> dict[str, Any]:
    return _schema(PolicyFile)


def _schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type."""
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
        said = " ".join((field.description or "").split())
        properties[name] = {**_schema(hints[attribute]), "description": said}
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
