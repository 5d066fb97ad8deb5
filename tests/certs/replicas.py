"""The API server in memory, with time and turns in the test's hand.

Replicas run as they do for real, but each call of theirs waits until the test lets it through.
"""

import threading
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from functools import partial

from cryptography import x509

from certs import Bundle, Configuration, Replica, Terms, readable_certificates
from certs.replica import verified
from tests.support.api_server import ApiServer
from webhook.adapters.kube.certificates import KINDS, CertificatesApi, StoredBundle

NAMES = ("hook.gpu.svc",)
START = datetime(2030, 5, 1, 12, tzinfo=UTC)
# Short lives, so that a few hours hold a rotation; an API server is at most DELAY_S behind.
TERMS = Terms(ca_life_s=100 * 3600, serving_life_s=3600, overlap_s=60, settle_s=60)
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
    """What all share: an API server with a Secret and two configurations, and the time."""

    def __init__(self, *denied: str) -> None:
        self.time_s = 0.0
        self.api = ApiServer()
        self.deny(*denied)
        self.past: list[tuple[float, frozenset[bytes]]] = []
        for path in (MUTATING, VALIDATING):
            names = [name for name, at in WEBHOOKS.items() if at == path]
            self.api.put(path, {"webhooks": [{"name": one, "clientConfig": {}} for one in names]})

    def deny(self, *rights: str) -> None:
        """Take these rights away, and give back all others."""
        self.api.denied = {RIGHTS[right] for right in rights}

    def now(self) -> datetime:
        return START + timedelta(seconds=self.time_s)

    def clock(self) -> float:
        return self.time_s

    @property
    def bundle(self) -> Bundle:
        """Return what the Secret holds."""
        data = self.api.objects.get(PATH, {}).get("data", {})
        return Bundle.from_files({name: b64decode(text) for name, text in data.items()})

    @bundle.setter
    def bundle(self, bundle: Bundle) -> None:
        data = {name: b64encode(text).decode() for name, text in bundle.files().items()}
        self.api.put(PATH, {"data": data})

    def delete(self, *paths: str) -> None:
        """Delete the Secret, or other objects."""
        for path in paths or (PATH,):
            if path in self.api.objects:
                self.api.remove(path)

    def ca_bundles(self) -> frozenset[bytes]:
        found = [
            self.api.objects[path] for path in (MUTATING, VALIDATING) if path in self.api.objects
        ]
        targets = [webhook["clientConfig"] for one in found for webhook in one["webhooks"]]
        return frozenset(b64decode(target.get("caBundle") or "") for target in targets)

    def damage(self, webhook: str, ca_bundle: bytes) -> None:
        """Write another caBundle into a webhook, as somebody with kubectl does."""
        self.past.append((self.time_s, self.ca_bundles()))
        called = {"clientConfig": {"caBundle": b64encode(ca_bundle).decode()}}
        webhooks = {"webhooks": [{"name": webhook, **called}]}
        self.api.kube().patch(WEBHOOKS[webhook], webhooks)

    def bundles_in_use(self) -> set[frozenset[x509.Certificate]]:
        """Return every caBundle that some API server may still go by, each once."""
        recent = [old for until_s, old in self.past if until_s >= self.time_s - DELAY_S]
        pems = self.ca_bundles().union(*recent)
        return {frozenset(readable_certificates(pem)) for pem in pems}

    def published(self) -> set[x509.Certificate]:
        """Return the CAs in the caBundles, which are the same in all."""
        (published,) = {frozenset(readable_certificates(pem)) for pem in self.ca_bundles()}
        return set(published)

    def accepted(self, served: Bundle) -> bool:
        """Return whether every API server accepts a certificate."""
        return all(verified(served, bundle, self.now()) for bundle in self.bundles_in_use())

    def over(self, served: Bundle) -> bool:
        """Return whether a certificate has expired."""
        leaf = readable_certificates(served.certificate_pem)[0]
        return self.now() > leaf.not_valid_after_utc


class Door(CertificatesApi):
    """One replica's access to the world."""

    def __init__(self, world: World) -> None:
        super().__init__(world.api.kube(), "gpu", "certificate", ["ours"])
        self.world = world

    def turn(self) -> None:
        """Wait for one's turn."""

    def secret(self) -> StoredBundle:
        self.turn()
        return super().secret()

    def configurations(self) -> tuple[Configuration, ...]:
        self.turn()
        return super().configurations()

    def store(self, bundle, before) -> None:
        self.turn()
        super().store(bundle, before)

    def publish(self, configuration, bundles) -> None:
        self.turn()
        before = self.world.ca_bundles()
        super().publish(configuration, bundles)
        self.world.past.append((self.world.time_s, before))


class Member:
    """A replica that is let through at once, or one behind a door of its own."""

    def __init__(self, world: World, door: Door | None = None) -> None:
        state = Replica(NAMES, TERMS, clock=world.clock, now=world.now)
        door = door or Door(world)
        self.round = partial(door.round, state)
        self.rotate = partial(door.rotate, state)


class Killed(BaseException):
    """Ends a replica in the middle of whatever it does."""


class Puppet(Door):
    """A replica on a thread of its own that makes one call each time it is let through."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.served: Bundle | None = None
        self.ready = False
        self.rounds = 0
        self._dead = self._starved = False
        self._error: Exception | None = None
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        self._stands.acquire()

    def turn(self) -> None:
        self._stands.release()
        self._go.acquire()
        if self._dead:
            raise Killed

    def step(self) -> None:
        """Let one call through, and wait for the next one to stand at the door."""
        self._go.release()
        self._stands.acquire()
        if self._error:
            raise self._error

    def to_the_end(self) -> None:
        """Let calls through to the end of a round."""
        before = self.rounds
        while self.rounds == before:
            self.step()

    def fails_calls(self) -> bool:
        """Return whether calls fail that need not.

        A replica that got no turn until its certificate expired may be at a loss for a while.
        """
        if not self.ready:
            return False
        if self.world.accepted(self.served):
            self._starved = False
        elif self.world.over(self.served):
            self._starved = True
        else:
            return not self._starved
        return False

    def kill(self) -> None:
        self._dead = True
        self._go.release()
        self._thread.join()

    def _live(self) -> None:
        one = Member(self.world, self)
        try:
            while True:
                found = one.round()
                self.served, self.ready = found.served, self.ready or not found.unready
                self.rounds += 1
        except Killed:
            return
        except Exception as error:  # noqa: BLE001 - it is the test's to raise
            self._error = error
            self._stands.release()
