"""The serving certificate and its two keepers: a folder, a Secret of all replicas.

A replaced certificate is shown on the next handshake. The worker makes one TLS context when it
starts. OpenSSL's server-name callback may hand a handshake another context, and is called even
where the client sends no name; so the context to listen with has no certificate, each handshake
gets the current one, and open connections keep what they have.
"""

from __future__ import annotations

import ssl
import time
from abc import abstractmethod
from datetime import UTC, datetime
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from certs import (
    Bundle,
    CertificatesError,
    Replica,
    SetAction,
    Store,
    describe,
    ensure,
    load_into,
    load_set_into,
    stamp,
)
from webhook.server.bind_path import BindPath
from webhook.server.metrics import SharedCertificateMetrics
from webhook.server.mirror import trigger
from webhook.server.operations import ServerPart, repeat

if TYPE_CHECKING:
    from pathlib import Path

    from certs import Publish, Round, Terms
    from webhook.adapters.kube.certificates import CertificatesApi
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics

FOLDER_S: Final = 3600.0
"""Between two checks whether the certificate in a folder is due."""

SYNC_S: Final = 30.0
"""Between two syncs of the Secret where no watch reports a change."""

PAUSE_S: Final = 0.5
"""After a sync, so that a conflict with another writer of the caBundles stays a slow one."""

FIRST_RETRY_S: Final = 1.0


class CertificateKeeper(ServerPart):
    """Keeps the certificate that handshakes get, the last good one; without any they fail.

    Its `str` says where the certificate lies.
    """

    def __init__(self, metrics: Metrics, log: JsonLog, key: bytes) -> None:
        self.bind_path = BindPath(key)
        """The paths of /bind that go with the certificate."""
        self._metrics = metrics
        self._log = log
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

    @abstractmethod
    def _load_into(self, context: ssl.SSLContext) -> Bundle:
        """Load what is to be served, and return it; raises CertificatesError."""

    def _refresh(self) -> None:
        """Use another certificate where that is due; called at the beginning of each handshake."""

    def _load(self) -> None:
        """Serve another certificate from now on; raises CertificatesError where it is unusable."""
        context = _context()
        self.bind_path.serve(self._load_into(context))
        self._current = context

    def _use(self) -> None:
        """Serve another certificate from now on, if it is usable; count and log the result."""
        try:
            self._load()
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


class FolderKeeper(CertificateKeeper):
    """Keeps the certificate of one server in a folder: renews what we issued, reloads any."""

    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...],
        metrics: Metrics,
        log: JsonLog,
        key: bytes = b"",
    ) -> None:
        """Issue a certificate for `names` where none exists; raises CertificatesError."""
        super().__init__(metrics, log, key)
        self._folder = folder
        self._names = names
        ensure(folder, names, datetime.now(UTC))
        self._stamp = stamp(folder)
        self._load()

    def __str__(self) -> str:
        """Return where the certificate lies."""
        return str(self._folder)

    def start(self) -> None:
        """Renew the certificate in time, on a daemon thread."""
        repeat(self.keep, FOLDER_S, self._log, "certificates", "certificates failed")

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
            self._use()

    def _load_into(self, context: ssl.SSLContext) -> Bundle:
        return load_into(context, self._folder)


class SecretKeeper(CertificateKeeper):
    """Reconciles Secret and caBundles together with other replicas.

    `certs.rotation.replica` decides what is due; here are the thread, the log and the metrics
    around it. Without the API server the certificate stays served: nothing here ever removes one.
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
        self._replica = Replica(api, names, terms)
        self._sync_s = min(SYNC_S, max(PAUSE_S, terms.settle_s / 4))
        self._shared_metrics = SharedCertificateMetrics(metrics)
        self._changed = Event()
        self._served = Bundle()
        self._unready = "no certificate yet"

    def __str__(self) -> str:
        """Return where the certificate lies."""
        return self._api.title

    def start(self) -> None:
        """Begin to reconcile the certificates on daemon threads."""
        Thread(target=self._run, name="certificates", daemon=True).start()
        for number, followed in enumerate(self._api.followed()):
            trigger(self._changed, followed, self._log, f"certificates-watch-{number}")

    def obstacle(self) -> str:
        """Return why no traffic should come; empty once it may, and from then on.

        A replica reconciles a caBundle that is damaged later, ready or not; to be unready then
        would only delay the calls that follow.
        """
        return self._unready

    def keep(self) -> bool:
        """Do what is due, and log it; return whether all of it succeeded."""
        failures: tuple[str, ...]
        try:
            found = self._replica.round()
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
        if found.served != self._served:
            self._served = found.served
            self._use()
        self._shared_metrics.ca_bundle_published.set(not found.unready)
        if self._unready:
            lacking = "" if self.loaded else "no valid certificate yet"
            self._unready = lacking or found.unready
            if self._unready:
                self._unready = "; ".join((self._unready, *found.failures))

    def _load_into(self, context: ssl.SSLContext) -> Bundle:
        load_set_into(context, self._served)
        return self._served

    def _log_step(self, step: Store | Publish) -> None:
        if isinstance(step, Store):
            self._log.info(
                "certificates written", action=step.action.value, reasons=list(step.reasons)
            )
        else:
            webhooks = [name for name, _ in step.bundles]
            self._log.info(
                "caBundle written", configuration=step.configuration.title, webhooks=webhooks
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
