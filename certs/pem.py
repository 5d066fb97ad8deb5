"""PEM data: classes that contain it, and functions that parse, write or load it."""

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificateIssuerPrivateKeyTypes,
    PrivateKeyTypes,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

# The keys of a Kubernetes Secret of type kubernetes.io/tls, as cert-manager fills it.
CERTIFICATE = "tls.crt"
KEY = "tls.key"
AUTHORITIES = "ca.crt"
# Added by vramwarden: a Secret without `ca.key` was issued elsewhere.
AUTHORITY_KEYS = "ca.key"
FILES = (CERTIFICATE, KEY, AUTHORITIES, AUTHORITY_KEYS)

_BEGIN_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN (?P<kind>[A-Z0-9 ]*PRIVATE KEY)-----.+?-----END (?P=kind)-----\s*", re.DOTALL
)
_COMPLETE = "put a complete PEM file there"


class CertificatesError(Exception):
    """Unusable certificates: their location, the problem, and the fix."""

    def __init__(self, location: str, problem: str, cure: str) -> None:
        super().__init__(f"{location}: {problem}; {cure}")
        self.location = location
        self.problem = problem
        self.cure = cure

    @property
    def sentence(self) -> str:
        """Return the error as a finding, in the form of `find_problems`."""
        return f"{self.location} {self.problem}; {self.cure}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both as PEM; `repr` omits the key."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A certificate set: the contents of its four files. A missing file is empty.

    `ca_pem` contains several CAs during a rotation, newest first. `ca_key_pem` contains the keys of
    the CAs that may still sign. A set without `ca_key_pem` was issued elsewhere.
    """

    certificate_pem: bytes = b""
    key_pem: bytes = field(default=b"", repr=False)
    ca_pem: bytes = b""
    ca_key_pem: bytes = field(default=b"", repr=False)

    def files(self) -> dict[str, bytes]:
        """Return the contents keyed by file name, without missing files."""
        contents = (self.certificate_pem, self.key_pem, self.ca_pem, self.ca_key_pem)
        return {name: content for name, content in zip(FILES, contents, strict=True) if content}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "Bundle":
        """Return the set from contents keyed by file name; other names are ignored."""
        return cls(*(files.get(name, b"") for name in FILES))


def certificates(pem: bytes, location: str) -> tuple[x509.Certificate, ...]:
    """Parse all certificates of PEM data, in their order.

    A truncated block is an error even after valid blocks: a CA that is silently dropped from a
    bundle causes an outage at the next rotation. Raises CertificatesError, which names `location`.
    """
    try:
        found = tuple(x509.load_pem_x509_certificates(pem))
        for certificate in found:
            # Both are parsed lazily. Access them here, so that malformed data fails at once.
            certificate.public_key()
            _ = certificate.extensions
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        problem = "is empty or missing" if not pem.strip() else "is not a readable PEM certificate"
        raise CertificatesError(location, problem, _COMPLETE) from error
    if len(found) != pem.count(_BEGIN_CERTIFICATE):
        raise CertificatesError(location, "ends in the middle of a certificate", _COMPLETE)
    return found


def readable_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Parse all certificates of PEM data; return none if the data is incomplete."""
    try:
        return certificates(pem, "")
    except CertificatesError:
        return ()


def private_keys(pem: bytes, location: str) -> tuple[PrivateKeyTypes, ...]:
    """Parse all private keys of PEM data, in their order.

    Blocks of other kinds (such as openssl's `EC PARAMETERS`) are skipped. Raises CertificatesError,
    which names `location`.
    """
    blocks = [match[0] for match in _PRIVATE_KEY.finditer(pem)]
    if len(blocks) != len(re.findall(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----", pem)):
        raise CertificatesError(location, "ends in the middle of a private key", _COMPLETE)
    if not blocks:
        problem = "is empty or missing" if not pem.strip() else "holds no PEM private key"
        raise CertificatesError(location, problem, _COMPLETE)
    try:
        return tuple(serialization.load_pem_private_key(block, password=None) for block in blocks)
    except TypeError as error:
        cure = "put the key there without a passphrase"
        raise CertificatesError(location, "is encrypted", cure) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificatesError(location, "is not a readable PEM private key", _COMPLETE) from error


def certificate_text(certificate: x509.Certificate) -> bytes:
    """Return the certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_text(key: PrivateKeyTypes | CertificateIssuerPrivateKeyTypes) -> bytes:
    """Return the key as unencrypted PKCS #8 PEM (RFC 5958)."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def derived_secret(key_pem: bytes, purpose: str, length_bytes: int = 16) -> bytes:
    """Derive a secret from the first private key of PEM data, and from a purpose.

    Replicas that share a key derive the same secret without storing it. The key cannot be computed
    from the secret (HKDF with SHA-256, RFC 5869). Raises CertificatesError.
    """
    der = private_keys(key_pem, KEY)[0].private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return HKDF(SHA256(), length_bytes, salt=None, info=purpose.encode()).derive(der)


def is_key_for(key: PrivateKeyTypes, certificate: x509.Certificate) -> bool:
    """Return True if the certificate contains the public key of this private key."""
    encoding = serialization.Encoding.DER
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    mine = key.public_key().public_bytes(encoding, form)
    return mine == certificate.public_key().public_bytes(encoding, form)


def load_into(context: ssl.SSLContext, bundle: Bundle, location: str = "the set") -> None:
    """Load certificate and key of a set into a TLS context.

    Raises CertificatesError, which names `location`, if certificate or key are missing or unusable.
    OpenSSL may have loaded one already, so use a new context for each set. No key is written to
    disk: Python's `ssl` only accepts paths, and `/dev/fd` gives paths to files in memory.
    """
    if not bundle.certificate_pem:
        raise CertificatesError(location, "holds no certificate", "issue a set there first")
    try:
        with ExitStack() as files:
            chain = files.enter_context(_in_memory(bundle.certificate_pem))
            key = files.enter_context(_in_memory(bundle.key_pem))
            # Otherwise OpenSSL asks at the terminal for the password of an encrypted key.
            context.load_cert_chain(chain, key, password="")
    except (ssl.SSLError, OSError) as error:
        # These exceptions name the file; OpenSSL's message does not.
        certificates(bundle.certificate_pem, f"{location}, {CERTIFICATE}")
        private_keys(bundle.key_pem, f"{location}, {KEY}")
        problem = f"holds a certificate and key that cannot be used ({error})"
        raise CertificatesError(location, problem, "check its status and repair it") from error


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/dev/fd/{descriptor}"
    finally:
        os.close(descriptor)
