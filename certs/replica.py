"""Decide what one of several equal replicas does next.

No replica leads. What is due follows from the Secret, the caBundles and what this replica has
observed.

=========  ==============================  ====================  =====================
step       the Secret holds                each caBundle         a replica serves
=========  ==============================  ====================  =====================
announce   new + old CA, leaf of the old   old                   leaf of the old
publish    the same                        new + old             leaf of the old
switch     new + old CA, leaf of the new   new + old             either leaf
forget     new CA, leaf of the new         new                   leaf of the new
=========  ==============================  ====================  =====================

The switch waits for the overlap since the announcement, by the certificates' own dates, and until
the replica that switches has observed the new CA in every caBundle for the settling time, so that
every API server has it. A replica serves a new leaf by the same rule, and until then keeps the one
it serves. The old CA is forgotten when no leaf of it can be valid any more, so a replica that is
late, or cut off, is never wrong. Each step may be done by any replica, or twice, or be interrupted.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509

from certs.check import is_valid, matches, verifies
from certs.names import canonical
from certs.pem import Bundle, certificate_text, readable_certificates
from certs.rotate import (
    Advance,
    Authority,
    SetAction,
    Terms,
    advance,
    announce,
    is_obsolete,
    signer_of,
)

# A CA this old counts as settled; otherwise a replica that starts would always wait for that.
_OLD = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Configuration:
    """One webhook configuration: its caBundles, by the name of their webhook.

    The API server trusts each certificate of a webhook's caBundle, and nothing else.
    """

    kind: str
    name: str
    version: str
    bundles: tuple[tuple[str, bytes], ...] = field(repr=False)

    @property
    def title(self) -> str:
        """Return its kind and name."""
        return f"{self.kind} {self.name}"


Configurations = tuple[Configuration, ...] | None
"""Our webhook configurations, those that exist; None if they could not be read."""


@dataclass(frozen=True, slots=True)
class Publish:
    """A step: give webhooks of a configuration these caBundles, by their names."""

    configuration: Configuration
    bundles: tuple[tuple[str, bytes], ...] = field(repr=False)


class Replica:
    """One replica: the certificate that it serves, and since when it has observed which CA.

    A replica that starts has observed nothing, which only makes it wait.
    """

    def __init__(
        self,
        names: Iterable[str],
        terms: Terms | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Take part for a service of these names; raises CertificatesError for impossible ones."""
        self._names = canonical(names)
        self._terms = terms or Terms()
        self._clock = clock
        self._now = now
        self._served: Bundle | None = None
        self._since_s: dict[x509.Certificate, float] = {}
        """First reading of the clock, for each CA that every caBundle held at the last read."""

    def observe(self, configurations: Configurations) -> None:
        """Note which CAs every caBundle holds; call it after each read."""
        if configurations is not None:
            # Read after the answer, so what that shows is at least as old.
            now_s = self._clock()
            held = [_held(pem) for one in configurations for _, pem in one.bundles]
            in_each = frozenset.intersection(*held) if held else frozenset()
            self._since_s = {ca: self._since_s.get(ca, now_s) for ca in in_each}

    def due(self, stored: Bundle, configurations: Configurations) -> tuple[Advance | Publish, ...]:
        """Return the steps that are due, in order; after each, read and observe again.

        An `Advance` is what the Secret is to hold. Raises CertificatesError for a set that cannot
        be read, does not belong together or has a part missing.
        """
        # Without configurations no API server calls us, so there is no trust to wait for.
        trusted = None if configurations == () else self._settled()
        outcome = advance(stored, self._names, self._now(), self._terms, trusted)
        return (
            *((outcome,) if outcome.action is not SetAction.KEPT else ()),
            *(
                Publish(one, bundles)
                for one in configurations or ()
                if (bundles := self._corrected(one, stored))
            ),
        )

    def announce(self, stored: Bundle) -> Advance:
        """Return the set with another CA announced; raises CertificatesError, as `rotate` says."""
        return announce(stored, self._now(), self._terms)

    def serve(self, stored: Bundle) -> Bundle:
        """Return the set to serve: the Secret's, unless clients may not know its CA yet."""
        served = self._served
        if (
            served is None
            or not self._trusts(self._since_s, served)
            or self._trusts(self._settled(), stored)
        ):
            served = self._served = stored
        return served

    def why_not_ready(self, configurations: Configurations) -> str:
        """Return why an API server might reject the certificate; empty if none does.

        A set without CAs is verified by the system's own, and needs no caBundle.
        """
        served = self._served or Bundle()
        authorities = readable_certificates(served.ca_pem)
        if not authorities:
            return ""
        if configurations is None and not self._since_s:
            return "the webhook configurations could not be read yet"
        if configurations == ():
            return "there is no webhook configuration of that name yet"
        if not self._trusts(self._since_s, served):
            return "a caBundle lacks the CA of the certificate"
        held = [_held(pem) for one in configurations or () for _, pem in one.bundles]
        others = frozenset[x509.Certificate]().union(*held) - set(authorities)
        old = (ca for ca in self._since_s if Authority(ca).announced + _OLD <= self._now())
        if others and not self._trusts(self._settled().union(old), served):
            return "the CA of the certificate is so new that an API server may not know it yet"
        return ""

    def _settled(self) -> frozenset[x509.Certificate]:
        """Return the CAs that every API server has by now."""
        due_s = self._clock() - self._terms.settle_s
        return frozenset(ca for ca, since_s in self._since_s.items() if since_s <= due_s)

    def _trusts(self, trusted: Collection[x509.Certificate], bundle: Bundle) -> bool:
        return verified(bundle, trusted, self._now())

    def _corrected(
        self, configuration: Configuration, stored: Bundle
    ) -> tuple[tuple[str, bytes], ...]:
        """Return the webhooks whose caBundle has to change, with the new one.

        It holds the CAs of the set. Others stay: a replica that has not read the Secret yet, or a
        server before us, may still serve a certificate of theirs. Removed are those that expired,
        and those issued by this package of which no leaf can be valid.
        """
        now = self._now()
        wanted = readable_certificates(stored.ca_pem)
        leaf = next(iter(readable_certificates(stored.certificate_pem)), None)
        issuer = signer_of(leaf, [Authority(ca) for ca in wanted])

        def stays(ca: x509.Certificate) -> bool:
            if ca.not_valid_after_utc < now:
                return False
            return issuer is None or not is_obsolete(Authority(ca), issuer, now, self._terms)

        changes = []
        for webhook, pem in configuration.bundles if wanted else ():
            held = readable_certificates(pem)
            # The order alone is no reason to write: another replica may have read an older set.
            should = (*wanted, *(ca for ca in held if ca not in wanted and stays(ca)))
            if set(should) != set(held):
                changes.append((webhook, b"".join(map(certificate_text, should))))
        return tuple(changes)


def holds(pem: bytes, bundle: Bundle) -> bool:
    """Return True if a caBundle holds all CAs of the set."""
    return _held(pem) >= set(readable_certificates(bundle.ca_pem))


def verified(bundle: Bundle, trusted: Collection[x509.Certificate], now: datetime) -> bool:
    """Return True if a client that trusts these CAs accepts a server with this set now."""
    chain = readable_certificates(bundle.certificate_pem)
    if not chain or not is_valid(chain[0], now) or not matches(bundle):
        return False
    return verifies(chain, tuple(trusted), lambda certificate: is_valid(certificate, now))


def _held(pem: bytes) -> frozenset[x509.Certificate]:
    return frozenset(readable_certificates(pem))
