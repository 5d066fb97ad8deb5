"""Secrets that are derived from a private key in PEM."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import serialization

from certs import CertificatesError, derived_secret, issue_ca
from tests.certs.test_issue import NOW


@pytest.fixture(scope="module")
def key_pem():
    return issue_ca(NOW).key_pem


def test_the_same_key_in_another_format_derives_the_same_secret(key_pem):
    key = serialization.load_pem_private_key(key_pem, password=None)
    traditional = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    assert traditional != key_pem
    found = derived_secret(key_pem, "a door")
    assert derived_secret(traditional, "a door") == found
    assert derived_secret(key_pem + issue_ca(NOW).key_pem, "a door") == found
    assert len(found) == 16


def test_another_key_another_purpose_and_another_length_give_another_secret(key_pem):
    found = {
        derived_secret(key_pem, "a door"),
        derived_secret(key_pem, "a window"),
        derived_secret(issue_ca(NOW).key_pem, "a door"),
        derived_secret(key_pem, "a door", 17)[:16],
    }
    assert len(found) == 3  # a shorter secret is a prefix of a longer one (RFC 5869, 2.3)


def test_a_text_that_is_no_key_is_an_error_that_names_the_file():
    with pytest.raises(CertificatesError, match=r"^tls\.key: "):
        derived_secret(b"junk", "a door")
