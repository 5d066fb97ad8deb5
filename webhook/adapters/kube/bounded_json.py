"""Parser for the API server's JSON that bounds memory, whatever tenants have stored.

A list is parsed object by object, so only one object at a time is a tree of Python objects. Only
one thread of a process parses large responses at a time. An object that takes etcd's 1.5 MiB can
become 9 MiB of JSON (a control character is escaped with six) or a tree of 55 MiB (300,000
variables).
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

MAX_OBJECT_BYTES: Final = 16 * 2**20
"""Maximum size of one object's JSON, in bytes. With its default `--max-request-bytes` (1.5 MiB),
etcd stores no larger object."""

LARGE_BYTES: Final = 64 * 2**10
"""Size in bytes above which only one thread at a time parses a response. A typical pod has 7
KiB."""

_MMAP_THRESHOLD, _BLOCK_BYTES = -3, 128 * 2**10  # malloc.h; glibc's initial threshold

_HEAD_BYTES: Final = 8 * 2**10
"""Length of an object's prefix that contains its name and UID, in bytes."""

_ARRAYS: Final = ("items", "rows")
"""Members that contain the objects of a list or a table. A table's columns precede its rows."""

_decode: Final = json.JSONDecoder().raw_decode
_white: Final = re.compile(r"[ \t\n\r]*").match
_large_answer_lock: Final = Lock()

# The API server writes these fields first, in the order of the Go structs (ObjectMeta). None of
# them may contain a quote or a backslash. In any other string, quotes are escaped by a backslash.
_EVENT: Final = re.compile(r'\s*\{\s*"type"\s*:\s*"(\w+)"')
_IDENTITY: Final = re.compile(r'"metadata"\s*:\s*\{((?:\s*"\w+"\s*:\s*"[^"\\]*"\s*,?)+)')


def return_freed_memory() -> None:
    """Make the process return large freed blocks to the system from now on.

    Otherwise glibc raises its threshold to the largest block that was freed (mallopt(3),
    M_MMAP_THRESHOLD). Then the heap of each thread that has read an object of 9 MiB keeps twice as
    much: 32 threads kept 90 MiB. Other C libraries are not affected.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)


class MalformedError(Exception):
    """The received data is not the expected JSON."""


class TooLargeError(Exception):
    """The response is larger than allowed."""

    def __init__(self, beginning: bytearray) -> None:
        super().__init__("larger than may be read")
        self.beginning = beginning
        """Bytes received before the limit was reached."""


class LargeAnswerLock:
    """Lock that a thread holds while it parses a large response; there is one per process."""

    def __init__(self, wait_s: float) -> None:
        """`claim` raises TimeoutError if another thread holds the lock for `wait_s`."""
        self._wait_s = wait_s
        self._is_held = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        self.release()

    def claim(self, read_bytes: int) -> None:
        """Acquire the process-wide lock if a response of this size is large."""
        if read_bytes > LARGE_BYTES and not self._is_held:
            if not _large_answer_lock.acquire(timeout=self._wait_s):
                raise TimeoutError("other large answers are being read")
            self._is_held = True

    def release(self) -> None:
        """Release the lock if it is held."""
        if self._is_held:
            self._is_held = False
            _large_answer_lock.release()


def read_all(parts: Iterable[bytes], max_bytes: int, lock: LargeAnswerLock) -> bytearray:
    """Return the joined parts.

    Raises TooLargeError if they have more than `max_bytes`. At most one further part is read.
    """
    joined = bytearray()
    for part in parts:
        joined += part
        lock.claim(len(joined))
        if len(joined) > max_bytes:
            raise TooLargeError(joined)
    return joined


def split_lines(
    parts: Iterable[bytes], max_bytes: int, lock: LargeAnswerLock
) -> Iterator[tuple[bytearray, bool]]:
    """Yield each line as soon as it arrives, and True if it is complete.

    If a line is too large, only its prefix is yielded. Takes linear time.
    """
    line, complete = bytearray(), True
    for part in parts:
        *ends, rest = part.split(b"\n")
        for end in ends:
            if complete:
                line += end
                lock.claim(len(line))
            if line:
                yield line, complete
            line, complete = bytearray(), True
            lock.release()
        if complete:
            line += rest
            lock.claim(len(line))
        if len(line) > max_bytes:
            line, complete = line[:_HEAD_BYTES], False
            lock.release()


def read_object(data: bytes | bytearray) -> Json:
    """Parse a JSON object; raises MalformedError for anything else.

    orjson is twice as fast, but keeps a copy and an index of the text: it parses small objects.
    """
    try:
        found = orjson.loads(data) if len(data) <= LARGE_BYTES else json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error)) from error
    if not isinstance(found, dict):
        raise MalformedError("not a JSON object")
    return found


def read_identity(beginning: bytearray) -> Json:
    """Return a stand-in for an object that is too large, given its first bytes.

    The stand-in has name, namespace, uid and resourceVersion. Its `spec` is not an object, so that
    a pod is not mistaken for one without GPU requests.
    """
    found = _IDENTITY.search(beginning[:_HEAD_BYTES].decode(errors="replace"))
    if found is None:
        raise MalformedError("an object that is too large does not begin with its name")
    members = found[1].rstrip().removesuffix(",")
    return {"metadata": read_object(f"{{{members}}}".encode()), "spec": "too large to be read"}


def read_event_type(beginning: bytearray) -> str:
    """Return the type of a watch event, given its first bytes."""
    found = _EVENT.match(beginning[:_HEAD_BYTES].decode(errors="replace"))
    if found is None:
        raise MalformedError("an event that is too large does not begin with its type")
    return found[1]


@dataclass(slots=True)
class ListReader(Generic[T]):
    """Parser for a list, object by object, or for a table, row by row."""

    project: Callable[[Json], T]
    projected: list[T] = field(default_factory=list)
    """Results of `project`, one per parsed object."""
    other_members: Json = field(default_factory=dict)
    """The list's other parsed members, such as `metadata`."""

    def read(self, text: str, at: int = 0) -> int:
        """Parse the list at a position of `text`; return the position after the list.

        Raises MalformedError if the text ends early or is not a list of objects.
        """
        at = _skip_character(text, at, "{")
        while True:
            name, at = _value(text, at)
            at = _skip_character(text, at, ":")
            if name in _ARRAYS and text.startswith("[", _skip_white(text, at)):
                at = self._read_items(text, _skip_character(text, at, "["))
            else:
                self.other_members[str(name)], at = _value(text, at)
            at = _skip_character(text, at, ",}")
            if text[at - 1] == "}":
                return at

    def read_beginning(self, beginning: bytearray) -> None:
        """Parse the complete objects at the start of a list that is too large."""
        with suppress(MalformedError):
            self.read(beginning.decode(errors="replace"))

    def keep_identity(self, beginning: bytearray) -> None:
        """Use `read_identity` for the only object of a list that is too large."""
        if len(self.projected) > 1 or "metadata" not in self.other_members:
            raise MalformedError("more than one object, though one was asked for")
        at = max(beginning.find(f'"{name}"'.encode()) for name in _ARRAYS)
        self.projected = [self.project(read_identity(beginning[at:]))]

    def _read_items(self, text: str, at: int) -> int:
        """Parse objects up to the closing bracket; return the position after it."""
        if text.startswith("]", _skip_white(text, at)):
            return _skip_character(text, at, "]")
        columns = self.other_members.get("columnDefinitions")
        while True:
            item, at = _value(text, at)
            if not isinstance(item, dict):
                raise MalformedError("an item of the list is not an object")
            if columns:
                item["cells"] = _named_cells(columns, item.get("cells"))
            self.projected.append(self.project(item))
            del item  # two object trees at a time would take twice the memory
            at = _skip_character(text, at, ",]")
            if text[at - 1] == "]":
                return at


def _named_cells(columns: object, cells: object) -> Json:
    if not isinstance(columns, list) or not isinstance(cells, list):
        raise MalformedError("a table without columns or cells")
    names = [column.get("name") if isinstance(column, dict) else None for column in columns]
    return {str(name): cell for name, cell in zip(names, cells, strict=False)}


def _value(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value at a position, and the position after the value."""
    try:
        return _decode(text, _skip_white(text, at))
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error)) from error


def _skip_character(text: str, at: int, expected: str) -> int:
    """Return the position after one of the expected characters."""
    at = _skip_white(text, at)
    if text[at : at + 1] not in tuple(expected):
        raise MalformedError(f"expected one of {expected} at character {at} of a list")
    return at + 1


def _skip_white(text: str, at: int) -> int:
    found = _white(text, at)
    return found.end() if found else at
