"""Writes into our webhook configurations what is known at run time: the path of bind, the owner.

The chart leaves the path out, in every certificate mode. The owner is the release's namespace, so
that webhooks do not outlive a namespace that somebody deletes by hand, and with it our replicas.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.release_objects import Registered, RegistrationApi
from webhook.server.bind_path import BindPath, is_bind_path
from webhook.server.log import JsonLog
from webhook.server.mirror import trigger

SETTLE_S: Final = 120.0
"""How long another replica may serve another certificate: the kubelet takes up to a minute and a
half to bring a changed Secret."""

SYNC_S: Final = 30.0
"""Between two syncs where no watch reports a change."""

_FIRST_RETRY_S: Final = 1.0
_PAUSE_S: Final = 0.5


class Registration:
    """Keeps the webhook configurations of one replica; others of the same key write the same.

    | bind is called at | written |
    | --- | --- |
    | the path of our certificate | nothing |
    | no path, or one of another shape, as after a re-installation | ours, at once |
    | another path of that shape | ours, once both were so for the settling time |

    The last may be another replica's, whose certificate is newer or older than ours. For as long as
    it stands there, its path is answered, too.
    """

    def __init__(
        self,
        api: RegistrationApi,
        bind_path: BindPath,
        log: JsonLog,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send no request yet; `clock` gives monotonic seconds."""
        self._api = api
        self._bind_path = bind_path
        self._log = log
        self._settle_s = settle_s
        self._clock = clock
        self._sync_s = min(SYNC_S, max(_PAUSE_S, settle_s / 4))
        self._differing: tuple[str, str] | None = None
        self._since_s = 0.0
        self._tried = False
        self._changed = Event()

    def start(self) -> None:
        """Begin on daemon threads."""
        Thread(target=self._run, name="registration", daemon=True).start()
        trigger(self._changed, self._api.followed(), self._log, "registration-watch")

    def obstacle(self) -> str:
        """Return why no traffic should come yet; empty after the first try, whatever came of it.

        Without a path pods are bound without a GPU and get it late; without traffic nobody gets
        any.
        """
        return "" if self._tried else "the path of bind is not registered yet"

    def sync(self) -> bool:
        """Do what is due, and log it; return whether all of it succeeded."""
        if not self._bind_path.own:
            return False  # no certificate yet
        try:
            registered = self._api.read()
        except KubeError as error:
            self._tried = True
            self._report("registration", "webhook configurations cannot be read", error)
            return False
        self._log.over("registration", "webhook configurations are read again")
        failed = [one for one in registered if not (self._write_path(one) and self._own(one))]
        self._tried = True
        return not failed

    def _write_path(self, registered: Registered) -> bool:
        """Have bind called at our path; return whether no retry is needed."""
        if registered.bind is None:
            return True
        own, path = self._bind_path.own, registered.bind
        self._bind_path.configured(path)
        if path == own:
            self._differing = None
            return True
        if is_bind_path(path) and not self._settled(path, own):
            return True
        try:
            self._api.write_path(registered, own)
        except KubeError as error:
            return self._failed("path", "the path of bind cannot be written", error)
        self._bind_path.configured(own)
        self._log.forget("path")
        self._log.info("path of bind written", configuration=registered.title)
        self._changed.set()  # what else is due needs the version that it has now
        return True

    def _settled(self, path: str, own: str) -> bool:
        """Return whether bind has been called elsewhere than at our path for long enough."""
        if self._differing != (path, own):
            self._differing, self._since_s = (path, own), self._clock()
        return self._clock() - self._since_s >= self._settle_s

    def _own(self, registered: Registered) -> bool:
        """Make a configuration go with its namespace; return whether no retry is needed."""
        if registered.owned or not registered.namespace:
            return True
        try:
            self._api.write_owner(registered)
        except KubeError as error:
            about = f"owner of {registered.kind}"
            return self._failed(about, "the owner of a configuration cannot be written", error)
        self._log.info(
            "owner written", configuration=registered.title, namespace=registered.namespace
        )
        return True

    def _failed(self, about: str, message: str, error: KubeError) -> bool:
        """Report a failure; return whether no retry is needed, since it would fail as well."""
        if error.conflict:
            return False
        self._report(about, message, error)
        return not error.retryable

    def _report(self, about: str, message: str, error: KubeError) -> None:
        self._log.once(about, "error", message, str(error))

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            self._changed.clear()
            try:
                succeeded = self.sync()
            except Exception:  # noqa: BLE001 - the next turn may succeed; a dead thread never would
                self._log.exception("registration failed")
                succeeded = False
            if not self._bind_path.own:
                retry_s = _FIRST_RETRY_S / 2
            time.sleep(_PAUSE_S)
            self._changed.wait(self._sync_s if succeeded else retry_s)
            retry_s = _FIRST_RETRY_S if succeeded else min(2 * retry_s, self._sync_s)
