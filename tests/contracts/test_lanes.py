"""`make test-min` and `make test-changed` run the tests that they promise."""

import ast
import re
import sys

import pytest

from tests.support.changed_tests import folders_to_test
from tests.support.paths import ROOT, TESTS

OURS = {"webhook", "certs", "__future__"}
MODULES = sorted(path for part in ("webhook", "certs") for path in (ROOT / part).rglob("*.py"))


def imported(path):
    """Return the packages that a module imports, at any place."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


def folder(path):
    """Return the path of a module's tests: a folder, or a file of the same name."""
    within = path.relative_to(ROOT).with_suffix("")
    return TESTS / (within.relative_to("webhook") if within.parts[0] == "webhook" else within)


def test_the_folders_to_test_what_imports_a_package_of_others_run_with_its_oldest_version():
    (listed,) = re.findall(r"^MIN := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    importers = [path for path in MODULES if set(imported(path)) - OURS - sys.stdlib_module_names]
    assert len(importers) > 20
    assert [
        str(path)
        for path in importers
        if not any(folder(path).is_relative_to(ROOT / item) for item in listed.split())
    ] == []


TREE = {
    "tests/core/test_words.py": "",
    "tests/core/node/test_state.py": "from webhook.core.node.state import a",
    "tests/core/node/golden/one.yaml": "",
    "tests/agent/test_loop.py": "from webhook.core.node import (\n    other,\n    state,\n)",
    "tests/sentry/test_loop.py": "from webhook.core.node.states import b",
    "tests/e2e/test_node.py": "import webhook.core.node.state",
    "tests/server/test_http.py": "from tests.support.clocks import Clock",
    "tests/contracts/test_docs.py": "",
}


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("webhook/core/node/state.py", ["tests/agent/test_loop.py", "tests/core/node"]),
        ("webhook/core/deeper/room/new.py", ["tests/core"]),
        ("webhook/core/formatting.py tests/core/node/test_state.py", ["tests/core"]),
        ("tests/core/test_words.py", ["tests/core/test_words.py"]),
        ("tests/core/test_that_is_gone.py", []),
        ("tests/core/node/golden/one.yaml", ["tests/core/node/golden"]),
        ("tests/support/clocks.py", ["tests/server/test_http.py"]),
        ("tests/e2e/pods.py tests/e2e/test_node.py", []),
        ("deploy/laptop.yaml", ["tests/chart", "tests/contracts", "tests/release"]),
        ("webhook/core/node/page.html.jinja", ["tests/core/node"]),
        ("certs/keys.py", ["tests/certs", "tests/cli"]),
        ("README.md .ci/run", ["tests/contracts"]),
        ("README.md pyproject.toml", ["tests"]),
    ],
)  # fmt: skip
def test_what_changed_is_tested_by_its_room_and_by_what_imports_it(changed, tests, tmp_path):
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert folders_to_test(changed.split(), tmp_path) == tests
