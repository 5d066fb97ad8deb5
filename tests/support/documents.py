"""What documents ask their readers to run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not path.relative_to(ROOT).parts[0].startswith(".")  # made by tools
)


def commands(document: Path, containing: str) -> list[str]:
    """Return the lines of the one `sh` block of a document that has a text, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (one for one in blocks if containing in one)
    return [re.sub(r"\s+# .*", "", line) for line in block.splitlines()]


def asked(pattern: str) -> list[str]:
    """Return the lines in `sh` blocks of all pages that are of a pattern, each once."""
    blocks = [
        block
        for page in PAGES
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    lines = [line for block in blocks for line in block.splitlines() if re.match(pattern, line)]
    assert lines, pattern
    return list(dict.fromkeys(lines))


def table_of(function):
    """Return the rows of the table in a function's docstring, each as its cells."""
    lines = re.findall(r"^ *\| (.+) \|$", function.__doc__ or "", re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]
