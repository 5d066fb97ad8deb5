"""HTTP/1.1 on one connection: requests out of bytes, answers into bytes, one after the other.

`httptools` parses (llhttp, the parser of Node.js); here is what it leaves open: how much of each
part there may be, what is ambiguous, and when a connection ends. What arrives whole and can be
answered at once, as nearly every review, takes no task and no timer: bytes in, one write out.
Specification: RFC 9110 and RFC 9112.
"""

from __future__ import annotations

import asyncio
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from webhook.server.connections import CLOSE_S, REQUEST_S, State
from webhook.server.reviews import PREFIX_BYTES, SMALL_BODY_BYTES, Answer

if TYPE_CHECKING:
    from typing import Any

    from webhook.server.connections import Connections, Held
    from webhook.server.door import Door
    from webhook.server.reviews import Asked

ANSWER_S: Final = 30.0
"""From a request to the end of its answer; the API server waits for a webhook 30 s at most."""

KEEPALIVE_S: Final = 120.0
"""The API server drops idle connections after 90 s; were we first, a call could meet an EOF."""

PREFIX_S: Final = 1.0
"""How long the beginning of a body that is too large may take; it comes with the headers."""

MAX_HEAD_BYTES: Final = 32 * 2**10
"""Of a request besides its body: line, headers, framing of chunks, trailers. An API server sends
300 bytes, or a token, too."""

MAX_HEADERS: Final = 100
"""An API server sends six."""

MAX_CHUNKS: Final = 4096
"""Of one body, where its length is not announced: each costs as much as 64 KiB in one piece would.
An API server announces the length."""

MAX_UNSENT_BYTES: Final = 64 * 2**10
"""Of answers that the caller does not read, before we read no further request of theirs."""

_ONCE: Final = frozenset(
    {b"content-type", b"content-length", b"transfer-encoding", b"expect", b"host"}
)
"""The headers that are read, or are ambiguous where they come twice."""


class _MalformedError(Exception):
    """What came is no request that has one meaning; carries one sentence."""


class _UnfairError(Exception):
    """What came costs what no API server costs."""


class Connection(asyncio.Protocol):
    """One connection: reads a request, has the door answer it, writes the answer; then the next.

    It is cut off where it costs what no API server does: a head without an end, or a request that
    does not wait for the answer to the one before it, as no client of Go sends any.
    """

    def __init__(self, door: Door, connections: Connections, held: Held) -> None:
        self._door = door
        self._connections = connections
        self._held = held
        self._parser: Any = None
        self._transport: Any = None
        self._task: asyncio.Task[Answer] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        """The caller does not read the answers."""
        self._is_over = False
        """No further request is read."""
        self._framing_bytes = 0
        self._in_flight = False
        self._begin()

    def _begin(self) -> None:
        """Wait for the next request."""
        self._target = b""
        self._read: dict[bytes, bytes] = {}
        self._headers = 0
        self._chunks = 0
        self._asked: Asked | Answer | None = None
        self._announced_bytes = 0
        self._held_bytes = 0
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
        self._held.close = self._transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what is being received or answered; make room for another connection."""
        del exc
        if self._task:
            self._task.cancel()
        elif self._in_flight:
            self._door.cut_off()
        self._settle()
        self._is_over = True
        # They refer to this one, and it to them: without the collector nothing of it would go.
        self._parser = self._transport = self._task = None
        self._connections.forget(self._held)

    def data_received(self, data: bytes) -> None:
        """Take what arrived, and answer the request that is complete."""
        if self._is_over:
            return  # dropped; `Held.due_s` bounds for how long
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
        if name in _ONCE and not self._in_flight:
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
        self._in_flight = True
        self._door.in_flight += 1
        self._asked = self._door.asked(method, path, read.get(b"content-type", b""))
        if self._asked is None:
            self._connections.trust(self._held)

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
        if self._held.state is State.IDLE:
            self._held.state = State.RECEIVING
            self._held.due_s = self._connections.loop.time() + REQUEST_S
        if not self._in_flight:
            return
        asked, size = self._asked, len(self._body)
        if isinstance(asked, Answer):
            self._write(asked)
            return
        limit = self._door.limit(asked)
        is_too_large = self._announced_bytes > limit
        if size > limit or (is_too_large and (asked is None or size >= PREFIX_BYTES)):
            self._give_up_large()
            return
        held_bytes, self._held_bytes = self._held_bytes, size if size > SMALL_BODY_BYTES else 0
        overloaded = self._door.hold(self._held.source, self._held_bytes - held_bytes)
        if overloaded:
            self._write(overloaded)
        elif self._timer is None:
            call_later = self._connections.loop.call_later
            if is_too_large:
                self._timer = call_later(PREFIX_S, self._give_up_large)
                return
            self._timer = call_later(self._door.body_timeout_s, self._give_up_slow)
            if self._is_expected:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _give_up_large(self) -> None:
        if not isinstance(self._asked, Answer):
            self._write(self._door.too_large(self._asked, bytes(self._body[:PREFIX_BYTES])))

    def _give_up_slow(self) -> None:
        self._write(self._door.too_slow())

    def _respond(self) -> None:
        """Answer a request that is complete."""
        asked = self._asked
        if isinstance(asked, Answer):
            self._write(asked)
        elif len(self._body) > self._door.limit(asked):
            self._give_up_large()
        else:
            body = self._body if type(self._body) is bytes else bytes(self._body)
            self._release()
            try:
                answer = self._door.answer(asked, body, self._held.source)
            except Exception:  # noqa: BLE001 - whatever the bug, the caller gets an answer
                answer = self._door.failed()
            if isinstance(answer, Answer):
                self._write(answer)
            else:
                self._held.state = State.ANSWERING
                self._held.due_s = self._connections.loop.time() + ANSWER_S
                self._task = self._connections.loop.create_task(answer)
                self._task.add_done_callback(self._respond_late)

    def _respond_late(self, task: asyncio.Task[Answer]) -> None:
        self._task = None
        if task.cancelled():
            return
        try:
            answer = task.result()
        except Exception:  # noqa: BLE001 - as above
            answer = self._door.failed()
        if not self._is_over:
            self._write(answer)

    def _reject_upgrade(self) -> None:
        """Answer a request to speak something else; what follows would be of that protocol."""
        self._is_last = True
        if not isinstance(self._asked, Answer):
            self._asked = self._door.malformed("no protocol but HTTP/1.1 is spoken here")
        self._write(self._asked)

    def _cut_short(self, error: BaseException) -> None:
        """End a connection on which something else came than a request that has its turn."""
        if isinstance(error, _UnfairError) or self._is_complete:
            self._connections.count_closed("unfair")
            self._settle()
            self._is_over = True
            self._transport.abort()
        elif isinstance(error, _MalformedError | HttpParserError):
            self._write(self._door.malformed(str(error)))
        else:
            self._write(self._door.failed())

    def _write(self, answer: Answer) -> None:
        """Write an answer; end the connection where more of the request would still come."""
        connections, held = self._connections, self._held
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
            held.state = State.RECEIVING
            held.due_s = min(held.due_s, connections.loop.time() + CLOSE_S)
            # What they still send is received and dropped by uvloop until the answer is out
            # (sslproto.pyx, FLUSHING), so nobody's write fails; `CLOSE_S` bounds for how long.
            self._transport.close()
            return
        self._framing_bytes = 0
        self._begin()
        if self._is_paused:
            held.state = State.RECEIVING
            held.due_s = connections.loop.time() + ANSWER_S
        else:
            self._be_idle()

    def _be_idle(self) -> None:
        self._held.state = State.IDLE
        self._held.due_s = self._connections.loop.time() + KEEPALIVE_S

    def _settle(self) -> None:
        """Take a request out of what is counted."""
        self._release()
        if self._in_flight:
            self._in_flight = False
            self._door.in_flight -= 1

    def _release(self) -> None:
        """Hold no part of a body any more, nor wait for one."""
        self._body = b""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._held_bytes:
            self._door.hold(self._held.source, -self._held_bytes)
            self._held_bytes = 0


_VERSIONS: Final = frozenset({"1.1", "1.0"})


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
