"""Describe the state of a set of certificates, for people and metrics."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from certs.pki.check import days_left, problems, renewal_due, title
from certs.pki.names import names_of
from certs.pki.pem import Bundle, readable_certificates


@dataclass(frozen=True, slots=True)
class CertificateStatus:
    """Describe one certificate; ``fingerprint_sha256`` is lower-case hex of its DER."""

    subject: str
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    days_left: float
    renewal_due: datetime
    fingerprint_sha256: str


@dataclass(frozen=True, slots=True)
class Status:
    """Describe a set: the serving certificate, the CAs (two while rotating), what is wrong.

    ``issues`` says whether the set has a CA key, so that we renew it; otherwise ``renewal_due``
    is advice to its owner.
    """

    serving: CertificateStatus | None
    authorities: tuple[CertificateStatus, ...]
    issues: bool
    problems: tuple[str, ...]


def describe(bundle: Bundle, now: datetime, names: Iterable[str] = ()) -> Status:
    """Describe a set; contents that cannot be read are among the problems, nothing is raised."""
    serving = readable_certificates(bundle.certificate_pem)[:1]
    return Status(
        serving=_one(serving[0], now) if serving else None,
        authorities=tuple(_one(ca, now) for ca in readable_certificates(bundle.ca_pem)),
        issues=bool(bundle.ca_key_pem),
        problems=problems(bundle, now, names),
    )


def _one(certificate: x509.Certificate, now: datetime) -> CertificateStatus:
    return CertificateStatus(
        subject=title(certificate),
        names=names_of(certificate),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        days_left=days_left(certificate, now),
        renewal_due=renewal_due(certificate),
        fingerprint_sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )
