"""YAML parsing within bounds, and policy files with strict values, line numbers and all errors.

`BoundedReader` processes PyYAML's events. It counts the values that aliases stand for before the
aliases are expanded, and builds nodes with line numbers. Its bounds are in a `Dialect`. For
manifests, `tools.manifests.reading` builds the values that `kubectl` would build.

YAML 1.1 silently turns `no` into false, `0755` into 493 and `1:30` into 90. In policy files a plain
scalar is null, true, false, a decimal integer, or a string. Words that YAML 1.1 reads as booleans
are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from webhook.adapters.bounds import DEEPEST_YAML, MOST_POLICY_BYTES, MOST_YAML_VALUES
from webhook.core.formatting import escape_unprintable
from webhook.core.pod.findings import quote

Path = tuple[str | int, ...]

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_WORDS: Final = frozenset({"yes", "no", "on", "off", "y", "n"})
# Longer numbers remain strings: they exceed int64, which the parser of quantities reports.
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
# C0 and C1 controls, and Unicode line breaks, which editors and YAML count differently.
_UNSEEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]")
_UNWRITABLE: Final = re.compile("[\x00\ud800-\udfff]")
_SIMPLE_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_PRINTED_KEY: Final = re.compile(r"[A-Za-z0-9_./-]{1,80}")


class StopError(Exception):
    """The rest of a file cannot be parsed."""

    def __init__(self, line: int, detail: str) -> None:
        super().__init__(detail)
        self.line = line
        self.detail = detail


@dataclass(frozen=True, slots=True)
class DocumentProblem:
    """A problem in a file; line 0 and an empty path mean the whole file."""

    file: str
    line: int
    path: str
    detail: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.path, self.detail) if part)


@dataclass(frozen=True, slots=True)
class Document:
    """The plain value of a YAML document, and the line of every path in it."""

    value: Any
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int:
        """Return the line of a path, or of its nearest ancestor in the document."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_documents(
    file: str, data: bytes, words_in: frozenset[str] = frozenset()
) -> tuple[list[Document], list[DocumentProblem]]:
    """Return a file's non-empty documents, and its problems, in which the file is named `file`.

    In the fields of `words_in`, words such as Off are strings without quotes.
    """
    text, unreadable = _decode(file, data)
    if unreadable:
        return [], unreadable
    documents: list[Document] = []
    problems: list[DocumentProblem] = []
    reader = BoundedReader(text, STRICT)
    try:
        for node in reader.documents():
            builder = _Builder(file, words_in)
            value = builder.build(node, ())
            problems.extend(builder.problems)
            if value is not None:
                documents.append(Document(value, builder.lines))
    except StopError as stop:
        problems.append(DocumentProblem(file, stop.line, "", stop.detail))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.append(DocumentProblem(file, mark.line + 1 if mark else 1, "", _syntax(error)))
    except (yaml.YAMLError, ValueError, OverflowError):
        # PyYAML passes numbers in escapes and directives to chr() and int() unchecked.
        line = reader.parser.get_mark().line + 1
        problems.append(
            DocumentProblem(file, line, "", "is not YAML: a number here is out of range")
        )
    # An error inside an anchor is reported once, even if aliases repeat it.
    unique = {(problem.line, problem.detail): problem for problem in reversed(problems)}
    return documents, sorted(unique.values(), key=lambda problem: problem.line)


def show_path(path: Path) -> str:
    """Return a path as in Kubernetes' messages: `spec.rules[0].nodeSelector[nvidia.com/gpu]`."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif _SIMPLE_KEY.fullmatch(part):
            shown += f".{part}" if shown else part
        else:
            shown += f"[{part}]" if _PRINTED_KEY.fullmatch(part) else f"[{show(part)}]"
    return shown


def show(value: object) -> str:
    """Return a user's value in quotes, escaped so that it is safe for a terminal."""
    return escape_unprintable(quote(value))


def _decode(file: str, data: bytes) -> tuple[str, list[DocumentProblem]]:
    if len(data) > MOST_POLICY_BYTES:
        detail = (
            f"is larger than {MOST_POLICY_BYTES} bytes (1Mi), the limit for a policy file; split it"
        )
        return "", [DocumentProblem(file, 0, "", detail)]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        detail = f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        return "", [DocumentProblem(file, data.count(b"\n", 0, error.start) + 1, "", detail)]
    unseen = _UNSEEN.search(text)
    if unseen:
        line = text.count("\n", 0, unseen.start()) + 1
        code = f"U+{ord(unseen[0]):04X}"
        detail = f"the invisible character {code} is not allowed in a policy file; remove it"
        return "", [DocumentProblem(file, line, "", detail)]
    return text, []


def _syntax(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem)
    if "'\\t'" in problem:
        return "a tab is where YAML needs spaces; indent with spaces"
    context = f" {error.context}" if error.context else ""
    return f"is not YAML:{context}{',' * bool(context)} {problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """PyYAML's loader, bounds, and error messages for a kind of YAML."""

    loader: Any
    max_depth: int
    max_values: int
    """Maximum number of values after aliases are expanded."""
    counts_aliased_only: bool
    """True if `max_values` limits only the values that aliases stand for."""
    is_strict: bool
    """True if tags and repeated anchors are rejected; policies do not need them."""
    too_deep: str
    too_many: str
    endless: str
    undefined: str


STRICT: Final = Dialect(
    loader=yaml.SafeLoader,  # pure Python: its messages are more precise than libyaml's
    max_depth=DEEPEST_YAML,
    max_values=MOST_YAML_VALUES,
    counts_aliased_only=False,
    is_strict=True,
    too_deep=f"is nested more than {DEEPEST_YAML} levels deep",
    too_many=f"the file holds more than {MOST_YAML_VALUES} values, aliases expanded; split it",
    endless="the alias *{0} is inside what it refers to",
    undefined="is not YAML: found undefined alias '{0}'",
)


class BoundedReader:
    """Builder of nodes from events; raises StopError past its bounds, and for alias cycles.

    An alias counts as the number of values it stands for, so a billion-laughs attack is rejected
    before it is expanded. Subclasses override `make` to build other values.
    """

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.parser = dialect.loader(text)
        self._dialect = dialect
        self._anchors: dict[str, tuple[Any, int] | None] = {}
        """Value and size keyed by anchor; None until the anchor's node is complete."""
        self._count = 0

    def documents(self) -> Iterator[Any]:
        """Yield the value built for each document; raises StopError and PyYAML's errors."""
        while self.parser.check_event():
            if isinstance(self.parser.get_event(), yaml.DocumentStartEvent):
                self._anchors.clear()
                value, _ = self.node(1)
                self.parser.get_event()  # end of the document; raises an error if more follows
                yield value

    def node(self, depth: int, column: int | None = None) -> tuple[Any, int]:
        """Return the value built for the next node, and its number of values, including itself."""
        event = self.parser.get_event()
        anchor, line = event.anchor, event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return self._alias(anchor, line)
        if self._dialect.is_strict:
            self._check(event, line)
        if not self._dialect.counts_aliased_only:
            self._add(1, line)
        if depth > self._dialect.max_depth:
            raise StopError(line, self._dialect.too_deep)
        if anchor:
            self._anchors[anchor] = None
        sized = self.make(event, depth, column)
        if anchor:
            self._anchors[anchor] = sized
        return sized

    def _check(self, event: Any, line: int) -> None:
        if event.tag is not None:
            raise StopError(line, f"the tag {show(event.tag)} is not allowed; remove it")
        if event.anchor in self._anchors:
            detail = f"found duplicate anchor '{event.anchor}'; first occurrence, second occurrence"
            raise StopError(line, f"is not YAML: {detail}")

    def make(self, event: Any, depth: int, _column: int | None) -> tuple[Any, int]:
        """Return the value for an event and its contents, and its number of values.

        `_column` is the column of the surrounding block mapping, for subclasses.
        """
        start: Any = event.start_mark
        if isinstance(event, yaml.ScalarEvent):
            return ScalarNode("plain" if event.implicit[0] else "text", event.value, start), 1
        nodes, size = self.items(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return SequenceNode("", nodes, start), size
        return MappingNode("", list(zip(nodes[::2], nodes[1::2], strict=True)), start), size

    def items(self, depth: int) -> tuple[list[Any], int]:
        """Return a collection's remaining items, or alternating keys and values, and its size."""
        items, size = [], 1
        while not isinstance(self.parser.peek_event(), yaml.CollectionEndEvent):
            item, part = self.node(depth + 1)
            items.append(item)
            size += part
        self.parser.get_event()
        return items, size

    def _alias(self, anchor: str, line: int) -> tuple[Any, int]:
        if anchor not in self._anchors:
            raise StopError(line, self._dialect.undefined.format(anchor))
        sized = self._anchors[anchor]
        if sized is None:
            raise StopError(line, self._dialect.endless.format(anchor))
        self._add(sized[1], line)
        return sized

    def _add(self, size: int, line: int) -> None:
        self._count += size
        if self._count > self._dialect.max_values:
            raise StopError(line, self._dialect.too_many)


@dataclass(slots=True)
class _Builder:
    """Builder of plain values from a document's nodes; collects lines and problems."""

    file: str
    words_in: frozenset[str] = frozenset()
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[DocumentProblem] = field(default_factory=list)

    def build(self, node: Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if len(path) >= DEEPEST_YAML:
            raise StopError(self.lines[path], STRICT.too_deep)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._key(key_node, path, line)
            if key is None:
                continue
            place = (*path, key)
            if key in values:
                detail = f"is set twice; it is already in line {self.lines[place]}"
                self._add(line, place, detail)
                continue
            self.lines[place] = line
            values[key] = self.build(value_node, place)
        return values

    def _key(self, node: Node, path: Path, line: int) -> str | None:
        if not isinstance(node, ScalarNode):
            self._add(line, path, "a key must be text, not a list or a map")
            return None
        text: str = node.value
        if node.tag == "plain" and text == "<<":
            self._add(line, path, "merge keys (<<) are not supported; write the fields out")
            return None
        if node.tag == "plain" and text in _NULLS | _BOOLEANS.keys():
            self._add(line, path, f"the key {show(text)} is not text; put it in quotes")
            return None
        return text if self._is_sound(node, path, line) else None

    def _scalar(self, node: Node, path: Path) -> str | int | bool | None:
        text: str = node.value
        if not self._is_sound(node, path, self.lines[path]) or node.tag != "plain":
            return text
        if text in _NULLS or text in _BOOLEANS:
            return _BOOLEANS.get(text)
        return int(text) if _INTEGER.fullmatch(text) else text

    def _is_sound(self, node: Node, path: Path, line: int) -> bool:
        text: str = node.value
        is_text = bool(path) and path[-1] in self.words_in
        if node.tag == "plain" and text.lower() in _WORDS and not is_text:
            detail = f"{text} is a boolean in some YAML and text in other; "
            self._add(line, path, detail + "write true or false, or put it in quotes")
            return False
        if _UNWRITABLE.search(text):
            self._add(line, path, f"{show(text)} holds a character that no manifest can hold")
            return False
        return True

    def _add(self, line: int, path: Path, detail: str) -> None:
        self.problems.append(DocumentProblem(self.file, line, show_path(path), detail))
