"""What happens beside the reviews: policies reloaded, certificates renewed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Final

from certs import Action, CertificatesError, ensure, status

if TYPE_CHECKING:
    from pathlib import Path

    from webhook.adapters.policy.source import PolicySource
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics

POLICY_INTERVAL_S: Final = 2.0
"""The kubelet takes up to a minute to bring a changed ConfigMap; this adds little to it."""

CERTIFICATE_INTERVAL_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Two duties on one thread, so that no review ever waits for a disk or a parser."""

    policies: PolicySource
    certificates: Path | None
    """None where they lie in a Secret, which is looked after elsewhere."""
    names: tuple[str, ...]
    metrics: Metrics
    log: JsonLog

    def start(self) -> None:
        """Do both duties on a daemon thread from now on."""
        Thread(target=self._run, name="upkeep", daemon=True).start()

    def _run(self) -> None:
        certificates_due = time.monotonic()
        while True:
            try:
                if time.monotonic() >= certificates_due:
                    certificates_due = time.monotonic() + CERTIFICATE_INTERVAL_S
                    self.keep_certificates()
                self.keep_policies()
            except Exception:  # the next turn may succeed; a dead thread never would
                self.log.exception("upkeep failed")
            time.sleep(POLICY_INTERVAL_S)

    def keep_policies(self) -> None:
        """Reload the policy where its files changed; say so either way."""
        reload = self.policies.refresh()
        self.metrics.policy_stale.set(bool(self.policies.problems))
        if reload.loaded:
            self.metrics.policy_loads.labels("loaded").inc()
            self.log.info("policy loaded", policy=self.policies.current.short_digest)
            self.show_policy()
        elif reload.problems:
            self.metrics.policy_loads.labels("refused").inc()
            self.log.error(
                "policy refused, the last good one stays in force",
                policy=self.policies.current.short_digest,
                problems=[str(problem) for problem in reload.problems],
            )

    def show_policy(self) -> None:
        """Show in the metrics which policy is in force, from now on; warn where it does nothing."""
        policy = self.policies.current
        self.metrics.show_policy(policy)
        self.metrics.policy_loaded_at.set_to_current_time()
        if not policy.rules:
            self.log.warning(
                "the policy has no rules, so every pod is left alone", policy=policy.short_digest
            )

    def keep_certificates(self) -> None:
        """Renew certificates of our own in time; measure the days left of any."""
        if self.certificates is None:
            return
        now = datetime.now(UTC)
        try:
            outcome = ensure(self.certificates, self.names, now)
        except CertificatesError as error:
            self.log.error("certificates cannot be renewed", why=str(error))
            return
        if outcome.action is not Action.KEPT:
            self.log.info("certificates renewed", action=outcome.action.value)
        if outcome.problems:
            self.log.warning("certificates have problems", problems=list(outcome.problems))
        self.metrics.show_certificates(status(self.certificates, now))
