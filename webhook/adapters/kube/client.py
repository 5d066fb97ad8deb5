"""The only access to the API server: objects as plain JSON, so that no unknown field is lost.

From the client `kubernetes` come the configuration (see `kubeconfig`), the credentials, renewed
where they expire, and the connection pool. Not its call layer, which changed between the versions
we support and turns answers into models. Threads are the caller's; one `Kube` may serve several.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from copy import copy
from email.utils import mktime_tz, parsedate_tz
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client
from kubernetes.config.config_exception import ConfigException

from webhook.adapters.kube.impersonation import NO_LIMIT_S, Identity
from webhook.adapters.kube.kubeconfig import Kubeconfig, KubeconfigError
from webhook.adapters.kube.reading import (
    MOST_BYTES,
    ListReader,
    MalformedError,
    ReadLock,
    TooLargeError,
    event_type,
    free_at_once,
    gather,
    identified,
    lines,
    read_object,
)

Json = dict[str, Any]

T = TypeVar("T")

FIELD_MANAGER: Final = "vramwarden"
"""Who we are in `metadata.managedFields`."""

FIRST_PAGE: Final = 50
PAGE: Final = 500
"""Objects of a list that are asked for at first and at most. Nobody knows how large they are, and
an API server that has to send hundreds of 1 MB is slow for all."""

PAGE_BYTES: Final = 4 * 2**20
"""Of a list, in memory at a time: 500 ordinary pods. Where so many objects are larger, fewer are
asked for; a single one may have `MOST_BYTES`."""

MOST_AT_ONCE_BYTES: Final = 64 * 2**20
"""Of a list that is read in one answer: our own small objects, of 10,000 nodes."""

_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 10.0
_TRIES: Final = 3
_CONNECTIONS: Final = 32
"""Kept open for further requests: a replica has so many threads, each with a watch or a request."""
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 5.0
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""A connection on which nothing arrives any more ends after a minute, so that a watch may be long;
systems other than Linux lack some of these (tcp(7))."""

_JSON: Final = "application/json"
_TABLE: Final = f"application/json;as=Table;g=meta.k8s.io;v=v1,{_JSON}"
"""Where no table can be had, the objects themselves."""
_TEXT: Final = f"text/plain,{_JSON}"
_MERGE_PATCH: Final = "application/merge-patch+json"
_STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
_BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 400, 401, 403, 404
_CONFLICT, _GONE, _GATEWAY_TIMEOUT = 409, 410, 504
_RETRYABLE: Final = frozenset({429, 500, 502, 503, _GATEWAY_TIMEOUT})
"""Overload, and failures of the API server or of a proxy in front of it."""

_denied: Final = re.compile(r" denied (the )?request: |: exceeded quota: ").search
"""What the API server says where a webhook, a policy or a quota denied it, and not RBAC."""

_OUR_RIGHT: Final = "the right is missing from our role"
_YOUR_RIGHT: Final = "you lack this right; ask whoever administers this cluster for it"
"""What stands behind an answer that a right is missing: of a program, and of who runs a command."""

_WARNING: Final = re.compile(r'299 \S+ "(.*)"\Z')
"""A header `Warning` (RFC 7234, 5.5) as API servers write it: all are bounded there to 4 KiB."""
_ESCAPED: Final = re.compile(r"\\(.)")
_objects: Final = re.compile(
    r"HTTPS?Connection(Pool)?\(host='[^']*', port=\w*\): |\[Errno -?\d+\] "
).sub
_impersonates: Final = re.compile(r" cannot impersonate[ -]").search
"""What it says where whom we act as is the trouble, not what we ask."""
_lacks: Final = re.compile(r' cannot \S+ (resource|path) "').search
"""What RBAC says, and no admission plugin."""

_FAILURES: Final = (urllib3.exceptions.HTTPError, OSError)  # a TimeoutError is an OSError
_PART_BYTES: Final = 64 * 2**10
_LONGEST_MESSAGE: Final = 2000


class KubeError(Exception):
    """A request that failed: a sentence, and what kind of failure it is."""

    def __init__(
        self,
        sentence: str,
        *,
        code: int = 0,
        said: str = "",
        retry_after_s: float = 0.0,
        slow: bool = False,
        unauthorized: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.code = code
        """HTTP's; 0 where there was no answer."""
        self.said = said
        """The API server's message alone."""
        self.retry_after_s = retry_after_s
        self.slow = slow or code == _GATEWAY_TIMEOUT
        """The API server takes too long, perhaps because too much was asked for."""
        self.unauthorized = unauthorized or code == _UNAUTHORIZED
        """The API server does not know who we are, or lets us act as nobody else."""

    @property
    def not_found(self) -> bool:
        """The object does not exist, or not yet."""
        return self.code == _NOT_FOUND

    @property
    def forbidden(self) -> bool:
        """We may not do this, or an admission webhook or policy denied it."""
        return self.code == _FORBIDDEN and not self.unauthorized

    @property
    def lacks_right(self) -> bool:
        """Who asks has no right to it, so nothing judged what was asked."""
        return self.forbidden and bool(_lacks(self.said))

    @property
    def lacks_webhook(self) -> bool:
        """True if the API server could not call a webhook with `failurePolicy: Fail`."""
        return "failed calling webhook" in self.said

    @property
    def conflict(self) -> bool:
        """Somebody else wrote the object since it was read, or created one of that name."""
        return self.code == _CONFLICT

    @property
    def expired(self) -> bool:
        """The version from which to watch, or a list's next page, is too old: list again."""
        return self.code == _GONE

    @property
    def is_no_answer(self) -> bool:
        """Nothing is known of what was asked: no answer, or too few rights."""
        return self.retryable or self.unauthorized or self.forbidden

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed soon."""
        return self.code == 0 or self.code in _RETRYABLE


class NoClusterError(KubeError):
    """No configuration names an API server, or it cannot be used."""

    retryable = False

    def __init__(self, sentence: str, *, is_named: bool = False) -> None:
        super().__init__(sentence)
        self.is_named = is_named
        """Somebody named what cannot be used, as KubeconfigError says."""


def connect(
    kubeconfig: Path | None = None,
    *,
    context: str | None = None,
    tries: int = _TRIES,
    answer_s: float = _ANSWER_S,
    identity: Identity | None = None,
) -> Kube:
    """Find the API server as kubectl does; raises NoClusterError, and sends no request yet.

    A `context` is one of a kubeconfig, so with it a pod's service account is not used. With an
    `identity` failures say `you`, and its time limit replaces `answer_s`.

    | named by | used |
    | --- | --- |
    | `kubeconfig` | that file |
    | `KUBECONFIG` | that file, or those |
    | neither, in a pod | the pod's service account |
    | neither, elsewhere | `~/.kube/config` |
    """
    free_at_once()
    settings = client.Configuration()
    settings.retries = False  # ours are below
    settings.connection_pool_maxsize = _CONNECTIONS
    found = Kubeconfig(kubeconfig, context)
    try:
        api_client, namespace, headers = found.load(settings, identity or Identity())
    except KubeconfigError as error:
        raise NoClusterError(str(error), is_named=error.is_named) from error
    pool: urllib3.PoolManager = api_client.rest_client.pool_manager
    pool.connection_pool_kw["socket_options"] = _socket_options()
    kube = Kube(api_client, tries, answer_s, headers=headers, namespace=namespace)
    return kube if identity is None else kube.for_user(identity.limit_s)


def _socket_options() -> list[tuple[int, int, int]]:
    """Return what is set for each connection; older versions of the client cannot set it."""
    usual: list[tuple[int, int, int]] = urllib3.connection.HTTPConnection.default_socket_options
    alive = [
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _KEEP_ALIVE.items()
        if hasattr(socket, name)
    ]
    return [*usual, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *alive]


class Kube:
    """The API server; every method raises KubeError.

    Paths begin at the root, as `/api/v1/nodes`; parts that come from elsewhere go through `joined`.
    """

    listed = 0
    """Objects of lists that this process has read so far, for who says how far it is."""

    def __init__(
        self,
        api_client: Any,
        tries: int = _TRIES,
        answer_s: float = _ANSWER_S,
        *,
        headers: Collection[tuple[str, str]] = (),
        namespace: str = "",
    ) -> None:
        """Prepare; a retryable request is sent `tries` times, `answer_s` each."""
        self._tries = tries
        self._answer_s = answer_s
        self._limit_s: float | None = None
        self._lacks_right = _OUR_RIGHT
        self._headers = headers
        self.namespace = namespace
        """Of the kubeconfig's context, or of the pod; empty where neither says one."""
        self._settings = api_client.configuration
        self._pool = api_client.rest_client.pool_manager
        self._ahead_s: float | None = None
        self.url = str(self._settings.host).rstrip("/")

    def with_patience(self, tries: int, answer_s: float = _ANSWER_S) -> Kube:
        """Return the same connection, whose requests are sent so often and wait so long."""
        kube = copy(self)
        kube._tries, kube._answer_s = tries, answer_s  # noqa: SLF001 - of this class
        return kube

    def for_user(self, limit_s: float | None = None) -> Kube:
        """Return the same connection, whose failures speak to who runs a command.

        With a limit the answer to one request, all of it, takes no longer, and one that fails to
        come is not asked for again. 0 is no limit, and None leaves it at the usual.
        """
        kube = copy(self)
        kube._lacks_right = _YOUR_RIGHT  # noqa: SLF001 - of this class
        if limit_s is not None:
            kube._limit_s = limit_s or None  # noqa: SLF001
            kube._answer_s = limit_s or NO_LIMIT_S  # noqa: SLF001
        return kube

    def disconnect(self) -> None:
        """Close what is open; a process that forks must not share it with its child."""
        self._pool.clear()

    def now_s(self) -> float:
        """Return Unix time by the API server's clock, so that all its clients agree on it.

        As its last answer said in the header `Date`, to a second, and what passed since; before the
        first answer by our own clock.
        """
        ahead_s = self._ahead_s
        return time.time() if ahead_s is None else time.monotonic() + ahead_s

    def read(self, path: str, **query: str) -> Json:
        """Read an object."""
        return self._ask("GET", path, None, **query)

    def find(self, path: str) -> Json | None:
        """Read an object; None where it does not exist."""
        return self.find_kept(path, _whole)

    def find_kept(self, path: str, keep: Callable[[Json], T]) -> T | None:
        """Return what `keep` makes of an object, the rest being freed; None where none exists."""
        try:
            return self._within(lambda: self._object(self._answer("GET", path, {}), keep))
        except KubeError as error:
            if error.not_found:
                return None
            raise

    def text(self, path: str, most_bytes: int, **query: str) -> str:
        """Read a text, such as a container's log: its first `most_bytes`, and at most a part more.

        What is no UTF-8 is replaced.
        """

        def read() -> bytearray:
            with closing(self._answer("GET", path, query, accept=_TEXT)) as answer:
                try:
                    with ReadLock(self._answer_s) as lock:
                        return gather(_parts(answer), most_bytes, lock)
                except TooLargeError as error:
                    return error.begun
                except _FAILURES as error:
                    raise self._broke_off(error) from error

        return self._within(read).decode(errors="replace")

    def list_all(self, path: str, keep: Callable[[Json], T | None], **query: str) -> list[T]:
        """Return the results of `keep` for a collection's objects, without None.

        Pages are read as in `list_versioned`.
        """
        return _present(self._list(path, keep, query)[0])

    def list_versioned(
        self, path: str, keep: Callable[[Json], T], **query: str
    ) -> tuple[list[T], str]:
        """Return the results of `keep` for a collection's objects, and the collection's version.

        `keep` is called again for objects of a page that is asked for again: see `once`.

        Not from a cache, which may be behind what a watch reported before. Of an object that alone
        is too large, `keep` gets what `identified` describes.

        | a page | then |
        | --- | --- |
        | was read | the next may have twice as many objects, if so many of them fit |
        | is too large | the same with as many objects as did fit |
        | takes too long | the same with a tenth of the objects, and so to the end |
        | has expired | all again from the start, once |
        """
        return self._list(path, keep, query)

    def list_rows(self, path: str, keep: Callable[[Json], T | None], **query: str) -> list[T]:
        """Return the results of `keep` for the rows of a collection's table, as `list_all`.

        A row has `cells`, by the names of their columns, and the `object`'s metadata alone. A
        server that makes no tables answers with whole objects, and `keep` gets those.

        Source: Kubernetes API concepts, "Receiving resources as Tables".
        """
        asked = {"includeObject": "Metadata", **query}
        return _present(self._list(path, keep, asked, _TABLE)[0])

    def list_names(self, path: str) -> list[str]:
        """Return the names of a collection's objects, and read little more than these."""

        def name(row: Json) -> str | None:
            cells, metadata = row.get("cells") or {}, row.get("metadata") or {}
            return cells.get("Name") or metadata.get("name")

        return self.list_rows(path, name, includeObject="None")

    def list_cached(self, path: str, keep: Callable[[Json], T | None], **query: str) -> list[T]:
        """Return the results of `keep` for a collection's objects, as `list_all`, by one answer.

        From the API server's cache, so it costs etcd nothing and may be seconds old; that cache
        answers without pages, compressed. What is larger than `MOST_AT_ONCE_BYTES` is read in
        pages after all.
        """
        reader = ListReader(keep)

        def read() -> bool:
            answer = self._answer("GET", path, {**query, "resourceVersion": "0"}, gzip=True)
            with closing(answer), ReadLock(self._answer_s) as lock:
                try:
                    reader.read(gather(_parts(answer), MOST_AT_ONCE_BYTES, lock).decode())
                except TooLargeError:
                    return False
                except (*_FAILURES, UnicodeDecodeError, MalformedError) as error:
                    raise self._broke_off(error) from error
                Kube.listed += len(reader.kept)
                return True

        return _present(reader.kept) if self._within(read) else self.list_all(path, keep, **query)

    def _list(
        self,
        path: str,
        keep: Callable[[Json], T],
        query: Mapping[str, str],
        accept: str = _JSON,
    ) -> tuple[list[T], str]:
        """Read page after page as `list_versioned` says."""
        kept: list[T] = []
        token, limit, largest, may_restart = "", FIRST_PAGE, PAGE, True
        while True:
            try:
                asked = (path, keep, token, limit, query, accept)
                page, version, token, fitting = self._within(partial(self._page, *asked))
            except _PageTooLargeError as error:
                limit = min(max(1, error.fit), limit - 1)
                continue
            except KubeError as error:
                if error.slow and limit > 1 and self._limit_s is None:
                    largest = limit = max(1, limit // 10)
                elif error.expired and token and may_restart:
                    kept, token, may_restart = [], "", False
                else:
                    raise
                continue
            kept += page
            Kube.listed += len(page)
            if not token:
                return kept, version
            limit = max(1, min(largest, 2 * limit, fitting))

    def _page(
        self,
        path: str,
        keep: Callable[[Json], T],
        token: str,
        limit: int,
        query: Mapping[str, str],
        accept: str,
    ) -> tuple[list[T], str, str, int]:
        """Return what is kept of a page, its version, the next one's token, how many would fit.

        Raises _PageTooLargeError where fewer objects have to be asked for.

        Pages of one list may differ in `limit`: Kubernetes' own test of them does it ("Servers with
        support for API chunking").
        """
        page = ListReader(keep)
        paging = {"limit": str(limit)} | ({"continue": token} if token else {})
        most_bytes = PAGE_BYTES if limit > 1 else MOST_BYTES
        with (
            closing(
                self._answer("GET", path, {**query, **paging}, may_be_slow=limit > 1, accept=accept)
            ) as answer,
            ReadLock(self._answer_s) as lock,
        ):
            try:
                try:
                    data = gather(_parts(answer), most_bytes, lock)
                    read_bytes, text = len(data), data.decode()
                    del data
                    page.read(text)
                except TooLargeError as error:
                    read_bytes = len(error.begun)
                    page.read_begun(error.begun)
                    if limit > 1:
                        raise _PageTooLargeError(len(page.kept)) from error
                    page.identify(error.begun)
            except (*_FAILURES, UnicodeDecodeError, MalformedError) as error:
                raise self._broke_off(error) from error
        metadata = page.rest.get("metadata") or {}
        version, token = str(metadata.get("resourceVersion", "")), metadata.get("continue") or ""
        return page.kept, version, token, len(page.kept) * PAGE_BYTES // max(1, read_bytes)

    def create(self, path: str, body: Json) -> Json:
        """Create an object in the collection at `path`; return it as it is stored."""
        return self._ask("POST", path, body, fieldManager=FIELD_MANAGER)

    def try_create(self, path: str, body: Json) -> tuple[Json, tuple[str, ...]]:
        """Return an object as it would be stored if it were created, and all warnings.

        A dry run: it goes all the way through admission, and nothing is stored.
        """
        query = {"fieldManager": FIELD_MANAGER, "dryRun": "All"}

        def ask() -> tuple[Json, tuple[str, ...]]:
            answer = self._answer("POST", path, query, body)
            warned = map(_WARNING.match, answer.headers.getlist("Warning"))
            texts = tuple(_ESCAPED.sub(r"\1", one[1]) for one in warned if one)
            return self._object(answer, _whole), texts

        return self._within(ask)

    def replace(self, path: str, body: Json) -> Json:
        """Replace an object; a conflict where its `resourceVersion` is not the stored one."""
        return self._ask("PUT", path, body, fieldManager=FIELD_MANAGER)

    def patch(self, path: str, body: Json, content_type: str = _STRATEGIC_PATCH) -> Json:
        """Apply a patch, usually one that finds the items of lists by name; return the object."""
        return self._ask("PATCH", path, body, content_type, fieldManager=FIELD_MANAGER)

    def merge(self, path: str, body: Json) -> Json:
        """Apply a JSON merge patch (RFC 7386); a conflict where it names another version."""
        return self.patch(path, body, _MERGE_PATCH)

    def delete(self, path: str, *, uid: str = "", version: str = "") -> None:
        """Delete an object, if it still has this UID and version; a conflict where it has not."""
        wanted = {"uid": uid, "resourceVersion": version}
        preconditions = {key: value for key, value in wanted.items() if value}
        self._ask("DELETE", path, {"preconditions": preconditions})

    def watch(self, path: str, *, lasting_s: float, **query: str) -> Iterator[tuple[str, Json]]:
        """Begin to watch a collection; yield the type and the object of each event.

        Bookmarks come, too, where they are requested. Ends after a while, so that a connection that
        died silently costs no more than that; `expired` means to list, and watch from there.
        """
        query = {"watch": "true", **query, "timeoutSeconds": str(max(1, round(lasting_s)))}
        answer = self._send("GET", path, None, query, lasting_s + _ANSWER_S)
        return self._events(answer, f"the watch of {path} broke off")

    def node(self, name: str) -> Json:
        """Read a node."""
        return self.read(joined("nodes", name))

    def patch_node(self, name: str, patch: Json, *, status: bool = False) -> Json:
        """Apply a patch to a node or to its status; return the node as it is then.

        A JSON merge patch, since a strategic one would merge taints; to the status a strategic one,
        since the other would replace all conditions.
        """
        path = joined("nodes", name)
        return self.patch(f"{path}/status", patch) if status else self.merge(path, patch)

    def _events(self, answer: Any, broke_off: str) -> Iterator[tuple[str, Json]]:
        """Yield the event in each line of a watch.

        Source: Kubernetes API concepts, "Efficient detection of changes".
        """
        with closing(answer), ReadLock(_ANSWER_S) as lock:
            try:
                for line, whole in lines(_parts(answer), MOST_BYTES, lock):
                    kind, thing = _event(line, whole=whole)
                    del line
                    if kind == "ERROR":
                        raise self._failure(thing.get("code") or 0, thing)
                    yield kind, thing
                    del thing
            except (*_FAILURES, MalformedError) as error:
                raise KubeError(f"{self.url}: {broke_off}: {error}") from error

    def _ask(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = _JSON,
        **query: str,
    ) -> Json:
        """Send a request that may be sent twice; return the object in its answer."""
        return self._within(
            lambda: self._object(self._answer(method, path, query, body, content_type), _whole)
        )

    def _within(self, work: Callable[[], T]) -> T:
        """Do what asks and reads one answer, within the limit that a person has set.

        On a thread, which is left behind: a server may send headers, or a body, byte by byte.
        """
        if self._limit_s is None:
            return work()
        done: Queue[Callable[[], T]] = Queue()
        Thread(target=lambda: done.put(_outcome(work)), name="request", daemon=True).start()
        try:
            return done.get(timeout=self._limit_s)()
        except (Empty, KubeError) as error:
            if isinstance(error, KubeError) and (error.code or not error.slow):
                raise
            why = f"{self.url} does not answer within {self._limit_s:g}s (--request-timeout)"
            raise KubeError(why, slow=True) from None

    def _object(self, answer: Any, keep: Callable[[Json], T]) -> T:
        """Return what `keep` makes of the object in an answer."""
        with closing(answer), ReadLock(self._answer_s) as lock:
            try:
                found = read_object(gather(_parts(answer), MOST_BYTES, lock))
            except TooLargeError as error:
                raise KubeError(f"{self.url} answers with more than {MOST_BYTES} bytes") from error
            except (*_FAILURES, MalformedError) as error:
                raise self._broke_off(error) from error
            return keep(found)

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None = None,
        content_type: str = _JSON,
        *,
        may_be_slow: bool = False,
        accept: str = _JSON,
        gzip: bool = False,
    ) -> Any:
        """Return the answer to a request that may be sent twice; see `_send`.

        It is sent again where the failure is retryable; one that `may_be_slow` not where it is.
        """
        pause_s = _FIRST_PAUSE_S
        wanted = {"Accept": accept} | ({"Accept-Encoding": "gzip"} if gzip else {})
        for left in reversed(range(self._tries)):
            try:
                return self._send(method, path, body, query, self._answer_s, content_type, wanted)
            except KubeError as error:
                is_late = (error.slow and may_be_slow) or (self._limit_s and not error.code)
                if not left or not error.retryable or is_late:
                    raise
                time.sleep(min(max(pause_s, error.retry_after_s), _LONGEST_PAUSE_S))
                pause_s *= 2
        raise AssertionError  # the last try returns or raises

    def _send(
        self,
        method: str,
        path: str,
        body: Json | None,
        query: Mapping[str, str],
        read_s: float,
        content_type: str = _JSON,
        wanted: Mapping[str, str] = MappingProxyType({"Accept": _JSON}),
    ) -> Any:
        """Return the answer, of which only the headers were read; raises where it is a failure."""
        headers = urllib3.HTTPHeaderDict({"User-Agent": FIELD_MANAGER, **wanted})
        for name, value in self._headers:
            headers.add(name, value)
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            for setting in self._settings.auth_settings().values():  # renews the token, too
                headers[setting["key"]] = setting["value"]
            answer: Any = self._pool.request(
                method,
                f"{self.url}{path}?{urlencode(query)}",
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=min(_CONNECT_S, read_s), read=read_s),
                retries=False,
                preload_content=False,
            )
        except (*_FAILURES, ConfigException) as error:
            slow = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            raise KubeError(
                f"{self.url} does not answer: {_without_objects(error)}", slow=slow
            ) from error
        date = parsedate_tz(answer.headers.get("Date"))
        if date:
            self._ahead_s = mktime_tz(date) - time.monotonic()
        if answer.status < _BAD_REQUEST:
            return answer
        try:
            status = self._object(answer, _whole)
        except KubeError:
            status = {}
        raise self._failure(answer.status, status, answer.headers.get("Retry-After", ""))

    def _broke_off(self, error: Exception) -> KubeError:
        slow = isinstance(error, urllib3.exceptions.ReadTimeoutError)
        return KubeError(
            f"{self.url}: reading its answer broke off: {_without_objects(error)}", slow=slow
        )

    def _failure(self, code: int, status: Json, retry_after: str = "") -> KubeError:
        """Return the failure that an answer means: the API server's message, and our hint."""
        said = str(status.get("message") or "")[:_LONGEST_MESSAGE]
        why = f"{self.url} answers {code}" + (f": {said}" if said else "")
        if code == _UNAUTHORIZED:
            why += " (it does not accept our token or certificate)"
        acts_as = dict(self._headers).get("Impersonate-User")
        may_not_act = bool(code == _FORBIDDEN and acts_as and _impersonates(said))
        if may_not_act:
            why += f" (you may not act as {acts_as}, as --as or `as` in the kubeconfig says)"
        elif code == _FORBIDDEN and not _denied(said):
            why += f" ({self._lacks_right})"
        seconds = float(retry_after) if retry_after.isdecimal() else 0.0
        return KubeError(why, code=code, said=said, retry_after_s=seconds, unauthorized=may_not_act)


def joined(*parts: str) -> str:
    """Return a path below `/api/v1`, with each part quoted."""
    return "/".join(("/api/v1", *(quote(part, safe="") for part in parts)))


class _PageTooLargeError(Exception):
    """A page is larger than may be read."""

    def __init__(self, fit: int) -> None:
        super().__init__(fit)
        self.fit = fit
        """So many of its objects are small enough together."""


def _present(kept: list[T | None]) -> list[T]:
    return [one for one in kept if one is not None]


def _whole(found: Json) -> Json:
    """Keep all of an object."""
    return found


def _without_objects(error: Exception) -> str:
    """Return what went wrong, without the names of Python's objects."""
    return _objects("", str(error))


def _outcome(work: Callable[[], T]) -> Callable[[], T]:
    """Do something, and return what returns or raises the same elsewhere."""
    try:
        done = work()
    except Exception as error:  # noqa: BLE001 - raised again, where somebody waits
        return partial(_raise, error)
    return lambda: done


def _raise(error: Exception) -> NoReturn:
    raise error


def _parts(answer: Any) -> Iterator[bytes]:
    """Yield what an answer consists of, as soon as it arrives."""
    parts: Iterator[bytes] = answer.stream(_PART_BYTES, decode_content=True)
    return parts


def _event(line: bytearray, *, whole: bool) -> tuple[str, Json]:
    """Return the type and the object of an event."""
    if not whole:
        return event_type(line), identified(line)
    event = read_object(line)
    thing = event.get("object")
    return str(event.get("type")), thing if isinstance(thing, dict) else {}
