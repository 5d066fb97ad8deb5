"""Reading of files, and of YAML and JSON exactly as `kubectl` does, within bounds.

`kubectl` reads YAML 1.1 with go-yaml, a port of libyaml, which PyYAML uses. Plain scalars are
resolved as in sigs.k8s.io/yaml/goyaml.v2/resolve.go, from which the resolvers of PyYAML and ruamel
differ: `8e9` and `08` are numbers, `0777` is octal, `1:30` and dates are strings.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import click
import yaml

from webhook.adapters.yaml_documents import BoundedReader, Dialect, StopError
from webhook.tools.manifests.bounds import DEEPEST_MANIFEST, LONGEST_VALUE, MAX_ALIASED, MAX_DIGITS

_WORDS: Final[dict[str, bool | None]] = {
    word: meaning
    for meaning, words in (
        (True, ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")),
        (False, ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")),
        (None, ("", "~", "null", "Null", "NULL")),
    )
    for word in words
}
_NOT_JSON: Final = re.compile(r"\.(nan|NaN|NAN)|[-+]?\.(inf|Inf|INF)")
_INTEGER: Final = re.compile(
    r"(?P<sign>[-+]?)(0[bB](?P<b>[01]+)|0[xX](?P<x>[0-9a-fA-F]+)|0[oO]?(?P<o>[0-7]+)"
    r"|(?P<d>0|[1-9][0-9]*))"
)
_BASES: Final = {"b": 2, "x": 16, "o": 8, "d": 10}
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_AMBIGUOUS: Final = re.compile(r"[-+.0-9][-+0-9.:_ TtZz]*|=|<<")
_TAG: Final = "tag:yaml.org,2002:"
_SPACE: Final = re.compile(r"[ \t\r\n]*")


KUBECTL: Final = Dialect(
    loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),
    max_depth=DEEPEST_MANIFEST,
    max_values=MAX_ALIASED,
    counts_aliased_only=True,
    is_strict=False,
    too_deep=f"nested more than {DEEPEST_MANIFEST} levels deep; flatten it",
    too_many=(
        f"its aliases stand for more than {MAX_ALIASED} values, of which a text is one for each "
        f"{LONGEST_VALUE} characters; write them out"
    ),
    endless="anchor &{0} contains itself; write the value out",
    undefined="alias *{0} has no anchor &{0} before it",
)


class ManifestError(ValueError):
    """Raised for an unreadable manifest; the message states the problem and the fix."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        """Line in the text, counted from 1; None if unknown."""


class ExactFloat(float):
    """A number with a point or exponent that keeps its digits, which quantities need."""

    text: str

    def __new__(cls, text: str) -> Self:
        """Parse a number and keep its text."""
        value = super().__new__(cls, text)
        value.text = text
        return value


_TAGGED: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "float": (ExactFloat, int),
}


@dataclass(slots=True)
class Layout:
    """Indentation of a document's block collections, as counts keyed by number of columns."""

    dashes: Counter[int] = field(default_factory=Counter)
    """Indentation of a list's dashes relative to the parent mapping."""
    steps: Counter[int] = field(default_factory=Counter)
    """Indentation of a mapping relative to its parent mapping."""


def resolve(text: str) -> Any:
    """Return the value that kubectl reads for a plain scalar.

    Raises ManifestError for NaN and infinity.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_JSON.fullmatch(text):
        raise ManifestError(f"{text} is a number that JSON does not have; write a finite number")
    if text[0] not in "+-.0123456789":
        return text
    plain = text.replace("_", "") if text[0] != "." else text
    integer = _INTEGER.fullmatch(plain)
    if integer and len(plain) <= MAX_DIGITS:
        base = next(name for name in _BASES if integer[name] is not None)
        return int(integer["sign"] + integer[base], _BASES[base])
    if _FLOAT.fullmatch(plain) and math.isfinite(float(plain)):
        return ExactFloat(plain)
    return text


def needs_quotes(text: str) -> bool:
    """Return True if YAML readers could misread a string without quotes."""
    try:
        return not isinstance(resolve(text), str) or bool(_AMBIGUOUS.fullmatch(text))
    except ManifestError:
        return True


def read_yaml(text: str) -> tuple[Any, Layout]:
    """Parse a document; return its value and indentation. Raises ManifestError."""
    reader, value = _ManifestReader(text), None
    try:
        for value in reader.documents():  # noqa: B007 - the last one is returned
            pass
    except StopError as stop:
        raise ManifestError(stop.detail, stop.line) from None
    except yaml.MarkedYAMLError as error:
        problem = error.problem or error.context or "not YAML"
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        hint = _hint(text.split("\n", line)[line - 1]) if line and "token" in problem else ""
        if "nesting depth" in problem:  # PyYAML 6.0.4 and newer have their own limit
            raise ManifestError(KUBECTL.too_deep, line) from None
        raise ManifestError(f"not valid YAML: {problem}{hint}", line) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ManifestError(f"not valid YAML: {error.reason}; remove them", line) from error
    return value, reader.layout


def _hint(line: str) -> str:
    """Return a hint for a line that YAML cannot tokenize, or "" without one."""
    if "{%" in line:
        return "; it looks like a template: render it first"
    return "; indent with spaces, not tabs" if "\t" in line else ""


class _ManifestReader(BoundedReader):
    """Reader that builds values and records the indentation of collections."""

    def __init__(self, text: str) -> None:
        super().__init__(text, KUBECTL)
        self.layout = Layout()

    def make(self, event: Any, depth: int, column: int | None) -> tuple[Any, int]:
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event), 1 + len(event.value) // LONGEST_VALUE
        is_list = isinstance(event, yaml.SequenceStartEvent)
        if column is not None and not event.flow_style:
            steps = self.layout.dashes if is_list else self.layout.steps
            steps[event.start_mark.column - column] += 1
        return self.items(depth) if is_list else self._mapping(event, depth)

    def _mapping(self, start: Any, depth: int) -> tuple[dict[str, Any], int]:
        column = None if start.flow_style else start.start_mark.column
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        size = 1
        while not self.parser.check_event(yaml.MappingEndEvent):
            key = self.parser.peek_event()
            line = key.start_mark.line + 1
            written, of_key = self.node(depth + 1)
            name = None if _is_merge(key) else _key(written, line)
            value, part = self.node(depth + 1, column)
            size += of_key + part
            if name is None:
                merged = {**_merged(value, line), **merged}
            elif name in own:
                raise ManifestError(f'key "{name}" is set twice in one mapping; keep one', line)
            else:
                own[name] = value
        self.parser.get_event()
        return {**own, **{key: merged[key] for key in merged if key not in own}}, size


def _key(key: Any, line: int) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, ExactFloat):
        return key.text
    if isinstance(key, int):
        return str(key)
    raise ManifestError("a key must be a string; put it in quotes", line)


def _is_merge(event: Any) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.value == "<<" and bool(event.implicit[0])


def _merged(value: Any, line: int) -> dict[str, Any]:
    """Merge the mappings of `<<`; earlier mappings take precedence."""
    result: dict[str, Any] = {}
    for source in reversed(value if isinstance(value, list) else [value]):
        if not isinstance(source, dict):
            raise ManifestError("<< must be followed by a mapping or a list of mappings", line)
        result.update(source)
    return result


def _scalar(event: Any) -> Any:
    """Return the value of a scalar. Quoted scalars are strings unless a tag sets the type."""
    text, tag, line = event.value, event.tag or "", event.start_mark.line + 1
    if tag == "!":  # go-yaml ignores this tag, against the YAML specification
        tag = ""
    if not (event.implicit[0] or tag.startswith(_TAG)) or tag == _TAG + "str":
        return text
    try:
        value = resolve(text)
    except ManifestError as error:
        raise ManifestError(str(error), line) from None
    if tag and type(value) not in _TAGGED.get(tag.removeprefix(_TAG), ()):
        raise ManifestError(f"tag !!{tag.removeprefix(_TAG)} does not fit here; remove it", line)
    return ExactFloat(str(value)) if tag == _TAG + "float" and type(value) is int else value


# JSON. Numbers keep their digits.


def read_json(text: str) -> list[tuple[int, Any]]:
    """Return end position and value of each object in a JSON stream. Raises JSONDecodeError."""
    found: list[tuple[int, Any]] = []
    position = _after_space(text, 0)
    try:
        while position < len(text):
            value, end = _DECODER.raw_decode(text, position)
            _check_json(value, 1)
            position = _after_space(text, end)
            found.append((position, value))
    except RecursionError:
        raise ManifestError(KUBECTL.too_deep) from None
    return found


def _after_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return space.end() if space else position


def _check_json(value: Any, depth: int) -> None:
    if depth > KUBECTL.max_depth:
        raise ManifestError(KUBECTL.too_deep)
    children = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, list)):
        for child in children:
            _check_json(child, depth + 1)
    elif isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ManifestError("a string holds half of a surrogate pair; write the complete character")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = next(name for name, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ManifestError(f'key "{twice}" is set twice in one object; keep one')
    return result


def _number(text: str) -> int | float:
    return int(text) if len(text) <= MAX_DIGITS else _finite(text)


def _finite(text: str) -> ExactFloat:
    value = ExactFloat(text)
    if not math.isfinite(value):
        raise ManifestError(f"{text[:20]}... is too large a number; write a smaller one")
    return value


def _no_constant(name: str) -> Any:
    raise ManifestError(f"{name} is a number that JSON does not have; write a finite number")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_number,
    parse_float=_finite,
    parse_constant=_no_constant,
)


STANDARD_INPUT: Final = "-"


def input_name(name: str) -> str:
    """Return the name of a file or standard input for use in messages."""
    return "standard input" if name == STANDARD_INPUT else name


def read_text(name: str) -> str:
    """Return the text of a file or standard input.

    Raises click.UsageError if the input is unreadable; the message has the line if it is not UTF-8.
    """
    try:
        return read_source(name)
    except ManifestError as error:
        place = f"{input_name(name)}:{error.line}" if error.line else input_name(name)
        raise click.UsageError(f"{place}: {error}") from None


def read_source(name: str) -> str:
    """Return the text of a file or standard input.

    Raises ManifestError if the input is unreadable, with the line if it is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if name == STANDARD_INPUT else Path(name).read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ManifestError(f"cannot be read ({why}); check the name and the permissions") from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        detail = f"byte 0x{data[error.start]:02x} is not UTF-8; save it as UTF-8"
        raise ManifestError(detail, line) from None
