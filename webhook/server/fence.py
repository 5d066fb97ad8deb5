"""Keeps what the API server's admission policies and starting replicas read in ConfigMaps."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from webhook.adapters.kube.client import KubeError
from webhook.core.policy.fence import seal_age_s, sealed
from webhook.server.mirror import trigger
from webhook.server.operations import ServerPart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from webhook.adapters.kube.fence import FenceApi
    from webhook.adapters.policy.source import PolicyReview
    from webhook.server.log import JsonLog

POLL_S: Final = 2.0
"""How soon a reloaded policy is seen, without a request."""

SYNC_S: Final = 30.0
"""Between two reads where no watch reports a change; after a failure, too."""

PAUSE_S: Final = 0.5
"""After each, so that a conflict with another writer stays a slow one."""

SETTLE_S: Final = 120.0
"""How long another replica's text is left alone: a changed policy reaches the replicas within a
minute or two of each other, and meanwhile they would only overwrite one another's."""


class FenceKeeper(ServerPart):
    """Writes one such ConfigMap together with other replicas.

    | stored | written |
    | --- | --- |
    | our text, under any seal | no |
    | nothing | yes |
    | another text, and ours is new | yes |
    | what a replica sealed less than `SETTLE_S` ago | no |
    | anything else: an older text, one of no replica | yes |

    Nobody waits for it: without it the API server holds nothing by itself, and the webhook judges.
    """

    def __init__(
        self,
        api: FenceApi,
        judged: Callable[[], PolicyReview],
        data: Callable[[PolicyReview], Mapping[str, str]],
        key: bytes,
        log: JsonLog,
        title: str = "the fence's rules",
    ) -> None:
        """Send no request yet; `data` returns what goes with the policy in force."""
        self._api = api
        self._judged = judged
        self._make = data
        self._key = key
        self._log = log
        self._title = title
        self._changed = Event()
        self._shown: PolicyReview | None = None
        self._data: Mapping[str, str] = {}
        self._is_new = True

    def start(self) -> None:
        """Begin on daemon threads."""
        Thread(target=self._run, name=self._title, daemon=True).start()
        trigger(self._changed, self._api.followed(), self._log, f"{self._title}, watch")

    def keep(self) -> bool:
        """Write what is due, and log it; return whether that succeeded."""
        judged = self._judged()
        if judged is not self._shown:
            data = self._make(judged)
            self._is_new |= data != self._data
            self._shown, self._data = judged, data
        try:
            written = self._write()
        except KubeError as error:
            if not error.conflict:
                said = f"{self._title} cannot be written"
                self._log.once(self._title, "error", said, str(error))
            return False
        self._is_new = False
        self._log.over(self._title, f"{self._title} are written again")
        if written:
            self._log.info(f"{self._title} are written", policy=judged.policy.short_digest)
        return True

    def _write(self) -> bool:
        found = self._api.read()
        stored = (found or {}).get("data") or {}
        if all(stored.get(name) == text for name, text in self._data.items()):
            return False
        now_s = self._api.now_s()
        if not self._is_new and seal_age_s(stored, self._data, self._key, now_s) < SETTLE_S:
            return False
        self._api.write(sealed(self._data, self._key, now_s), found)
        return True

    def _run(self) -> None:
        due_s = 0.0
        while True:
            if self._changed.wait(POLL_S) or self._judged() is not self._shown:
                due_s = 0.0
            self._changed.clear()
            if time.monotonic() < due_s:
                continue
            try:
                self.keep()
            except Exception:  # noqa: BLE001 - the next turn may succeed; a dead thread never would
                self._log.exception(f"writing {self._title} failed")
            due_s = time.monotonic() + SYNC_S
            time.sleep(PAUSE_S)
