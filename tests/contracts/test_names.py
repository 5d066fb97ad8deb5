"""One name for one thing: what code may not be called, and a word that its prose goes without."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for room in ("webhook", "certs", "deploy", "tests")
    for path in sorted((ROOT / room).rglob("*.py"))
}
PRODUCT = {name: path for name, path in MODULES.items() if not name.startswith("tests.")}
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# What we say, and patterns of the qualified names that say otherwise: as `webhook.a_module.A.b`.
# The table in CONTRIBUTING.md is made of the same rows.
NAMES = {
    "`scan`, `probe`, `find`": r"(?i:[._]look(s|ed|ing)?(_|$))|\.Look",
    "`on_scan`, `on_pod`, `report`, `resolve`, `step`": (
        r"\._?(hear|know|see|saw|gone|tell|told|be|turn)$|\._?tell_"
    ),
    "`allocate`, `add`, `remove`, `spend`, `poll`": r"\._?take(_\w+)?$|\.Taken$",
    "`ReadLock`, `PodFigures`, `GpuProcess`, `Slot`": r"\.(Share|Held|Stranger)$",
    "`HistoryCache`, `TrackedGpu`": r"\.(Known\w*|Judged|Heard|Ended)$",
    "`Assignment`, `NodeQueue`, `LineIndex`": r"\.Lines?$|placement\.\w+\.\w+_line$",
    "`EventWriter`, `Killer`, `intervals`": r"\.(Teller|Actor)$|sentry\.(pace|names)$",
    "`Router`, `Endpoint`, `cluster_cache`": (
        r"server\.(\w+\.)*(Door|Asked|Beside)$|server\.(door|known|remembered|changes)$"
    ),
    "`termination_message`": r"last_?words",
    "the name of the command": (
        r"\.(seeing|explaining|checks|today)$|kube\.(assigned|checked|explained|reported|once)$"
    ),
    "`PolicyWarning`, `obstacle`": r"_?[Dd]oubts?$|_lame$",
    "`is_virtual_machine`": r"\.of_machine$",
}
LOOK = re.compile(r"\blook(s|ed|ing)?\b", re.IGNORECASE)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def qualified(node: ast.AST, name: str) -> Iterator[str]:
    """Yield the names of a module, and of each class, function, method and constant in it."""
    if isinstance(node, DEFINITIONS):
        name = f"{name}.{node.name}"
    if isinstance(node, (ast.Module, *DEFINITIONS)):
        yield name
    elif isinstance(node, ast.Name) and node.id.isupper() and isinstance(node.ctx, ast.Store):
        yield f"{name}.{node.id}"
    for child in ast.iter_child_nodes(node):
        yield from qualified(child, name)


def prose(path: Path) -> Iterator[str]:
    """Yield comments and docstrings, except what a command shows as its help."""
    source = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(tree := ast.parse(source)):
        if any(".command(" in ast.unparse(one) for one in getattr(node, "decorator_list", ())):
            node.body = node.body[1:]
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


ALL_NAMES = [one for name, path in PRODUCT.items() for one in qualified(parse(path), name)]


@pytest.mark.parametrize("word", NAMES)
def test_code_says_one_name_for_one_thing(word):
    assert [name for name in ALL_NAMES if re.search(NAMES[word], name)] == []


def test_no_two_classes_have_one_name():
    """Whoever searches for a name finds one thing."""
    classes = Counter(
        node.name
        for path in PRODUCT.values()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_values_of_more_than_five_fields_are_made_by_keyword():
    """Of ten fields by position two can be swapped, and no type checker notices."""
    found = []
    for name, path in PRODUCT.items():
        for node in ast.walk(parse(path)):
            made = " ".join(ast.unparse(one) for one in getattr(node, "decorator_list", ()))
            if isinstance(node, ast.ClassDef) and "dataclass" in made:
                fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                found += [f"{name}.{node.name}"] * (len(fields) > 5 and "kw_only=True" not in made)
    assert found == []


SERVES = {
    "tests.support.api_server": "the one API server in memory",
    "tests.support.registries": "images",
    "tests.support.webhook_configurations": "webhooks of others",
}


def test_tests_have_one_api_server_in_memory():
    """A second one would be wrong in its own ways, which nobody compares with a real one."""
    found = [
        f"{name}.{node.name}"
        for name, path in MODULES.items()
        if name.startswith("tests.") and name not in SERVES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
        if any(re.search(r"Kube$|HTTPRequestHandler$", ast.unparse(base)) for base in node.bases)
        or re.search(r"Kube$|Fake", node.name)
        or {"list_cached", "list_rows", "patch_node", "find_kept"}
        & {getattr(one, "name", "") for one in node.body}
    ]
    assert found == []


@pytest.mark.parametrize("room", ["webhook", "certs", "deploy", "tests"])
def test_prose_says_what_is_probed_scanned_or_read(room):
    """A probe, a scan and a read are three things, for which that word would be one."""
    found = [
        f"{name}: {text}"
        for name, path in MODULES.items()
        if name.startswith(f"{room}.") and LOOK.search(path.read_text())
        for text in prose(path)
        if LOOK.search(text)
    ]
    assert found == []


def test_the_names_are_listed_for_people_who_write():
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Names\n")[2]
    listed = re.findall(r"^\| (.+) \| (.+) \|$", text, re.MULTILINE)[2:]
    assert [word for _, word in listed] == list(NAMES)
    for dialect, word in listed:
        for name in re.findall(r"`(.+?)`", dialect):
            assert re.search(NAMES[word], f"webhook.{name}"), name
