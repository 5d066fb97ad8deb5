"""Keep a set of certificates in a folder, laid out as kubelet mounts a Secret.

``..data`` is a symbolic link to a hidden folder that holds one version of all files, and each
name a user sees is a link through it::

    tls.crt -> ..data/tls.crt        ..data -> ..version-6f2a91c0
    tls.key -> ..data/tls.key        ..version-6f2a91c0/tls.crt ...

Renaming a new ``..data`` over the old one swaps certificate and key together; there is no moment
at which they do not match. Plain files, as people copy them, are read as well.

A set gets into a TLS context from memory, so that no key is ever written to a disk: Python's
``ssl`` takes paths only, and ``/dev/fd`` makes paths of files that exist in memory alone.
"""

import os
import ssl
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from certs.pki.pem import CERTIFICATE, FILES, KEY, Bundle, CertificatesError
from certs.rotation.rotate import Advance, SetAction, advance
from certs.stores.swap import DATA, locked, publish, through_data

# A read meets a swap only if that lands between two opens; several in a row are something else.
_ATTEMPTS = 5


def read(folder: Path) -> Bundle:
    """Return the set in the folder, all of one version; empty when there is none.

    Raises CertificatesError when a file cannot be read.
    """
    for _ in range(_ATTEMPTS):
        source = _source(folder)
        files = {name: _content(source / name) for name in FILES}
        # Checked before the source is compared, or a swap right after would seem a loss.
        lost = source != folder and not source.is_dir()
        if _source(folder) == source:
            if lost:
                cure = (
                    f"restore {source.name} from a copy, or remove {DATA} to have a new set issued"
                )
                raise CertificatesError(str(folder / DATA), "points to nothing", cure)
            return Bundle.from_files(files)
    what, cure = "changes faster than it can be read", "stop what keeps writing there"
    raise CertificatesError(str(folder), what, cure)


def ensure(folder: Path, names: Iterable[str], now: datetime) -> Advance:
    """Make the folder hold a valid set for these names; return what was done.

    See ``certs.rotation.rotate.advance`` for what is done when. Safe to call from several processes
    at once: writing happens under a lock, after a second read. Nothing is written, and no right to
    write is needed, while nothing is due. A folder this creates has mode 0700, private keys have
    0600 from their first byte on. Raises CertificatesError when the folder cannot be read or
    written or holds something broken; it then still holds what it held.
    """
    wanted = tuple(names)
    outcome = _advance(folder, wanted, now)
    if outcome.action is SetAction.KEPT:
        return outcome
    try:
        # Certificates may be public, but a folder we create holds nothing else than this set.
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        with locked(folder):
            outcome = _advance(folder, wanted, now)
            if outcome.action is not SetAction.KEPT:
                publish(folder, read(folder).files(), outcome.bundle.files())
    except OSError as error:
        what = f"cannot be written ({error.strerror})"
        cure = "give this user the right to write there, or name another folder"
        raise CertificatesError(str(folder), what, cure) from error
    return outcome


def load_into(context: ssl.SSLContext, folder: Path) -> Bundle:
    """Load certificate and key of one version into a TLS context; return their set.

    ``SSLContext.load_cert_chain`` opens two paths one after the other, and a swap in between
    gives it a certificate and the key of another; so the set is read first. Raises
    CertificatesError as ``load_set_into`` does.
    """
    bundle = read(folder)
    if not bundle.certificate_pem:
        raise CertificatesError(str(folder), "holds no certificate", "issue a set there first")
    load_set_into(context, bundle, str(folder))
    return bundle


def load_set_into(context: ssl.SSLContext, bundle: Bundle, where: str = "the set") -> None:
    """Load certificate and key of a set into a TLS context.

    Raises CertificatesError, naming ``where``, when they are absent or unusable. OpenSSL may have
    taken half of them by then, so load into a new context and keep serving with the old one until
    that has succeeded.
    """
    try:
        with ExitStack() as files:
            chain, key = (
                files.enter_context(_in_memory(text))
                for text in (bundle.certificate_pem, bundle.key_pem)
            )
            # Without a password OpenSSL would ask at the terminal for that of an encrypted key.
            context.load_cert_chain(chain, key, password="")
    except (ssl.SSLError, OSError) as error:
        what = f"holds a certificate and key that cannot be used ({error})"
        raise CertificatesError(where, what, "check its status and repair it") from error


def stamp(folder: Path) -> tuple[tuple[int, int, int], ...]:
    """Return a value that changes when certificate or key do, at the price of two ``stat``.

    For a server that reloads only what has changed. Empty when either is absent.
    """
    try:
        found = [(folder / name).stat() for name in (CERTIFICATE, KEY)]
    except OSError:
        return ()
    return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in found)


def _advance(folder: Path, names: tuple[str, ...], now: datetime) -> Advance:
    try:
        return advance(read(folder), names, now)
    except CertificatesError as error:
        if error.where not in FILES:
            raise
        raise CertificatesError(str(folder / error.where), error.what, error.cure) from error


def _source(folder: Path) -> Path:
    """Return where the files of the current version lie: behind ``..data``, or in the folder.

    One file of another kind among the visible names means that somebody put it there; then the
    visible files count.
    """
    data = folder / DATA
    try:
        if all(through_data(folder / name) for name in FILES):
            return folder / data.readlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unreadable(folder, error) from error
    return folder


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> CertificatesError:
    cure = "make it readable for this user, or name another folder"
    return CertificatesError(str(path), f"cannot be read ({error.strerror})", cure)


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/dev/fd/{descriptor}"
    finally:
        os.close(descriptor)
