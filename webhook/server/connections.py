"""The connections to the TLS port: how many there are, from whom, and how long each may take.

Whoever reaches the port may connect, and each connection costs some 50 KiB of a pod's 256 MiB. So
their number has a bound; when it is reached, who connects next takes the place of somebody who
asked nothing yet, of the address with most connections first. An API server gets in, however many
a tenant's pod holds.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from gunicorn.asgi.parser import ParseError
from gunicorn.asgi.protocol import ASGIProtocol

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection

MAX_CONNECTIONS: Final = 512
"""An API server keeps up to 25 idle (client-go) and opens more in a burst; 25 MiB in all."""

REQUEST_S: Final = 10.0
"""From the connection to the end of its first request, and from the first byte of each other one
to its last: twice the time-out that our webhooks are registered with."""

ANSWER_S: Final = 30.0
"""From a request to the end of its answer; the API server waits for a webhook 30 s at most."""

CLOSE_S: Final = 2.0
"""From our end of a connection to the caller's: until then what they still send is dropped."""

MAX_HEAD_BYTES: Final = 32 * 2**10
"""Of a request before its headers are complete; an API server sends 300 bytes, or a token, too."""

MAX_CHUNKS: Final = 4096
"""Of one body, where its length is not announced: each costs as much as 64 KiB in one piece would.
An API server announces the length."""

_SWEEP_S: Final = 1.0
_AT_ONCE: Final = 16
"""Connections accepted in a turn of the loop: a handshake takes about a millisecond of it."""

_COLLECT_AFTER: Final = 32
_COLLECT_ALL_AFTER: Final = 256
"""Connections that end before the garbage collector runs, for it counts objects and not bytes: what
gunicorn has of a connection refers to itself, with what was sent and the transport's 256 KiB. What
lasts through a short collection is left to a whole one."""

_RETRY_S: Final = 1.0
"""Until connections are accepted again, after the process had no file descriptor left."""


class State(IntEnum):
    """What a connection does, in the order in which it is given up for another one."""

    NEW = 0
    """No request was answered on it yet."""
    IDLE = 1
    RECEIVING = 2
    ANSWERING = 3
    """Never given up."""


@dataclass(eq=False, slots=True)
class Held:
    """One connection, as far as bounds are concerned."""

    source: str
    """The address that it comes from."""
    close: Callable[[], Any]
    due_s: float
    """When it is closed unless something happens; infinite while it is idle."""
    state: State = State.NEW


def to_give_up(held: Collection[Held]) -> Held | None:
    """Return the connection to close for a new one; None where each is being answered.

    `held` are in the order in which they came.

    | there are | given up |
    | --- | --- |
    | some without any request so far | of those, the oldest of the address with most of those |
    | only others | of the address with most, the oldest that is idle, else that still sends |
    """
    fresh = [one for one in held if one.state is State.NEW]
    candidates = fresh or [one for one in held if one.state is not State.ANSWERING]
    if not candidates:
        return None
    counted = Counter(one.source for one in candidates)
    return min(candidates, key=lambda one: (-counted[one.source], one.state))


class Connection(ASGIProtocol):  # type: ignore[misc]  # gunicorn is not typed
    """Gunicorn's side of a connection, which reports what it does.

    It is cut off where it costs what no API server does: gunicorn keeps a megabyte of what comes
    before its turn, copies it for each request in it, and takes headers of 800 KB. A client of Go
    sends one request, and the next one once the answer comes.
    """

    def __init__(self, worker: Any, held: Held, forget: Callable[[Held], None]) -> None:
        super().__init__(worker)
        self._held = held
        self._forget = forget
        self._early = False
        self._answered = False
        self._head_bytes = 0
        self._chunks = 0

    def data_received(self, data: bytes) -> None:
        """Take what arrived; a request begins where none was being received."""
        if self._held.state is State.IDLE:
            self._receive()
        else:
            self._early = self._held.state is State.ANSWERING
        super().data_received(data)

    def _receive(self) -> None:
        self._held.state = State.RECEIVING
        self._held.due_s = self.worker.loop.time() + REQUEST_S

    def _feed_callback_parser(self, data: bytes) -> bool:
        """Parse what arrived, or what arrived early; return whether the connection goes on."""
        if not super()._feed_callback_parser(data):
            return False
        if self._current_request is None:
            self._head_bytes += len(data)
            ends = self._head_bytes > MAX_HEAD_BYTES
        else:
            self._head_bytes = 0
            waits = self._held.state is State.ANSWERING and not self._answered
            ends = waits and bool(self._callback_parser.remaining())
        if ends:
            self.worker.count_closed("unfair")
            self.transport.abort()
        return not ends

    def _on_headers_complete(self) -> bool:
        """A request begins."""
        self._chunks = 0
        return bool(super()._on_headers_complete())

    def _on_body(self, chunk: bytes) -> None:
        """Take a piece of a body."""
        self._chunks += self._current_request.chunked
        if self._chunks > MAX_CHUNKS:
            raise ParseError(f"the body comes in more than {MAX_CHUNKS} chunks")
        super()._on_body(chunk)

    def _send_response_start(self, *args: Any, **kwargs: Any) -> None:
        """Begin to answer: from now on the next request may come."""
        self._answered = True
        super()._send_response_start(*args, **kwargs)

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room for another one."""
        super().connection_lost(exc)
        self._forget(self._held)

    def _on_message_complete(self) -> None:
        """A request is complete."""
        self._answered = False
        self._held.state = State.ANSWERING
        self._held.due_s = self.worker.loop.time() + ANSWER_S
        super()._on_message_complete()

    def _close_transport(self) -> None:
        """Close, which waits for the caller to do the same."""
        super()._close_transport()
        self._held.due_s = min(self._held.due_s, self.worker.loop.time() + CLOSE_S)

    def _arm_keepalive_timer(self) -> None:
        """An answer is complete, and gunicorn's time of an idle connection begins."""
        super()._arm_keepalive_timer()
        if self._early:  # the next request began before this answer was complete
            self._early = False
            self._receive()
        else:
            self._held.state = State.IDLE
            self._held.due_s = float("inf")


@dataclass(eq=False, slots=True)
class Connections:
    """Accepts connections, and closes those that are too many or too slow; as asyncio's Server.

    asyncio's own server knows no bound, and shows a connection only after its handshake.
    """

    loop: asyncio.AbstractEventLoop
    listener: socket.socket
    context: ssl.SSLContext
    connect: Callable[[Held, Callable[[Held], None]], Connection]
    count_closed: Callable[[str], None]
    """Counts a connection that was closed, by why."""
    limit: int = MAX_CONNECTIONS
    held: dict[Held, None] = field(default_factory=dict)
    """In the order in which they came."""
    ended: int = 0
    """Connections that are over."""

    def start(self) -> None:
        """Begin to accept connections."""
        self.listener.setblocking(False)
        self.loop.add_reader(self.listener, self._accept)
        self.loop.call_later(_SWEEP_S, self._sweep)

    def close(self) -> None:
        """Accept no more connections."""
        if self.listener.fileno() >= 0:
            self.loop.remove_reader(self.listener)

    async def wait_closed(self) -> None:
        """Return: nothing is left to wait for."""

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # No file descriptor left: asking again at once would only keep the loop busy.
                self.close()
                self.loop.call_later(_RETRY_S, self.loop.add_reader, self.listener, self._accept)
                return
            self._take(accepted, address[0])

    def _take(self, accepted: socket.socket, source: str) -> None:
        if len(self.held) >= self.limit:
            given_up = to_give_up(self.held)
            if given_up is None:
                accepted.close()
                self.count_closed("full")
                return
            self._end(given_up, "full")
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        held = Held(source, lambda: None, self.loop.time() + REQUEST_S)
        self.held[held] = None
        handshake = self.loop.create_task(self._shake_hands(held, accepted))
        held.close = handshake.cancel

    async def _shake_hands(self, held: Held, accepted: socket.socket) -> None:
        connection = self.connect(held, self._forget)
        try:
            transport, _ = await self.loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self.context
            )
        except (OSError, asyncio.CancelledError):
            self._forget(held)
        else:
            held.close = transport.abort

    def _end(self, held: Held, why: str) -> None:
        close = held.close
        self._forget(held)
        close()
        self.count_closed(why)

    def _forget(self, held: Held) -> None:
        self.held.pop(held, None)
        held.close = lambda: None  # it refers to the transport, which refers to it
        self.ended += 1
        if self.ended % _COLLECT_AFTER == 0:
            gc.collect(2 if self.ended % _COLLECT_ALL_AFTER == 0 else 0)

    def _sweep(self) -> None:
        """Close what is overdue."""
        now_s = self.loop.time()
        for held in [held for held in self.held if held.due_s <= now_s]:
            self._end(held, "slow")
        self.loop.call_later(_SWEEP_S, self._sweep)
