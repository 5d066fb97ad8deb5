"""Handshakes in memory, and the folders, names and moments that tests share."""

import ssl
from contextlib import suppress
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
    return handshake(server, ca_pem, name)


def handshake(server: ssl.SSLContext, ca_pem: bytes, name: str = NAMES[0]) -> dict:
    """Greet a server as a client that trusts these CAs; return its certificate."""
    client = ssl.create_default_context(cadata=ca_pem.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up, server_hostname=name)
    shaking = [near, server.wrap_bio(up, down, server_side=True)]
    while shaking:
        for one in tuple(shaking):
            with suppress(ssl.SSLWantReadError):
                one.do_handshake()
                shaking.remove(one)
    return near.getpeercert()


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
