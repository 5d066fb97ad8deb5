"""Decisions of one of several equal replicas: its next steps, and the certificate that it serves.

No replica leads. Due steps follow from the Secret, the caBundles and this replica's observations.

=========  ==============================  ====================  =====================
step       the Secret holds                each caBundle         a replica serves
=========  ==============================  ====================  =====================
announce   new + old CA, leaf of the old   old                   leaf of the old
publish    the same                        new + old             leaf of the old
switch     new + old CA, leaf of the new   new + old             either leaf
forget     new CA, leaf of the new         new                   leaf of the new
=========  ==============================  ====================  =====================

The switch waits for the overlap since the announcement, computed from the certificates' dates. The
switching replica must also have observed the new CA in every caBundle for the settling time, so
that every API server has it. A replica serves a new leaf by the same rule, and until then keeps its
current one. The old CA is forgotten when none of its leaves can be valid any more, so a late or
disconnected replica is never wrong. Any replica may do a step, twice, or be interrupted.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509

from certs.check import has_matching_key, is_trusted, is_valid
from certs.issue import canonical_names
from certs.pem import Bundle, certificate_text, readable_certificates
from certs.rotate import (
    Authority,
    RotationPeriods,
    SetAction,
    SetUpdate,
    advance,
    announce,
    find_signer,
    is_obsolete,
)

# A CA of this age counts as settled. Otherwise a new replica would always wait.
_OLD = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class WebhookConfiguration:
    """A webhook configuration with the caBundle of each webhook, by webhook name.

    The API server trusts only the certificates of a webhook's caBundle.
    """

    kind: str
    name: str
    version: str
    bundles: tuple[tuple[str, bytes], ...] = field(repr=False)

    @property
    def title(self) -> str:
        """Return the configuration's kind and name."""
        return f"{self.kind} {self.name}"


WebhookConfigurations = tuple[WebhookConfiguration, ...] | None
"""vramwarden's existing webhook configurations; None if they could not be read."""


@dataclass(frozen=True, slots=True)
class CaBundleUpdate:
    """A step: new caBundles for webhooks of a configuration, by webhook name."""

    configuration: WebhookConfiguration
    bundles: tuple[tuple[str, bytes], ...] = field(repr=False)


class Replica:
    """One replica: the certificate that it serves, and when it first observed each CA.

    A new replica has not observed a CA yet, so it waits longer than others.
    """

    def __init__(
        self,
        names: Iterable[str],
        periods: RotationPeriods | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Store the service's names. Raises CertificatesError if a name is unusable."""
        self._names = canonical_names(names)
        self._periods = periods or RotationPeriods()
        self._clock = clock
        self._now = now
        self._served: Bundle | None = None
        self._since_s: dict[x509.Certificate, float] = {}
        """Time at which each CA that is in every caBundle was first observed."""

    def observe(self, configurations: WebhookConfigurations) -> None:
        """Record the CAs that every caBundle contains; call this after each read."""
        if configurations is not None:
            # The clock is read after the response, so the real age is at least the recorded one.
            now_s = self._clock()
            bundles = _authorities_by_bundle(configurations)
            in_each = frozenset.intersection(*bundles) if bundles else frozenset()
            self._since_s = {ca: self._since_s.get(ca, now_s) for ca in in_each}

    def due_steps(
        self, stored: Bundle, configurations: WebhookConfigurations
    ) -> tuple[SetUpdate | CaBundleUpdate, ...]:
        """Return the due steps, in order. After each step, read and observe again.

        A `SetUpdate` contains the new contents of the Secret. Raises CertificatesError if the set
        is unreadable or incomplete, or if its parts do not belong together.
        """
        # Without configurations no API server calls the webhook, so no trust is needed.
        trusted = None if configurations == () else self._settled_authorities()
        outcome = advance(stored, self._names, self._now(), self._periods, trusted)
        return (
            *((outcome,) if outcome.action is not SetAction.KEPT else ()),
            *(
                CaBundleUpdate(configuration, bundles)
                for configuration in configurations or ()
                if (bundles := self._outdated_bundles(configuration, stored))
            ),
        )

    def announce(self, stored: Bundle) -> SetUpdate:
        """Return the set with another CA announced. Raises CertificatesError like `announce`."""
        return announce(stored, self._now(), self._periods)

    def select_served(self, stored: Bundle) -> Bundle:
        """Return the set to serve: the Secret's, unless clients may not know its CA yet."""
        served = self._served
        if (
            served is None
            or not self._trusts(self._since_s, served)
            or self._trusts(self._settled_authorities(), stored)
        ):
            served = self._served = stored
        return served

    def unready_reason(self, configurations: WebhookConfigurations) -> str:
        """Return why an API server might reject the certificate; empty if all accept it.

        A set without CAs is verified with the system's CAs, and needs no caBundle.
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
        bundles = _authorities_by_bundle(configurations or ())
        others = frozenset[x509.Certificate]().union(*bundles) - set(authorities)
        old = (ca for ca in self._since_s if Authority(ca).announced + _OLD <= self._now())
        if others and not self._trusts(self._settled_authorities().union(old), served):
            return "the CA of the certificate is so new that an API server may not know it yet"
        return ""

    def _settled_authorities(self) -> frozenset[x509.Certificate]:
        """Return the CAs that all API servers should have by now."""
        due_s = self._clock() - self._periods.settle_s
        return frozenset(ca for ca, since_s in self._since_s.items() if since_s <= due_s)

    def _trusts(self, trusted: Collection[x509.Certificate], bundle: Bundle) -> bool:
        return is_accepted(bundle, trusted, self._now())

    def _outdated_bundles(
        self, configuration: WebhookConfiguration, stored: Bundle
    ) -> tuple[tuple[str, bytes], ...]:
        """Return the webhooks whose caBundle must change, each with its new caBundle.

        A new caBundle contains the CAs of the set. Other CAs are kept, because a replica that has
        not read the Secret yet, or an earlier server, may still serve a certificate signed by them.
        A CA is removed if it has expired, or if this package issued it and none of its leaf
        certificates can be valid.
        """
        now = self._now()
        wanted = readable_certificates(stored.ca_pem)
        leaf = next(iter(readable_certificates(stored.certificate_pem)), None)
        issuer = find_signer(leaf, [Authority(ca) for ca in wanted])

        def is_kept(ca: x509.Certificate) -> bool:
            if ca.not_valid_after_utc < now:
                return False
            return issuer is None or not is_obsolete(Authority(ca), issuer, now, self._periods)

        changes = []
        for webhook, pem in configuration.bundles if wanted else ():
            current = readable_certificates(pem)
            # A different order is not written: another replica may have read an older set.
            target = (*wanted, *(ca for ca in current if ca not in wanted and is_kept(ca)))
            if set(target) != set(current):
                changes.append((webhook, b"".join(map(certificate_text, target))))
        return tuple(changes)


def has_all_authorities(pem: bytes, bundle: Bundle) -> bool:
    """Return True if a caBundle contains all CAs of the certificate set."""
    return _authorities_in(pem) >= set(readable_certificates(bundle.ca_pem))


def is_accepted(bundle: Bundle, trusted: Collection[x509.Certificate], now: datetime) -> bool:
    """Return True if a client that trusts these CAs now accepts a server with this set."""
    chain = readable_certificates(bundle.certificate_pem)
    if not chain or not is_valid(chain[0], now) or not has_matching_key(bundle):
        return False
    return is_trusted(chain, tuple(trusted), lambda certificate: is_valid(certificate, now))


def _authorities_by_bundle(
    configurations: Iterable[WebhookConfiguration],
) -> list[frozenset[x509.Certificate]]:
    return [
        _authorities_in(pem) for configuration in configurations for _, pem in configuration.bundles
    ]


def _authorities_in(pem: bytes) -> frozenset[x509.Certificate]:
    return frozenset(readable_certificates(pem))
