"""TCP balancer on loopback that replaces a Service by sending connections to servers in turn."""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import threading
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def balanced(ports: Sequence[int]) -> Iterator[int]:
    """Balance connections to these ports, skipping those that refuse; yield the balancer's port."""
    turn = itertools.count()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:

        def accept() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=_serve, args=(near, ports, next(turn)), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _serve(near: socket.socket, ports: Sequence[int], turn: int) -> None:
    with near:
        for step in range(len(ports)):
            try:
                far = socket.create_connection(("127.0.0.1", ports[(turn + step) % len(ports)]))
            except OSError:
                continue
            for item in (
                near,
                far,
            ):  # half of a TLS record must not wait 40 ms for an acknowledgement
                item.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with far, contextlib.suppress(OSError):
                _pump(near, far)
            return


def _pump(near: socket.socket, far: socket.socket) -> None:
    """Copy bytes in both directions until one side closes."""
    with selectors.DefaultSelector() as ready:
        ready.register(near, selectors.EVENT_READ, far)
        ready.register(far, selectors.EVENT_READ, near)
        while True:
            for key, _ in ready.select():
                data = key.fileobj.recv(65536)
                if not data:
                    return
                key.data.sendall(data)
