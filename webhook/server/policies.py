"""Policies beside the reviews: read again when they change; as objects, followed and answered.

Nothing here judges: `PolicySource` does, of files and objects together. What became of an object is
written into its status.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Final

from webhook.adapters.kube.client import KubeError
from webhook.adapters.policy.objects import policy_text, says, status_of, with_times
from webhook.core.policy.reach import policy_warnings
from webhook.names import VRAM_POLICIES
from webhook.server.bounds import MOST_WARNINGS
from webhook.server.mirror import Mirror
from webhook.server.operations import ServerPart, repeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from webhook.adapters.kube.client import Json
    from webhook.adapters.kube.policies import PoliciesApi, StoredPolicy
    from webhook.adapters.policy.files import PolicyText
    from webhook.adapters.policy.source import PolicyReview, PolicySource
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics

RELOAD_S: Final = 2.0
"""The kubelet takes up to a minute to bring a changed ConfigMap; this adds little to it."""


FIRST_READ_S: Final = 45.0
"""How long a start tries to read them: less than the minute that the startup probe has."""

PAUSE_S: Final = 2.0
"""Between two turns; as often as policies are reloaded."""

SETTLE_S: Final = 120.0
"""How long another replica's status of the same content is left alone, as the fence's rules are:
a changed folder reaches the replicas within a minute or two of each other."""


@dataclass(frozen=True, slots=True)
class PolicyReload(ServerPart):
    """Reloads policies on a thread of its own, so that no review waits for a disk or a parser."""

    policies: PolicySource
    metrics: Metrics
    log: JsonLog

    def start(self) -> None:
        """Reload on a daemon thread."""
        repeat(self.refresh, RELOAD_S, self.log, "policies", "reloading the policy failed")

    def refresh(self) -> None:
        """Reload the policy where its files changed; count and log the result."""
        reload = self.policies.refresh()
        self.metrics.policy_stale.set(bool(self.policies.problems))
        if reload.loaded:
            self.metrics.policy_loads.labels("loaded").inc()
            self.log.info("policy loaded", policy=self.policies.current.short_digest)
            self.show()
        elif reload.problems:
            self.metrics.policy_loads.labels("refused").inc()
            self.log.error(
                "policy rejected, the last good one stays in force",
                policy=self.policies.current.short_digest,
                problems=[str(problem) for problem in reload.problems],
            )

    def show(self) -> None:
        """Show in the metrics which policy is in force; warn where it does nothing."""
        policy = self.policies.current
        self.metrics.show_policy(policy)
        self.metrics.policy_loaded_at.set_to_current_time()
        if not policy.rules:
            self.log.warning(
                "the policy has no rules, so every pod is left alone", policy=policy.short_digest
            )
        found = [str(warning) for warning in islice(policy_warnings(policy), MOST_WARNINGS)]
        if found:
            self.log.warning(
                "the policy has rules that hardly do what they say; move or narrow them",
                policy=policy.short_digest,
                rules=found,
            )


class PolicyObjects(ServerPart):
    """The policy objects as the API server reported them last; may be read from any thread.

    At a start they are read before anything is served, and a start that cannot read them fails: the
    policy without them might be the wider one. Later the last ones that were read count while the
    API server does not answer.

    | an object's status | of this generation | written |
    | --- | --- | --- |
    | says what we say | - | no |
    | says something else | no | yes |
    | says something else | yes, and our judgement is new | yes |
    | says something else | yes | once it has stood for `SETTLE_S` |
    """

    def __init__(
        self,
        api: PoliciesApi,
        judged: Callable[[], PolicyReview],
        key: bytes,
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send no request yet; `judged` returns what became of them, once that is known.

        Of last good sets those count that are sealed with `key`.
        """
        self._api = api
        self._judged = judged
        self._key = key
        self._log = log
        self._clock = clock
        self._lock = Lock()
        self._stored: dict[str, StoredPolicy] = {}
        self._shown: dict[str, PolicyReview] = {}
        """Of each object the judgement that its status was compared with."""
        self._differs_since_s: dict[str, float] = {}
        self.mirror = Mirror("policy objects", api.all, self._replace, self._change, log)

    def read_first(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Read them, with patience; raises KubeError where that is in vain."""
        until_s = self._clock() + FIRST_READ_S
        while True:
            try:
                self._replace(self._api.read())
            except KubeError as error:
                if not (error.retryable or error.not_found) or self._clock() >= until_s:
                    raise KubeError(_unread(error), code=error.code) from error
                sleep(PAUSE_S)
            else:
                return

    def texts(self) -> tuple[PolicyText, ...]:
        """Return how they take part in the policy."""
        with self._lock:
            return tuple(_text(one) for one in self._stored.values())

    def remembered(self) -> tuple[PolicyText, ...] | None:
        """Return those of the last good set; None where none is known. Raises KubeError."""
        found = self._api.last_good(self._key)
        if found is None:
            return None
        self._log.error("an object is not valid, so the last good ones are in force")
        return tuple(policy_text(name, data) for name, data in found)

    def start(self) -> None:
        """Follow them and write what is due, on daemon threads."""
        self.mirror.start()
        failed = "writing what became of policies failed"
        repeat(self.keep, PAUSE_S, self._log, f"{VRAM_POLICIES}-status", failed)

    def keep(self) -> None:
        """Write each status that is due."""
        judged = self._judged()
        with self._lock:
            stored = sorted(self._stored.values(), key=lambda one: one.name)
            for gone in self._shown.keys() - self._stored.keys():
                self._shown.pop(gone)
                self._differs_since_s.pop(gone, None)
        failed = ""
        for one in stored:
            failed = self._show(one, judged) or failed
        if failed:
            self._log.once(_WRITING, "error", "what became of policies cannot be written", failed)
        else:
            self._log.over(_WRITING, "what became of policies is written again")

    def _replace(self, found: Iterable[StoredPolicy]) -> None:
        with self._lock:
            self._stored = {one.name: one for one in found}

    def _change(self, kind: str, found: StoredPolicy) -> None:
        with self._lock:
            if kind == "DELETED":
                self._stored.pop(found.name, None)
            else:
                self._stored[found.name] = found

    def _show(self, stored: StoredPolicy, judged: PolicyReview) -> str:
        """Write a status where that is due; return why that failed, empty where it did not."""
        text = _text(stored)
        if judged.read.get(text.name) != stored.data:
            return ""  # what was judged is older, or newer
        status = status_of(text, stored.generation, judged)
        if not self._is_due(stored, status, judged):
            return ""
        try:
            now = _written(self._api.now_s())
            written = self._api.write_status(stored, with_times(status, stored.status, now))
        except KubeError as error:  # who wrote or deleted it meanwhile is heard of
            return "" if error.conflict or error.not_found else str(error)
        self._shown[stored.name] = judged
        self._differs_since_s.pop(stored.name, None)
        with self._lock:
            if self._stored.get(stored.name) is stored:
                self._stored[stored.name] = written
        return ""

    def _is_due(self, stored: StoredPolicy, status: Json, judged: PolicyReview) -> bool:
        name = stored.name
        if says(stored.status, status):
            self._shown[name] = judged
            self._differs_since_s.pop(name, None)
            return False
        is_old = stored.status.get("observedGeneration") != stored.generation
        if is_old or self._shown.get(name) is not judged:
            return True
        now_s = self._clock()
        return now_s - self._differs_since_s.setdefault(name, now_s) >= SETTLE_S


_WRITING: Final = "policy status"


def _text(stored: StoredPolicy) -> PolicyText:
    return policy_text(stored.name, stored.data)


def _written(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _unread(error: KubeError) -> str:
    """Say why a start fails, and what to do."""
    cure = "install the kind VRAMPolicy, or leave --policy-objects out" if error.not_found else ""
    cure = "grant list on vrampolicies.vramwarden.io" if error.forbidden else cure
    said = f"policy objects cannot be read: {error}"
    return f"{said}; {cure}" if cure else said
