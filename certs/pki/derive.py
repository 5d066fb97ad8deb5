"""Derive secrets from a private key, for whoever holds that key and nobody else."""

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from certs.pki.pem import KEY, private_keys


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
