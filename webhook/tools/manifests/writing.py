"""Write a changed document: like the original where possible, and correct in every case.

Three texts are tried, best first, and each is read back before it is used:

1. the original lines, with only those changed that the edit changed
2. the edited tree as ruamel writes it, which may reflow other lines
3. only the values, without comments
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any, Final

import yaml
from ruamel.yaml.error import YAMLError

from webhook.adapters.yaml_documents import Path
from webhook.core.pod.patch import Operation
from webhook.tools.manifests.bounds import DEEPEST_COLUMN, MOST_COMPARED_LINES
from webhook.tools.manifests.reading import (
    ExactFloat,
    Layout,
    ManifestError,
    needs_quotes,
    read_yaml,
)
from webhook.tools.manifests.tree import edited

_ANCHOR: Final = re.compile(r"&\S+")


def rewrite(
    text: str, changes: Mapping[Path, Iterable[Operation]], wanted: Any, layout: Layout
) -> str:
    """Return a YAML document's text with the changes made, so that it reads as `wanted`."""
    for candidate in _candidates(text, changes, layout):
        if _reads_as(candidate, wanted):
            return candidate
    return fresh(wanted)


def _candidates(
    text: str, changes: Mapping[Path, Iterable[Operation]], layout: Layout
) -> Iterator[str]:
    try:
        base, target = (_rejoined(edited(text, wishes, layout), text) for wishes in ({}, changes))
    # ruamel reads slightly less YAML than libyaml, and has no bounds on recursion.
    except (YAMLError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return
    restored = _restored(text, base, target)
    if restored is not None:
        yield restored
    yield target


def _rejoined(text: str, original: str) -> str:
    """Put comments back beside anchors and aliases: ruamel gives them lines of their own."""
    written = original.splitlines()
    beside = {_squeezed(line) for line in (*written, *(_ANCHOR.sub("", line) for line in written))}
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        is_comment = line.lstrip().startswith("#") and lines and lines[-1].strip()
        if is_comment and _squeezed(lines[-1] + line) in beside:
            lines[-1] = f"{lines[-1].rstrip()} {line.lstrip()}"
        else:
            lines.append(line)
    return "".join(lines)


def _reads_as(text: str, wanted: Any) -> bool:
    try:
        value, _ = read_yaml(text)
    except ManifestError:
        return False
    return _canonical(value) == _canonical(wanted)


def _canonical(value: Any) -> str:
    """Write a value so that only equal ones, types included, give the same text."""
    return json.dumps(value, sort_keys=True)


def _restored(original: str, base: str, target: str) -> str | None:
    """Make the changes from base to target in the original; None where they do not fit.

    `base` is the unedited original as ruamel writes it: its lines differ in spacing alone, so a
    line of one is found in the other, and an edit goes to where its neighbours stand.
    """
    before, plain, after = (text.splitlines(keepends=True) for text in (original, base, target))
    if max(len(before), len(after)) > MOST_COMPARED_LINES:
        return None
    places = _places([_squeezed(line) for line in plain], [_squeezed(line) for line in before])
    result: list[str] = []
    position = 0
    for tag, start, end, first, last in _opcodes(plain, after):
        if tag == "equal":
            continue
        here, there = places.get(start), places.get(end)
        if here is None or there is None or here < position:
            return None
        result += before[position:here]
        result += _aligned(after[first:last], plain[:start], before, places)
        position = there
    return "".join([*result, *before[position:]])


def _aligned(
    lines: list[str], above: list[str], before: list[str], places: dict[int, int]
) -> Iterator[str]:
    """Yield new lines moved to where their neighbours stand: a file may indent its lists two ways.

    A line goes with the new line it belongs to, else with the nearest old one to the left of it or
    in its column.
    """
    open_blocks: list[tuple[int, int]] = []
    for line in lines:
        column = _column(line)
        while open_blocks and open_blocks[-1][0] > column:
            open_blocks.pop()
        if not open_blocks or open_blocks[-1][0] < column:
            shift = open_blocks[-1][1] if open_blocks else _shift(column, above, before, places)
            open_blocks.append((column, shift))
        yield " " * (column + open_blocks[-1][1]) + line.lstrip(" ")


def _shift(column: int, above: list[str], before: list[str], places: dict[int, int]) -> int:
    """Return how far the original indents the old line that a new line of this column follows."""
    for index in reversed(range(len(above))):
        if above[index].strip() and _column(above[index]) <= column:
            place = places.get(index)
            original = before[place] if place is not None and place < len(before) else above[index]
            shift = min(_column(original) - _column(above[index]), DEEPEST_COLUMN)
            return max(shift, -column)
    return 0


def _column(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _places(plain: list[str], before: list[str]) -> dict[int, int]:
    """Map the boundaries between lines of one text to those of another."""
    places = {0: 0, len(plain): len(before)}
    for _, start, end, first, last in _opcodes(plain, before):
        if end - start == last - first:
            places.update(zip(range(start, end + 1), range(first, last + 1), strict=True))
        else:
            places |= {start: first, end: last}
    return places


def _opcodes(left: list[str], right: list[str]) -> list[tuple[str, int, int, int, int]]:
    return list(SequenceMatcher(None, left, right, autojunk=False).get_opcodes())


def _squeezed(line: str) -> str:
    return "".join(line.split())


def fresh(value: Any) -> str:
    """Write a value as YAML in the usual style, readable alike for YAML 1.1 and 1.2."""
    text: str = yaml.dump(
        value,
        Dumper=_Fresh,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=float("inf"),
    )
    return text


class _Fresh(yaml.SafeDumper):
    """Writes scalars as texts, quoted where a reader could mistake them, and no aliases."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as the base class declares it

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _plain(write: Callable[[Any], str]) -> Callable[[_Fresh, Any], yaml.ScalarNode]:
    def represent(dumper: _Fresh, value: Any) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", write(value))

    return represent


def _represent_text(dumper: _Fresh, value: str) -> yaml.ScalarNode:
    if needs_quotes(value) or not value.replace("\n", "").replace("\t", "").isprintable():
        style = '"'  # Unicode's line breaks would be folded in any other
    else:
        style = "|" if "\n" in value else ""
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Fresh.add_representer(str, _represent_text)
_Fresh.add_representer(bool, _plain(lambda value: "true" if value else "false"))
_Fresh.add_representer(int, _plain(str))
_Fresh.add_representer(float, _plain(repr))
_Fresh.add_representer(ExactFloat, _plain(lambda value: value.text))
_Fresh.add_representer(type(None), _plain(lambda _: "null"))
