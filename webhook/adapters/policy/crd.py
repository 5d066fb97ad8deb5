"""The definition of the kind VRAMPolicy, from the same models as the schema of the files.

What the API server checks of an object is less than what the webhook checks, and never more:

| the schema of files has | the definition |
| --- | --- |
| types, required fields, enums, patterns, bounds | the same |
| a default | names it in the description alone: the API server would write it into the object |
| no other fields | keeps them: dropped, a misspelt bound would be none; see `unknown_fields` |
| text or integer | `x-kubernetes-int-or-string` |
| text or a list | any value |
| names of a map's keys, patterns that RE2 lacks, enums beside null | does not check them |
| any value, e.g. a pod's spec in an example | any value |

Source: Kubernetes' documentation, "Extend the Kubernetes API with CustomResourceDefinitions".
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.bounds import STATUS_LETTERS, STATUS_PROBLEMS
from webhook.adapters.policy.fields import DNS_LABEL
from webhook.adapters.policy.objects import IN_FORCE
from webhook.adapters.policy.schema import json_schema
from webhook.names import API_GROUP, LONGEST_LABEL, VRAM_POLICIES, VRAM_POLICY_KIND

if TYPE_CHECKING:
    from collections.abc import Iterator

    Json = dict[str, Any]

_ANY: Final = {"x-kubernetes-preserve-unknown-fields": True}
_SAME: Final = frozenset(
    {"description", "enum", "maxLength", "maximum", "minItems", "minimum", "pattern", "required"}
)
_TEXT: Final = {"type": "string", "maxLength": STATUS_LETTERS}
_COUNT: Final = {"type": "integer", "format": "int64", "minimum": 0}


def definition() -> Json:
    """Return the spec of the CustomResourceDefinition."""
    names = {"kind": VRAM_POLICY_KIND, "listKind": f"{VRAM_POLICY_KIND}List"}
    names |= {"plural": VRAM_POLICIES, "singular": VRAM_POLICY_KIND.lower()}
    spec = structural(json_schema()["properties"]["spec"])
    name = {"type": "string", "pattern": f"^{DNS_LABEL}$", "maxLength": LONGEST_LABEL}
    return {
        "group": API_GROUP,
        "scope": "Cluster",
        "names": {**names, "shortNames": ["vrp"]},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": _COLUMNS,
                "schema": {
                    "openAPIV3Schema": {
                        "description": "Who may ask for how much GPU memory, and how that is held.",
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "apiVersion": {"type": "string"},
                            "kind": {"type": "string"},
                            "metadata": {"type": "object", "properties": {"name": name}},
                            "spec": spec,
                            "status": _STATUS,
                        },
                    }
                },
            }
        ],
    }


def structural(schema: Json) -> Json:
    """Return a part of the files' schema as a structural one, which API servers take."""
    found: Json = {key: value for key, value in schema.items() if key in _SAME}
    if "(?" in found.get("pattern", ""):
        del found["pattern"]
    if "default" in schema:
        said = json.dumps(schema["default"], ensure_ascii=False)
        found["description"] = f"{schema.get('description', '')} Default: {said}."
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if "null" in kinds:
        kinds.remove("null")
        found["nullable"] = True
        found.pop("enum", None)  # of which API servers take null for no member, also where it is
    if kinds == ["string", "integer"]:
        return {**found, "x-kubernetes-int-or-string": True}
    if len(kinds) != 1:
        return {key: found[key] for key in found if key in {"description", "nullable"}} | _ANY
    found["type"] = kinds[0]
    if kinds == ["integer"]:
        found["format"] = "int64"
    elif kinds == ["array"]:
        found["items"] = structural(schema["items"])
    elif "properties" in schema:
        fields = schema["properties"]
        found["properties"] = {name: structural(field) for name, field in fields.items()}
        found |= _ANY
    elif kinds == ["object"]:
        values = schema.get("additionalProperties")
        found |= {"additionalProperties": structural(values)} if values else _ANY
    return found


def unknown_fields() -> list[Json]:
    """Return what an admission policy validates so that no unknown field is stored.

    One validation for each group of fields, in CEL, which sees them: they are kept.
    """
    return [
        {
            "expression": _all_known("object", steps, known),
            "message": f"unknown field in {path}; known fields: {', '.join(known)}",
        }
        for path, steps, known in _groups(json_schema()["properties"]["spec"], "spec", ("spec",))
    ]


def _groups(
    schema: Json, path: str, steps: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...], list[str]]]:
    """Yield each group of fields: its path in words, the steps to it, the fields' names."""
    if "properties" in schema:
        yield path, steps, list(schema["properties"])
        for name, field in schema["properties"].items():
            yield from _groups(field, f"{path}.{name}", (*steps, name))
    elif "items" in schema:
        yield from _groups(schema["items"], f"{path}[]", (*steps, _ITEMS))
    elif schema.get("additionalProperties"):
        yield from _groups(schema["additionalProperties"], f"{path}.NAME", (*steps, _VALUES))


_ITEMS: Final = "[]"
_VALUES: Final = "{}"


def _all_known(at: str, steps: tuple[str, ...], known: list[str]) -> str:
    """Return an expression that holds where all fields of a group are known, wherever it is."""
    if not steps:
        return f"{at}.all(name, name in {known})"
    (step, *rest), each = steps, f"x{len(steps)}"
    if step == _ITEMS:
        return f"{at}.all({each}, {_all_known(each, tuple(rest), known)})"
    if step == _VALUES:
        return f"{at}.all({each}, {_all_known(f'{at}[{each}]', tuple(rest), known)})"
    inside = f"{at}['{step}']"
    checked = _all_known(inside, tuple(rest), known)
    return f"(!('{step}' in {at}) || {inside} == null || {checked})"


_HOLDS: Final = "Whether what it holds counts."
_RULES: Final = "Rules of it that count."
_EXAMPLES: Final = "Examples of it, all of which pass."
_MESSAGE: Final = "What keeps it from being in force."
_COLUMNS: Final = [
    {"name": name, "type": kind, "jsonPath": f".status.{field}", "description": what}
    for name, kind, field, what in (
        ("In force", "boolean", "inForce", _HOLDS),
        ("Rules", "integer", "rules", _RULES),
        ("Examples", "integer", "examples", _EXAMPLES),
        ("Message", "string", "message", _MESSAGE),
    )
] + [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]
_STATUS: Final[Json] = {
    "description": "What became of it, as the webhook's replicas say.",
    "type": "object",
    "properties": {
        "observedGeneration": _COUNT,
        "inForce": {"type": "boolean", "description": _HOLDS},
        "digest": {
            **_TEXT,
            "description": "The policy in force, as the annotation vramwarden.io/admitted has it.",
        },
        "rules": {**_COUNT, "description": _RULES},
        "examples": {**_COUNT, "description": _EXAMPLES},
        "message": {**_TEXT, "description": _MESSAGE},
        **{
            field: {
                "description": what,
                "type": "array",
                "maxItems": STATUS_PROBLEMS,
                "x-kubernetes-list-type": "atomic",
                "items": {"type": "object", "properties": {about: _TEXT, "message": _TEXT}},
            }
            for field, about, what in (
                ("errors", "path", "What is wrong with it."),
                ("examplesFailed", "name", "Examples of it that do not hold."),
            )
        },
        "conditions": {
            "description": f"{IN_FORCE}: whether what it holds counts, and why not.",
            "type": "array",
            "maxItems": 8,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {
                "type": "object",
                "required": ["type", "status", "reason", "message", "lastTransitionTime"],
                "properties": {
                    "type": _TEXT,
                    "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                    "reason": _TEXT,
                    "message": _TEXT,
                    "observedGeneration": _COUNT,
                    "lastTransitionTime": {"type": "string", "format": "date-time"},
                },
            },
        },
    },
}
