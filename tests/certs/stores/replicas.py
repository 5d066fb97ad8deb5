"""A cluster in memory, with time and turns in the test's hand.

Replicas run as they do for real, but each call of theirs waits until the test lets it through.
"""

import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from cryptography import x509

from certs import (
    Bundle,
    CertificatesError,
    Configuration,
    ConflictError,
    Replica,
    StoredBundle,
    Terms,
)
from certs.pki.pem import readable_certificates
from certs.rotation.replica import verified

NAMES = ("hook.gpu.svc",)
START = datetime(2030, 5, 1, 12, tzinfo=UTC)
# Short lives, so that a few hours hold everything; an API server is at most DELAY_S behind.
TERMS = Terms(ca_life_s=5 * 3600, serving_life_s=3600, overlap_s=60, settle_s=60)
DELAY_S = 59


@dataclass
class World:
    """What all share: one Secret, two configurations of one and two webhooks, the time."""

    time_s: float = 0.0
    secret: StoredBundle = field(default_factory=lambda: StoredBundle(Bundle(), ""))
    configurations: tuple[Configuration, ...] = (
        Configuration("Mutating", "ours", "1", (("a", b""),)),
        Configuration("Validating", "ours", "1", (("b", b""), ("c", b""))),
    )
    versions: int = 1
    past: list[tuple[float, tuple[Configuration, ...]]] = field(default_factory=list)
    refusing: set[str] = field(default_factory=set)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.time_s)

    def clock(self) -> float:
        return self.time_s

    def fresh_version(self) -> str:
        self.versions += 1
        return str(self.versions)

    def change(self, configurations: tuple[Configuration, ...]) -> None:
        self.past.append((self.time_s, self.configurations))
        self.configurations = configurations

    def bundles_in_use(self) -> set[frozenset[x509.Certificate]]:
        """Return every caBundle that some API server may still go by, each once."""
        recent = [old for until_s, old in self.past if until_s >= self.time_s - DELAY_S]
        pems = {
            pem
            for configurations in (*recent, self.configurations)
            for configuration in configurations
            for _, pem in configuration.bundles
        }
        return {frozenset(readable_certificates(pem)) for pem in pems}

    def published(self) -> set[x509.Certificate]:
        """Return the CAs in the caBundles, which are the same in all."""
        bundles = {
            frozenset(readable_certificates(pem))
            for configuration in self.configurations
            for _, pem in configuration.bundles
        }
        (published,) = bundles
        return set(published)

    def accepted(self, served: Bundle) -> bool:
        """Return whether every API server accepts a certificate."""
        return all(verified(served, bundle, self.now()) for bundle in self.bundles_in_use())

    def over(self, served: Bundle) -> bool:
        """Return whether a certificate has expired."""
        leaf = readable_certificates(served.certificate_pem)[0]
        return self.now() > leaf.not_valid_after_utc


@dataclass
class Door:
    """One replica's access to the world."""

    world: World
    title = "Secret gpu/certificate"

    def turn(self) -> None:
        """Wait for one's turn."""

    def _refuse(self, what: str) -> None:
        if what in self.world.refusing:
            raise CertificatesError(what, "is forbidden", "grant it")

    def secret(self) -> StoredBundle:
        self.turn()
        self._refuse("get secret")
        return self.world.secret

    def configurations(self) -> tuple[Configuration, ...]:
        self.turn()
        self._refuse("get configurations")
        return self.world.configurations

    def store(self, bundle, before) -> None:
        self.turn()
        self._refuse("store")
        if before.version != self.world.secret.version:
            raise ConflictError
        self.world.secret = StoredBundle(bundle, self.world.fresh_version())

    def publish(self, configuration, bundles) -> None:
        self.turn()
        self._refuse(f"publish {configuration.kind}")
        if configuration not in self.world.configurations:
            raise ConflictError
        changed = replace(
            configuration,
            version=self.world.fresh_version(),
            bundles=tuple((dict(configuration.bundles) | dict(bundles)).items()),
        )
        all_of_them = self.world.configurations
        self.world.change(tuple(changed if c == configuration else c for c in all_of_them))


def replica(world: World, door: Door | None = None) -> Replica:
    """Return a replica that is let through at once, or one behind a door of its own."""
    return Replica(door or Door(world), NAMES, TERMS, clock=world.clock, now=world.now)


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

    def round(self) -> None:
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
        one = replica(self.world, self)
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
