"""Commands, code blocks and tables in the pages."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not path.relative_to(ROOT).parts[0].startswith(".")  # folders that tools create
)


def commands(document: Path, containing: str) -> list[str]:
    """Return the commands of the only `sh` block that contains a text, without comments."""
    (block,) = (block for block in blocks(document) if containing in block)
    return list(_statements(block))


def all_commands(document: Path) -> list[str]:
    """Return the commands of all `sh` blocks of a page, without comments."""
    return [command for block in blocks(document) for command in _statements(block)]


def asked(pattern: str) -> list[str]:
    """Return the distinct commands of all pages that match a pattern from their start."""
    found = [
        command for page in PAGES for command in all_commands(page) if re.match(pattern, command)
    ]
    assert found, pattern
    return list(dict.fromkeys(found))


def in_sentences(program: str) -> list[str]:
    """Return a program's distinct commands in the sentences and tables of all pages."""
    prose = (
        re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for page in PAGES
    )
    found = (" ".join(item.split()) for text in prose for item in re.findall(r"`([^`]+)`", text))
    return list(dict.fromkeys(item for item in found if item.startswith(f"{program} ")))


def blocks(document: Path, language: str = "sh") -> list[str]:
    """Return a page's code blocks in a language."""
    found = re.findall(
        rf"^ *```{language}\n.*?^ *```$", document.read_text(), re.MULTILINE | re.DOTALL
    )
    return [textwrap.dedent(block).partition("\n")[2].removesuffix("```") for block in found]


def _statements(block: str) -> Iterator[str]:
    """Yield each command with its continuation lines, loop body or here-document."""
    lines = iter(block.splitlines())
    for line in filter(str.strip, lines):
        command = [re.sub(r"(^|\s+)# .*", "", line)]
        last = re.search(r"<<'?(\w+)|^(?:for|while) .*\bdo$", line)
        while command[-1].endswith("\\") or (last and command[-1] != (last[1] or "done")):
            command.append(next(lines))
        if any(command):
            yield "\n".join(command)


def table_of(function):
    """Return the cells of the table in a function's docstring, by row."""
    lines = re.findall(r"^ *\| (.+) \|$", function.__doc__ or "", re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]
