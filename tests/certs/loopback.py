"""Real TLS over loopback, and the names and moments the tests share."""

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from certs import Bundle, load_into
from certs.stores.folder import read

NAMES = ("hook.gpu.svc", "127.0.0.1", "::1")
DAY = timedelta(days=1)


def real_now() -> datetime:
    return datetime.now(tz=UTC)


def shake_hands(folder: Path, ca_pem: bytes, name: str = NAMES[0]) -> dict:
    """Serve one handshake from the folder, verify it against the CAs, return the outcome."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_into(server, folder)
    client = ssl.create_default_context(cadata=ca_pem.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    near, far = socket.socketpair()
    near.settimeout(60)
    far.settimeout(60)

    def serve():
        try:
            with server.wrap_socket(far, server_side=True) as connection:
                connection.recv(1)
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(near, server_hostname=name) as connection:
            connection.sendall(b"x")
            return connection.getpeercert()
    finally:
        near.close()
        thread.join(60)


def put(folder: Path, bundle: Bundle) -> Bundle:
    """Lay the set down as plain files, the way a person copies them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in bundle.files().items():
        (folder / name).write_bytes(content)
    return read(folder)


def tree(folder: Path) -> dict[str, bytes | str]:
    """Return everything in the folder, to find out whether anything was changed."""
    return {
        str(path.relative_to(folder)): (
            str(path.readlink()) if path.is_symlink() else path.read_bytes()
        )
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def versions(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.is_dir() and not p.is_symlink()]
