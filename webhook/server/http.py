"""HTTP/1.1 on one connection: parse requests and write their responses, one after the other.

`httptools` is the parser (llhttp of Node.js). This module limits the size of each part, rejects
ambiguous requests and decides when a connection ends. A request that arrives in one piece and can
be answered at once, like nearly every review, needs no task and no timer. A `Handler` answers the
requests. Specification: RFC 9110 and RFC 9112.
"""

from __future__ import annotations

import asyncio
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from webhook.server.bounds import MAX_CHUNKS, MAX_HEAD_BYTES, MAX_HEADERS, MAX_UNSENT_BYTES
from webhook.server.connections import (
    CLOSE_S,
    REQUEST_S,
    SMALL_BODY_BYTES,
    Connections,
    Slot,
    Stage,
)
from webhook.server.handler import Answer, Endpoint, Handler, build_rejection

BODY_TIMEOUT_S: Final = 5.0
"""Maximum time in seconds for a body to arrive. The webhooks are registered with at most
`timeoutSeconds: 5`, so no API server waits longer."""

ANSWER_S: Final = 30.0
"""Maximum time in seconds from a request to the end of its response. An API server waits at most
30 s for a webhook."""

KEEPALIVE_S: Final = 120.0
"""Time in seconds after which an idle connection is closed. The API server closes it after 90 s.
If the webhook closed it first, a call could meet an EOF."""

PREFIX_S: Final = 1.0
"""Maximum wait for the prefix of a body that is too large, which arrives with the headers."""

_SINGLE_HEADERS: Final = frozenset(
    {b"content-type", b"content-length", b"transfer-encoding", b"expect", b"host"}
)
"""Headers that this module reads, or that are ambiguous if repeated."""


class _MalformedError(Exception):
    """The request is malformed or ambiguous; the message is sent to the client."""


class _AbusiveError(Exception):
    """The client causes costs that no API server would cause."""


class Connection(asyncio.Protocol):
    """One connection, which reads a request only after the previous response is written.

    The connection is closed if the client sends an endless head, or a request before the previous
    one is answered. No Go client does either.
    """

    def __init__(self, handler: Handler, connections: Connections, slot: Slot) -> None:
        self._handler = handler
        self._connections = connections
        self._slot = slot
        self._parser: Any = None
        self._transport: Any = None
        self._task: asyncio.Task[Answer] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        """True while the client does not read the responses."""
        self._is_closing = False
        """True if no further request is read."""
        self._framing_bytes = 0
        self._reserved_bytes = 0
        self._reset()

    def _reset(self) -> None:
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._chunk_count = 0
        self._endpoint: Endpoint | Answer | None = None
        """Endpoint or response of the current request; None until its head is complete."""
        self._content_length = 0
        self._body: bytes | bytearray = b""
        self._has_begun = False
        self._is_complete = False
        self._is_last = False
        self._is_head_request = False
        self._expects_continue = False
        """True if the client waits for `100 Continue` before it sends the body."""

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, after the TLS handshake."""
        self._transport = transport
        self._parser = HttpRequestParser(self)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._slot.close = self._transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request in progress, and release the connection's slot."""
        del exc
        if self._task:
            self._task.cancel()
        elif self._endpoint:
            self._handler.count_rejected(400)  # interrupted: no client is left to answer
        self._end_request()
        self._is_closing = True
        # Otherwise these reference cycles would exist until the garbage collector runs.
        self._parser = self._transport = self._task = None
        self._connections.release(self._slot)

    def data_received(self, data: bytes) -> None:
        """Parse data, and answer the request if it is complete."""
        if self._is_closing:
            return  # dropped; `Slot.due_s` limits the time
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._reject_upgrade()
        except HttpParserCallbackError as error:
            self._handle_parse_error(error.__context__ or error)
        except HttpParserError as error:
            self._handle_parse_error(error)
        else:
            if self._framing_bytes > MAX_HEAD_BYTES:
                self._handle_parse_error(_AbusiveError())
            elif self._task is None:
                if self._is_complete:
                    self._respond()
                elif self._has_begun:
                    self._bound_partial_request()

    def pause_writing(self) -> None:
        """Stop reading requests until the client has read the responses."""
        self._is_paused = True
        if self._transport:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read requests again after the client has read the responses."""
        self._is_paused = False
        if self._transport and not self._is_closing:
            self._transport.resume_reading()
            if self._task is None and not self._has_begun:
                self._become_idle()

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Start a request. Raises _AbusiveError if the previous request is not answered yet."""
        if self._is_complete:
            raise _AbusiveError
        self._has_begun = True

    def on_url(self, part: bytes) -> None:
        """Append a part of the request target."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header or trailer; store it if this module reads it."""
        self._header_count += 1
        if self._header_count > MAX_HEADERS:
            raise _MalformedError(f"more than {MAX_HEADERS} headers")
        name = name.lower()
        if name in _SINGLE_HEADERS and self._endpoint is None:
            if name in self._headers:
                raise _MalformedError(f"the header {name.decode()} is repeated")
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        """Route a request by its head. Raises _MalformedError if the head is ambiguous."""
        headers, version = self._headers, self._parser.get_http_version()
        if version not in _VERSIONS:
            raise _MalformedError(f"HTTP/{version} is not supported")
        if b"transfer-encoding" in headers:
            if b"content-length" in headers:
                raise _MalformedError("Content-Length with Transfer-Encoding")
            if version != "1.1" or headers[b"transfer-encoding"].strip().lower() != b"chunked":
                raise _MalformedError(
                    "the only supported transfer encoding is chunked, in HTTP/1.1"
                )
        self._content_length = int(headers.get(b"content-length", 0))
        self._is_last = version != "1.1" or not self._parser.should_keep_alive()
        method = self._parser.get_method()
        self._is_head_request = method == b"HEAD"
        self._expects_continue = (
            version == "1.1" and headers.get(b"expect", b"").lower() == b"100-continue"
        )
        path = self._target.partition(b"?")[0]
        endpoint = self._handler.route(method, path, headers.get(b"content-type", b""))
        if isinstance(endpoint, Endpoint) and endpoint.is_secret:
            self._connections.trust(self._slot)
        self._endpoint = endpoint
        self._connections.in_flight += 1

    def on_chunk_header(self) -> None:
        """Count a chunk."""
        self._chunk_count += 1
        if self._chunk_count > MAX_CHUNKS:
            raise _MalformedError(f"the body comes in more than {MAX_CHUNKS} chunks")

    def on_body(self, part: bytes) -> None:
        """Append a part of the body."""
        self._framing_bytes -= len(part)
        if not self._body:
            self._body = part
        else:
            if type(self._body) is bytes:
                self._body = bytearray(self._body)
            self._body += part

    def on_message_complete(self) -> None:
        """Mark the request complete; it is answered after the parser has read all data."""
        self._is_complete = True

    # Requests and responses.

    def _bound_partial_request(self) -> None:
        """Limit size and time of an incomplete request."""
        if self._slot.stage is Stage.IDLE:
            self._slot.stage = Stage.RECEIVING
            self._slot.due_s = self._connections.loop.time() + REQUEST_S
        endpoint, size = self._endpoint, len(self._body)
        if endpoint is None:
            return  # the head is incomplete
        if isinstance(endpoint, Answer):
            self._write(endpoint)
            return
        is_too_large = self._content_length > endpoint.max_bytes
        if size > endpoint.max_bytes or (is_too_large and size >= endpoint.prefix_bytes):
            self._answer_too_large()
            return
        if not self._reserve_body(size):
            self._write(self._handler.overloaded())
        elif self._timer is None:
            call_later = self._connections.loop.call_later
            if is_too_large:
                self._timer = call_later(PREFIX_S, self._answer_too_large)
                return
            slow = build_rejection(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s")
            self._timer = call_later(BODY_TIMEOUT_S, self._reject, slow)
            if self._expects_continue:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _reserve_body(self, size: int) -> bool:
        """Reserve memory for a large body of this size; return False if no memory is left."""
        before = self._reserved_bytes
        self._reserved_bytes = size if size > SMALL_BODY_BYTES else 0
        more = self._reserved_bytes - before
        return more == 0 or self._connections.reserve(self._slot.peer, more)

    def _answer_too_large(self) -> None:
        if isinstance(self._endpoint, Endpoint):
            prefix = bytes(self._body[: self._endpoint.prefix_bytes])
            self._write(self._endpoint.too_large(prefix))

    def _respond(self) -> None:
        endpoint, peer = self._endpoint, self._slot.peer
        if isinstance(endpoint, Answer):
            self._write(endpoint)
        elif endpoint is None or len(self._body) > endpoint.max_bytes:
            self._answer_too_large()
        elif not (self._reserve_body(len(self._body)) and peer.has_time()):
            self._write(self._handler.overloaded())
        else:
            body = self._body if type(self._body) is bytes else bytes(self._body)
            self._release_body()
            try:
                answer = peer.run_timed(endpoint.answer, body, peer)
            except Exception:  # noqa: BLE001 - the client gets an answer in spite of a bug
                answer = self._handler.failed()
            if isinstance(answer, Answer):
                self._write(answer)
            else:
                self._slot.stage = Stage.ANSWERING
                self._slot.due_s = self._connections.loop.time() + ANSWER_S
                self._task = self._connections.loop.create_task(answer)
                self._task.add_done_callback(self._on_answered)

    def _on_answered(self, task: asyncio.Task[Answer]) -> None:
        self._task = None
        if task.cancelled():
            return
        try:
            answer = task.result()
        except Exception:  # noqa: BLE001 - as above
            answer = self._handler.failed()
        if not self._is_closing:
            self._write(answer)

    def _reject_upgrade(self) -> None:
        """Answer an upgrade request and close: further data would be in the other protocol."""
        self._is_last = True
        if isinstance(self._endpoint, Answer):
            self._write(self._endpoint)
        else:
            self._reject(_malformed_answer("the only supported protocol is HTTP/1.1"))

    def _handle_parse_error(self, error: BaseException) -> None:
        """Reject a malformed request, or close the connection of an abusive client."""
        if isinstance(error, _AbusiveError) or self._is_complete:
            self._connections.count_closed("protocol")
            self._end_request()
            self._is_closing = True
            self._transport.abort()
        elif isinstance(error, _MalformedError | HttpParserError):
            self._reject(_malformed_answer(str(error)))
        else:
            self._write(self._handler.failed())

    def _reject(self, answer: Answer) -> None:
        self._handler.count_rejected(answer.status)
        self._write(answer)

    def _write(self, answer: Answer) -> None:
        """Write a response; close the connection if the request was not received completely."""
        connections, slot = self._connections, self._slot
        is_last = self._is_last or not self._is_complete or connections.is_draining
        head = _head(answer.status, answer.content_type, is_last)
        body = b"" if self._is_head_request else answer.body
        self._transport.write(
            b"%bdate: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (head, connections.date, len(answer.body), body)
        )
        self._end_request()
        if is_last:
            self._is_closing = True
            slot.stage = Stage.RECEIVING
            slot.due_s = min(slot.due_s, connections.loop.time() + CLOSE_S)
            # Until the response is sent, uvloop receives and drops further data (sslproto.pyx,
            # FLUSHING), so no write of the client fails. `CLOSE_S` limits the time.
            self._transport.close()
            return
        self._framing_bytes = 0
        self._reset()
        if self._is_paused:
            slot.stage = Stage.RECEIVING
            slot.due_s = connections.loop.time() + ANSWER_S
        else:
            self._become_idle()

    def _become_idle(self) -> None:
        self._slot.stage = Stage.IDLE
        self._slot.due_s = self._connections.loop.time() + KEEPALIVE_S

    def _end_request(self) -> None:
        """Release all resources reserved for the request."""
        self._release_body()
        if self._reserved_bytes:
            self._connections.reserve(self._slot.peer, -self._reserved_bytes)
            self._reserved_bytes = 0
        if self._endpoint:
            self._endpoint = None
            self._connections.in_flight -= 1

    def _release_body(self) -> None:
        """Release the body, and stop its timer."""
        self._body = b""
        if self._timer:
            self._timer.cancel()
            self._timer = None


_VERSIONS: Final = frozenset({"1.1", "1.0"})


def _malformed_answer(sentence: str) -> Answer:
    return Answer(400, sentence.encode(), b"text/plain")


@cache
def _head(status: int, content_type: bytes, is_last: bool) -> bytes:
    """Return the constant part of a response's head."""
    code = HTTPStatus(status)
    lines = [f"HTTP/1.1 {code.value} {code.phrase}", f"content-type: {content_type.decode()}"]
    if code is HTTPStatus.SERVICE_UNAVAILABLE:
        lines.append("retry-after: 1")
    if code is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("allow: POST")  # RFC 9110 section 15.5.6
    if is_last:
        lines.append("connection: close")
    return "".join(f"{line}\r\n" for line in lines).encode()
