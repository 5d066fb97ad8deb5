"""The serving certificate: a replaced one is shown on the next handshake.

The worker makes one TLS context when it starts. OpenSSL's server-name callback may hand a handshake
another context, and is called even where the client sends no name; so the context to listen with
has no certificate, each handshake gets the current one, and open connections keep what they have.
Its keeper decides where the certificate comes from.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Protocol

from certs import CertificatesError
from webhook.server.operations import ServerPart

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.server.bind_path import BindPath
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics

    Load = Callable[[ssl.SSLContext], None]
    """Loads a certificate into a new context; raises CertificatesError where it is unusable."""


class CertificateKeeper(ServerPart, Protocol):
    """Keeps the certificate that is served; its `str` says where the certificate lies."""

    @property
    def serving(self) -> ServingCertificate:
        """Return the certificate that handshakes get."""

    @property
    def bind_path(self) -> BindPath:
        """Return the paths of /bind that go with the certificate."""


class ServingCertificate:
    """The certificate that handshakes get: the last good one. Without any, handshakes fail."""

    def __init__(
        self, metrics: Metrics, log: JsonLog, refresh: Callable[[], None] = lambda: None
    ) -> None:
        """Call `refresh` at the beginning of each handshake; it may `use` another certificate."""
        self._metrics = metrics
        self._log = log
        self._refresh = refresh
        self._current: ssl.SSLContext | None = None

    @property
    def loaded(self) -> bool:
        """Return whether there is a certificate to serve."""
        return self._current is not None

    def context(self) -> ssl.SSLContext:
        """Return the context to listen with."""
        context = _context()
        context.sni_callback = self._choose
        return context

    def load(self, load: Load) -> None:
        """Serve another certificate from now on; raises CertificatesError where it is unusable."""
        context = _context()
        load(context)
        self._current = context

    def use(self, load: Load) -> None:
        """Serve another certificate from now on, if it is usable; count and log the result."""
        try:
            self.load(load)
        except CertificatesError as error:
            self._metrics.certificate_loads.labels("refused").inc()
            self._log.error("certificate rejected, the last good one is served", why=str(error))
        else:
            self._metrics.certificate_loads.labels("loaded").inc()
            self._log.info("certificate loaded")

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _old: object) -> None:
        """Give a handshake the current certificate."""
        self._refresh()
        if self._current is not None:
            connection.context = self._current


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The API server speaks HTTP/1.1 to webhooks, so that its calls spread over replicas.
    context.set_alpn_protocols(["http/1.1"])
    return context
