"""Write changed documents: similar to the original if possible, and always correct.

Three outputs are tried in this order. Each is parsed to verify it:

1. the original with only the edited lines changed
2. ruamel's output of the edited tree, which may reflow other lines
3. the values, without comments
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
from webhook.tools.manifests.tree import edit_text

_ANCHOR: Final = re.compile(r"&\S+")


def rewrite(
    text: str, changes: Mapping[Path, Iterable[Operation]], wanted: Any, layout: Layout
) -> str:
    """Return the text of a YAML document with changes applied; `wanted` is its expected value."""
    for candidate in _candidates(text, changes, layout):
        if _reads_as(candidate, wanted):
            return candidate
    return dump_yaml(wanted)


def _candidates(
    text: str, changes: Mapping[Path, Iterable[Operation]], layout: Layout
) -> Iterator[str]:
    try:
        base, target = (
            _rejoin_comments(edit_text(text, wishes, layout), text) for wishes in ({}, changes)
        )
    # ruamel cannot read all YAML that libyaml can, and does not limit recursion.
    except (YAMLError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return
    restored = _edit_original(text, base, target)
    if restored is not None:
        yield restored
    yield target


def _rejoin_comments(text: str, original: str) -> str:
    """Move comments back to the lines of anchors and aliases.

    ruamel writes such comments on separate lines.
    """
    written = original.splitlines()
    beside = {_squeeze(line) for line in (*written, *(_ANCHOR.sub("", line) for line in written))}
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        is_comment = line.lstrip().startswith("#") and lines and lines[-1].strip()
        if is_comment and _squeeze(lines[-1] + line) in beside:
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
    """Return a string that is equal only for equal values of equal types."""
    return json.dumps(value, sort_keys=True)


def _edit_original(original: str, base: str, target: str) -> str | None:
    """Return the original with the changes from base to target, or None if they do not fit.

    `base` is ruamel's output of the unedited original. Its lines differ from the original only in
    spaces, so edits are placed by the neighbouring lines.
    """
    before, plain, after = (text.splitlines(keepends=True) for text in (original, base, target))
    if max(len(before), len(after)) > MOST_COMPARED_LINES:
        return None
    places = _map_boundaries(
        [_squeeze(line) for line in plain], [_squeeze(line) for line in before]
    )
    result: list[str] = []
    position = 0
    for tag, start, end, first, last in _opcodes(plain, after):
        if tag == "equal":
            continue
        here, there = places.get(start), places.get(end)
        if here is None or there is None or here < position:
            return None
        result += before[position:here]
        result += _align(after[first:last], plain[:start], before, places)
        position = there
    return "".join([*result, *before[position:]])


def _align(
    lines: list[str], above: list[str], before: list[str], places: dict[int, int]
) -> Iterator[str]:
    """Yield new lines, indented like neighbouring lines of the original.

    A line shifts like the new line that contains it, else like the nearest old line in its column
    or to the left.
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
    """Return the shift of a new line: that of the nearest line above it in the original."""
    for index in reversed(range(len(above))):
        if above[index].strip() and _column(above[index]) <= column:
            place = places.get(index)
            original = before[place] if place is not None and place < len(before) else above[index]
            shift = min(_column(original) - _column(above[index]), DEEPEST_COLUMN)
            return max(shift, -column)
    return 0


def _column(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _map_boundaries(plain: list[str], before: list[str]) -> dict[int, int]:
    """Map line boundaries of one text to those of another."""
    places = {0: 0, len(plain): len(before)}
    for _, start, end, first, last in _opcodes(plain, before):
        if end - start == last - first:
            places.update(zip(range(start, end + 1), range(first, last + 1), strict=True))
        else:
            places |= {start: first, end: last}
    return places


def _opcodes(left: list[str], right: list[str]) -> list[tuple[str, int, int, int, int]]:
    return list(SequenceMatcher(None, left, right, autojunk=False).get_opcodes())


def _squeeze(line: str) -> str:
    return "".join(line.split())


def dump_yaml(value: Any) -> str:
    """Return a value as block-style YAML with one meaning in YAML 1.1 and 1.2."""
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
    """Dumper that quotes ambiguous strings and writes no aliases."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as the base class declares it

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _plain(write: Callable[[Any], str]) -> Callable[[_Fresh, Any], yaml.ScalarNode]:
    def represent(dumper: _Fresh, value: Any) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", write(value))

    return represent


def _represent_text(dumper: _Fresh, value: str) -> yaml.ScalarNode:
    if needs_quotes(value) or not value.replace("\n", "").replace("\t", "").isprintable():
        style = '"'  # other styles would fold Unicode line breaks
    else:
        style = "|" if "\n" in value else ""
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Fresh.add_representer(str, _represent_text)
_Fresh.add_representer(bool, _plain(lambda value: "true" if value else "false"))
_Fresh.add_representer(int, _plain(str))
_Fresh.add_representer(float, _plain(repr))
_Fresh.add_representer(ExactFloat, _plain(lambda value: value.text))
_Fresh.add_representer(type(None), _plain(lambda _: "null"))
