"""The connections to the TLS port: how many there are, from whom, and how long each may take.

Whoever reaches the port may connect, and each connection costs 50 KiB of a pod's 256 MiB, and up
to 200 once it sent much. So their number has a bound, in all and per address; when one is reached,
who connects next takes the place of another one, of the address with most first. An address that
API servers are known to be at is trusted: it has no bound of its own, and nobody else takes its
places. So one gets in, however many a tenant's pods hold. Of others each gets as many as any does;
and behind an address that tenants share with it nobody can tell them apart.

The time that reviews take has a bound per address, too, and one for all addresses that are not
trusted. Beyond it they are asked to retry, and their reviews are not judged.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from enum import IntEnum
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final, ParamSpec, TypeVar

from webhook.server.bounds import (
    MAX_AT_ONCE_OF_ADDRESS_S,
    MAX_AT_ONCE_OF_UNTRUSTED_S,
    MAX_CONNECTIONS,
    MAX_LARGE_BYTES,
    MAX_PER_ADDRESS,
    MAX_TIME_OF_ADDRESS,
    MAX_TIME_OF_UNTRUSTED,
    MAX_TRUSTED,
)

P = ParamSpec("P")
T = TypeVar("T")

TRUST_S: Final = 600.0
"""How long an address is trusted that used the path of `bind`, which API servers alone know."""


REQUEST_S: Final = 10.0
"""From the connection to the end of its first request, and from the first byte of each other one
to its last: twice the time-out that our webhooks are registered with."""

CLOSE_S: Final = 2.0
"""From our end of a connection to the caller's: until then what they still send is dropped."""


SMALL_BODY_BYTES: Final = 64 * 2**10
"""A body up to this size is small."""

RECEIVE_BYTES: Final = 32 * 2**10
"""What the kernel takes in before we read it; it doubles this. uvloop reads all of it at once, and
as long as a connection is open it keeps room for the most that came so: up to 600 KiB each."""

_SWEEP_S: Final = 1.0
_AT_ONCE: Final = 16
"""Connections accepted in a turn of the loop: a handshake takes about a millisecond of it."""

_RETRY_S: Final = 1.0
"""Until connections are accepted again, after the process had no file descriptor left."""


class Stage(IntEnum):
    """What a connection does, in the order in which it is given up for another one."""

    NEW = 0
    """No request was answered on it yet."""
    IDLE = 1
    RECEIVING = 2
    """Sends a request, or has not read an answer yet."""
    ANSWERING = 3
    """Waits for us; never given up."""


@dataclass(eq=False, slots=True)
class TimeShare:
    """A share of each second; a leaky bucket."""

    share: float
    at_once_s: float
    """How much of it is saved up while it is not used."""
    paid_at_s: float = 0.0
    """When the share covers the time used so far."""

    def is_left(self, now_s: float) -> bool:
        """Return True if more time may be used."""
        return (self.paid_at_s - now_s) * self.share < self.at_once_s

    def use(self, used_s: float, now_s: float) -> None:
        """Charge time that was used."""
        self.paid_at_s = max(self.paid_at_s, now_s) + used_s / self.share


@dataclass(eq=False, slots=True, kw_only=True)
class Peer:
    """An address that connections come from, as far as bounds are concerned."""

    address: str
    is_named: bool = False
    """The settings say that API servers are there."""
    is_trusted: bool = False
    slots: dict[Slot, None] = field(default_factory=dict)
    """Its connections, in the order in which they came."""
    body_bytes: int = 0
    """Of large bodies from there."""
    shares: tuple[TimeShare, ...] = ()
    """Its own share of the time, then that of all addresses that are not trusted."""
    clock: Callable[[], float] = time.monotonic

    def has_time(self) -> bool:
        """Return True if a review from there may be judged."""
        now_s = self.clock()
        return self.is_trusted or all(one.is_left(now_s) for one in self.shares)

    def timed(self, judge: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `judge` returns, and charge the time that it took.

        Two threads that charge at once may lose one of the two charges.
        """
        began_s = self.clock()
        try:
            return judge(*args, **kwargs)
        finally:
            now_s = self.clock()
            if not self.is_trusted:
                for one in self.shares:
                    one.use(now_s - began_s, now_s)


@dataclass(eq=False, slots=True)
class Slot:
    """One connection, as far as bounds are concerned."""

    peer: Peer
    close: Callable[[], Any]
    due_s: float
    """When it is closed unless something happens."""
    stage: Stage = Stage.NEW


def to_give_up(slots: Iterable[Slot], newcomer: Peer) -> Slot | None:
    """Return the connection to close for one more of `newcomer`; None for that one itself.

    `slots` are in the order in which they came, and of these rules an earlier one counts more.

    | given up | |
    | --- | --- |
    | never | one that is being answered; for an address that is not trusted, one of a trusted one |
    | first | of an address that is not trusted; of the address with most |
    | of those | without any request so far, else idle, else that still sends; the oldest |
    """
    return min(
        (
            one
            for one in slots
            if one.stage is not Stage.ANSWERING and (newcomer.is_trusted or not one.peer.is_trusted)
        ),
        key=lambda one: (one.peer.is_trusted, -len(one.peer.slots), one.stage),
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
        connect: Callable[[Connections, Slot], asyncio.Protocol],
        count_closed: Callable[[str], None],
        api_servers: Iterable[IPv4Network | IPv6Network] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve with what `connect` makes; count a connection that was closed, by why.

        Addresses in `api_servers` are trusted; 0.0.0.0/0 names everybody, and so nobody.
        `clock` measures reviews: the loop's own time stands still while one is judged.
        """
        self.loop = loop
        self.slots: dict[Slot, None] = {}
        """In the order in which they came."""
        self.peers: dict[str, Peer] = {}
        """Those of connections, those that are trusted, and those that used up time, by address."""
        self.date = b""
        """The date of an answer's head (RFC 9110 section 6.6.1)."""
        self.count_closed = count_closed
        self.in_flight = 0
        """Requests whose body is being received or answered."""
        self.body_bytes = 0
        """Of large bodies."""
        self._listener = listener
        self._context = context
        self._connect = connect
        self._api_servers = [one for one in api_servers if one.prefixlen]
        self._clock = clock
        self._untrusted = TimeShare(MAX_TIME_OF_UNTRUSTED, MAX_AT_ONCE_OF_UNTRUSTED_S)
        self._trusted: dict[Peer, float] = {}
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
        for slot in list(self.slots):
            slot.close()

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
            self._admit(accepted, address[0])

    def _admit(self, accepted: socket.socket, address: str) -> None:
        slot = self.place(address)
        if slot is None:
            accepted.close()
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake = self.loop.create_task(self._shake_hands(slot, accepted))
        slot.close = handshake.cancel

    def place(self, address: str) -> Slot | None:
        """Return a place for a connection, maybe another one's; None where there is none."""
        address = _as_ipv4(address)
        peer = self.peers.get(address) or self._peer(address)
        is_part_full = not peer.is_trusted and len(peer.slots) >= MAX_PER_ADDRESS
        if is_part_full or len(self.slots) >= MAX_CONNECTIONS:
            self.count_closed("too_many")
            given_up = to_give_up(peer.slots if is_part_full else self.slots, peer)
            if given_up is None:
                return None
            self._end(given_up)
        slot = Slot(peer, lambda: None, self.loop.time() + REQUEST_S)
        self.peers[address] = peer
        self.slots[slot] = peer.slots[slot] = None
        return slot

    def _peer(self, address: str) -> Peer:
        found = ip_address(address)
        is_named = any(found in network for network in self._api_servers)
        shares = TimeShare(MAX_TIME_OF_ADDRESS, MAX_AT_ONCE_OF_ADDRESS_S), self._untrusted
        return Peer(
            address=address,
            is_named=is_named,
            is_trusted=is_named,
            shares=shares,
            clock=self._clock,
        )

    def trust(self, slot: Slot) -> None:
        """Trust, for a while, the address of a connection on which the path of `bind` came."""
        peer = self.peers.setdefault(slot.peer.address, slot.peer)
        peer.is_trusted = True
        self._trusted.pop(peer, None)
        self._trusted[peer] = self.loop.time() + TRUST_S
        if len(self._trusted) > MAX_TRUSTED:
            self._distrust(next(iter(self._trusted)))

    def hold(self, peer: Peer, more: int) -> bool:
        """Count bytes of a large body; return whether there is room for them."""
        self.body_bytes += more
        peer.body_bytes += more
        most = MAX_LARGE_BYTES
        return self.body_bytes <= most and (
            peer.is_trusted or (peer.body_bytes <= most // 3 and self.body_bytes <= most * 2 // 3)
        )

    def _distrust(self, peer: Peer) -> None:
        del self._trusted[peer]
        peer.is_trusted = peer.is_named
        self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        """Forget an address, unless a new connection from there would gain time by that."""
        is_paid = peer.shares[0].paid_at_s <= self._clock()
        if not peer.slots and peer not in self._trusted and is_paid:
            self.peers.pop(peer.address, None)

    async def _shake_hands(self, slot: Slot, accepted: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(
                lambda: self._connect(self, slot), accepted, ssl=self._context
            )
        except (OSError, asyncio.CancelledError):
            self.forget(slot)

    def _end(self, slot: Slot) -> None:
        close = slot.close
        self.forget(slot)
        close()

    def forget(self, slot: Slot) -> None:
        """Make room for another connection."""
        self.slots.pop(slot, None)
        slot.peer.slots.pop(slot, None)
        self._drop(slot.peer)
        slot.close = lambda: None  # it refers to the transport, which refers to it

    def _sweep(self) -> None:
        """Close what is overdue; who is only idle has done nothing that is worth counting."""
        self.date = formatdate(usegmt=True).encode()
        now_s = self.loop.time()
        for slot in [slot for slot in self.slots if slot.due_s <= now_s]:
            self._end(slot)
            if slot.stage is not Stage.IDLE:
                self.count_closed("timeout")
        for peer in [one for one, until_s in self._trusted.items() if until_s <= now_s]:
            self._distrust(peer)
        for peer in list(self.peers.values()):
            self._drop(peer)
        self.loop.call_later(_SWEEP_S, self._sweep)


def _as_ipv4(address: str) -> str:
    """Return an address as IPv4 writes it, also where it came to a socket of IPv6."""
    return str((":" in address and IPv6Address(address).ipv4_mapped) or address)
