"""The serving certificate: a replaced one is shown on the next handshake.

Gunicorn's asgi worker builds one TLS context when it starts. OpenSSL's server-name callback may
hand a handshake another context, and is called even where the client sends no name; so the context
to listen with has no certificate, each handshake gets the current one, and open connections keep
what they have.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from certs import CertificatesError, load_into, load_set_into, stamp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from certs import Bundle
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics


class ServingCertificate:
    """What handshakes are shown; the last good one is kept. Without any, handshakes fail."""

    def __init__(self, metrics: Metrics, log: JsonLog) -> None:
        self._metrics = metrics
        self._log = log
        self._current: ssl.SSLContext | None = None

    @property
    def there(self) -> bool:
        """Tell whether there is a certificate to show."""
        return self._current is not None

    def context(self) -> ssl.SSLContext:
        """Return the context to listen with."""
        context = _context()
        context.sni_callback = self._choose
        return context

    def use(self, bundle: Bundle) -> None:
        """Show the certificate of a set from now on, if it is fit."""
        self._use(lambda context: load_set_into(context, bundle))

    def _use(self, load: Callable[[ssl.SSLContext], None]) -> None:
        try:
            context = _context()
            load(context)
        except CertificatesError as error:
            self._metrics.certificate_loads.labels("refused").inc()
            self._log.error("certificate refused, the last good one is served", why=str(error))
        else:
            self._current = context
            self._metrics.certificate_loads.labels("loaded").inc()
            self._log.info("certificate loaded")

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _old: object) -> None:
        """Give a handshake the current certificate."""
        if self._current is not None:
            connection.context = self._current


class FolderCertificate(ServingCertificate):
    """The certificate in a folder, loaded again when it changes."""

    def __init__(self, folder: Path, metrics: Metrics, log: JsonLog) -> None:
        """Load the certificate; raises CertificatesError."""
        super().__init__(metrics, log)
        self._folder = folder
        self._stamp = stamp(folder)
        self._current = _context()
        load_into(self._current, folder)

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _old: object) -> None:
        """Give a handshake the certificate that the folder holds now."""
        seen = stamp(self._folder)
        if seen != self._stamp:
            self._stamp = seen
            self._use(lambda context: load_into(context, self._folder))
        super()._choose(connection, _name, _old)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The API server speaks HTTP/1.1 to webhooks, so that its calls spread over replicas.
    context.set_alpn_protocols(["http/1.1"])
    return context
