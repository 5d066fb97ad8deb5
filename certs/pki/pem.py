"""PEM text to certificates and keys and back, the values the package passes around, its error."""

import re
from collections.abc import Mapping
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
# Ours: only an issuer has it.
AUTHORITY_KEYS = "ca.key"
FILES = (CERTIFICATE, KEY, AUTHORITIES, AUTHORITY_KEYS)
SECRET_FILES = (KEY, AUTHORITY_KEYS)

_BEGIN_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN (?P<kind>[A-Z0-9 ]*PRIVATE KEY)-----.+?-----END (?P=kind)-----\s*", re.DOTALL
)
_COMPLETE = "put a complete PEM file there"


class CertificatesError(Exception):
    """Say where something is wrong with certificates, what, and what to do about it.

    The three parts stay apart so that a command can lay them out and a log can index them.
    """

    def __init__(self, where: str, what: str, cure: str) -> None:
        super().__init__(f"{where}: {what}; {cure}")
        self.where = where
        self.what = what
        self.cure = cure

    @property
    def sentence(self) -> str:
        """Return the error as one finding, in the form of ``problems``."""
        return f"{self.where} {self.what}; {self.cure}"


@dataclass(frozen=True, slots=True)
class Pair:
    """Hold one certificate and its private key, both PEM; the key stays out of repr."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Hold the contents of the four files of a set; an absent file is empty.

    ``ca_pem`` may hold several CAs (old and new while rotating), ``ca_key_pem`` the key of each
    that may still sign. A set without ``ca_key_pem`` was brought by its owner.
    """

    certificate_pem: bytes = b""
    key_pem: bytes = field(default=b"", repr=False)
    ca_pem: bytes = b""
    ca_key_pem: bytes = field(default=b"", repr=False)

    def files(self) -> dict[str, bytes]:
        """Return file name -> contents, without the absent ones."""
        contents = (self.certificate_pem, self.key_pem, self.ca_pem, self.ca_key_pem)
        return {name: content for name, content in zip(FILES, contents, strict=True) if content}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "Bundle":
        """Build the bundle of these files (name -> contents); other names are ignored."""
        return cls(*(files.get(name, b"") for name in FILES))


def certificates(pem: bytes, where: str) -> tuple[x509.Certificate, ...]:
    """Read every certificate of a PEM text, in its order.

    All or nothing: a truncated block is an error even after valid ones, because silently losing
    a CA from a bundle is an outage at the next rotation. Raises CertificatesError naming
    ``where``.
    """
    try:
        found = tuple(x509.load_pem_x509_certificates(pem))
        for certificate in found:
            # Both are parsed lazily; a malformed one has to be found here and not in a caller.
            certificate.public_key()
            _ = certificate.extensions
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        what = "is empty or missing" if not pem.strip() else "is not a readable PEM certificate"
        raise CertificatesError(where, what, _COMPLETE) from error
    if len(found) != pem.count(_BEGIN_CERTIFICATE):
        raise CertificatesError(where, "ends in the middle of a certificate", _COMPLETE)
    return found


def readable_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Read every certificate of a PEM text, or none where it is incomplete."""
    try:
        return certificates(pem, "")
    except CertificatesError:
        return ()


def private_keys(pem: bytes, where: str) -> tuple[PrivateKeyTypes, ...]:
    """Read every private key of a PEM text, in its order.

    Blocks of another kind (``EC PARAMETERS``, which openssl writes) are skipped. Raises
    CertificatesError naming ``where``.
    """
    blocks = [match[0] for match in _PRIVATE_KEY.finditer(pem)]
    if len(blocks) != len(re.findall(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----", pem)):
        raise CertificatesError(where, "ends in the middle of a private key", _COMPLETE)
    if not blocks:
        what = "is empty or missing" if not pem.strip() else "holds no PEM private key"
        raise CertificatesError(where, what, _COMPLETE)
    try:
        return tuple(serialization.load_pem_private_key(block, password=None) for block in blocks)
    except TypeError as error:
        cure = "put the key there without a passphrase"
        raise CertificatesError(where, "is encrypted", cure) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificatesError(where, "is not a readable PEM private key", _COMPLETE) from error


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
    """Return a secret that follows from the first private key of a PEM text, and from a purpose.

    Replicas that share a key agree on it without storing it, it changes with each key, and it says
    nothing of the key (HKDF with SHA-256, RFC 5869). Raises CertificatesError.
    """
    der = private_keys(key_pem, KEY)[0].private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return HKDF(SHA256(), length_bytes, salt=None, info=purpose.encode()).derive(der)


def belongs(key: PrivateKeyTypes, certificate: x509.Certificate) -> bool:
    """Return whether the key is the certificate's."""
    encoding = serialization.Encoding.DER
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    mine = key.public_key().public_bytes(encoding, form)
    return mine == certificate.public_key().public_bytes(encoding, form)
