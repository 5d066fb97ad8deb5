"""Reading, listing, watching and writing objects of the API server, as plain JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

from webhook.adapters.kube.bounded_json import (
    MAX_OBJECT_BYTES,
    Json,
    LargeAnswerLock,
    ListReader,
    MalformedError,
    TooLargeError,
    read_all,
    read_event_type,
    read_identity,
    read_object,
    split_lines,
)
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.transport import (
    FIELD_MANAGER,
    JSON,
    TIMEOUT_S,
    TRANSPORT_ERRORS,
    Transport,
    parts,
    whole_object,
)

T = TypeVar("T")

FIRST_PAGE: Final = 50
PAGE: Final = 500
"""Maximum number of objects in a page of a list. The size of objects is not known before, and an
API server that sends hundreds of objects of 1 MB slows down for all clients."""

PAGE_BYTES: Final = 4 * 2**20
"""Maximum size of a page in memory, in bytes: 500 ordinary pods. If objects are larger, fewer
are requested. A single object may have `MAX_OBJECT_BYTES`."""

MAX_SINGLE_ANSWER_BYTES: Final = 64 * 2**20
"""Maximum size of a list read in one response, in bytes: vramwarden's own objects of 10,000
nodes."""

_TABLE: Final = f"application/json;as=Table;g=meta.k8s.io;v=v1,{JSON}"
"""Accepts whole objects if the API server does not return tables."""
_TEXT: Final = f"text/plain,{JSON}"
_MERGE_PATCH: Final = "application/merge-patch+json"
_STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"

_WARNING: Final = re.compile(r'299 \S+ "(.*)"\Z')
"""Matches an API server's `Warning` header (RFC 7234, 5.5). It limits all warnings to 4 KiB."""
_ESCAPED: Final = re.compile(r"\\(.)")


class Kube(Transport):
    """Access to the API server's objects; every method raises KubeError.

    Paths begin at the root, such as `/api/v1/nodes`. Path segments from untrusted sources must be
    quoted, see `core_path`. `project` is called for each object that is read. Only its result is
    kept, and the object is freed.
    """

    objects_listed = 0
    """Number of listed objects that this process has read, to show progress."""

    def read(self, path: str, **query: str) -> Json:
        """Return an object."""
        return self._request_object("GET", path, None, **query)

    def find(self, path: str) -> Json | None:
        """Return an object, or None if it does not exist."""
        return self.find_parsed(path, whole_object)

    def find_parsed(self, path: str, project: Callable[[Json], T]) -> T | None:
        """Return the result of `project` for an object, or None if the object does not exist."""
        try:
            return self._within_limit(
                lambda: self._read_object(self._request("GET", path, {}), project)
            )
        except KubeError as error:
            if error.not_found:
                return None
            raise

    def read_text(self, path: str, max_bytes: int, **query: str) -> str:
        """Return the first `max_bytes` of a text, such as a container's log.

        The result can be longer by one received part. Invalid UTF-8 is replaced.
        """

        def read() -> bytearray:
            with closing(self._request("GET", path, query, accept=_TEXT)) as answer:
                try:
                    with LargeAnswerLock(self._timeout_s) as lock:
                        return read_all(parts(answer), max_bytes, lock)
                except TooLargeError as error:
                    return error.beginning
                except TRANSPORT_ERRORS as error:
                    raise self._broken_answer(error) from error

        return self._within_limit(read).decode(errors="replace")

    def list_all(self, path: str, project: Callable[[Json], T | None], **query: str) -> list[T]:
        """Return the results of `project` for a collection's objects, except None.

        Pages are read as in `list_versioned`.
        """
        return _without_none(self._list(path, project, query)[0])

    def list_versioned(
        self, path: str, project: Callable[[Json], T], **query: str
    ) -> tuple[list[T], str]:
        """Return the results of `project` for a collection's objects, and the collection's version.

        `project` may be called several times for an object, since a page may be requested again.

        The list does not come from the API server's cache, which may be older than what a watch has
        reported. For a single object that is too large, `project` gets the result of
        `read_identity`.

        | a page | next request |
        | --- | --- |
        | was read | the next page, with up to twice as many objects if they fit |
        | is too large | the same page, with as many objects as fit |
        | takes too long | the same page, with a tenth of the objects, which remains the page size |
        | has expired | the first page again, once |
        """
        return self._list(path, project, query)

    def list_rows(self, path: str, project: Callable[[Json], T | None], **query: str) -> list[T]:
        """Return the results of `project` for the rows of a collection's table, except None.

        A row has `cells`, keyed by column name, and `object`, which has only metadata. If the API
        server does not return tables, `project` gets whole objects instead.

        Source: Kubernetes API concepts, "Receiving resources as Tables".
        """
        table_query = {"includeObject": "Metadata", **query}
        return _without_none(self._list(path, project, table_query, _TABLE)[0])

    def list_names(self, path: str) -> list[str]:
        """Return the names of a collection's objects without transferring the objects."""

        def read_name(row: Json) -> str | None:
            cells, metadata = row.get("cells") or {}, row.get("metadata") or {}
            return cells.get("Name") or metadata.get("name")

        return self.list_rows(path, read_name, includeObject="None")

    def list_cached(self, path: str, project: Callable[[Json], T | None], **query: str) -> list[T]:
        """Return the results of `project` for a collection, except None, in one response.

        The response is compressed and comes from the API server's cache. It costs etcd nothing and
        may be seconds old. The cache does not serve pages, so a list larger than
        `MAX_SINGLE_ANSWER_BYTES` is read as in `list_all`.
        """
        reader = ListReader(project)

        def read() -> bool:
            answer = self._request("GET", path, {**query, "resourceVersion": "0"}, gzip=True)
            with closing(answer), LargeAnswerLock(self._timeout_s) as lock:
                try:
                    reader.read(read_all(parts(answer), MAX_SINGLE_ANSWER_BYTES, lock).decode())
                except TooLargeError:
                    return False
                except (*TRANSPORT_ERRORS, UnicodeDecodeError, MalformedError) as error:
                    raise self._broken_answer(error) from error
                Kube.objects_listed += len(reader.projected)
                return True

        if self._within_limit(read):
            return _without_none(reader.projected)
        return self.list_all(path, project, **query)

    def _list(
        self,
        path: str,
        project: Callable[[Json], T],
        query: Mapping[str, str],
        accept: str = JSON,
    ) -> tuple[list[T], str]:
        projected: list[T] = []
        token, limit, largest, may_restart = "", FIRST_PAGE, PAGE, True
        while True:
            try:
                request = (path, project, token, limit, query, accept)
                page, version, token, fitting = self._within_limit(
                    partial(self._read_page, *request)
                )
            except _PageTooLargeError as error:
                limit = min(max(1, error.fitting), limit - 1)
                continue
            except KubeError as error:
                if error.slow and limit > 1 and self._limit_s is None:
                    largest = limit = max(1, limit // 10)
                elif error.expired and token and may_restart:
                    projected, token, may_restart = [], "", False
                else:
                    raise
                continue
            projected += page
            Kube.objects_listed += len(page)
            if not token:
                return projected, version
            limit = max(1, min(largest, 2 * limit, fitting))

    def _read_page(
        self,
        path: str,
        project: Callable[[Json], T],
        token: str,
        limit: int,
        query: Mapping[str, str],
        accept: str,
    ) -> tuple[list[T], str, str, int]:
        """Return a page's projected objects, its version, the next page's token, and a page size.

        The page size is the number of such objects that fit into `PAGE_BYTES`. Raises
        _PageTooLargeError if fewer objects must be requested.

        Pages of one list may differ in `limit`, as in Kubernetes' own test ("Servers with support
        for API chunking").
        """
        page = ListReader(project)
        paging = {"limit": str(limit)} | ({"continue": token} if token else {})
        max_bytes = PAGE_BYTES if limit > 1 else MAX_OBJECT_BYTES
        with (
            closing(
                self._request(
                    "GET", path, {**query, **paging}, may_be_slow=limit > 1, accept=accept
                )
            ) as answer,
            LargeAnswerLock(self._timeout_s) as lock,
        ):
            try:
                try:
                    data = read_all(parts(answer), max_bytes, lock)
                    read_bytes, text = len(data), data.decode()
                    del data
                    page.read(text)
                except TooLargeError as error:
                    read_bytes = len(error.beginning)
                    page.read_beginning(error.beginning)
                    if limit > 1:
                        raise _PageTooLargeError(len(page.projected)) from error
                    page.keep_identity(error.beginning)
            except (*TRANSPORT_ERRORS, UnicodeDecodeError, MalformedError) as error:
                raise self._broken_answer(error) from error
        metadata = page.other_members.get("metadata") or {}
        version, token = str(metadata.get("resourceVersion", "")), metadata.get("continue") or ""
        fitting = len(page.projected) * PAGE_BYTES // max(1, read_bytes)
        return page.projected, version, token, fitting

    def create(self, path: str, body: Json) -> Json:
        """Create an object in the collection at `path`; return the stored object."""
        return self._request_object("POST", path, body, fieldManager=FIELD_MANAGER)

    def dry_run_create(self, path: str, body: Json) -> tuple[Json, tuple[str, ...]]:
        """Return an object as creating it would store it, and all warnings.

        The request passes all of admission, but stores nothing.
        """
        query = {"fieldManager": FIELD_MANAGER, "dryRun": "All"}

        def send() -> tuple[Json, tuple[str, ...]]:
            answer = self._request("POST", path, query, body)
            warnings = map(_WARNING.match, answer.headers.getlist("Warning"))
            texts = tuple(_ESCAPED.sub(r"\1", found[1]) for found in warnings if found)
            return self._read_object(answer, whole_object), texts

        return self._within_limit(send)

    def replace(self, path: str, body: Json) -> Json:
        """Replace an object; raises a conflict if its `resourceVersion` is not the stored one."""
        return self._request_object("PUT", path, body, fieldManager=FIELD_MANAGER)

    def patch(self, path: str, body: Json, content_type: str = _STRATEGIC_PATCH) -> Json:
        """Apply a patch, by default a strategic merge patch; return the object."""
        return self._request_object("PATCH", path, body, content_type, fieldManager=FIELD_MANAGER)

    def merge(self, path: str, body: Json) -> Json:
        """Apply a JSON merge patch (RFC 7386); raises a conflict if it names another version."""
        return self.patch(path, body, _MERGE_PATCH)

    def delete(self, path: str, *, uid: str = "", version: str = "") -> None:
        """Delete an object; raises a conflict if its UID or version differs."""
        required = {"uid": uid, "resourceVersion": version}
        preconditions = {key: value for key, value in required.items() if value}
        self._request_object("DELETE", path, {"preconditions": preconditions})

    def watch(self, path: str, *, lasting_s: float, **query: str) -> Iterator[tuple[str, Json]]:
        """Start a watch of a collection; yield type and object of each event.

        Bookmarks are included if requested. The watch ends after about `lasting_s`, so that a
        connection that died silently is noticed. After an error with `expired`, list again and
        watch from the list's version.
        """
        query = {"watch": "true", **query, "timeoutSeconds": str(max(1, round(lasting_s)))}
        answer = self._send("GET", path, None, query, lasting_s + TIMEOUT_S)
        return self._events(answer, f"the watch of {path} broke off")

    def node(self, name: str) -> Json:
        """Return a Node."""
        return self.read(core_path("nodes", name))

    def patch_node(self, name: str, patch: Json, *, status: bool = False) -> Json:
        """Apply a patch to a Node or to its status; return the patched Node.

        The patch of a Node is a JSON merge patch, since a strategic one would merge taints. The
        patch of a status is a strategic merge patch, since a JSON merge patch would replace all
        conditions.
        """
        path = core_path("nodes", name)
        return self.patch(f"{path}/status", patch) if status else self.merge(path, patch)

    def _events(self, answer: Any, broke_off: str) -> Iterator[tuple[str, Json]]:
        """Yield the event in each line of a watch.

        Source: Kubernetes API concepts, "Efficient detection of changes".
        """
        with closing(answer), LargeAnswerLock(TIMEOUT_S) as lock:
            try:
                for line, complete in split_lines(parts(answer), MAX_OBJECT_BYTES, lock):
                    kind, found = _read_event(line, complete=complete)
                    del line
                    if kind == "ERROR":
                        raise self._failure(found.get("code") or 0, found)
                    yield kind, found
                    del found
            except (*TRANSPORT_ERRORS, MalformedError) as error:
                raise KubeError(f"{self.url}: {broke_off}: {error}") from error


def core_path(*segments: str) -> str:
    """Return a path below `/api/v1`, with each segment quoted."""
    return "/".join(("/api/v1", *(quote(segment, safe="") for segment in segments)))


class _PageTooLargeError(Exception):
    """A page is larger than `PAGE_BYTES`."""

    def __init__(self, fitting: int) -> None:
        super().__init__(fitting)
        self.fitting = fitting
        """Number of the page's objects that fit into `PAGE_BYTES`."""


def _without_none(values: list[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def _read_event(line: bytearray, *, complete: bool) -> tuple[str, Json]:
    """Return type and object of a watch event, given its line or the line's prefix."""
    if not complete:
        return read_event_type(line), read_identity(line)
    event = read_object(line)
    found = event.get("object")
    return str(event.get("type")), found if isinstance(found, dict) else {}
