"""HTTP/1.1 on one connection: requests out of bytes, answers into bytes, one after the other.

`httptools` parses (llhttp, the parser of Node.js); here is what it leaves open: how much of each
part there may be, what is ambiguous, and when a connection ends. What arrives whole and can be
answered at once, as nearly every review, takes no task and no timer: bytes in, one write out.
Who answers is not known here: a `Handler` is asked. Specification: RFC 9110 and RFC 9112.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, Final, Protocol

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from webhook.server.bounds import MAX_CHUNKS, MAX_HEAD_BYTES, MAX_HEADERS, MAX_UNSENT_BYTES
from webhook.server.connections import (
    CLOSE_S,
    REQUEST_S,
    SMALL_BODY_BYTES,
    Connections,
    Peer,
    Slot,
    Stage,
)

BODY_TIMEOUT_S: Final = 5.0
"""Our webhooks are registered with `timeoutSeconds: 5` at most: afterwards nobody waits."""

ANSWER_S: Final = 30.0
"""From a request to the end of its answer; the API server waits for a webhook 30 s at most."""

KEEPALIVE_S: Final = 120.0
"""The API server drops idle connections after 90 s; were we first, a call could meet an EOF."""

PREFIX_S: Final = 1.0
"""How long the beginning of a body that is too large may take; it comes with the headers."""


_ONCE: Final = frozenset(
    {b"content-type", b"content-length", b"transfer-encoding", b"expect", b"host"}
)
"""The headers that are read, or are ambiguous where they come twice."""


@dataclass(slots=True)
class Answer:
    """An HTTP answer; immutable by convention."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"


def rejection(status: int, sentence: str) -> Answer:
    """Build the answer to a request that is not what is asked for here: one sentence."""
    return Answer(status, f"{sentence}\n".encode(), b"text/plain; charset=utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What answers requests of one kind."""

    max_bytes: int
    """Of a body."""
    answer: Callable[[bytes, Peer], Answer | Coroutine[Any, Any, Answer]]
    """Answers a body from an address: at once where that is possible."""
    too_large: Callable[[bytes], Answer]
    """Answers a body that is too large, by the first `prefix_bytes` of it."""
    prefix_bytes: int = 0
    is_secret: bool = False
    """Whoever asks for it is trusted."""


class Handler(Protocol):
    """Who is asked what to answer."""

    def route(self, method: bytes, path: bytes, content_type: bytes) -> Endpoint | Answer:
        """Return what a request asks for; or the answer where it is nothing."""

    def count_rejected(self, code: int, /) -> None:
        """Count a request that is answered here, or is cut off (400)."""

    def overloaded(self) -> Answer:
        """Answer a request for whose body there is no room, or whose address has no time left."""

    def failed(self) -> Answer:
        """Answer a request on which the handler failed; called as it happens."""


class _MalformedError(Exception):
    """What came is no request that has one meaning; carries one sentence."""


class _UnfairError(Exception):
    """What came costs what no API server costs."""


class Connection(asyncio.Protocol):
    """One connection: reads a request, has it answered, writes the answer; then the next.

    It is cut off where it costs what no API server does: a head without an end, or a request that
    does not wait for the answer to the one before it, as no client of Go sends any.
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
        """The caller does not read the answers."""
        self._is_over = False
        """No further request is read."""
        self._framing_bytes = 0
        self._counted_bytes = 0
        self._begin()

    def _begin(self) -> None:
        """Wait for the next request."""
        self._target = b""
        self._read: dict[bytes, bytes] = {}
        self._headers = 0
        self._chunks = 0
        self._endpoint: Endpoint | Answer | None = None
        """What this one asks for, from its head to its answer."""
        self._announced_bytes = 0
        self._body: bytes | bytearray = b""
        self._has_begun = False
        self._is_complete = False
        self._is_last = False
        self._has_no_body = False
        self._is_expected = False
        """The caller waits to be told that they may send the body."""

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport, once the handshake is over."""
        self._transport = transport
        self._parser = HttpRequestParser(self)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._slot.close = self._transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what is being received or answered; make room for another connection."""
        del exc
        if self._task:
            self._task.cancel()
        elif self._endpoint:
            self._handler.count_rejected(400)  # cut off: nobody is left to answer
        self._settle()
        self._is_over = True
        # They refer to this one, and it to them: without the collector nothing of it would go.
        self._parser = self._transport = self._task = None
        self._connections.forget(self._slot)

    def data_received(self, data: bytes) -> None:
        """Take what arrived, and answer the request that is complete."""
        if self._is_over:
            return  # dropped; `Slot.due_s` bounds for how long
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._reject_upgrade()
        except HttpParserCallbackError as error:
            self._cut_short(error.__context__ or error)
        except HttpParserError as error:
            self._cut_short(error)
        else:
            if self._framing_bytes > MAX_HEAD_BYTES:
                self._cut_short(_UnfairError())
            elif self._task is None:
                if self._is_complete:
                    self._respond()
                elif self._has_begun:
                    self._wait_for_more()

    def pause_writing(self) -> None:
        """Read no further request until the caller has read the answers."""
        self._is_paused = True
        if self._transport:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on once they have."""
        self._is_paused = False
        if self._transport and not self._is_over:
            self._transport.resume_reading()
            if self._task is None and not self._has_begun:
                self._be_idle()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Begin a request; raises _UnfairError while another one is not answered."""
        if self._is_complete:
            raise _UnfairError
        self._has_begun = True

    def on_url(self, part: bytes) -> None:
        """Take a part of the target."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer, of which none counts."""
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise _MalformedError(f"more than {MAX_HEADERS} headers")
        name = name.lower()
        if name in _ONCE and self._endpoint is None:
            if name in self._read:
                raise _MalformedError(f"{name.decode()} stands there twice")
            self._read[name] = value

    def on_headers_complete(self) -> None:
        """Judge the head of a request; raises _MalformedError where it may mean two things."""
        read, version = self._read, self._parser.get_http_version()
        if version not in _VERSIONS:
            raise _MalformedError(f"HTTP/{version} is not spoken here")
        if b"transfer-encoding" in read:
            if b"content-length" in read:
                raise _MalformedError("Content-Length with Transfer-Encoding")
            if version != "1.1" or read[b"transfer-encoding"].strip().lower() != b"chunked":
                raise _MalformedError("of transfer encodings only chunked, of HTTP/1.1, is known")
        self._announced_bytes = int(read.get(b"content-length", 0))
        self._is_last = version != "1.1" or not self._parser.should_keep_alive()
        method = self._parser.get_method()
        self._has_no_body = method == b"HEAD"
        self._is_expected = version == "1.1" and read.get(b"expect", b"").lower() == b"100-continue"
        path = self._target.partition(b"?")[0]
        endpoint = self._handler.route(method, path, read.get(b"content-type", b""))
        if isinstance(endpoint, Endpoint) and endpoint.is_secret:
            self._connections.trust(self._slot)
        self._endpoint = endpoint
        self._connections.in_flight += 1

    def on_chunk_header(self) -> None:
        """Count a chunk."""
        self._chunks += 1
        if self._chunks > MAX_CHUNKS:
            raise _MalformedError(f"the body comes in more than {MAX_CHUNKS} chunks")

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        self._framing_bytes -= len(part)
        if not self._body:
            self._body = part
        else:
            if type(self._body) is bytes:
                self._body = bytearray(self._body)
            self._body += part

    def on_message_complete(self) -> None:
        """Take the end of a request; it is answered once the parser is through what arrived."""
        self._is_complete = True

    # What happens then.

    def _wait_for_more(self) -> None:
        """Bound the request of which more is to come."""
        if self._slot.stage is Stage.IDLE:
            self._slot.stage = Stage.RECEIVING
            self._slot.due_s = self._connections.loop.time() + REQUEST_S
        endpoint, size = self._endpoint, len(self._body)
        if endpoint is None:
            return  # its head is not complete
        if isinstance(endpoint, Answer):
            self._write(endpoint)
            return
        is_too_large = self._announced_bytes > endpoint.max_bytes
        if size > endpoint.max_bytes or (is_too_large and size >= endpoint.prefix_bytes):
            self._give_up_large()
            return
        if not self._has_room(size):
            self._write(self._handler.overloaded())
        elif self._timer is None:
            call_later = self._connections.loop.call_later
            if is_too_large:
                self._timer = call_later(PREFIX_S, self._give_up_large)
                return
            slow = rejection(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s")
            self._timer = call_later(BODY_TIMEOUT_S, self._reject, slow)
            if self._is_expected:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _has_room(self, size: int) -> bool:
        """Count a body of this size where it is large; return whether there is room for it."""
        before = self._counted_bytes
        self._counted_bytes = size if size > SMALL_BODY_BYTES else 0
        more = self._counted_bytes - before
        return more == 0 or self._connections.hold(self._slot.peer, more)

    def _give_up_large(self) -> None:
        if isinstance(self._endpoint, Endpoint):
            prefix = bytes(self._body[: self._endpoint.prefix_bytes])
            self._write(self._endpoint.too_large(prefix))

    def _respond(self) -> None:
        """Answer a request that is complete."""
        endpoint, peer = self._endpoint, self._slot.peer
        if isinstance(endpoint, Answer):
            self._write(endpoint)
        elif endpoint is None or len(self._body) > endpoint.max_bytes:
            self._give_up_large()
        elif not (self._has_room(len(self._body)) and peer.has_time()):
            self._write(self._handler.overloaded())
        else:
            body = self._body if type(self._body) is bytes else bytes(self._body)
            self._release()
            try:
                answer = peer.timed(endpoint.answer, body, peer)
            except Exception:  # noqa: BLE001 - whatever the bug, the caller gets an answer
                answer = self._handler.failed()
            if isinstance(answer, Answer):
                self._write(answer)
            else:
                self._slot.stage = Stage.ANSWERING
                self._slot.due_s = self._connections.loop.time() + ANSWER_S
                self._task = self._connections.loop.create_task(answer)
                self._task.add_done_callback(self._respond_late)

    def _respond_late(self, task: asyncio.Task[Answer]) -> None:
        self._task = None
        if task.cancelled():
            return
        try:
            answer = task.result()
        except Exception:  # noqa: BLE001 - as above
            answer = self._handler.failed()
        if not self._is_over:
            self._write(answer)

    def _reject_upgrade(self) -> None:
        """Answer a request to speak something else; what follows would be of that protocol."""
        self._is_last = True
        if isinstance(self._endpoint, Answer):
            self._write(self._endpoint)
        else:
            self._reject(_malformed("no protocol but HTTP/1.1 is spoken here"))

    def _cut_short(self, error: BaseException) -> None:
        """End a connection on which something else came than a request that has its turn."""
        if isinstance(error, _UnfairError) or self._is_complete:
            self._connections.count_closed("protocol")
            self._settle()
            self._is_over = True
            self._transport.abort()
        elif isinstance(error, _MalformedError | HttpParserError):
            self._reject(_malformed(str(error)))
        else:
            self._write(self._handler.failed())

    def _reject(self, answer: Answer) -> None:
        self._handler.count_rejected(answer.status)
        self._write(answer)

    def _write(self, answer: Answer) -> None:
        """Write an answer; end the connection where more of the request would still come."""
        connections, slot = self._connections, self._slot
        ends = self._is_last or not self._is_complete or connections.is_draining
        head = _head(answer.status, answer.content_type, ends)
        body = b"" if self._has_no_body else answer.body
        self._transport.write(
            b"%bdate: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (head, connections.date, len(answer.body), body)
        )
        self._settle()
        if ends:
            self._is_over = True
            slot.stage = Stage.RECEIVING
            slot.due_s = min(slot.due_s, connections.loop.time() + CLOSE_S)
            # What they still send is received and dropped by uvloop until the answer is out
            # (sslproto.pyx, FLUSHING), so nobody's write fails; `CLOSE_S` bounds for how long.
            self._transport.close()
            return
        self._framing_bytes = 0
        self._begin()
        if self._is_paused:
            slot.stage = Stage.RECEIVING
            slot.due_s = connections.loop.time() + ANSWER_S
        else:
            self._be_idle()

    def _be_idle(self) -> None:
        self._slot.stage = Stage.IDLE
        self._slot.due_s = self._connections.loop.time() + KEEPALIVE_S

    def _settle(self) -> None:
        """Take a request out of what is counted."""
        self._release()
        if self._counted_bytes:
            self._connections.hold(self._slot.peer, -self._counted_bytes)
            self._counted_bytes = 0
        if self._endpoint:
            self._endpoint = None
            self._connections.in_flight -= 1

    def _release(self) -> None:
        """Hold no part of a body any more, nor wait for one."""
        self._body = b""
        if self._timer:
            self._timer.cancel()
            self._timer = None


_VERSIONS: Final = frozenset({"1.1", "1.0"})


def _malformed(sentence: str) -> Answer:
    return Answer(400, sentence.encode(), b"text/plain")


@cache
def _head(status: int, content_type: bytes, ends: bool) -> bytes:
    """Return the part of an answer's head that is the same each time."""
    found = HTTPStatus(status)
    lines = [f"HTTP/1.1 {found.value} {found.phrase}", f"content-type: {content_type.decode()}"]
    if found is HTTPStatus.SERVICE_UNAVAILABLE:
        lines.append("retry-after: 1")
    if found is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("allow: POST")  # RFC 9110 section 15.5.6
    if ends:
        lines.append("connection: close")
    return "".join(f"{line}\r\n" for line in lines).encode()
