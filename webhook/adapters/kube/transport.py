"""Requests to the API server: sending, retries, time limits, and failures as `KubeError`.

The Kubernetes client provides its configuration, credentials (renewed when they expire) and
connection pool. Its call layer is not used: it differs between the supported versions, and it turns
responses into models, which lose unknown fields.
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
from queue import Empty, Queue
from threading import Thread
from types import MappingProxyType
from typing import Any, Final, NoReturn, Self, TypeVar
from urllib.parse import urlencode

import urllib3
from kubernetes.config.config_exception import ConfigException

from webhook.adapters.kube.bounded_json import (
    MAX_OBJECT_BYTES,
    Json,
    LargeAnswerLock,
    MalformedError,
    TooLargeError,
    read_all,
    read_object,
)
from webhook.adapters.kube.errors import BAD_REQUEST, FORBIDDEN, UNAUTHORIZED, KubeError
from webhook.adapters.kube.impersonation import NO_LIMIT_S

T = TypeVar("T")

FIELD_MANAGER: Final = "vramwarden"
"""Name of vramwarden in `metadata.managedFields` and in the `User-Agent` header."""

JSON: Final = "application/json"
TIMEOUT_S: Final = 10.0
"""Default time limit of one attempt, in seconds."""
TRIES: Final = 3
TRANSPORT_ERRORS: Final = (urllib3.exceptions.HTTPError, OSError)  # TimeoutError is an OSError

_CONNECT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 5.0
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""TCP options that detect a dead connection within a minute, so that watches can be long.
Systems other than Linux lack some of them (tcp(7))."""
_PART_BYTES: Final = 64 * 2**10
_MAX_MESSAGE_LENGTH: Final = 2000

_is_admission_denial: Final = re.compile(r" denied (the )?request: |: exceeded quota: ").search
"""Matches the API server's message if a webhook, a policy or a quota denied the request."""
_is_impersonation_denial: Final = re.compile(r" cannot impersonate[ -]").search
"""Matches the API server's message if the impersonation itself is forbidden."""
_python_object_names: Final = re.compile(
    r"HTTPS?Connection(Pool)?\(host='[^']*', port=\w*\): |\[Errno -?\d+\] "
)

_OUR_RIGHT: Final = "the right is missing from our role"
_YOUR_RIGHT: Final = "you lack this right; ask whoever administers this cluster for it"
"""Hints for a missing permission: the first in programs, the second in commands."""


class Transport:
    """A connection to the API server; every method raises KubeError.

    Several threads may share one connection.
    """

    def __init__(
        self,
        api_client: Any,
        tries: int = TRIES,
        timeout_s: float = TIMEOUT_S,
        *,
        headers: Collection[tuple[str, str]] = (),
        namespace: str = "",
    ) -> None:
        """A retryable request is sent up to `tries` times, with `timeout_s` for each attempt."""
        self._tries = tries
        self._timeout_s = timeout_s
        self._limit_s: float | None = None
        self._missing_right_hint = _OUR_RIGHT
        self._headers = headers
        self.namespace = namespace
        """Namespace of the kubeconfig's context or of the pod; empty if neither is known."""
        self._settings = api_client.configuration
        self._pool = api_client.rest_client.pool_manager
        self._clock_offset_s: float | None = None
        self.url = str(self._settings.host).rstrip("/")

    def with_retries(self, tries: int, timeout_s: float = TIMEOUT_S) -> Self:
        """Return the same connection with another number of attempts and time limit per attempt."""
        changed = copy(self)
        changed._tries, changed._timeout_s = tries, timeout_s  # noqa: SLF001 - of this class
        return changed

    def for_user(self, limit_s: float | None = None) -> Self:
        """Return the same connection for a command, whose failures address the user as `you`.

        `limit_s` limits a request including its response, without retries. 0 means no limit. None
        keeps the default time limits and retries.
        """
        changed = copy(self)
        changed._missing_right_hint = _YOUR_RIGHT  # noqa: SLF001 - of this class
        if limit_s is not None:
            changed._limit_s = limit_s or None  # noqa: SLF001
            changed._timeout_s = limit_s or NO_LIMIT_S  # noqa: SLF001
        return changed

    def disconnect(self) -> None:
        """Close open connections; a process that forks must not share them with its child."""
        self._pool.clear()

    def now_s(self) -> float:
        """Return Unix time by the API server's clock, which all of its clients share.

        It is the `Date` header of the last response, in whole seconds, plus the time since that
        response. Before the first response it is the local clock.
        """
        offset_s = self._clock_offset_s
        return time.time() if offset_s is None else time.monotonic() + offset_s

    def _request_object(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = JSON,
        **query: str,
    ) -> Json:
        return self._within_limit(
            lambda: self._read_object(
                self._request(method, path, query, body, content_type), whole_object
            )
        )

    def _within_limit(self, work: Callable[[], T]) -> T:
        """Run `work`, which sends a request and reads the response, within the user's time limit.

        `work` runs on a thread, which is abandoned when the time is over: a server may send headers
        or a body byte by byte.
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

    def _read_object(self, answer: Any, project: Callable[[Json], T]) -> T:
        with closing(answer), LargeAnswerLock(self._timeout_s) as lock:
            try:
                found = read_object(read_all(parts(answer), MAX_OBJECT_BYTES, lock))
            except TooLargeError as error:
                raise KubeError(
                    f"{self.url} answers with more than {MAX_OBJECT_BYTES} bytes"
                ) from error
            except (*TRANSPORT_ERRORS, MalformedError) as error:
                raise self._broken_answer(error) from error
            return project(found)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None = None,
        content_type: str = JSON,
        *,
        may_be_slow: bool = False,
        accept: str = JSON,
        gzip: bool = False,
    ) -> Any:
        """Send a request and retry if the failure is retryable; return the response of `_send`.

        With `may_be_slow`, a request whose response takes too long is not retried.
        """
        pause_s = _FIRST_PAUSE_S
        accepted = {"Accept": accept} | ({"Accept-Encoding": "gzip"} if gzip else {})
        for remaining in reversed(range(self._tries)):
            try:
                return self._send(
                    method, path, body, query, self._timeout_s, content_type, accepted
                )
            except KubeError as error:
                is_late = (error.slow and may_be_slow) or (self._limit_s and not error.code)
                if not remaining or not error.retryable or is_late:
                    raise
                time.sleep(min(max(pause_s, error.retry_after_s), _LONGEST_PAUSE_S))
                pause_s *= 2
        raise AssertionError  # the last attempt returns or raises

    def _send(
        self,
        method: str,
        path: str,
        body: Json | None,
        query: Mapping[str, str],
        read_s: float,
        content_type: str = JSON,
        accepted: Mapping[str, str] = MappingProxyType({"Accept": JSON}),
    ) -> Any:
        """Send a request once; return the response, of which only the headers have been read."""
        headers = urllib3.HTTPHeaderDict({"User-Agent": FIELD_MANAGER, **accepted})
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
        except (*TRANSPORT_ERRORS, ConfigException) as error:
            slow = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            raise KubeError(f"{self.url} does not answer: {_readable(error)}", slow=slow) from error
        date = parsedate_tz(answer.headers.get("Date"))
        if date:
            self._clock_offset_s = mktime_tz(date) - time.monotonic()
        if answer.status < BAD_REQUEST:
            return answer
        try:
            status = self._read_object(answer, whole_object)
        except KubeError:
            status = {}
        raise self._failure(answer.status, status, answer.headers.get("Retry-After", ""))

    def _broken_answer(self, error: Exception) -> KubeError:
        slow = isinstance(error, urllib3.exceptions.ReadTimeoutError)
        return KubeError(f"{self.url}: reading its answer broke off: {_readable(error)}", slow=slow)

    def _failure(self, code: int, status: Json, retry_after: str = "") -> KubeError:
        message = str(status.get("message") or "")[:_MAX_MESSAGE_LENGTH]
        why = f"{self.url} answers {code}" + (f": {message}" if message else "")
        if code == UNAUTHORIZED:
            why += " (it does not accept our token or certificate)"
        acts_as = dict(self._headers).get("Impersonate-User")
        may_not_act = bool(code == FORBIDDEN and acts_as and _is_impersonation_denial(message))
        if may_not_act:
            why += f" (you may not act as {acts_as}, as --as or `as` in the kubeconfig says)"
        elif code == FORBIDDEN and not _is_admission_denial(message):
            why += f" ({self._missing_right_hint})"
        retry_after_s = float(retry_after) if retry_after.isdecimal() else 0.0
        return KubeError(
            why,
            code=code,
            api_message=message,
            retry_after_s=retry_after_s,
            unauthorized=may_not_act,
        )


def parts(answer: Any) -> Iterator[bytes]:
    """Yield the parts of a response's body as they arrive."""
    found: Iterator[bytes] = answer.stream(_PART_BYTES, decode_content=True)
    return found


def whole_object(found: Json) -> Json:
    """Return the object unchanged."""
    return found


def socket_options() -> list[tuple[int, int, int]]:
    """Return the options of each connection; older versions of the client cannot set them."""
    usual: list[tuple[int, int, int]] = urllib3.connection.HTTPConnection.default_socket_options
    keep_alive = [
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _KEEP_ALIVE.items()
        if hasattr(socket, name)
    ]
    return [*usual, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *keep_alive]


def _readable(error: Exception) -> str:
    """Return the message of an error without the names of Python objects."""
    return _python_object_names.sub("", str(error))


def _outcome(work: Callable[[], T]) -> Callable[[], T]:
    """Run `work`; return a function that returns its result, or raises its exception."""
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - raised on the waiting thread
        return partial(_raise, error)
    return lambda: result


def _raise(error: Exception) -> NoReturn:
    raise error
