"""Limits on connections to the TLS port, in total, per address and in time.

Any client that reaches the port may connect. A connection costs 50 KiB of a pod's 256 MiB, and up
to 200 KiB after it has sent much. The number of connections is therefore limited, in total and per
address. At the limit a new connection replaces one of the address with the most connections.

An address from which API servers are known to connect is trusted. It has no limit per address, and
untrusted addresses cannot replace its connections. An API server can therefore always connect,
however many connections a tenant's pods have. API servers at untrusted addresses are limited like
any client. If they share an address with tenants, the webhook cannot distinguish them.

The time that reviews take is also limited, per untrusted address and for all untrusted addresses
together. Beyond the limit clients are asked to retry, and their reviews are not judged.
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
    MAX_BURST_OF_UNTRUSTED_S,
    MAX_BURST_PER_ADDRESS_S,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_ADDRESS,
    MAX_LARGE_BYTES,
    MAX_TIME_OF_UNTRUSTED,
    MAX_TIME_PER_ADDRESS,
    MAX_TRUSTED_ADDRESSES,
)

P = ParamSpec("P")
T = TypeVar("T")

TRUST_S: Final = 600.0
"""Time for which an address is trusted after using the path of /bind, known only to API servers."""

REQUEST_S: Final = 10.0
"""Maximum time from the connection to the end of the first request, and from the first to the
last byte of each later request. It is twice the timeout of the registered webhooks."""

CLOSE_S: Final = 2.0
"""Time for a client to close a connection that the webhook closed; further data is dropped."""

SMALL_BODY_BYTES: Final = 64 * 2**10
"""Maximum size of a body that counts as small."""

RECEIVE_BYTES: Final = 32 * 2**10
"""Receive buffer of a socket, which the kernel doubles. uvloop reads the whole buffer at once
and keeps memory for the largest read of each open connection, up to 600 KiB."""

_SWEEP_S: Final = 1.0
_MAX_ACCEPTED: Final = 16
"""Maximum number of connections accepted per event-loop turn. A handshake takes about 1 ms."""

_RETRY_S: Final = 1.0
"""Delay in seconds before connections are accepted again after file descriptors ran out."""


class Stage(IntEnum):
    """State of a connection. To make room, connections with the lowest stage are closed first."""

    NEW = 0
    """No request has been answered yet."""
    IDLE = 1
    RECEIVING = 2
    """The client is sending a request, or has not read a response yet."""
    ANSWERING = 3
    """The client waits for the response. The connection is never closed to make room."""


@dataclass(eq=False, slots=True)
class TimeShare:
    """A share of each second, limited by a leaky bucket."""

    share: float
    burst_s: float
    """Maximum unused time that can be saved up."""
    covered_at_s: float = 0.0
    """Time at which the share covers all time used so far."""

    def has_time(self, now_s: float) -> bool:
        """Return True if the share has time left."""
        return (self.covered_at_s - now_s) * self.share < self.burst_s

    def charge(self, used_s: float, now_s: float) -> None:
        """Charge the used time to the share."""
        self.covered_at_s = max(self.covered_at_s, now_s) + used_s / self.share


@dataclass(eq=False, slots=True, kw_only=True)
class Peer:
    """A client address and the resources that are limited per address."""

    address: str
    is_configured: bool = False
    """True if the settings list this address as an API server's."""
    is_trusted: bool = False
    slots: dict[Slot, None] = field(default_factory=dict)
    """Connections of this address, oldest first."""
    body_bytes: int = 0
    """Memory reserved for large bodies from this address."""
    shares: tuple[TimeShare, ...] = ()
    """The time share of this address, and the share of all untrusted addresses."""
    clock: Callable[[], float] = time.monotonic

    def has_time(self) -> bool:
        """Return True if a review from this address may be judged."""
        now_s = self.clock()
        return self.is_trusted or all(share.has_time(now_s) for share in self.shares)

    def run_timed(self, judge: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `judge`, charge the time that it takes, and return its result.

        If two threads charge at the same time, one charge may be lost.
        """
        began_s = self.clock()
        try:
            return judge(*args, **kwargs)
        finally:
            now_s = self.clock()
            if not self.is_trusted:
                for share in self.shares:
                    share.charge(now_s - began_s, now_s)


@dataclass(eq=False, slots=True)
class Slot:
    """One of the limited places for connections."""

    peer: Peer
    close: Callable[[], Any]
    due_s: float
    """Event-loop time at which the connection is closed."""
    stage: Stage = Stage.NEW


def choose_slot_to_close(slots: Iterable[Slot], newcomer: Peer) -> Slot | None:
    """Return the connection to close so that `newcomer` can connect; None to reject the newcomer.

    `slots` are ordered by age, oldest first. An earlier row takes precedence.

    | closed | connections |
    | --- | --- |
    | never | being answered, or of a trusted address while `newcomer` is untrusted |
    | first | of an untrusted address, then of the address with most connections |
    | among these | without an answered request, then idle, then receiving, then oldest |
    """
    return min(
        (
            slot
            for slot in slots
            if slot.stage is not Stage.ANSWERING
            and (newcomer.is_trusted or not slot.peer.is_trusted)
        ),
        key=lambda slot: (slot.peer.is_trusted, -len(slot.peer.slots), slot.stage),
        default=None,
    )


class Connections:
    """Accepts connections, and closes slow ones and those beyond the limits.

    asyncio's own server has no limits, and hands over a connection only after its handshake.
    """

    is_draining = False
    """True if each response is the last one on its connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        context: ssl.SSLContext,
        create_protocol: Callable[[Connections, Slot], asyncio.Protocol],
        count_closed: Callable[[str], None],
        api_servers: Iterable[IPv4Network | IPv6Network] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the settings; `start` begins to accept connections.

        `create_protocol` creates the protocol of a connection, and `count_closed` counts a closed
        connection by its reason. Addresses in `api_servers` are trusted, except for 0.0.0.0/0,
        which contains all addresses. `clock` measures the duration of reviews: the event loop's
        time does not advance while it judges a review.
        """
        self.loop = loop
        self.slots: dict[Slot, None] = {}
        """All connections, oldest first."""
        self.peers: dict[str, Peer] = {}
        """Peers, keyed by address, that have connections or trust, or have used time."""
        self.date = b""
        """Value of the `date` header (RFC 9110 section 6.6.1)."""
        self.count_closed = count_closed
        self.in_flight = 0
        """Number of requests whose body is being received or answered."""
        self.body_bytes = 0
        """Memory reserved for all large bodies."""
        self._listener = listener
        self._context = context
        self._create_protocol = create_protocol
        self._api_servers = [network for network in api_servers if network.prefixlen]
        self._clock = clock
        self._untrusted = TimeShare(MAX_TIME_OF_UNTRUSTED, MAX_BURST_OF_UNTRUSTED_S)
        self._trusted: dict[Peer, float] = {}
        """End of trust keyed by peer, for peers that used the path of /bind; the latest last."""

    def start(self) -> None:
        """Begin to accept connections."""
        self._listener.setblocking(False)
        # Accepted sockets inherit this option.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        self.loop.add_reader(self._listener, self._accept)
        self._sweep()

    def close(self) -> None:
        """Accept no more connections, and close all open ones."""
        self._stop_accepting()
        for slot in list(self.slots):
            slot.close()

    def _stop_accepting(self) -> None:
        if self._listener.fileno() >= 0:
            self.loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(_MAX_ACCEPTED):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # No file descriptor is left: another attempt now would only keep the loop busy.
                self._stop_accepting()
                self.loop.call_later(_RETRY_S, self.loop.add_reader, self._listener, self._accept)
                return
            self._admit(accepted, address[0])

    def _admit(self, accepted: socket.socket, address: str) -> None:
        slot = self.allocate(address)
        if slot is None:
            accepted.close()
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake = self.loop.create_task(self._shake_hands(slot, accepted))
        slot.close = handshake.cancel

    def allocate(self, address: str) -> Slot | None:
        """Return a slot for a new connection, or None. At a limit, another connection is closed."""
        address = _as_ipv4(address)
        peer = self.peers.get(address) or self._create_peer(address)
        is_address_full = not peer.is_trusted and len(peer.slots) >= MAX_CONNECTIONS_PER_ADDRESS
        if is_address_full or len(self.slots) >= MAX_CONNECTIONS:
            self.count_closed("too_many")
            closing = choose_slot_to_close(peer.slots if is_address_full else self.slots, peer)
            if closing is None:
                return None
            self._close_slot(closing)
        slot = Slot(peer, lambda: None, self.loop.time() + REQUEST_S)
        self.peers[address] = peer
        self.slots[slot] = peer.slots[slot] = None
        return slot

    def _create_peer(self, address: str) -> Peer:
        parsed = ip_address(address)
        is_configured = any(parsed in network for network in self._api_servers)
        shares = TimeShare(MAX_TIME_PER_ADDRESS, MAX_BURST_PER_ADDRESS_S), self._untrusted
        return Peer(
            address=address,
            is_configured=is_configured,
            is_trusted=is_configured,
            shares=shares,
            clock=self._clock,
        )

    def trust(self, slot: Slot) -> None:
        """Trust the address of a connection for `TRUST_S`, because it used the path of /bind."""
        peer = self.peers.setdefault(slot.peer.address, slot.peer)
        peer.is_trusted = True
        self._trusted.pop(peer, None)
        self._trusted[peer] = self.loop.time() + TRUST_S
        if len(self._trusted) > MAX_TRUSTED_ADDRESSES:
            self._distrust(next(iter(self._trusted)))

    def reserve(self, peer: Peer, more_bytes: int) -> bool:
        """Reserve memory for a large body; return False if this exceeds the limit."""
        self.body_bytes += more_bytes
        peer.body_bytes += more_bytes
        limit = MAX_LARGE_BYTES
        return self.body_bytes <= limit and (
            peer.is_trusted or (peer.body_bytes <= limit // 3 and self.body_bytes <= limit * 2 // 3)
        )

    def _distrust(self, peer: Peer) -> None:
        del self._trusted[peer]
        peer.is_trusted = peer.is_configured
        self._forget_unused(peer)

    def _forget_unused(self, peer: Peer) -> None:
        """Drop a peer without connections or trust once its share covers its used time."""
        is_covered = peer.shares[0].covered_at_s <= self._clock()
        if not peer.slots and peer not in self._trusted and is_covered:
            self.peers.pop(peer.address, None)

    async def _shake_hands(self, slot: Slot, accepted: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(
                lambda: self._create_protocol(self, slot), accepted, ssl=self._context
            )
        except (OSError, asyncio.CancelledError):
            self.release(slot)

    def _close_slot(self, slot: Slot) -> None:
        close = slot.close
        self.release(slot)
        close()

    def release(self, slot: Slot) -> None:
        """Free the slot of a connection."""
        self.slots.pop(slot, None)
        slot.peer.slots.pop(slot, None)
        self._forget_unused(slot.peer)
        slot.close = lambda: None  # breaks a reference cycle through the transport

    def _sweep(self) -> None:
        """Close overdue connections, and count those that were not idle."""
        self.date = formatdate(usegmt=True).encode()
        now_s = self.loop.time()
        for slot in [slot for slot in self.slots if slot.due_s <= now_s]:
            self._close_slot(slot)
            if slot.stage is not Stage.IDLE:
                self.count_closed("timeout")
        for peer in [peer for peer, until_s in self._trusted.items() if until_s <= now_s]:
            self._distrust(peer)
        for peer in list(self.peers.values()):
            self._forget_unused(peer)
        self.loop.call_later(_SWEEP_S, self._sweep)


def _as_ipv4(address: str) -> str:
    return str((":" in address and IPv6Address(address).ipv4_mapped) or address)
