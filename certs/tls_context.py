"""Load a set into a TLS context from memory, so that no key is ever written to a disk.

Python's ``ssl`` takes paths only; ``/dev/fd`` makes paths of files that exist in memory alone.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from certs.errors import CertificatesError
from certs.pki.pem import Bundle


def load_set_into(context: ssl.SSLContext, bundle: Bundle, where: str = "the set") -> None:
    """Load certificate and key of a set into a TLS context.

    Raises CertificatesError, naming ``where``, when they are absent or unusable. OpenSSL may have
    taken half of them by then, so load into a new context and keep serving with the old one until
    that has succeeded.
    """
    try:
        with ExitStack() as files:
            chain, key = (
                files.enter_context(_path(text))
                for text in (bundle.certificate_pem, bundle.key_pem)
            )
            # Without a password OpenSSL would ask at the terminal for that of an encrypted key.
            context.load_cert_chain(chain, key, password="")
    except (ssl.SSLError, OSError) as error:
        what = f"holds a certificate and key that cannot be used ({error})"
        raise CertificatesError(where, what, "check its status and repair it") from error


@contextmanager
def _path(content: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/dev/fd/{descriptor}"
    finally:
        os.close(descriptor)
