"""The connections to the TLS port: how many there are, from whom, and how long each may take.

Whoever reaches the port may connect, and each connection costs 50 KiB of a pod's 256 MiB, and up
to 200 once it sent much. So their number has a bound, in all and per address; when one is reached,
who connects next takes the place of another one, of the address with most first. An address that
API servers are known to be at is trusted: it has no bound of its own, and nobody else takes its
places. So one gets in, however many a tenant's pods hold. Of others each gets as many as any does;
and behind an address that tenants share with it nobody can tell them apart.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from email.utils import formatdate
from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable
    from ipaddress import IPv4Network, IPv6Network

MAX_CONNECTIONS: Final = 512

MAX_PER_ADDRESS: Final = 128
"""Of one that is not trusted. An API server keeps up to 25 idle (client-go); in a burst it calls us
for up to 200 changes at once (`--max-mutating-requests-inflight`), which replicas share."""

TRUST_S: Final = 600.0
"""How long an address is trusted that used the path of `bind`, which API servers alone know."""

MAX_TRUSTED: Final = 256
"""Addresses trusted for that at once; a cluster has a few API servers."""

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
class Source:
    """An address that connections come from, as far as bounds are concerned."""

    address: str
    is_named: bool = False
    """The settings say that API servers are there."""
    is_trusted: bool = False
    held: dict[Held, None] = field(default_factory=dict)
    """Its connections, in the order in which they came."""
    body_bytes: int = 0
    """Of large bodies from there, being received or waiting."""


@dataclass(eq=False, slots=True)
class Held:
    """One connection, as far as bounds are concerned."""

    source: Source
    close: Callable[[], Any]
    due_s: float
    """When it is closed unless something happens."""
    state: State = State.NEW


def to_give_up(held: Iterable[Held], newcomer: Source) -> Held | None:
    """Return the connection to close for one more of `newcomer`; None for that one itself.

    `held` are in the order in which they came, and of these rules an earlier one counts more.

    | given up | |
    | --- | --- |
    | never | one that is being answered; for an address that is not trusted, one of a trusted one |
    | first | of an address that is not trusted; of the address with most |
    | of those | without any request so far, else idle, else that still sends; the oldest |
    """
    return min(
        (
            one
            for one in held
            if one.state is not State.ANSWERING
            and (newcomer.is_trusted or not one.source.is_trusted)
        ),
        key=lambda one: (one.source.is_trusted, -len(one.source.held), one.state),
        default=None,
    )


class Connections:
    """Accepts connections, and closes those that are too many or too slow.

    asyncio's own server knows no bound, and shows a connection only after its handshake.
    """

    is_draining = False
    """Whether each answer is the last one on its connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        context: ssl.SSLContext,
        connect: Callable[[Connections, Held], asyncio.Protocol],
        count_closed: Callable[[str], None],
        api_servers: Iterable[IPv4Network | IPv6Network] = (),
    ) -> None:
        """Serve with what `connect` makes; count a connection that was closed, by why.

        Addresses in `api_servers` are trusted; 0.0.0.0/0 names everybody, and so nobody.
        """
        self.loop = loop
        self.held: dict[Held, None] = {}
        """In the order in which they came."""
        self.sources: dict[str, Source] = {}
        """Those of connections, and those that are trusted, by address."""
        self.date = b""
        """The date of an answer's head (RFC 9110 section 6.6.1)."""
        self.count_closed = count_closed
        self._listener = listener
        self._context = context
        self._connect = connect
        self._api_servers = [one for one in api_servers if one.prefixlen]
        self._trusted: dict[Source, float] = {}
        """Who used the path of `bind`, and until when that counts; who did so last at the end."""

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

    def _take(self, accepted: socket.socket, address: str) -> None:
        held = self.place(address)
        if held is None:
            accepted.close()
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake = self.loop.create_task(self._shake_hands(held, accepted))
        held.close = handshake.cancel

    def place(self, address: str) -> Held | None:
        """Return a place for a connection, maybe another one's; None where there is none."""
        address = _as_ipv4(address)
        source = self.sources.get(address) or self._source(address)
        is_part_full = not source.is_trusted and len(source.held) >= MAX_PER_ADDRESS
        if is_part_full or len(self.held) >= MAX_CONNECTIONS:
            self.count_closed("full")
            given_up = to_give_up(source.held if is_part_full else self.held, source)
            if given_up is None:
                return None
            self._end(given_up)
        held = Held(source, lambda: None, self.loop.time() + REQUEST_S)
        self.sources[address] = source
        self.held[held] = source.held[held] = None
        return held

    def _source(self, address: str) -> Source:
        found = ip_address(address)
        is_named = any(found in network for network in self._api_servers)
        return Source(address, is_named, is_named)

    def trust(self, held: Held) -> None:
        """Trust, for a while, the address of a connection on which the path of `bind` came."""
        source = self.sources.setdefault(held.source.address, held.source)
        source.is_trusted = True
        self._trusted.pop(source, None)
        self._trusted[source] = self.loop.time() + TRUST_S
        if len(self._trusted) > MAX_TRUSTED:
            self._distrust(next(iter(self._trusted)))

    def _distrust(self, source: Source) -> None:
        del self._trusted[source]
        source.is_trusted = source.is_named
        self._drop(source)

    def _drop(self, source: Source) -> None:
        if not source.held and source not in self._trusted:
            self.sources.pop(source.address, None)

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
        held.source.held.pop(held, None)
        self._drop(held.source)
        held.close = lambda: None  # it refers to the transport, which refers to it

    def _sweep(self) -> None:
        """Close what is overdue; who is only idle has done nothing that is worth counting."""
        self.date = formatdate(usegmt=True).encode()
        now_s = self.loop.time()
        for held in [held for held in self.held if held.due_s <= now_s]:
            self._end(held)
            if held.state is not State.IDLE:
                self.count_closed("slow")
        for source in [one for one, until_s in self._trusted.items() if until_s <= now_s]:
            self._distrust(source)
        self.loop.call_later(_SWEEP_S, self._sweep)


def _as_ipv4(address: str) -> str:
    """Return an address as IPv4 writes it, also where it came to a socket of IPv6."""
    return str((":" in address and IPv6Address(address).ipv4_mapped) or address)
