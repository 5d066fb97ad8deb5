"""The path of /bind and the owner, which replicas write into the webhook configurations.

The TLS port has no authentication, and a Binding reserves GPUs. The path of /bind therefore begins
with a secret that only API servers know. The secret is derived from the private key of the serving
certificate, so it changes with each certificate. It is also derived from the key that replicas
mount as a file, so reading the certificate's Secret does not reveal the path. All replicas derive
the same path without storing it. Only admins and the webhook's ServiceAccount may read and write
the webhook configurations. The path is never logged or shown in metrics.

In every certificate mode, the chart omits the path. The owner is the release's namespace: if a user
deletes the namespace, and thus the replicas, the webhook configurations are deleted, too.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Final

from cryptography import x509

from certs import Bundle, derived_secret, readable_certificates
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.release_objects import BindRegistration, RegistrationApi
from webhook.server.informer import set_on_change
from webhook.server.log import JsonLog

SETTLE_S: Final = 120.0
"""Time in seconds for which another replica may serve a different certificate: the kubelet takes
up to a minute and a half to update a mounted Secret."""

SYNC_S: Final = 30.0
"""Interval between two syncs if no watch reports a change, in seconds."""

_FIRST_RETRY_S: Final = 1.0
_PAUSE_S: Final = 0.5

_PURPOSE: Final = "vramwarden: the path of bind, v1"
_SHAPE: Final = re.compile(r"/[0-9a-f]{32}/bind")
_MAX_EARLIER: Final = 8


def derive_bind_path(key_pem: bytes, key: bytes = b"") -> str:
    """Return the path for a certificate's private key and the replicas' key.

    Raises CertificatesError.
    """
    secret = derived_secret(key_pem, _PURPOSE)
    if key:
        secret = hmac.digest(key, secret, "sha256")[: len(secret)]
    return f"/{secret.hex()}/bind"


def is_bind_path(path: str) -> bool:
    """Return True if a path has the form of the paths that `derive_bind_path` returns."""
    return _SHAPE.fullmatch(path) is not None


class BindPath:
    """The paths at which Bindings are accepted; safe from any thread.

    | path | accepted |
    | --- | --- |
    | derived from the served certificate | yes |
    | derived from a previously served certificate | until its CA is forgotten |
    | last read from the webhook configuration | yes, if `is_bind_path` |
    | any other, such as `/bind` | no |
    """

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self.current = ""
        """Path of the certificate that is served; empty without a certificate."""
        self._earlier: dict[str, frozenset[x509.Certificate]] = {}
        self._authorities: frozenset[x509.Certificate] = frozenset()
        self._configured = ""
        self._accepted: tuple[bytes, ...] = ()
        self._lock = Lock()

    def use_certificate(self, bundle: Bundle) -> None:
        """Make this certificate's path the current one; raises CertificatesError."""
        path = derive_bind_path(bundle.key_pem, self._key)
        authorities = frozenset(readable_certificates(bundle.ca_pem))
        with self._lock:
            self._replace_current(path, authorities)
            self._update_accepted()

    def _replace_current(self, path: str, authorities: frozenset[x509.Certificate]) -> None:
        if self.current and path != self.current:
            self._earlier[self.current] = self._authorities
        self._earlier.pop(path, None)
        # A set without CAs does not show which CAs are forgotten, since cert-manager may omit them.
        kept = [
            (earlier, earlier_authorities)
            for earlier, earlier_authorities in self._earlier.items()
            if not (earlier_authorities and authorities) or earlier_authorities & authorities
        ]
        self._earlier = dict(kept[-_MAX_EARLIER:])
        self.current, self._authorities = path, authorities

    def set_configured(self, path: str) -> None:
        """Store the path that the webhook configuration contains."""
        with self._lock:
            self._configured = path if is_bind_path(path) else ""
            self._update_accepted()

    def accepts(self, path: str) -> bool:
        """Return True if Bindings are accepted at this path.

        The time depends only on the length of the path, not on how many characters are correct.
        """
        requested = path.encode(errors="surrogateescape")
        is_accepted = False
        for accepted in self._accepted:
            is_accepted |= hmac.compare_digest(requested, accepted)
        return is_accepted

    def _update_accepted(self) -> None:
        paths = dict.fromkeys((self.current, self._configured, *self._earlier))
        self._accepted = tuple(path.encode() for path in paths if path)


class Registration:
    """Reconciles the webhook configurations; replicas with the same key write the same path.

    | path of /bind in the configuration | written |
    | --- | --- |
    | this replica's current path | nothing |
    | none, or one of another form, as after a re-installation | the current path, at once |
    | another path of this form | the current path, if both are unchanged for the settling time |

    The last row may be the path of another replica with a newer or older certificate. This path is
    accepted while the configuration contains it.
    """

    def __init__(
        self,
        api: RegistrationApi,
        bind_path: BindPath,
        log: JsonLog,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the settings without sending requests; `clock` returns monotonic seconds."""
        self._api = api
        self._bind_path = bind_path
        self._log = log
        self._settle_s = settle_s
        self._clock = clock
        self._sync_s = min(SYNC_S, max(_PAUSE_S, settle_s / 4))
        self._differing: tuple[str, str] | None = None
        """The configured path and the current path, if they differ."""
        self._differing_since_s = 0.0
        self._has_tried = False
        self._changed = Event()

    def start(self) -> None:
        """Start the daemon threads."""
        Thread(target=self._run, name="registration", daemon=True).start()
        set_on_change(self._changed, self._api.watched_object(), self._log, "registration-watch")

    def obstacle(self) -> str:
        """Return why this replica is not ready; empty after the first try, even if it failed.

        Without a registered path pods are bound without a GPU, and get one late. Without a ready
        replica no pod gets a GPU.
        """
        return "" if self._has_tried else "the path of bind is not registered yet"

    def sync(self) -> bool:
        """Make and log all due changes; return True if all succeeded."""
        if not self._bind_path.current:
            return False  # no certificate yet
        try:
            configurations = self._api.read()
        except KubeError as error:
            self._has_tried = True
            self._report("registration", "webhook configurations cannot be read", error)
            return False
        self._log.over("registration", "webhook configurations are read again")
        failed = [
            configuration
            for configuration in configurations
            if not (self._write_path(configuration) and self._write_owner(configuration))
        ]
        self._has_tried = True
        return not failed

    def _write_path(self, registered: BindRegistration) -> bool:
        """Write the current path if a write is due; return True if no retry is needed."""
        if registered.bind is None:
            return True
        current, configured = self._bind_path.current, registered.bind
        self._bind_path.set_configured(configured)
        if configured == current:
            self._differing = None
            return True
        if is_bind_path(configured) and not self._has_settled(configured, current):
            return True
        try:
            self._api.write_path(registered, current)
        except KubeError as error:
            return self._handle_failure("path", "the path of bind cannot be written", error)
        self._bind_path.set_configured(current)
        self._log.forget("path")
        self._log.info("path of bind written", configuration=registered.title)
        self._changed.set()  # writing the owner needs the new resourceVersion
        return True

    def _has_settled(self, configured: str, current: str) -> bool:
        """Return True if these two paths have differed for the settling time."""
        if self._differing != (configured, current):
            self._differing = configured, current
            self._differing_since_s = self._clock()
        return self._clock() - self._differing_since_s >= self._settle_s

    def _write_owner(self, registered: BindRegistration) -> bool:
        """Set the namespace as owner, so that the configuration is garbage-collected with it.

        Return True if no retry is needed.
        """
        if registered.owned or not registered.namespace:
            return True
        try:
            self._api.write_owner(registered)
        except KubeError as error:
            subject = f"owner of {registered.kind}"
            message = "the owner of a configuration cannot be written"
            return self._handle_failure(subject, message, error)
        self._log.info(
            "owner written", configuration=registered.title, namespace=registered.namespace
        )
        return True

    def _handle_failure(self, subject: str, message: str, error: KubeError) -> bool:
        """Report a failed write; return True if retrying is pointless."""
        if error.conflict:
            return False
        self._report(subject, message, error)
        return not error.retryable

    def _report(self, subject: str, message: str, error: KubeError) -> None:
        self._log.once(subject, "error", message, str(error))

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            self._changed.clear()
            try:
                has_succeeded = self.sync()
            except Exception:  # noqa: BLE001 - the thread must survive; the next sync may succeed
                self._log.exception("registration failed")
                has_succeeded = False
            if not self._bind_path.current:
                retry_s = _FIRST_RETRY_S / 2
            time.sleep(_PAUSE_S)
            self._changed.wait(self._sync_s if has_succeeded else retry_s)
            retry_s = _FIRST_RETRY_S if has_succeeded else min(2 * retry_s, self._sync_s)
