"""Say what clients trust: the caBundle of each webhook, what belongs in it, what it verifies.

A caBundle holds PEM certificates; the API server trusts each of them, and nothing else.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509

from certs.pki.check import is_valid, matches, verifies
from certs.pki.pem import Bundle, certificate_text, readable_certificates
from certs.rotation.authority import Authority, Terms, is_obsolete, signer_of


@dataclass(frozen=True, slots=True)
class Configuration:
    """Hold what we need of one webhook configuration; a bundle is the PEM text of one webhook."""

    kind: str
    name: str
    version: str
    bundles: tuple[tuple[str, bytes], ...] = field(repr=False)

    @property
    def title(self) -> str:
        """Return its kind and name."""
        return f"{self.kind} {self.name}"


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
