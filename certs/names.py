"""Names in certificates: DNS names and addresses, as subject alternative names (SANs)."""

import ipaddress
import re
from collections.abc import Iterable

from cryptography import x509

from certs.pem import CertificatesError

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
# RFC 1123 section 2.1; a wildcard may only be the whole leftmost label (RFC 6125 section 6.4.3).
_DNS_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
_LONGEST_DNS_NAME = 253  # RFC 1035 section 2.3.4, as text without the trailing dot


def service_names(service: str, namespace: str) -> tuple[str, str, str, str]:
    """Return the DNS names of a Kubernetes Service.

    The API server calls a webhook's `clientConfig.service` by the first; the others are for people
    and tests in the cluster.
    """
    full = f"{service}.{namespace}.svc"
    return full, f"{service}.{namespace}", service, f"{full}.cluster.local"


def canonical(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names in canonical form, each once, in their order.

    Raises CertificatesError for a name that no client can request.
    """
    return tuple(dict.fromkeys(_canonical_one(name) for name in names))


def _canonical_one(name: str) -> str:
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


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the DNS names and addresses in the certificate's SANs."""
    try:
        sans = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    dns_names = (name.lower() for name in sans.get_values_for_type(x509.DNSName))
    addresses = (str(address) for address in sans.get_values_for_type(x509.IPAddress))
    return (*dns_names, *addresses)


def missing_names(certificate: x509.Certificate, names: Iterable[str]) -> tuple[str, ...]:
    """Return the wanted names that no SAN covers; a wildcard covers one leftmost label."""
    held = set(names_of(certificate))
    return tuple(name for name in canonical(names) if not {name, _wildcard_for(name)} & held)


def _wildcard_for(name: str) -> str:
    """Return the wildcard that covers a DNS name; return an address unchanged, it has none."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return f"*.{name.partition('.')[2]}"
