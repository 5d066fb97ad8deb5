"""The connections to the TLS port: how many there are, from whom, and how long each may take.

Whoever reaches the port may connect, and each connection costs 50 KiB of a pod's 256 MiB, and up
to 200 once it sent much. So their number has a bound; when it is reached, who connects next takes
the place of somebody who asked nothing yet, of the address with most connections first. An API
server gets in, however many a tenant's pod holds.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from dataclasses import dataclass
from email.utils import formatdate
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection

MAX_CONNECTIONS: Final = 512
"""An API server keeps up to 25 idle (client-go) and opens more in a burst."""

REQUEST_S: Final = 10.0
"""From the connection to the end of its first request, and from the first byte of each other one
to its last: twice the time-out that our webhooks are registered with."""

CLOSE_S: Final = 2.0
"""From our end of a connection to the caller's: until then what they still send is dropped."""

RECEIVE_BYTES: Final = 32 * 2**10
"""What the kernel takes in before we read it; it doubles this. uvloop reads all of it at once, and
as long as a connection is open it keeps room for the most that came so: up to 600 KiB each."""

_SWEEP_S: Final = 1.0
_AT_ONCE: Final = 16
"""Connections accepted in a turn of the loop: a handshake takes about a millisecond of it."""

_RETRY_S: Final = 1.0
"""Until connections are accepted again, after the process had no file descriptor left."""


class State(IntEnum):
    """What a connection does, in the order in which it is given up for another one."""

    NEW = 0
    """No request was answered on it yet."""
    IDLE = 1
    RECEIVING = 2
    """Sends a request, or has not read an answer yet."""
    ANSWERING = 3
    """Waits for us; never given up."""


@dataclass(eq=False, slots=True)
class Held:
    """One connection, as far as bounds are concerned."""

    source: str
    """The address that it comes from."""
    close: Callable[[], Any]
    due_s: float
    """When it is closed unless something happens."""
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


class Connections:
    """Accepts connections, and closes those that are too many or too slow.

    asyncio's own server knows no bound, and shows a connection only after its handshake.
    """

    is_draining = False
    """Whether each answer is the last one on its connection."""
    limit = MAX_CONNECTIONS

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        context: ssl.SSLContext,
        connect: Callable[[Connections, Held], asyncio.Protocol],
        count_closed: Callable[[str], None],
    ) -> None:
        """Serve with what `connect` makes; count a connection that was closed, by why."""
        self.loop = loop
        self.held: dict[Held, None] = {}
        """In the order in which they came."""
        self.date = b""
        """The date of an answer's head (RFC 9110 section 6.6.1)."""
        self.count_closed = count_closed
        self._listener = listener
        self._context = context
        self._connect = connect

    def start(self) -> None:
        """Begin to accept connections."""
        self._listener.setblocking(False)
        # Whoever is accepted inherits it.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        self.loop.add_reader(self._listener, self._accept)
        self._sweep()

    def close(self) -> None:
        """Accept no more connections, and end those that are open."""
        self._pause()
        for held in list(self.held):
            held.close()

    def _pause(self) -> None:
        if self._listener.fileno() >= 0:
            self.loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # No file descriptor left: asking again at once would only keep the loop busy.
                self._pause()
                self.loop.call_later(_RETRY_S, self.loop.add_reader, self._listener, self._accept)
                return
            self._take(accepted, address[0])

    def _take(self, accepted: socket.socket, source: str) -> None:
        if len(self.held) >= self.limit:
            given_up = to_give_up(self.held)
            if given_up is None:
                accepted.close()
                self.count_closed("full")
                return
            self._end(given_up)
            self.count_closed("full")
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        held = Held(source, lambda: None, self.loop.time() + REQUEST_S)
        self.held[held] = None
        handshake = self.loop.create_task(self._shake_hands(held, accepted))
        held.close = handshake.cancel

    async def _shake_hands(self, held: Held, accepted: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(
                lambda: self._connect(self, held), accepted, ssl=self._context
            )
        except (OSError, asyncio.CancelledError):
            self.forget(held)

    def _end(self, held: Held) -> None:
        close = held.close
        self.forget(held)
        close()

    def forget(self, held: Held) -> None:
        """Make room for another connection."""
        self.held.pop(held, None)
        held.close = lambda: None  # it refers to the transport, which refers to it

    def _sweep(self) -> None:
        """Close what is overdue; who is only idle has done nothing that is worth counting."""
        self.date = formatdate(usegmt=True).encode()
        now_s = self.loop.time()
        for held in [held for held in self.held if held.due_s <= now_s]:
            self._end(held)
            if held.state is not State.IDLE:
                self.count_closed("slow")
        self.loop.call_later(_SWEEP_S, self._sweep)
