"""Keeps the rules in force where the API server's admission policies read them."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from webhook.adapters.kube.client import KubeError
from webhook.core.policy.fence import fence_data, is_intact
from webhook.server.changes import wake

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.fence import FenceApi
    from webhook.core.policy.values import Policy
    from webhook.server.log import JsonLog

POLL_S: Final = 2.0
"""How soon a reloaded policy is seen, without a request."""

SYNC_S: Final = 30.0
"""Between two reads where no watch reports a change; after a failure, too."""

PAUSE_S: Final = 0.5
"""After each, so that a conflict with another writer stays a slow one."""

SETTLE_S: Final = 120.0
"""How long another replica's rules are left alone: a changed policy reaches the replicas within a
minute or two of each other, and meanwhile they would only overwrite one another's."""


class FenceKeeper:
    """Writes the fence's parameter together with other replicas.

    | stored | written |
    | --- | --- |
    | our text | no |
    | nothing | yes |
    | what no replica wrote | yes |
    | another replica's, and our policy is new | yes |
    | another replica's otherwise | once it has stood for `SETTLE_S` |

    Nobody waits for it: without it the API server holds nothing by itself, and the webhook judges.
    """

    def __init__(
        self,
        api: FenceApi,
        policy: Callable[[], Policy],
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send no request yet; `policy` returns the one in force."""
        self._api = api
        self._policy = policy
        self._log = log
        self._clock = clock
        self._changed = Event()
        self._shown: Policy | None = None
        self._data: dict[str, str] = {}
        self._is_new = True
        self._differs_since_s: float | None = None

    def start(self) -> None:
        """Begin on daemon threads."""
        Thread(target=self._run, name="fence", daemon=True).start()
        wake(self._changed, self._api.followed(), self._log, "fence-watch")

    def keep(self) -> bool:
        """Write what is due, and log it; return whether that succeeded."""
        policy = self._policy()
        if policy is not self._shown:
            self._shown, self._is_new = policy, True
            self._data = fence_data(policy)
        try:
            written = self._write()
        except KubeError as error:
            if not error.conflict:
                self._log.once("fence", "error", "the fence's rules cannot be written", str(error))
            return False
        self._is_new = False
        self._log.over("fence", "the fence's rules are written again")
        if written:
            self._log.info("fence written", policy=policy.short_digest)
        return True

    def _write(self) -> bool:
        found = self._api.read()
        stored = (found or {}).get("data") or {}
        if all(stored.get(key) == text for key, text in self._data.items()):
            self._differs_since_s = None
            return False
        if found is not None and is_intact(stored) and not self._is_new:
            now_s = self._clock()
            if self._differs_since_s is None:
                self._differs_since_s = now_s
            if now_s - self._differs_since_s < SETTLE_S:
                return False
        self._api.write(self._data, found)
        self._differs_since_s = None
        return True

    def _run(self) -> None:
        due_s = 0.0
        while True:
            if self._changed.wait(POLL_S) or self._policy() is not self._shown:
                due_s = 0.0
            self._changed.clear()
            if self._clock() < due_s:
                continue
            try:
                self.keep()
            except Exception:  # noqa: BLE001 - the next turn may succeed; a dead thread never would
                self._log.exception("writing the fence's rules failed")
            due_s = self._clock() + SYNC_S
            time.sleep(PAUSE_S)
