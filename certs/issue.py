"""Issue keys and certificates: a CA, and serving certificates for given names."""

import ipaddress
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.pem import (
    AUTHORITIES,
    AUTHORITY_KEYS,
    CertificatesError,
    Pair,
    certificate_text,
    certificates,
    key_text,
    private_keys,
)

DAY_S = 86400.0
CA_LIFE_S = 3650 * DAY_S
SERVING_LIFE_S = 365 * DAY_S
# Backdated, so that a client whose clock is up to an hour behind accepts the certificate.
BACKDATE = timedelta(hours=1)
CA_NAME_PREFIX = "vramwarden CA "

_LONGEST_COMMON_NAME = 64  # ub-common-name, RFC 5280 appendix A.1


def issue_ca(now: datetime, life_s: float = CA_LIFE_S) -> Pair:
    """Issue a self-signed CA that may only sign leaf certificates (path length 0).

    ECDSA P-256, valid from one hour before `now` until `life_s` seconds after it. The CA's name
    contains part of its serial number, so that an old and a new CA in one bundle have different
    names. Raises ValueError for a `now` without time zone or a lifetime that is not positive.
    Source: RFC 5280 sections 4.1 and 4.2.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _common_name(f"{CA_NAME_PREFIX}{serial:040x}"[: len(CA_NAME_PREFIX) + 12])
    skid = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(now, _end(now, life_s), key)
        .serial_number(serial)
        .subject_name(name)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier(skid.digest, None, None), critical=False)
    )
    return Pair(certificate_text(builder.sign(key, hashes.SHA256())), key_text(key))


def issue_serving(
    ca: Pair, names: Iterable[str], now: datetime, life_s: float = SERVING_LIFE_S
) -> Pair:
    """Issue a TLS server certificate for DNS names and IP addresses, with a new key.

    ECDSA P-256, valid from one hour before `now` until `life_s` seconds after it, but at most until
    the CA ends: clients reject a leaf that outlives its CA, although it seems valid. Raises
    CertificatesError if the CA cannot sign now, or if a name is unusable or no name is given.
    Raises ValueError like `issue_ca`. Source: RFC 5280 section 4.2, RFC 6125.
    """
    authority = certificates(ca.certificate_pem, AUTHORITIES)[0]
    signing_key = cast(
        "CertificateIssuerPrivateKeyTypes", private_keys(ca.key_pem, AUTHORITY_KEYS)[0]
    )
    wanted_names = canonical_names(names)
    if not wanted_names:
        raise CertificatesError("names", "are empty", "give at least one DNS name or IP address")
    end = min(_end(now, life_s), authority.not_valid_after_utc)
    if end <= now:
        raise CertificatesError(AUTHORITIES, "has expired", "issue a new CA first")
    key = ec.generate_private_key(ec.SECP256R1())
    short = next((name for name in wanted_names if len(name) <= _LONGEST_COMMON_NAME), "vramwarden")
    builder = (
        _builder(now, end, key)
        .serial_number(x509.random_serial_number())
        .subject_name(_common_name(short))
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(alternative_names(wanted_names), critical=False)
        .add_extension(_authority_key_identifier(authority), critical=False)
    )
    # EdDSA takes no hash algorithm. A CA issued elsewhere may use EdDSA.
    eddsa = isinstance(signing_key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey)
    certificate = builder.sign(signing_key, None if eddsa else hashes.SHA256())
    return Pair(certificate_text(certificate), key_text(key))


def _builder(
    now: datetime, end: datetime, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    skid = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .not_valid_before(now.astimezone(UTC).replace(microsecond=0) - BACKDATE)
        .not_valid_after(end)
        .public_key(key.public_key())
        .add_extension(skid, critical=False)
    )


def _end(now: datetime, life_s: float) -> datetime:
    if now.tzinfo is None:
        raise ValueError("now must carry a time zone: pass datetime.now(tz=UTC)")
    if life_s <= 0:
        raise ValueError(f"a life of {life_s} seconds is not positive")
    return now.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=life_s)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_key_identifier(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Copy the CA's key identifier, which a CA issued elsewhere may compute differently or omit."""
    try:
        skid = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        skid = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    return x509.AuthorityKeyIdentifier(skid.digest, None, None)


_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
# RFC 1123 section 2.1. A wildcard must be the whole leftmost label (RFC 6125 section 6.4.3).
_DNS_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
_LONGEST_DNS_NAME = 253  # RFC 1035 section 2.3.4, without the trailing dot


def service_names(service: str, namespace: str) -> tuple[str, str, str, str]:
    """Return the DNS names of a Kubernetes Service.

    The API server uses the first name for a webhook's `clientConfig.service`. The other names are
    for users and tests in the cluster.
    """
    full = f"{service}.{namespace}.svc"
    return full, f"{service}.{namespace}", service, f"{full}.cluster.local"


def canonical_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names in canonical form, without duplicates, in their order.

    Raises CertificatesError for a name that no client can request.
    """
    return tuple(dict.fromkeys(_canonical_name(name) for name in names))


def _canonical_name(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        lower = name.lower()
    if len(lower) > _LONGEST_DNS_NAME or not _DNS_NAME.fullmatch(lower):
        cure = "use a DNS name (punycode where it is not ASCII) or an IP address"
        raise CertificatesError(f"name {name!r}", "cannot stand in a certificate", cure)
    return lower


def alternative_names(names: Iterable[str]) -> x509.SubjectAlternativeName:
    """Return the SAN extension of canonical names (RFC 5280 section 4.2.1.6)."""
    return x509.SubjectAlternativeName([_general_name(name) for name in names])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def subject_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the DNS names and addresses in the certificate's SANs."""
    try:
        sans = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    dns_names = (name.lower() for name in sans.get_values_for_type(x509.DNSName))
    addresses = (str(address) for address in sans.get_values_for_type(x509.IPAddress))
    return (*dns_names, *addresses)


def missing_names(certificate: x509.Certificate, names: Iterable[str]) -> tuple[str, ...]:
    """Return the wanted names that no SAN covers. A wildcard covers one leftmost label."""
    covered = set(subject_names(certificate))
    return tuple(
        name for name in canonical_names(names) if not {name, _wildcard_for(name)} & covered
    )


def _wildcard_for(name: str) -> str:
    """Return the wildcard that covers a DNS name; an IP address is returned unchanged."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return f"*.{name.partition('.')[2]}"
