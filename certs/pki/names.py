"""Names a certificate is valid for: DNS names and addresses as subject alternative names."""

import ipaddress
import re
from collections.abc import Iterable

from cryptography import x509

from certs.pki.pem import CertificatesError

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
# RFC 1123 section 2.1; a wildcard may only be the whole leftmost label (RFC 6125 section 6.4.3).
_DNS_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
_LONGEST_DNS_NAME = 253  # RFC 1035 section 2.3.4, as text without the trailing dot


def service_names(service: str, namespace: str) -> tuple[str, str, str, str]:
    """Return the names a Kubernetes Service is called by, the API server's own first.

    The API server dials ``service.namespace.svc`` for a webhook's ``clientConfig.service``; the
    others serve people and tests inside the cluster.
    """
    full = f"{service}.{namespace}.svc"
    return full, f"{service}.{namespace}", service, f"{full}.cluster.local"


def tidy(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names in one spelling, each once, in their order.

    Raises CertificatesError for a name that no client could ask for.
    """
    return tuple(dict.fromkeys(_tidy_one(name) for name in names))


def _tidy_one(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        lower = name.lower()
    if len(lower) > _LONGEST_DNS_NAME or not _DNS_NAME.fullmatch(lower):
        cure = "use a DNS name (punycode where it is not ASCII) or an IP address"
        raise CertificatesError(f"name {name!r}", "cannot stand in a certificate", cure)
    return lower


def alternative_names(names: Iterable[str]) -> x509.SubjectAlternativeName:
    """Build the SAN extension of tidied names (RFC 5280 section 4.2.1.6)."""
    return x509.SubjectAlternativeName([_general_name(name) for name in names])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the DNS names and addresses among the certificate's SANs."""
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
    return tuple(name for name in tidy(names) if not {name, _wildcard_for(name)} & held)


def _wildcard_for(name: str) -> str:
    """Return the wildcard that covers a DNS name; an address has none, so return it as it is."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return f"*.{name.partition('.')[2]}"
