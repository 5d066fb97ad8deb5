"""Replicas against an in-memory API server; the test controls the time and the order of calls.

Each replica runs the real code, but every call waits until the test lets it continue.
"""

import threading
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from functools import partial

from cryptography import x509

from certs import Bundle, Replica, RotationPeriods, WebhookConfiguration, readable_certificates
from certs.replica import is_accepted
from tests.support.api_server import ApiServer
from webhook.adapters.kube.certificates import KINDS, CertificatesApi, StoredBundle

NAMES = ("hook.gpu.svc",)
START = datetime(2030, 5, 1, 12, tzinfo=UTC)
# Short lifetimes make a rotation take a few hours. An API server lags by at most DELAY_S.
TERMS = RotationPeriods(ca_life_s=100 * 3600, serving_life_s=3600, overlap_s=60, settle_s=60)
DELAY_S = 59

PATH = "/api/v1/namespaces/gpu/secrets/certificate"
MUTATING, VALIDATING = (f"{path}/ours" for path in KINDS.values())
WEBHOOKS = {"a": MUTATING, "b": VALIDATING, "c": VALIDATING}
RIGHTS = {
    "get Secret": ("get", "secrets"),
    "create Secret": ("create", "secrets"),
    "get Mutating": ("get", "mutatingwebhookconfigurations"),
    "patch Mutating": ("patch", "mutatingwebhookconfigurations"),
    "patch Validating": ("patch", "validatingwebhookconfigurations"),
}


class World:
    """The shared state: the time, and an API server with a Secret and two configurations."""

    def __init__(self, *denied: str) -> None:
        self.time_s = 0.0
        self.api = ApiServer()
        self.deny(*denied)
        self.past: list[tuple[float, frozenset[bytes]]] = []
        for path in (MUTATING, VALIDATING):
            names = [name for name, at in WEBHOOKS.items() if at == path]
            self.api.put(path, {"webhooks": [{"name": name, "clientConfig": {}} for name in names]})

    def deny(self, *rights: str) -> None:
        self.api.denied = {RIGHTS[right] for right in rights}

    def now(self) -> datetime:
        return START + timedelta(seconds=self.time_s)

    def clock(self) -> float:
        return self.time_s

    @property
    def bundle(self) -> Bundle:
        """Return the certificate set in the Secret."""
        data = self.api.objects.get(PATH, {}).get("data", {})
        return Bundle.from_files({name: b64decode(text) for name, text in data.items()})

    @bundle.setter
    def bundle(self, bundle: Bundle) -> None:
        data = {name: b64encode(text).decode() for name, text in bundle.files().items()}
        self.api.put(PATH, {"data": data})

    def delete(self, *paths: str) -> None:
        for path in paths or (PATH,):
            if path in self.api.objects:
                self.api.remove(path)

    def ca_bundles(self) -> frozenset[bytes]:
        found = [
            self.api.objects[path] for path in (MUTATING, VALIDATING) if path in self.api.objects
        ]
        targets = [webhook["clientConfig"] for item in found for webhook in item["webhooks"]]
        return frozenset(b64decode(target.get("caBundle") or "") for target in targets)

    def damage(self, webhook: str, ca_bundle: bytes) -> None:
        """Write another caBundle into a webhook, like a user of kubectl."""
        self.past.append((self.time_s, self.ca_bundles()))
        called = {"clientConfig": {"caBundle": b64encode(ca_bundle).decode()}}
        webhooks = {"webhooks": [{"name": webhook, **called}]}
        self.api.kube().patch(WEBHOOKS[webhook], webhooks)

    def bundles_in_use(self) -> set[frozenset[x509.Certificate]]:
        """Return each distinct caBundle that an API server may still use."""
        recent = [old for until_s, old in self.past if until_s >= self.time_s - DELAY_S]
        pems = self.ca_bundles().union(*recent)
        return {frozenset(readable_certificates(pem)) for pem in pems}

    def published(self) -> set[x509.Certificate]:
        """Return the CAs in the caBundles, which must all be the same."""
        (published,) = {frozenset(readable_certificates(pem)) for pem in self.ca_bundles()}
        return set(published)

    def is_accepted(self, served: Bundle) -> bool:
        return all(is_accepted(served, bundle, self.now()) for bundle in self.bundles_in_use())

    def has_expired(self, served: Bundle) -> bool:
        leaf = readable_certificates(served.certificate_pem)[0]
        return self.now() > leaf.not_valid_after_utc


class PausableApi(CertificatesApi):
    """One replica's access to the API server."""

    def __init__(self, world: World) -> None:
        super().__init__(world.api.kube(), "gpu", "certificate", ["ours"])
        self.world = world

    def _wait_for_turn(self) -> None:
        """Wait until the test lets the call continue."""

    def secret(self) -> StoredBundle:
        self._wait_for_turn()
        return super().secret()

    def configurations(self) -> tuple[WebhookConfiguration, ...]:
        self._wait_for_turn()
        return super().configurations()

    def store(self, bundle, before) -> None:
        self._wait_for_turn()
        super().store(bundle, before)

    def publish(self, configuration, bundles) -> None:
        self._wait_for_turn()
        before = self.world.ca_bundles()
        super().publish(configuration, bundles)
        self.world.past.append((self.world.time_s, before))


class RunningReplica:
    """A replica whose calls run at once, or wait in the given `PausableApi`."""

    def __init__(self, world: World, api: PausableApi | None = None) -> None:
        state = Replica(NAMES, TERMS, clock=world.clock, now=world.now)
        api = api or PausableApi(world)
        self.round = partial(api.round, state)
        self.rotate = partial(api.rotate, state)


class ReplicaKilled(BaseException):
    """Stops a replica in the middle of a call."""


class SteppedReplica(PausableApi):
    """A replica on a separate thread that makes one call per `step`."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.served: Bundle | None = None
        self.ready = False
        self.rounds = 0
        self._is_killed = self._starved = False
        self._error: Exception | None = None
        self._go, self._is_waiting = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        self._is_waiting.acquire()

    def _wait_for_turn(self) -> None:
        self._is_waiting.release()
        self._go.acquire()
        if self._is_killed:
            raise ReplicaKilled

    def step(self) -> None:
        """Run one call, and wait until the next one is about to start."""
        self._go.release()
        self._is_waiting.acquire()
        if self._error:
            raise self._error

    def finish_round(self) -> None:
        before = self.rounds
        while self.rounds == before:
            self.step()

    def has_failing_calls(self) -> bool:
        """Return True if calls fail although they should succeed.

        A replica that made no call until its certificate expired may fail for a while.
        """
        if not self.ready:
            return False
        if self.world.is_accepted(self.served):
            self._starved = False
        elif self.world.has_expired(self.served):
            self._starved = True
        else:
            return not self._starved
        return False

    def kill(self) -> None:
        self._is_killed = True
        self._go.release()
        self._thread.join()

    def _live(self) -> None:
        one = RunningReplica(self.world, self)
        try:
            while True:
                found = one.round()
                self.served, self.ready = found.served, self.ready or not found.unready
                self.rounds += 1
        except ReplicaKilled:
            return
        except Exception as error:  # noqa: BLE001 - it is the test's to raise
            self._error = error
            self._is_waiting.release()
