"""`make test-min` runs all that the version of a dependency can break."""

import ast
import re
import sys

from tests.support.paths import ROOT, TESTS

OURS = {"webhook", "certs", "__future__"}
MODULES = sorted(path for part in ("webhook", "certs") for path in (ROOT / part).rglob("*.py"))


def imported(path):
    """Return the packages that a module imports, at its head or within."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


def folder(path):
    """Return where the tests of a module lie, in a folder or a file of its name."""
    within = path.relative_to(ROOT).with_suffix("")
    return TESTS / (within.relative_to("webhook") if within.parts[0] == "webhook" else within)


def test_the_tests_of_what_imports_a_package_of_others_run_with_its_oldest_version():
    (listed,) = re.findall(r"^MIN := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    importers = [path for path in MODULES if set(imported(path)) - OURS - sys.stdlib_module_names]
    assert len(importers) > 20
    assert [
        str(path)
        for path in importers
        if not any(folder(path).is_relative_to(ROOT / one) for one in listed.split())
    ] == []
