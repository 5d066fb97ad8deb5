"""Tests for `make test-changed`: those of code changed since the branch left main.

Tests mirror the code: `webhook/core/node/state.py` is tested in `tests/core/node`. Tests that
import a changed module are also run.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.support.paths import TESTS

ROOT = TESTS.parent
FOLDERS = {
    "certs": ("certs", "cli"),
    "deploy": ("chart", "release", "contracts"),
    "policies": ("core/policy", "adapters/policy", "contracts"),
}
OTHERS = ("contracts",)
"""Test folders for all other files."""
NEED_A_NODE = {"e2e", "gpu"}
EVERYTHING = {"pyproject.toml", "tests/conftest.py"}


def changed() -> list[str]:
    """Return the paths that changed since this branch left main, including untracked files."""
    base = _git("merge-base", "HEAD", "main")[0]
    return _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")


def folders_to_test(paths: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return test folders and files relative to the root, without overlaps."""
    found: set[Path] = set()
    texts = {
        path: path.read_text()
        for path in (root / "tests").rglob("test_*.py")
        if path.relative_to(root).parts[1] not in NEED_A_NODE
    }
    for name in paths:
        path = root / name
        if name in EVERYTHING:
            return ["tests"]
        if path.suffix == ".py":
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            imports = _imports(module)
            found |= {test for test, text in texts.items() if imports.search(text)}
        if path.name.startswith("test_") or name.startswith("tests/support/"):
            found |= {path} & set(texts)
        elif name.startswith("webhook/") and path.suffix in {".py", ".jinja"}:
            folder = root / "tests" / path.parent.relative_to(root / "webhook")
            while not folder.is_dir():
                folder = folder.parent
            found |= {folder} if folder != root / "tests" else set()
        elif name.startswith("tests/"):
            found |= {path.parent} if path.parts[len(root.parts) + 1] not in NEED_A_NODE else set()
        else:
            found |= {root / "tests" / folder for folder in FOLDERS.get(name.split("/")[0], OTHERS)}
    whole = [item for item in found if not any(other in item.parents for other in found)]
    return sorted(str(item.relative_to(root)) for item in whole)


def _imports(module: str) -> re.Pattern[str]:
    """Return a pattern for `import a.b.c`, `from a.b.c import` and `from a.b import c`."""
    parent, _, last = map(re.escape, module.rpartition("."))
    whole = rf"^\s*(?:import|from) {re.escape(module)}\b"
    return re.compile(rf"{whole}|^\s*from {parent} import (?:\([^)]*|.*)\b{last}\b", re.MULTILINE)


def _git(*arguments: str) -> list[str]:
    answer = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return answer.stdout.split()


if __name__ == "__main__":
    print(*folders_to_test(changed()))
