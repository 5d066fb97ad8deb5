"""What documents ask their readers to run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def commands(document: Path, containing: str) -> list[str]:
    """Return the lines of the one `sh` block of a document that has a text, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (one for one in blocks if containing in one)
    return [re.sub(r"\s+# .*", "", line) for line in block.splitlines()]


def table_of(function):
    """Return the rows of the table in a function's docstring, each as its cells."""
    lines = re.findall(r"^ *\| (.+) \|$", function.__doc__ or "", re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]
