"""Checks and description of a certificate set.

Each check returns sentences that state the problem and its fix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.issue import DAY_S, subject_names
from certs.pem import (
    AUTHORITIES,
    AUTHORITY_KEYS,
    CERTIFICATE,
    KEY,
    Bundle,
    CertificatesError,
    certificates,
    is_key_for,
    private_keys,
    readable_certificates,
)

_Parsed = TypeVar("_Parsed")


def find_problems(bundle: Bundle, now: datetime) -> tuple[str, ...]:
    """Return why a client would reject this set, as sentences; empty if the set is valid.

    Unreadable contents do not raise an exception. All possible checks are made, so that one call
    shows every problem.
    """
    found: list[str] = []
    chain = _parsed(certificates, bundle.certificate_pem, CERTIFICATE, found)
    keys = _parsed(private_keys, bundle.key_pem, KEY, found)
    authorities = _parsed(certificates, bundle.ca_pem, AUTHORITIES, found)
    if bundle.ca_key_pem:
        signing = _parsed(private_keys, bundle.ca_key_pem, AUTHORITY_KEYS, found)
        if authorities and any(not any(is_key_for(k, a) for a in authorities) for k in signing):
            found.append(
                f"{AUTHORITY_KEYS} belongs to no certificate in {AUTHORITIES};"
                " put the CA and its key there together"
            )
    if chain:
        if keys and not is_key_for(keys[0], chain[0]):
            found.append(
                f"{KEY} does not belong to {CERTIFICATE}; put both there from one issuance"
            )
        found += _validity_problems(chain[0], now)
        found += _purpose_problems(chain[0])
        found += _name_problems(chain[0])
    if chain and authorities:
        found += _trust_problems(chain, authorities, now)
    found += _authority_problems(authorities, chain)
    return tuple(found)


def renewal_due(certificate: x509.Certificate) -> datetime:
    """Return the time at which a third of the certificate's lifetime is left."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_after_utc - life / 3


def is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    """Return True if `now` is within the certificate's lifetime, ends included (RFC 5280)."""
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def can_sign(certificate: x509.Certificate) -> bool:
    """Return True if the certificate may sign others (RFC 5280, 4.2.1.3 and 4.2.1.9)."""
    extensions = certificate.extensions
    try:
        if not extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
    except x509.ExtensionNotFound:
        return False
    try:
        return extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound:
        return True


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return True if the authority's key signed the certificate and the names agree."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def has_matching_key(bundle: Bundle) -> bool:
    """Return True if certificate and key are readable and belong together."""
    try:
        leaf = certificates(bundle.certificate_pem, CERTIFICATE)[0]
        return is_key_for(private_keys(bundle.key_pem, KEY)[0], leaf)
    except CertificatesError:
        return False


def is_trusted(
    chain: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    valid: Callable[[x509.Certificate], bool],
) -> bool:
    """Return True if intermediates lead from the leaf to one of the given CAs.

    The leaf may itself be one of the CAs, if it is self-signed. Only certificates for which `valid`
    returns True count.
    """
    trusted = [ca for ca in authorities if valid(ca) and can_sign(ca)]
    pool = [between for between in chain[1:] if valid(between) and can_sign(between)]
    frontier = [chain[0]]
    while frontier:
        current = frontier.pop()
        if current in authorities and valid(current):
            return True
        if any(is_signed_by(current, ca) for ca in trusted):
            return True
        above = [between for between in pool if is_signed_by(current, between)]
        pool = [between for between in pool if between not in above]
        frontier += above
    return False


def subject_text(certificate: x509.Certificate) -> str:
    """Return the certificate's subject as a string (RFC 4514)."""
    return certificate.subject.rfc4514_string() or "a certificate without a subject"


def _parsed(
    parse: Callable[[bytes, str], tuple[_Parsed, ...]], pem: bytes, location: str, found: list[str]
) -> tuple[_Parsed, ...]:
    try:
        return parse(pem, location)
    except CertificatesError as error:
        found.append(error.sentence)
        return ()


def _validity_problems(leaf: x509.Certificate, now: datetime) -> list[str]:
    if now > leaf.not_valid_after_utc:
        return [f"{CERTIFICATE} expired on {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; renew it"]
    if now < leaf.not_valid_before_utc:
        start = f"{leaf.not_valid_before_utc:%Y-%m-%d %H:%M}"
        cure = "correct this machine's clock or issue it again"
        return [f"{CERTIFICATE} is not valid before {start} UTC; {cure}"]
    return []


def _purpose_problems(leaf: x509.Certificate) -> list[str]:
    try:
        allowed = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return []
    if {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(allowed):
        return []
    return [f"{CERTIFICATE} is not for TLS servers; issue it with extended key usage serverAuth"]


def _name_problems(leaf: x509.Certificate) -> list[str]:
    if subject_names(leaf):
        return []
    # Go, and therefore the API server, has ignored the common name since Go 1.15.
    return [f"{CERTIFICATE} names no host in its SANs; issue it with the names it serves"]


def _trust_problems(
    chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate], now: datetime
) -> list[str]:
    def valid(certificate: x509.Certificate) -> bool:
        return is_valid(certificate, now)

    if is_trusted(chain, authorities, valid):
        return []
    if is_trusted(chain, authorities, lambda _: True):
        problem = f"leads only to CAs in {AUTHORITIES} that are expired or not yet valid"
        return [f"{CERTIFICATE} {problem}; issue it from a valid CA and put that CA there"]
    cure = f"add the CA that signed it, or the intermediate ones to {CERTIFICATE}"
    return [f"{CERTIFICATE} does not verify to any CA in {AUTHORITIES}; {cure}"]


def _authority_problems(
    authorities: Sequence[x509.Certificate], chain: Sequence[x509.Certificate]
) -> list[str]:
    return [
        f"{AUTHORITIES} holds {subject_text(authority)}, which may not sign certificates;"
        " put the CA certificate there (CA bit, keyCertSign)"
        for authority in authorities
        if not can_sign(authority) and authority not in chain[:1]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStatus:
    """Description of one certificate.

    `renewal_due` is the time at which a third of the lifetime is left. It is None for a CA, which
    no program renews by time. `fingerprint_sha256` is lower-case hex of the DER's hash.
    """

    subject: str
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    days_left: float
    renewal_due: datetime | None
    fingerprint_sha256: str


@dataclass(frozen=True, slots=True)
class Status:
    """A certificate set: serving certificate, CAs (two during a rotation), and problems.

    If `has_ca_key` is True, replicas that share the set renew its certificate.
    """

    serving: CertificateStatus | None
    authorities: tuple[CertificateStatus, ...]
    has_ca_key: bool
    problems: tuple[str, ...]


def describe(bundle: Bundle, now: datetime) -> Status:
    """Describe a certificate set. Unreadable contents are listed as problems, not raised."""
    leaf = next(iter(readable_certificates(bundle.certificate_pem)), None)
    return Status(
        serving=_describe_certificate(leaf, now, renewal_due(leaf)) if leaf else None,
        authorities=tuple(
            _describe_certificate(ca, now) for ca in readable_certificates(bundle.ca_pem)
        ),
        has_ca_key=bool(bundle.ca_key_pem),
        problems=find_problems(bundle, now),
    )


def _describe_certificate(
    certificate: x509.Certificate, now: datetime, due: datetime | None = None
) -> CertificateStatus:
    return CertificateStatus(
        subject=subject_text(certificate),
        names=subject_names(certificate),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        days_left=(certificate.not_valid_after_utc - now).total_seconds() / DAY_S,
        renewal_due=due,
        fingerprint_sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )
