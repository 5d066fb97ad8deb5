"""The serving certificate, from a folder or from the Secret that replicas share.

A replaced certificate is served from the next handshake on. The worker creates one TLS context
without a certificate when it starts. OpenSSL's server-name callback, which is called even if the
client sends no name, gives each handshake the context with the current certificate. Open
connections keep their certificate.
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
    Bundle,
    CaBundleUpdate,
    CertificatesError,
    Replica,
    RotationPeriods,
    SetUpdate,
    describe,
    issue_into_folder,
    load_into,
    read_folder,
    stamp,
)
from webhook.adapters.kube.certificates import CertificatesApi, Round
from webhook.server.informer import set_on_change
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics, SharedCertificateMetrics
from webhook.server.operations import ServerPart, run_periodically
from webhook.server.registration import BindPath

FOLDER_S: Final = 3600.0
"""Interval between two checks of a certificate from a folder, in seconds."""

SYNC_S: Final = 30.0
"""Interval between two syncs of the Secret if no watch reports a change, in seconds."""

PAUSE_S: Final = 0.5
"""Pause after a sync, in seconds. It slows down a conflict with another writer of the caBundles."""

FIRST_RETRY_S: Final = 1.0


class CertificateKeeper(ServerPart):
    """Provides handshakes with the last valid certificate.

    Handshakes fail if no certificate was valid yet. `str` returns the certificate's location.
    """

    def __init__(self, metrics: Metrics, log: JsonLog, key: bytes) -> None:
        self.bind_path = BindPath(key)
        """Paths of /bind that are derived from the certificate."""
        self._metrics = metrics
        self._log = log
        self._current: ssl.SSLContext | None = None
        self._served = Bundle()

    @property
    def has_certificate(self) -> bool:
        """Return True if a certificate is being served."""
        return self._current is not None

    def listening_context(self) -> ssl.SSLContext:
        """Return the TLS context for the listening socket."""
        context = _create_context()
        context.sni_callback = self._set_context
        return context

    def _refresh(self) -> None:
        """Load a replaced certificate; called at the start of each handshake."""

    def _load(self, bundle: Bundle) -> None:
        """Serve this certificate from now on; raises CertificatesError if it is unusable."""
        context = _create_context()
        load_into(context, bundle, str(self))
        self.bind_path.use_certificate(bundle)
        self._current, self._served = context, bundle

    def _try_load(self, read_set: Callable[[], Bundle]) -> None:
        """Serve a certificate from now on if it is usable; count and log the result."""
        try:
            self._load(read_set())
        except CertificatesError as error:
            self._metrics.certificate_loads.labels("rejected").inc()
            self._log.error("certificate rejected, the last good one is served", why=str(error))
        else:
            self._metrics.certificate_loads.labels("loaded").inc()
            self._log.info("certificate loaded")

    def _set_context(self, connection: ssl.SSLObject, _name: str | None, _old: object) -> None:
        """Give a handshake the context with the current certificate."""
        self._refresh()
        if self._current is not None:
            connection.context = self._current


def _create_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # With HTTP/1.1, the calls of an API server are distributed over all replicas.
    context.set_alpn_protocols(["http/1.1"])
    return context


class FolderKeeper(CertificateKeeper):
    """Serves the certificate in a folder, and reloads it when it is replaced there."""

    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...],
        metrics: Metrics,
        log: JsonLog,
        key: bytes = b"",
    ) -> None:
        """Issue a certificate for `names` if the folder contains none. Raises CertificatesError."""
        super().__init__(metrics, log, key)
        self._folder = folder
        if read_folder(folder) == Bundle():
            issue_into_folder(folder, names, datetime.now(UTC))
        self._stamp = stamp(folder)
        self._load(read_folder(folder))

    def __str__(self) -> str:
        return str(self._folder)

    def start(self) -> None:
        """Check the certificate at intervals, on a daemon thread."""
        run_periodically(self.check, FOLDER_S, self._log, "certificates", "certificates failed")

    def check(self) -> None:
        """Log problems of the served certificate, and publish its remaining days."""
        status = describe(self._served, datetime.now(UTC))
        if status.problems:
            self._log.warning("certificates have problems", problems=list(status.problems))
        self._metrics.show_certificates(status)

    def _refresh(self) -> None:
        current = stamp(self._folder)
        if current != self._stamp:
            self._stamp = current
            self._try_load(lambda: read_folder(self._folder))


class SecretKeeper(CertificateKeeper):
    """Reconciles the Secret and the caBundles together with other replicas.

    `certs.replica` decides which changes are due, and `CertificatesApi` makes them. This class has
    the threads, the log lines and the metrics. Without the API server the last certificate stays in
    use.
    """

    def __init__(
        self,
        api: CertificatesApi,
        names: tuple[str, ...],
        periods: RotationPeriods,
        metrics: Metrics,
        log: JsonLog,
        key: bytes = b"",
    ) -> None:
        """Store the settings; send no requests. Raises CertificatesError for unusable names."""
        super().__init__(metrics, log, key)
        self._api = api
        self._replica = Replica(names, periods)
        self._sync_s = min(SYNC_S, max(PAUSE_S, periods.settle_s / 4))
        self._shared_metrics = SharedCertificateMetrics(metrics)
        self._changed = Event()
        self._to_serve = Bundle()
        self._unready = "no certificate yet"

    def __str__(self) -> str:
        return self._api.title

    def start(self) -> None:
        """Start the daemon threads that reconcile the certificates."""
        Thread(target=self._run, name="certificates", daemon=True).start()
        for number, followed in enumerate(self._api.watched_objects()):
            set_on_change(self._changed, followed, self._log, f"certificates-watch-{number}")

    def obstacle(self) -> str:
        """Return why this replica is not ready yet; empty once it has been ready.

        A caBundle that is damaged later is reconciled whether this replica is ready or not. An
        unready replica would only delay the following calls.
        """
        return self._unready

    def sync(self) -> bool:
        """Make and log all due changes; return True if all succeeded."""
        failures: tuple[str, ...]
        try:
            result = self._api.round(self._replica)
        except CertificatesError as error:
            failures = (str(error),)
            if self._unready:
                self._unready = f"no certificate yet: {error}"
        else:
            failures = result.failures
            self._apply(result)
        if self._served.certificate_pem:
            self._metrics.show_certificates(describe(self._served, datetime.now(UTC)))
        self._report(failures)
        return not failures

    def _apply(self, result: Round) -> None:
        for step in result.done:
            self._log_step(step)
        if result.served != self._to_serve:
            self._to_serve = result.served
            self._try_load(lambda: result.served)
        self._shared_metrics.ca_bundle_published.set(not result.unready)
        if self._unready:
            missing = "" if self.has_certificate else "no valid certificate yet"
            self._unready = missing or result.unready
            if self._unready:
                self._unready = "; ".join((self._unready, *result.failures))

    def _log_step(self, step: SetUpdate | CaBundleUpdate) -> None:
        if isinstance(step, CaBundleUpdate):
            webhooks = [name for name, _ in step.bundles]
            self._log.info(
                "caBundle written", configuration=step.configuration.title, webhooks=webhooks
            )
        else:
            self._log.info(
                "certificates written", action=step.action.value, reasons=list(step.reasons)
            )

    def _report(self, failures: tuple[str, ...]) -> None:
        """Count each sync; log when failures begin and end."""
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
                has_succeeded = self.sync()
            except Exception:  # noqa: BLE001 - the thread must survive; the next sync may succeed
                self._log.exception("certificates failed")
                has_succeeded = False
            retry_s = FIRST_RETRY_S if has_succeeded else min(2 * retry_s, self._sync_s)
            time.sleep(PAUSE_S)
            self._changed.wait(self._sync_s if has_succeeded else retry_s)
