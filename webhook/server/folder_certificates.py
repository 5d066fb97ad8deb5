"""The certificate in a folder: renewed where we issued it, reloaded when it changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from certs import CertificatesError, SetAction, describe, ensure, load_into, read, stamp
from webhook.server.bind_path import BindPath
from webhook.server.operations import ServerPart, repeat
from webhook.server.tls import ServingCertificate

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics

INTERVAL_S: Final = 3600.0


class FolderKeeper(ServerPart):
    """Keeps the certificate of one server in a folder; a `CertificateKeeper`."""

    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...],
        metrics: Metrics,
        log: JsonLog,
        key: bytes = b"",
    ) -> None:
        """Issue a certificate for `names` where none exists; raises CertificatesError."""
        self._folder = folder
        self._names = names
        self._metrics = metrics
        self._log = log
        ensure(folder, names, datetime.now(UTC))
        self._stamp = stamp(folder)
        self.bind_path = BindPath(key)
        self.serving = ServingCertificate(metrics, log, self._refresh)
        self.serving.load(self._load)

    def __str__(self) -> str:
        """Return where the certificate lies."""
        return str(self._folder)

    def start(self) -> None:
        """Renew the certificate in time, on a daemon thread."""
        repeat(self.keep, INTERVAL_S, self._log, "certificates", "certificates failed")

    def keep(self) -> None:
        """Renew certificates that we issued; measure the days left of any."""
        now = datetime.now(UTC)
        try:
            advance = ensure(self._folder, self._names, now)
        except CertificatesError as error:
            self._log.error("certificates cannot be renewed", why=str(error))
            return
        if advance.action is not SetAction.KEPT:
            self._log.info("certificates renewed", action=advance.action.value)
        if advance.problems:
            self._log.warning("certificates have problems", problems=list(advance.problems))
        self._metrics.show_certificates(describe(advance.bundle, now))

    def _refresh(self) -> None:
        """Load what the folder holds now, if that changed."""
        seen = stamp(self._folder)
        if seen != self._stamp:
            self._stamp = seen
            self.serving.use(self._load)

    def _load(self, context: ssl.SSLContext) -> None:
        load_into(context, self._folder)
        self.bind_path.serve(read(self._folder))
