"""The serving certificate, from a folder or from the Secret that replicas share.

A replaced certificate is served on the next handshake. The worker makes one TLS context when it
starts. OpenSSL's server-name callback may give a handshake another context, and is called even if
the client sends no name. So the context that listens has no certificate, each handshake gets the
current one, and open connections keep the one that they have.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Final

from certs import (
    Advance,
    Bundle,
    CertificatesError,
    Publish,
    Replica,
    Terms,
    create,
    describe,
    load_into,
    read,
    stamp,
)
from webhook.adapters.kube.certificates import CertificatesApi, Round
from webhook.server.bind_path import BindPath
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics, SharedCertificateMetrics
from webhook.server.mirror import trigger
from webhook.server.operations import ServerPart, repeat

FOLDER_S: Final = 3600.0
"""Time between two checks of a certificate from a folder."""

SYNC_S: Final = 30.0
"""Time between two syncs of the Secret if no watch reports a change."""

PAUSE_S: Final = 0.5
"""Pause after a sync, so that a conflict with another writer of the caBundles stays slow."""

FIRST_RETRY_S: Final = 1.0


class CertificateKeeper(ServerPart):
    """The certificate for handshakes: the last good one; without any, handshakes fail.

    Its `str` names the place of the certificate.
    """

    def __init__(self, metrics: Metrics, log: JsonLog, key: bytes) -> None:
        self.bind_path = BindPath(key)
        """The paths of /bind that go with the certificate."""
        self._metrics = metrics
        self._log = log
        self._current: ssl.SSLContext | None = None
        self._served = Bundle()

    @property
    def loaded(self) -> bool:
        """Return True if there is a certificate to serve."""
        return self._current is not None

    def context(self) -> ssl.SSLContext:
        """Return the context to listen with."""
        context = _context()
        context.sni_callback = self._choose
        return context

    def _refresh(self) -> None:
        """Use another certificate if that is due; called at the start of each handshake."""

    def _load(self, bundle: Bundle) -> None:
        """Serve another certificate from now on; raises CertificatesError if it is unusable."""
        context = _context()
        load_into(context, bundle, str(self))
        self.bind_path.serve(bundle)
        self._current, self._served = context, bundle

    def _use(self, read_set: Callable[[], Bundle]) -> None:
        """Serve another certificate from now on, if it is usable; count and log the result."""
        try:
            self._load(read_set())
        except CertificatesError as error:
            self._metrics.certificate_loads.labels("rejected").inc()
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


class FolderKeeper(CertificateKeeper):
    """Serves the certificate in a folder, and each that replaces it there."""

    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...],
        metrics: Metrics,
        log: JsonLog,
        key: bytes = b"",
    ) -> None:
        """Issue a certificate for `names` if the folder has none; raises CertificatesError."""
        super().__init__(metrics, log, key)
        self._folder = folder
        if read(folder) == Bundle():
            create(folder, names, datetime.now(UTC))
        self._stamp = stamp(folder)
        self._load(read(folder))

    def __str__(self) -> str:
        """Return the folder's path."""
        return str(self._folder)

    def start(self) -> None:
        """Check the certificate from time to time, on a daemon thread."""
        repeat(self.check, FOLDER_S, self._log, "certificates", "certificates failed")

    def check(self) -> None:
        """Log what is wrong with the certificate that is served; measure its days left."""
        found = describe(self._served, datetime.now(UTC))
        if found.problems:
            self._log.warning("certificates have problems", problems=list(found.problems))
        self._metrics.show_certificates(found)

    def _refresh(self) -> None:
        seen = stamp(self._folder)
        if seen != self._stamp:
            self._stamp = seen
            self._use(lambda: read(self._folder))


class SecretKeeper(CertificateKeeper):
    """Reconciles Secret and caBundles together with other replicas.

    `certs.replica` decides what is due, and the API does it; thread, log and metrics are here.
    Without the API server the certificate stays served: nothing here removes one.
    """

    def __init__(
        self,
        api: CertificatesApi,
        names: tuple[str, ...],
        terms: Terms,
        metrics: Metrics,
        log: JsonLog,
        key: bytes = b"",
    ) -> None:
        """Send no request to the cluster yet; raises CertificatesError for impossible names."""
        super().__init__(metrics, log, key)
        self._api = api
        self._replica = Replica(names, terms)
        self._sync_s = min(SYNC_S, max(PAUSE_S, terms.settle_s / 4))
        self._shared_metrics = SharedCertificateMetrics(metrics)
        self._changed = Event()
        self._to_serve = Bundle()
        self._unready = "no certificate yet"

    def __str__(self) -> str:
        """Return the Secret's name."""
        return self._api.title

    def start(self) -> None:
        """Begin to reconcile the certificates on daemon threads."""
        Thread(target=self._run, name="certificates", daemon=True).start()
        for number, followed in enumerate(self._api.followed()):
            trigger(self._changed, followed, self._log, f"certificates-watch-{number}")

    def obstacle(self) -> str:
        """Return why no traffic should come; empty once it may, and from then on.

        A replica reconciles a caBundle that is damaged later, ready or not; being unready then
        would only delay the calls that follow.
        """
        return self._unready

    def keep(self) -> bool:
        """Do what is due, and log it; return True if all of it succeeded."""
        failures: tuple[str, ...]
        try:
            found = self._api.round(self._replica)
        except CertificatesError as error:
            failures = (str(error),)
            if self._unready:
                self._unready = f"no certificate yet: {error}"
        else:
            failures = found.failures
            self._adopt(found)
        if self._served.certificate_pem:
            self._metrics.show_certificates(describe(self._served, datetime.now(UTC)))
        self._report(failures)
        return not failures

    def _adopt(self, found: Round) -> None:
        for step in found.done:
            self._log_step(step)
        if found.served != self._to_serve:
            self._to_serve = found.served
            self._use(lambda: found.served)
        self._shared_metrics.ca_bundle_published.set(not found.unready)
        if self._unready:
            lacking = "" if self.loaded else "no valid certificate yet"
            self._unready = lacking or found.unready
            if self._unready:
                self._unready = "; ".join((self._unready, *found.failures))

    def _log_step(self, step: Advance | Publish) -> None:
        if isinstance(step, Publish):
            webhooks = [name for name, _ in step.bundles]
            self._log.info(
                "caBundle written", configuration=step.configuration.title, webhooks=webhooks
            )
        else:
            self._log.info(
                "certificates written", action=step.action.value, reasons=list(step.reasons)
            )

    def _report(self, failures: tuple[str, ...]) -> None:
        """Count each sync; log failures when they begin and when they end."""
        self._shared_metrics.syncs.labels("failed" if failures else "done").inc()
        if not failures:
            self._shared_metrics.synced_at.set_to_current_time()
            self._log.over("certificates", "certificates are reconciled again")
        else:
            self._log.once(
                "certificates", "error", "certificates cannot be reconciled", list(failures)
            )

    def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            self._changed.clear()
            try:
                succeeded = self.keep()
            except Exception:  # noqa: BLE001 - the next turn may succeed; a dead thread never would
                self._log.exception("certificates failed")
                succeeded = False
            retry_s = FIRST_RETRY_S if succeeded else min(2 * retry_s, self._sync_s)
            time.sleep(PAUSE_S)
            self._changed.wait(self._sync_s if succeeded else retry_s)
