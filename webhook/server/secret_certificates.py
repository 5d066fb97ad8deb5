"""The certificate that this replica shares with others through a Secret, kept beside the reviews.

`certs.rotation.replica` decides what is due; here are the thread, the log and the metrics around
it. Without the API server the certificate stays served: nothing here ever removes one.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from certs import CertificatesError, Replica, Store, describe, load_set_into
from webhook.server.bind_path import BindPath
from webhook.server.metrics import SharedCertificateMetrics
from webhook.server.mirror import trigger
from webhook.server.tls import ServingCertificate

if TYPE_CHECKING:
    import ssl

    from certs import Bundle, Publish, Round, Terms
    from webhook.adapters.kube.certificates import CertificatesApi
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics

SYNC_S: Final = 30.0
"""Between two syncs where no watch reports a change."""

PAUSE_S: Final = 0.5
"""After a sync, so that a conflict with another writer of the caBundles stays a slow one."""

FIRST_RETRY_S: Final = 1.0


class SecretKeeper:
    """Reconciles Secret and caBundles together with other replicas; a `CertificateKeeper`."""

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
        self.serving = ServingCertificate(metrics, log)
        self.bind_path = BindPath(key)
        self._api = api
        self._replica = Replica(api, names, terms)
        self._sync_s = min(SYNC_S, max(PAUSE_S, terms.settle_s / 4))
        self._metrics = metrics
        self._shared_metrics = SharedCertificateMetrics(metrics)
        self._log = log
        self._changed = Event()
        self._served: Bundle | None = None
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
        if self._served:
            self._metrics.show_certificates(describe(self._served, datetime.now(UTC)))
        self._report(failures)
        return not failures

    def _adopt(self, found: Round) -> None:
        for step in found.done:
            self._log_step(step)
        if found.served != self._served:
            self._served = found.served
            self.serving.use(lambda context: self._load(context, found.served))
        self._shared_metrics.ca_bundle_published.set(not found.unready)
        if self._unready:
            lacking = "" if self.serving.loaded else "no valid certificate yet"
            self._unready = lacking or found.unready
            if self._unready:
                self._unready = "; ".join((self._unready, *found.failures))

    def _load(self, context: ssl.SSLContext, served: Bundle) -> None:
        load_set_into(context, served)
        self.bind_path.serve(served)

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
