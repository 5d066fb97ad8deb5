"""Writes the ConfigMap that the API server's admission policies read, and reverts other writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import Final

from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.release_objects import FenceApi
from webhook.core.policy.fence import fence_data, seal_age_s, seal_data
from webhook.core.policy.model import Policy, Rollout
from webhook.server.informer import set_on_change
from webhook.server.log import JsonLog
from webhook.server.operations import ServerPart

_RULES: Final = "the fence's rules"
"""Name of these rules in log lines, and of the threads."""

SYNC_S: Final = 30.0
"""Interval between two reads if neither the watch nor a reload reports a change; also the delay
before a retry."""

PAUSE_S: Final = 0.5
"""Delay after each read, in seconds. It slows down a conflict with another writer."""

SETTLE_S: Final = 120.0
"""Time for which another replica's text is left unchanged. A changed policy reaches the replicas
within a minute or two of each other. Until then they would overwrite each other's text."""


class FenceKeeper(ServerPart):
    """Writes the ConfigMap together with other replicas.

    | stored | written |
    | --- | --- |
    | this replica's text, under any seal | no |
    | nothing | yes |
    | another text, and this replica's text is new | yes |
    | a text that a replica sealed less than `SETTLE_S` ago | no |
    | any other text, such as an older one or one without a valid seal | yes |

    No review waits for the ConfigMap. Without it the fence denies nothing, and the webhook decides.
    """

    def __init__(
        self,
        api: FenceApi,
        policy: Callable[[], Policy],
        rollout: Rollout,
        key: bytes,
        log: JsonLog,
    ) -> None:
        """Store the settings without sending requests; `policy` returns the policy in force."""
        self._api = api
        self._policy = policy
        self._rollout = rollout
        self._key = key
        self._log = log
        self._write_due = Event()
        self._write_due.set()
        self._written_policy: Policy | None = None
        self._data: Mapping[str, str] = {}
        self._is_new = True

    def start(self) -> None:
        """Start the daemon threads."""
        Thread(target=self._run, name=_RULES, daemon=True).start()
        set_on_change(self._write_due, self._api.watched_object(), self._log, f"{_RULES}, watch")

    def policy_changed(self) -> None:
        """Make the thread write the new policy at once; returns immediately."""
        self._write_due.set()

    def sync(self) -> bool:
        """Write and log the ConfigMap if a write is due; return True if that succeeded."""
        policy = self._policy()
        if policy is not self._written_policy:
            data = fence_data(policy, self._rollout)
            self._is_new |= data != self._data
            self._written_policy, self._data = policy, data
        try:
            written = self._write()
        except KubeError as error:
            if not error.conflict:
                self._log.once(_RULES, "error", f"{_RULES} cannot be written", str(error))
            return False
        self._is_new = False
        self._log.over(_RULES, f"{_RULES} are written again")
        if written:
            self._log.info(f"{_RULES} are written", policy=policy.short_digest)
        return True

    def _write(self) -> bool:
        found = self._api.read()
        stored = (found or {}).get("data") or {}
        if all(stored.get(name) == text for name, text in self._data.items()):
            return False
        now_s = self._api.now_s()
        if not self._is_new and seal_age_s(stored, self._data, self._key, now_s) < SETTLE_S:
            return False
        self._api.write(seal_data(self._data, self._key, now_s), found)
        return True

    def _run(self) -> None:
        while True:
            self._write_due.wait(SYNC_S)
            self._write_due.clear()
            try:
                self.sync()
            except Exception:  # noqa: BLE001 - the thread must survive; the next sync may succeed
                self._log.exception(f"writing {_RULES} failed")
            time.sleep(PAUSE_S)
