"""Decide what one of several equal replicas does next.

Nobody leads, and nothing is kept elsewhere: what is due follows from the Secret, the caBundles and
what this replica has observed.

=========  ==============================  ====================  =====================
step       the Secret holds                each caBundle         a replica serves
=========  ==============================  ====================  =====================
announce   new + old CA, leaf of the old   old                   leaf of the old
publish    the same                        new + old             leaf of the old
switch     new + old CA, leaf of the new   new + old             either leaf
forget     new CA, leaf of the new         new                   leaf of the new
=========  ==============================  ====================  =====================

The switch waits for two things: the overlap since the announcement, by the certificates' own dates,
and that the replica which switches has observed the new CA in every caBundle for the settling time,
so that every API server has it. A replica serves a new leaf by the same rule, and until then keeps
the one it serves. The old CA is forgotten when no leaf of it can be valid any more, so a replica
that is late, or cut off, is never wrong. Each step may be done by any replica, or twice, or be
interrupted.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from cryptography import x509

from certs.pki.check import is_valid, matches, verifies
from certs.pki.pem import Bundle, certificate_text, readable_certificates
from certs.rotation.authority import Authority, Terms, is_obsolete, signer_of
from certs.rotation.rotate import SetAction, advance

# Without it, a replica that starts beside another's CA would wait to settle, even years later.
_OLD = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Configuration:
    """Hold what we need of one webhook configuration; a bundle is the PEM text of one webhook.

    The API server trusts each certificate of such a caBundle, and nothing else.
    """

    kind: str
    name: str
    version: str
    bundles: tuple[tuple[str, bytes], ...] = field(repr=False)

    @property
    def title(self) -> str:
        """Return its kind and name."""
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """Hold a Secret's set; the version is empty where the Secret does not exist."""

    bundle: Bundle
    version: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Hold what a replica remembers: what it serves, and since when it has observed which CA.

    ``since_s`` are readings of a monotonic clock, for each CA that every caBundle held when they
    were last read. A replica that starts knows nothing, which only makes it wait.
    """

    served: Bundle | None = None
    since_s: Mapping[x509.Certificate, float] = field(default_factory=dict)

    def having_observed(
        self, configurations: tuple[Configuration, ...] | None, now_s: float
    ) -> "Memory":
        """Return the memory after a read of the caBundles; None stands for one that failed."""
        if configurations is None:
            return self
        held = held_by_all(configurations)
        return replace(self, since_s={ca: self.since_s.get(ca, now_s) for ca in held})


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Hold all that a decision depends on.

    ``configurations`` are empty where there are none, and None where they could not be read.
    """

    stored: StoredBundle
    configurations: tuple[Configuration, ...] | None
    memory: Memory
    now: datetime
    now_s: float
    names: tuple[str, ...]
    terms: Terms

    @property
    def settled(self) -> frozenset[x509.Certificate]:
        """Return the CAs that every API server surely has."""
        due_s = self.now_s - self.terms.settle_s
        return frozenset(ca for ca, since_s in self.memory.since_s.items() if since_s <= due_s)


@dataclass(frozen=True, slots=True)
class Store:
    """Ask for the Secret to hold another set."""

    bundle: Bundle
    action: SetAction
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Ask for webhooks of a configuration to have another caBundle (name -> PEM)."""

    configuration: Configuration
    bundles: tuple[tuple[str, bytes], ...] = field(repr=False)


def due(view: View) -> tuple[Store | Publish, ...]:
    """Return the steps that are due, in order; after each, observe again.

    Raises CertificatesError for a set that cannot be read, does not belong together or has a part
    missing.
    """
    stored = view.stored.bundle
    # Without configurations no API server may call us whose trust we know something about.
    trusted = None if view.configurations == () else view.settled
    outcome = advance(stored, view.names, view.now, view.terms, trusted)
    store = Store(outcome.bundle, outcome.action, outcome.reasons)
    return (
        *((store,) if outcome.action is not SetAction.KEPT else ()),
        *(
            Publish(configuration, bundles)
            for configuration in view.configurations or ()
            if (bundles := corrected(configuration, stored, view.now, view.terms))
        ),
    )


def to_serve(view: View) -> Bundle:
    """Return the set to serve: the Secret's, unless clients may not know its CA yet."""
    stored, served = view.stored.bundle, view.memory.served
    if served is None or not verified(served, view.memory.since_s, view.now):
        return stored
    return stored if verified(stored, view.settled, view.now) else served


def why_not_ready(view: View, served: Bundle) -> str:
    """Return why an API server might reject the certificate; empty where none does.

    A set without CAs is verified by the system's own, and needs no caBundle.
    """
    authorities = readable_certificates(served.ca_pem)
    if not authorities:
        return ""
    if view.configurations is None and not view.memory.since_s:
        return "the webhook configurations could not be read yet"
    if view.configurations == ():
        return "there is no webhook configuration of that name yet"
    if not verified(served, view.memory.since_s, view.now):
        return "a caBundle lacks the CA of the certificate"
    others = held_by_any(view.configurations or ()) - set(authorities)
    if others and not verified(served, _known(view), view.now):
        return "the CA of the certificate is so new that an API server may not know it yet"
    return ""


def _known(view: View) -> frozenset[x509.Certificate]:
    """Return the CAs that are settled, or held and so old that they count as settled."""
    old = (ca for ca in view.memory.since_s if Authority(ca, None).announced + _OLD <= view.now)
    return view.settled.union(old)


def held_by_all(configurations: Iterable[Configuration]) -> frozenset[x509.Certificate]:
    """Return the CAs that every webhook's caBundle holds."""
    held = [_held(bundle) for one in configurations for _, bundle in one.bundles]
    return frozenset.intersection(*held) if held else frozenset()


def held_by_any(configurations: Iterable[Configuration]) -> frozenset[x509.Certificate]:
    """Return the CAs that some webhook's caBundle holds."""
    return frozenset[x509.Certificate]().union(
        *(_held(bundle) for one in configurations for _, bundle in one.bundles)
    )


def corrected(
    configuration: Configuration, bundle: Bundle, now: datetime, terms: Terms
) -> tuple[tuple[str, bytes], ...]:
    """Return the webhooks whose caBundle is not what it should be, with what it should be.

    It holds the CAs of the set. Others stay: a replica that has not read the Secret yet, or a
    server before us, may still serve a certificate of theirs. Removed are those that expired, and
    those we issued of which no leaf can be valid.
    """
    wanted = readable_certificates(bundle.ca_pem)
    leaf = next(iter(readable_certificates(bundle.certificate_pem)), None)
    issuer = signer_of(leaf, [Authority(ca, None) for ca in wanted])

    def stays(ca: x509.Certificate) -> bool:
        if ca.not_valid_after_utc < now:
            return False
        return issuer is None or not is_obsolete(Authority(ca, None), issuer, now, terms)

    changes = []
    for webhook, pem in configuration.bundles if wanted else ():
        held = readable_certificates(pem)
        # Of two replicas, one may see an older set: the order alone is nothing to write about.
        should = (*wanted, *(ca for ca in held if ca not in wanted and stays(ca)))
        if set(should) != set(held):
            changes.append((webhook, b"".join(map(certificate_text, should))))
    return tuple(changes)


def holds(pem: bytes, bundle: Bundle) -> bool:
    """Return whether a caBundle holds all CAs of the set."""
    return _held(pem) >= set(readable_certificates(bundle.ca_pem))


def verified(bundle: Bundle, trusted: Collection[x509.Certificate], now: datetime) -> bool:
    """Return whether a client that trusts these CAs accepts a server with this set now."""
    chain = readable_certificates(bundle.certificate_pem)
    if not chain or not is_valid(chain[0], now) or not matches(bundle):
        return False
    return verifies(chain, tuple(trusted), lambda certificate: is_valid(certificate, now))


def _held(pem: bytes) -> frozenset[x509.Certificate]:
    return frozenset(readable_certificates(pem))
