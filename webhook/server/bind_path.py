"""The path of /bind, which nobody can guess: who posts there was told so by the API server.

The TLS port has no authentication, and a Binding reserves GPUs; so the path begins with a secret.
It follows from the private key of the serving certificate, so that it changes with each, and from
the key that replicas mount as a file, so that who reads the certificate's Secret does not know it.
All replicas know it without storing it. `registration` writes it into the webhook configuration,
which only admins and our own account may read and write. It is never logged, nor shown in metrics.
"""

from __future__ import annotations

import hmac
import re
from threading import Lock
from typing import Final

from cryptography import x509

from certs import Bundle, derived_secret, readable_certificates

_PURPOSE: Final = "vramwarden: the path of bind, v1"
_SHAPE: Final = re.compile(r"/[0-9a-f]{32}/bind")
_MAX_EARLIER: Final = 8


def bind_path(key_pem: bytes, key: bytes = b"") -> str:
    """Return the path that goes with a private key and ours; raises CertificatesError."""
    secret = derived_secret(key_pem, _PURPOSE)
    if key:
        secret = hmac.digest(key, secret, "sha256")[: len(secret)]
    return f"/{secret.hex()}/bind"


def is_bind_path(path: str) -> bool:
    """Return whether a path has the shape of ours."""
    return _SHAPE.fullmatch(path) is not None


class BindPath:
    """The paths of /bind that are answered; safe from any thread.

    | path | answered |
    | --- | --- |
    | of the certificate that is served | yes |
    | of one served before, here | until the CA that it came with is forgotten |
    | in the webhook configuration, as last read | yes, if it has our shape |
    | any other, such as `/bind` | no |
    """

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self.own = ""
        """That of the certificate that is served; empty before there is one."""
        self._earlier: dict[str, frozenset[x509.Certificate]] = {}
        self._authorities: frozenset[x509.Certificate] = frozenset()
        self._configured = ""
        self._answered: tuple[bytes, ...] = ()
        self._changing = Lock()

    def serve(self, bundle: Bundle) -> None:
        """Take the path of a certificate that is served now; raises CertificatesError."""
        own = bind_path(bundle.key_pem, self._key)
        authorities = frozenset(readable_certificates(bundle.ca_pem))
        with self._changing:
            self._add(own, authorities)
            self._answer()

    def _add(self, own: str, authorities: frozenset[x509.Certificate]) -> None:
        if self.own and own != self.own:
            self._earlier[self.own] = self._authorities
        self._earlier.pop(own, None)
        # A set without CAs says nothing of the one before: cert-manager may leave them out.
        kept = [
            (path, held)
            for path, held in self._earlier.items()
            if not (held and authorities) or held & authorities
        ]
        self._earlier = dict(kept[-_MAX_EARLIER:])
        self.own, self._authorities = own, authorities

    def configured(self, path: str) -> None:
        """Take the path that stands in the webhook configuration."""
        with self._changing:
            self._configured = path if is_bind_path(path) else ""
            self._answer()

    def answers(self, path: str) -> bool:
        """Return whether a Binding may come by this path; takes as long for any of its length."""
        asked = path.encode(errors="surrogateescape")
        found = False
        for answered in self._answered:
            found |= hmac.compare_digest(asked, answered)
        return found

    def _answer(self) -> None:
        paths = dict.fromkeys((self.own, self._configured, *self._earlier))
        self._answered = tuple(path.encode() for path in paths if path)
