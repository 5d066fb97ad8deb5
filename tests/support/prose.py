"""Count docstrings in the dialect of earlier code: `python -m tests.support.prose [--list]`."""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.paths import ROOT

FOLDERS: Final = ("webhook", "certs", "deploy", "tests")
MARKERS: Final = {
    "question": r"^(What|Who|Whose|Whom|Why|How|When|Where|Whether|Which)\b",
    "fragment": r"^(As|At|By|For|From|In|Of|On|Per|So|To|With)\b",
    "say": r"^(Say|Tell|Let|Have|Take)\b",
    "return what": r"^(Return|Yield) (what|who|whose|whom|where)\b",
    "nobody": (
        r"\b(nobody|somebody|everybody|anybody|[Ww]hoever|[Ww]homever)\b"
        r"|\b(and|as|at|by|for|from|is|know|knows|of|on|or|say|says|see|sees|tell|tells|than|to|with)"
        r" who(se|m)?\b|[,;:(] ?who\b"
    ),
    "where": r"(?<!^)\b[Ww]here\b",
    "so much": r"\b[Ss]o (much|many|long|often|few|large)\b(?! that)|\bas much\b",
    "told": r"\b(tell|tells|told|telling|says|said|speaks? of)\b",
    "stands": (
        r"\b(stands?|stood|lies|goes (with|by)|comes? again|anew|of (ours|theirs|its own|one's own)"
        r"|as ever|as it is|likewise|be so|(are|is) so)\b"
    ),
}
"""Regular expressions for markers of the dialect in docstrings."""


class Docstring(NamedTuple):
    """A docstring, or the string below an attribute."""

    path: Path
    line: int
    text: str

    @property
    def markers(self) -> list[str]:
        """Names of the markers in the text."""
        return [name for name, pattern in MARKERS.items() if re.search(pattern, self.text)]


def read_docstrings(folder: Path) -> Iterator[Docstring]:
    """Yield the docstrings of modules, classes and functions, and strings below attributes."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield Docstring(path.relative_to(ROOT), node.lineno, text)


def share_with_marker(folder: Path) -> float:
    """Return the share of docstrings with at least one marker, from 0 to 1."""
    found = [bool(docstring.markers) for docstring in read_docstrings(folder)]
    return sum(found) / len(found) if found else 0.0


def main() -> None:
    """Print the numbers by package, or each docstring with a marker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", default=FOLDERS, type=Path)
    parser.add_argument("--list", action="store_true", help="print each docstring with a marker")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    marked: Counter[str] = Counter()
    by_marker: Counter[str] = Counter()
    for folder in options.folders:
        for docstring in read_docstrings(ROOT / folder):
            package = str(docstring.path.parent)
            total[package] += 1
            if markers := docstring.markers:
                marked[package] += 1
                by_marker.update(markers)
                if options.list:
                    first = docstring.text.strip().splitlines()[0]
                    print(f"{docstring.path}:{docstring.line}: {', '.join(markers)}: {first}")
    if options.list:
        return
    for package, number in sorted(total.items()):
        print(f"{marked[package]:5} of {number:5} = {marked[package] / number:5.1%}  {package}")
    for name, number in by_marker.most_common():
        print(f"{number:5} {name}")
    print(f"{marked.total()} of {total.total()} = {marked.total() / total.total():.1%}")


if __name__ == "__main__":
    main()
