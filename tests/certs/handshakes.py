"""TLS handshakes in memory, and folders, names and times for tests."""

import shutil
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from certs import Bundle, Pair, issue_serving, load_into

NAMES = ("hook.gpu.svc", "127.0.0.1", "::1")
DAY = timedelta(days=1)


def real_now() -> datetime:
    return datetime.now(tz=UTC)


def shake_hands(bundle: Bundle, ca_pem: bytes, name: str = NAMES[0]) -> dict:
    """Run a handshake, verify it against the CAs, and return the server's certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_into(server, bundle)
    return handshake(server, ca_pem, name)


def handshake(server: ssl.SSLContext, ca_pem: bytes, name: str = NAMES[0]) -> dict:
    """Run a handshake as a client that trusts these CAs; return the server's certificate."""
    client = ssl.create_default_context(cadata=ca_pem.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up, server_hostname=name)
    shaking = [near, server.wrap_bio(up, down, server_side=True)]
    while shaking:
        for item in tuple(shaking):
            with suppress(ssl.SSLWantReadError):
                item.do_handshake()
                shaking.remove(item)
    return near.getpeercert()


def renewed(bundle: Bundle, names: Sequence[str] = NAMES) -> Bundle:
    """Return the set with another serving certificate signed by its CA."""
    pair = issue_serving(Pair(bundle.ca_pem, bundle.ca_key_pem), names, real_now())
    return replace(bundle, certificate_pem=pair.certificate_pem, key_pem=pair.key_pem)


def put(folder: Path, bundle: Bundle) -> Bundle:
    """Write a certificate set as plain files; replace existing files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in bundle.files().items():
        (folder / name).write_bytes(content)
    return bundle


def mount(folder: Path, bundle: Bundle, version: str) -> None:
    """Write a set into the folder like the kubelet: one rename replaces all files."""
    put(folder / f"..{version}", bundle)
    for name in bundle.files():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    temporary, data = folder / "..data_tmp", folder / "..data"
    before = data.resolve() if data.is_symlink() else None
    temporary.symlink_to(f"..{version}")
    temporary.replace(data)
    if before:
        shutil.rmtree(before)
