"""Reads what the API server sends in bounded memory, whatever tenants have stored.

A list is cut into objects, of which one at a time is a tree of Python's; and what is large is read
by one thread of this process at a time. For an object of etcd's 1.5 MiB may become 9 MiB of JSON
(one control character is written in six) or a tree of 55 MiB (300,000 variables).
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import orjson

Json = dict[str, Any]

T = TypeVar("T")

MOST_BYTES: Final = 16 * 2**20
"""Of one object's JSON. An etcd with its default limit of 1.5 MiB (`--max-request-bytes`) stores
nothing that needs more."""

LARGE_BYTES: Final = 64 * 2**10
"""What is larger is read by one thread at a time; an ordinary pod has 7 KiB."""

_MMAP_THRESHOLD, _BLOCK_BYTES = -3, 128 * 2**10  # malloc.h; glibc's threshold at the start

_HEAD: Final = 8 * 2**10
"""Bytes in which an object says which one it is."""

_MEMBERS: Final = ("items", "rows")
"""Of a list, and of a table: its objects. What a table's cells are stands before its rows."""

_decode: Final = json.JSONDecoder().raw_decode
_white: Final = re.compile(r"[ \t\n\r]*").match
_large: Final = Lock()

# In the API server's JSON these fields come first, in the order of the Go structs (ObjectMeta), and
# none of them may hold a quote or a backslash; within a string each quote has a backslash.
_EVENT: Final = re.compile(r'\s*\{\s*"type"\s*:\s*"(\w+)"')
_IDENTITY: Final = re.compile(r'"metadata"\s*:\s*\{((?:\s*"\w+"\s*:\s*"[^"\\]*"\s*,?)+)')


def free_at_once() -> None:
    """Let the process give large blocks back as soon as they are freed; for good, where it can.

    Otherwise glibc moves its threshold up to the largest block that was freed (mallopt(3),
    M_MMAP_THRESHOLD), and the heap of each thread that ever read an object of 9 MiB keeps twice as
    much: 32 threads kept 90 MiB.
    """
    with suppress(OSError, AttributeError):  # there are other C libraries
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)


class MalformedError(Exception):
    """What arrived is not the JSON that was expected."""


class TooLargeError(Exception):
    """More arrived than may be read."""

    def __init__(self, begun: bytearray) -> None:
        super().__init__("larger than may be read")
        self.begun = begun
        """As much as did arrive."""


class ReadLock:
    """What one thread holds of answers; `claim` waits while another holds something large."""

    def __init__(self, wait_s: float) -> None:
        """Prepare; TimeoutError where another needs longer than `wait_s`."""
        self._wait_s = wait_s
        self._alone = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        self.leave()

    def claim(self, held_bytes: int) -> None:
        """Say how much is held now."""
        if held_bytes > LARGE_BYTES and not self._alone:
            if not _large.acquire(timeout=self._wait_s):
                raise TimeoutError("other large answers are being read")
            self._alone = True

    def leave(self) -> None:
        """Say that nothing is held any longer."""
        if self._alone:
            self._alone = False
            _large.release()


def gather(parts: Iterable[bytes], most_bytes: int, lock: ReadLock) -> bytearray:
    """Return all of an answer; raises TooLargeError, with at most one part more than allowed."""
    gathered = bytearray()
    for part in parts:
        gathered += part
        lock.claim(len(gathered))
        if len(gathered) > most_bytes:
            raise TooLargeError(gathered)
    return gathered


def lines(
    parts: Iterable[bytes], most_bytes: int, lock: ReadLock
) -> Iterator[tuple[bytearray, bool]]:
    """Yield each line as soon as it arrives, and whether it is whole; the time needed is linear.

    Of a line that is too large the beginning is yielded; the rest is dropped as it arrives.
    """
    line, whole = bytearray(), True
    for part in parts:
        *ends, rest = part.split(b"\n")
        for end in ends:
            if whole:
                line += end
                lock.claim(len(line))
            if line:
                yield line, whole
            line, whole = bytearray(), True
            lock.leave()
        if whole:
            line += rest
            lock.claim(len(line))
        if len(line) > most_bytes:
            line, whole = line[:_HEAD], False
            lock.leave()


def read_object(data: bytes | bytearray) -> Json:
    """Read a JSON object; raises MalformedError for anything else.

    Of what is large orjson would hold a copy and an index besides, so it reads ordinary objects
    alone, in half of the time.
    """
    try:
        found = orjson.loads(data) if len(data) <= LARGE_BYTES else json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error)) from error
    if not isinstance(found, dict):
        raise MalformedError("not a JSON object")
    return found


def identified(begun: bytearray) -> Json:
    """Return what is known of an object that is too large, given its beginning.

    It has name, namespace, uid and resourceVersion, and a `spec` that is no object, so that nobody
    takes it for one that asks for nothing.
    """
    found = _IDENTITY.search(begun[:_HEAD].decode(errors="replace"))
    if found is None:
        raise MalformedError("an object that is too large does not begin with its name")
    members = found[1].rstrip().removesuffix(",")
    return {"metadata": read_object(f"{{{members}}}".encode()), "spec": "too large to be read"}


def event_type(begun: bytearray) -> str:
    """Return the type of an event of a watch, given its beginning."""
    found = _EVENT.match(begun[:_HEAD].decode(errors="replace"))
    if found is None:
        raise MalformedError("an event that is too large does not begin with its type")
    return found[1]


@dataclass(slots=True)
class ListReader(Generic[T]):
    """Reads the text of a list, object after object; or of a table, row after row."""

    keep: Callable[[Json], T]
    kept: list[T] = field(default_factory=list)
    """What `keep` made of each object so far."""
    rest: Json = field(default_factory=dict)
    """The list's other members so far, such as `metadata`."""

    def read(self, text: str, at: int = 0) -> int:
        """Read a list, and return where it ends; raises MalformedError where the text ends before.

        It raises that for what is no object, too.
        """
        at = _after(text, at, "{")
        while True:
            name, at = _value(text, at)
            at = _after(text, at, ":")
            if name in _MEMBERS and text.startswith("[", _past_white(text, at)):
                at = self._items(text, _after(text, at, "["))
            else:
                self.rest[str(name)], at = _value(text, at)
            at = _after(text, at, ",}")
            if text[at - 1] == "}":
                return at

    def read_begun(self, begun: bytearray) -> None:
        """Read the objects that arrived whole of a list that is too large."""
        with suppress(MalformedError):
            self.read(begun.decode(errors="replace"))

    def identify(self, begun: bytearray) -> None:
        """Let the one object of a list be what is `identified` of it, for it is too large."""
        if len(self.kept) > 1 or "metadata" not in self.rest:
            raise MalformedError("more than one object, though one was asked for")
        at = max(begun.find(f'"{name}"'.encode()) for name in _MEMBERS)
        self.kept = [self.keep(identified(begun[at:]))]

    def _items(self, text: str, at: int) -> int:
        """Read objects up to the bracket that ends them; return where it went on."""
        if text.startswith("]", _past_white(text, at)):
            return _after(text, at, "]")
        columns = self.rest.get("columnDefinitions")
        while True:
            item, at = _value(text, at)
            if not isinstance(item, dict):
                raise MalformedError("an item of the list is not an object")
            if columns:
                item["cells"] = _named_cells(columns, item.get("cells"))
            self.kept.append(self.keep(item))
            del item  # two trees at a time would be twice the memory
            at = _after(text, at, ",]")
            if text[at - 1] == "]":
                return at


def _named_cells(columns: object, cells: object) -> Json:
    """Return the cells of a row by the names of their columns."""
    if not isinstance(columns, list) or not isinstance(cells, list):
        raise MalformedError("a table without columns or cells")
    names = [one.get("name") if isinstance(one, dict) else None for one in columns]
    return {str(name): cell for name, cell in zip(names, cells, strict=False)}


def _value(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value at a position, and where it ends."""
    try:
        return _decode(text, _past_white(text, at))
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error)) from error


def _after(text: str, at: int, expected: str) -> int:
    """Return the position after one of the expected characters."""
    at = _past_white(text, at)
    if text[at : at + 1] not in tuple(expected):
        raise MalformedError(f"expected one of {expected} at character {at} of a list")
    return at + 1


def _past_white(text: str, at: int) -> int:
    found = _white(text, at)
    return found.end() if found else at
