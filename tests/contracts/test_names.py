"""Names in code: class names are unique, and names without meaning become fewer."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for folder in ("webhook", "certs", "deploy", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
PRODUCT = {name: path for name, path in MODULES.items() if not name.startswith("tests.")}
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LIMITS = {"x_of": 0, "one": 175, "said": 342}
"""Maximum number of meaningless names per kind. Lower it when you rename some; never raise it."""


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def qualified(node: ast.AST, name: str) -> Iterator[str]:
    """Yield the names of a module and of its classes, functions, methods and constants."""
    if isinstance(node, DEFINITIONS):
        name = f"{name}.{node.name}"
    if isinstance(node, (ast.Module, *DEFINITIONS)):
        yield name
    elif isinstance(node, ast.Name) and node.id.isupper() and isinstance(node.ctx, ast.Store):
        yield f"{name}.{node.id}"
    for child in ast.iter_child_nodes(node):
        yield from qualified(child, name)


def variables(tree: ast.Module) -> Iterator[str]:
    """Yield the names of variables and arguments, once per occurrence."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name


def test_names_that_say_nothing_only_become_fewer():
    """A function `x_of` or `of_x` should be a property or a verb; `one` and `said` name nothing."""
    trees = {name: parse(path) for name, path in MODULES.items()}
    functions = [
        item.rpartition(".")[2] for name in PRODUCT for item in qualified(trees[name], name)
    ]
    names = Counter(name for tree in trees.values() for name in variables(tree))
    found = {
        "x_of": sum(bool(re.search(r"^_?of_|_of$", name)) for name in functions),
        "one": names["one"],
        "said": names["said"],
    }
    assert {kind: number for kind, number in found.items() if number > LIMITS[kind]} == {}


def test_no_two_classes_have_one_name():
    """A search for a class name should find one class."""
    classes = Counter(
        node.name
        for path in PRODUCT.values()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_values_of_more_than_five_fields_are_made_by_keyword():
    """With ten positional fields, two can be swapped without a type error."""
    found = []
    for name, path in PRODUCT.items():
        for node in ast.walk(parse(path)):
            made = " ".join(ast.unparse(item) for item in getattr(node, "decorator_list", ()))
            if isinstance(node, ast.ClassDef) and "dataclass" in made:
                fields = [
                    statement for statement in node.body if isinstance(statement, ast.AnnAssign)
                ]
                found += [f"{name}.{node.name}"] * (len(fields) > 5 and "kw_only=True" not in made)
    assert found == []


SERVES = {
    "tests.support.api_server": "the one API server in memory",
    "tests.support.registries": "images",
    "tests.support.webhook_configurations": "webhooks of others",
}


def test_tests_have_one_api_server_in_memory():
    """A second in-memory server would differ from a real API server in other, untested ways."""
    found = [
        f"{name}.{node.name}"
        for name, path in MODULES.items()
        if name.startswith("tests.") and name not in SERVES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
        if any(re.search(r"Kube$|HTTPRequestHandler$", ast.unparse(base)) for base in node.bases)
        or re.search(r"Kube$|Fake", node.name)
        or {"list_cached", "list_rows", "patch_node", "find_parsed"}
        & {getattr(statement, "name", "") for statement in node.body}
    ]
    assert found == []
