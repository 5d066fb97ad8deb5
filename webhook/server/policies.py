"""Reload of the policy: one thread reads the files and notifies dependent parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from webhook.adapters.policy.files import PolicySource
from webhook.core.policy.rule_coverage import policy_warnings
from webhook.server.bounds import MAX_WARNINGS
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics
from webhook.server.operations import ServerPart, run_periodically

RELOAD_S: Final = 2.0
"""Interval between two reads. The kubelet takes up to a minute to update a mounted ConfigMap."""


@dataclass(frozen=True, slots=True)
class PolicyReload(ServerPart):
    """Reloads policies on a separate thread, so that no review waits for a disk or a parser."""

    policies: PolicySource
    metrics: Metrics
    log: JsonLog
    dependents: Sequence[Callable[[], None]] = ()
    """Called on the reload thread after each successful reload, once the new policy is in force."""

    def start(self) -> None:
        """Start the daemon thread."""
        run_periodically(
            self.refresh, RELOAD_S, self.log, "policies", "reloading the policy failed"
        )

    def refresh(self) -> None:
        """Reload the policy if its files changed; count and log the result."""
        reload = self.policies.refresh()
        self.metrics.policy_stale.set(bool(self.policies.problems))
        if reload.loaded:
            self.metrics.policy_loads.labels("loaded").inc()
            self.log.info("policy loaded", policy=self.policies.current.short_digest)
            self.show()
            for notify in self.dependents:
                notify()
        elif reload.problems:
            self.metrics.policy_loads.labels("rejected").inc()
            self.log.error(
                "policy rejected, the last good one stays in force",
                policy=self.policies.current.short_digest,
                problems=[str(problem) for problem in reload.problems],
            )

    def show(self) -> None:
        """Publish metrics of the policy in force; warn about rules without effect."""
        policy = self.policies.current
        self.metrics.show_policy(policy)
        self.metrics.policy_loaded_at.set_to_current_time()
        if not policy.rules:
            self.log.warning(
                "the policy has no rules, so every pod is left alone", policy=policy.short_digest
            )
        warnings = [str(warning) for warning in islice(policy_warnings(policy), MAX_WARNINGS)]
        if warnings:
            self.log.warning(
                "the policy has rules that hardly do what they say; move or narrow them",
                policy=policy.short_digest,
                rules=warnings,
            )
