"""Print the size of a checkout, and of commits: `python -m tests.support.size [COMMIT ...]`."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from tests.support.paths import ROOT

Json = dict[str, Any]

PROGRAMS = ("webhook", "certs", "deploy")
CHART = "deploy/chart/"
GENERATED = (
    "deploy/chart/vramwarden/files/*.json",
    "deploy/chart/vramwarden/files/*.yaml",
    "deploy/images/runtime.txt",
    "deploy/install.yaml",
    "deploy/pictures/top.svg",
    "policies/policy.schema.json",
)
"""Files that are generated completely. Pages with generated blocks count as pages."""
NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER, tokenize.ENCODING,
}  # fmt: skip


def count(root: Path, files: list[str]) -> Json:
    """Return counts keyed by name for files with paths relative to `root`."""
    sizes: Counter[str] = Counter()
    for name in files:
        path = root / name
        if path.is_symlink() or not path.is_file():
            continue
        kind = kind_of(name)
        text = path.read_bytes().decode("utf-8", "replace")
        sizes[f"{kind}: files"] += 1
        sizes[f"{kind}: lines"] += text.count("\n")
        if name.endswith(".py"):
            sizes[f"{kind}: lines of code"] += lines_of_code(text)
            if kind == "product":
                sizes["numeric constants"] += numeric_constants(ast.parse(text))
    schema = json.loads((root / "policies/policy.schema.json").read_text())
    sizes["policy fields"] = properties(schema["properties"]["spec"])
    chart = root / CHART / "vramwarden"
    sizes["chart values"] = leaves(yaml.safe_load((chart / "values.yaml").read_text()))
    sizes["chart values, with every one in the schema"] = properties(
        json.loads((chart / "values.schema.json").read_text())
    )
    return dict(sizes)


def kind_of(name: str) -> str:
    """Return the kind as which a file is counted."""
    top = name.partition("/")[0]
    if any(fnmatch(name, pattern) for pattern in GENERATED):
        return "generated"
    if top == "tests":
        return "tests" if name.endswith(".py") else "data and pages of tests"
    if top in PROGRAMS and name.endswith((".py", ".sh", ".jinja")) and not name.startswith(CHART):
        return "product"
    if name.startswith(CHART):
        return "chart"
    return "pages" if name.endswith(".md") else "other files"


def lines_of_code(text: str) -> int:
    """Return the number of lines with code, without comments and docstrings."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def numeric_constants(module: ast.Module) -> int:
    """Return the number of constants in a module that consist of numbers."""
    found = 0
    for node in module.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            is_constant = isinstance(target, ast.Name) and target.id.isupper()
            values = [
                found_node.value
                for found_node in ast.walk(node.value)
                if isinstance(found_node, ast.Constant)
            ]
            names = any(
                isinstance(found_node, (ast.Name, ast.Call)) for found_node in ast.walk(node.value)
            )
            numbers = bool(values) and all(type(value) in (int, float) for value in values)
            found += is_constant and numbers and not names
    return found


def properties(schema: Json) -> int:
    """Return the number of named properties of a JSON Schema, at any depth."""
    found = 0
    for key, value in schema.items():
        if key == "properties":
            found += len(value) + sum(properties(item) for item in value.values())
        else:
            ones = value if isinstance(value, list) else [value]
            found += sum(properties(one) for one in ones if isinstance(one, dict))
    return found


def leaves(values: object) -> int:
    """Return the number of values at any depth, without non-empty mappings."""
    return sum(map(leaves, values.values())) if isinstance(values, dict) and values else 1


def of_commit(commit: str) -> Json:
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar,
    ):
        tar.extractall(folder, filter="data")
        root = Path(folder)
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
        return count(root, names)


def main(commits: list[str]) -> None:
    """Print a row per count, with a column for each commit and the checkout."""
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    columns = [(commit, of_commit(commit)) for commit in commits]
    columns.append(("checkout", count(ROOT, tracked)))
    rows = sorted({name for _, counted in columns for name in counted})
    width = max(map(len, rows))
    sys.stdout.write(" " * width + "".join(f"{commit[:10]:>12}" for commit, _ in columns) + "\n")
    for row in rows:
        figures = "".join(f"{counted.get(row, 0):>12,}" for _, counted in columns)
        sys.stdout.write(f"{row:<{width}}{figures}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
