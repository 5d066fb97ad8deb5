"""The serving certificate: a replaced one is shown on the next handshake.

Gunicorn's asgi worker builds one TLS context when it starts. OpenSSL's server-name callback may
hand a handshake another context, and is called even where the client sends no name, so each
handshake looks whether the files changed; open connections keep what they have.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from certs import CertificatesError, load_into, stamp

if TYPE_CHECKING:
    from pathlib import Path

    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics


class ServingCertificate:
    """The certificate in a folder, loaded again when it changes; the last good one is kept."""

    def __init__(self, folder: Path, metrics: Metrics, log: JsonLog) -> None:
        """Load the certificate; raises CertificatesError."""
        self._folder = folder
        self._metrics = metrics
        self._log = log
        self._stamp = stamp(folder)
        self._current = _context(folder)

    def context(self) -> ssl.SSLContext:
        """Return the context to listen with."""
        context = _context(self._folder)
        context.sni_callback = self._choose
        return context

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _old: object) -> None:
        """Give a handshake the certificate that the folder holds now."""
        seen = stamp(self._folder)
        if seen != self._stamp:
            self._stamp = seen
            try:
                self._current = _context(self._folder)
            except CertificatesError as error:
                self._metrics.certificate_loads.labels("refused").inc()
                self._log.error("certificate refused, the last good one is served", why=str(error))
            else:
                self._metrics.certificate_loads.labels("loaded").inc()
                self._log.info("certificate loaded", folder=str(self._folder))
        connection.context = self._current


def _context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The API server speaks HTTP/1.1 to webhooks, so that its calls spread over replicas.
    context.set_alpn_protocols(["http/1.1"])
    load_into(context, folder)
    return context
