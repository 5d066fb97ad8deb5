"""The kind VRAMPolicy: what of the files' schema it says. tests/chart asks a real API server."""

from __future__ import annotations

import re

import pytest

from deploy.generate import policy_fields
from webhook.adapters.bounds import STATUS_LETTERS, STATUS_PROBLEMS
from webhook.adapters.policy.crd import definition, structural, unknown_fields
from webhook.adapters.policy.schema import json_schema

KEEPS = "x-kubernetes-preserve-unknown-fields"
EITHER = "x-kubernetes-int-or-string"
TEXT = {"type": "string", "pattern": "^a$", "maxLength": 3, "description": "A text."}
ROWS = {
    "text": (TEXT, TEXT),
    "a choice": ({"type": "string", "enum": ["a"]}, {"type": "string", "enum": ["a"]}),
    "a number": (
        {"type": "integer", "minimum": 1, "maximum": 9},
        {"type": "integer", "format": "int64", "minimum": 1, "maximum": 9},
    ),
    "a default": (
        {"type": "boolean", "default": False, "description": "Whether."},
        {"type": "boolean", "description": "Whether. Default: false."},
    ),
    "nothing or text": ({**TEXT, "type": ["string", "null"]}, {**TEXT, "nullable": True}),
    "nothing or a choice": (
        {"type": ["string", "null"], "enum": ["a"]},
        {"type": "string", "nullable": True},
    ),
    "an amount": ({"type": ["string", "integer"]}, {EITHER: True}),
    "nothing or an amount": (
        {"type": ["string", "integer", "null"]},
        {EITHER: True, "nullable": True},
    ),
    "text or a list": (
        {"type": ["string", "array"], "pattern": "^Safe$", "items": {"type": "string"}},
        {KEEPS: True},
    ),
    "anything": ({"description": "Any."}, {"description": "Any.", KEEPS: True}),
    "a list": (
        {"type": "array", "items": TEXT, "minItems": 1},
        {"type": "array", "items": TEXT, "minItems": 1},
    ),
    "fields": (
        {"type": "object", "properties": {"a": TEXT}, "required": ["a"],
         "additionalProperties": False},
        {"type": "object", "properties": {"a": TEXT}, "required": ["a"], KEEPS: True},
    ),
    "a map": (
        {"type": "object", "propertyNames": {"pattern": "x"}, "additionalProperties": TEXT},
        {"type": "object", "additionalProperties": TEXT},
    ),
    "any fields": ({"type": "object"}, {"type": "object", KEEPS: True}),
    "a pattern that RE2 lacks": (
        {"type": "string", "pattern": "^(?!A$)a$"},
        {"type": "string"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "wanted"), ROWS.values(), ids=ROWS)
def test_a_part_of_the_schema_becomes_a_structural_one(schema, wanted):
    before = repr(schema)
    assert structural(schema) == wanted
    assert repr(schema) == before


def whole():
    (version,) = definition()["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"]


def parts(schema):
    """Yield a structural schema and all parts of it."""
    yield schema
    inside = [*schema.get("properties", {}).values(), schema.get("items")]
    for part in (*inside, schema.get("additionalProperties")):
        if part:
            yield from parts(part)


def test_every_part_has_a_type_or_says_why_not():
    for part in parts(whole()["spec"]):
        assert {"type", KEEPS, EITHER} & part.keys(), part
        assert not {"default", "propertyNames"} & part.keys(), part
        assert "(?" not in part.get("pattern", "")


def test_no_field_is_dropped_that_is_not_known():
    groups = [part for part in parts(whole()["spec"]) if "properties" in part]
    assert len(groups) == 19
    assert all(part[KEEPS] for part in groups)


def test_it_has_every_field_of_the_files_with_its_description():
    def described(schema):
        return {path: field["description"] for path, field in policy_fields(schema)}

    files = described(json_schema()["properties"]["spec"])
    objects = described(whole()["spec"])
    assert files.keys() == objects.keys()
    assert all(objects[path].startswith(text) for path, text in files.items())


def test_each_group_of_fields_has_one_validation_that_names_them():
    fields = dict(policy_fields(json_schema()["properties"]["spec"], "spec."))
    groups = {"spec"} | {path.rpartition(".")[0] for path in fields}
    # A map's key stands for a group of its own in the table, not here.
    groups = {re.sub(r"\.$", "", group) for group in groups}
    said = {}
    for one in unknown_fields():
        match = re.fullmatch(r"unknown field in (\S+); known fields: (.+)", one["message"])
        said[match[1]] = match[2].split(", ")
        assert one["expression"].count("(") == one["expression"].count(")")
    assert said.keys() == groups
    for group, names in said.items():
        direct = [path for path in fields if path.rpartition(".")[0] == group]
        assert [path.rpartition(".")[2].removesuffix("[]") for path in direct] == names


def test_the_status_has_the_bounds_that_are_written():
    status = whole()["status"]["properties"]
    assert {status[name]["maxItems"] for name in ("errors", "examplesFailed")} == {STATUS_PROBLEMS}
    texts = [part for part in parts(whole()["status"]) if part.get("maxLength")]
    assert {part["maxLength"] for part in texts} == {STATUS_LETTERS}
