from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs import Bundle, describe, find_problems, issue_ca, issue_serving
from certs.issue import missing_names
from certs.pem import certificate_text, key_text

NOW = datetime(2030, 5, 1, 12, tzinfo=UTC)
CA = issue_ca(NOW)
LEAF = issue_serving(CA, ["hook.gpu.svc", "10.0.0.1"], NOW)
FIT = Bundle(LEAF.certificate_pem, LEAF.key_pem, CA.certificate_pem, CA.key_pem)
OTHER = issue_ca(NOW)


def make_certificate(subject, signer=None, *, ca=False, purpose=None, sans=("hook.gpu.svc",)):
    """Return a certificate that this package never issues; `signer` is (certificate, key)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(signer[0].subject if signer else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=90))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    if sans:
        dns_names = x509.SubjectAlternativeName([x509.DNSName(san) for san in sans])
        builder = builder.add_extension(dns_names, critical=False)
    if purpose:
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    return builder.sign(signer[1] if signer else key, hashes.SHA256()), key


def external_set(leaf, *rest, trusted):
    pem = b"".join(certificate_text(c) for c in (leaf[0], *rest))
    return Bundle(pem, key_text(leaf[1]), certificate_text(trusted))


def test_a_valid_set_has_no_problems():
    assert find_problems(FIT, NOW) == ()


@pytest.mark.parametrize(
    ("bundle", "now", "said"),
    [
        (replace(FIT, key_pem=OTHER.key_pem), NOW, "tls.key does not belong to tls.crt"),
        (replace(FIT, ca_pem=OTHER.certificate_pem), NOW, "does not verify to any CA"),
        (FIT, NOW + timedelta(days=366), "tls.crt expired on 2031-05-01 12:00 UTC"),
        (FIT, NOW - timedelta(hours=2), "tls.crt is not valid before 2030-05-01 11:00 UTC"),
        (replace(FIT, certificate_pem=b"junk"), NOW, "tls.crt is not a readable PEM"),
        (replace(FIT, certificate_pem=b""), NOW, "tls.crt is empty or missing"),
        (replace(FIT, key_pem=b"junk"), NOW, "tls.key holds no PEM private key"),
        (replace(FIT, key_pem=LEAF.key_pem[:90]), NOW, "tls.key ends in the middle"),
        (replace(FIT, ca_pem=CA.certificate_pem * 2 + b"-----BEGIN CERTIFICATE-----\nMII"), NOW,
         "ca.crt "),
        (replace(FIT, ca_key_pem=b"junk"), NOW, "ca.key holds no PEM private key"),
        (replace(FIT, ca_key_pem=OTHER.key_pem), NOW, "ca.key belongs to no certificate"),
        (replace(FIT, ca_pem=CA.certificate_pem + LEAF.certificate_pem[:-40] ), NOW, "ca.crt "),
    ],
)  # fmt: skip
def test_each_problem_has_a_cure(bundle, now, said):
    found = [sentence for sentence in find_problems(bundle, now) if said in sentence]
    assert len(found) == 1, find_problems(bundle, now)
    what, cure = found[0].split("; ", 1)
    assert what
    assert cure


def test_a_ca_without_the_ca_bit_is_named():
    fake = make_certificate("not a CA")
    bundle = external_set(make_certificate("leaf", fake), trusted=fake[0])
    said = " ".join(find_problems(bundle, NOW))
    assert "ca.crt holds CN=not a CA, which may not sign" in said
    assert "does not verify to any CA" in said


def test_a_chain_may_lead_through_intermediate_cas_in_any_order():
    root = make_certificate("root", ca=True)
    upper = make_certificate("upper", root, ca=True)
    lower = make_certificate("lower", upper, ca=True)
    leaf = make_certificate("leaf", lower)
    assert find_problems(external_set(leaf, upper[0], lower[0], trusted=root[0]), NOW) == ()
    assert "does not verify" in find_problems(external_set(leaf, lower[0], trusted=root[0]), NOW)[0]


def test_an_intermediate_without_the_ca_bit_leads_nowhere():
    root = make_certificate("root", ca=True)
    fake = make_certificate("fake", root)
    bundle = external_set(make_certificate("leaf", fake), fake[0], trusted=root[0])
    assert "does not verify" in find_problems(bundle, NOW)[0]


def test_a_self_signed_certificate_that_is_itself_trusted_is_valid():
    leaf = make_certificate("self")
    assert find_problems(external_set(leaf, trusted=leaf[0]), NOW) == ()


def test_a_certificate_for_clients_only_or_without_names_is_reported():
    client = make_certificate("client", purpose=ExtendedKeyUsageOID.CLIENT_AUTH)
    assert "not for TLS servers" in find_problems(external_set(client, trusted=client[0]), NOW)[0]
    nameless = make_certificate("nameless", sans=())
    assert "names no host" in find_problems(external_set(nameless, trusted=nameless[0]), NOW)[0]


def test_a_wildcard_is_valid_for_one_label():
    leaf = make_certificate("wild", sans=("*.gpu.svc",))
    assert missing_names(leaf[0], ["HOOK.gpu.svc"]) == ()
    assert missing_names(leaf[0], ["a.b.gpu.svc"]) == ("a.b.gpu.svc",)


def test_an_address_is_valid_for_itself_alone():
    leaf = x509.load_pem_x509_certificate(LEAF.certificate_pem)
    assert missing_names(leaf, ["10.0.0.1", "10.0.0.2", "x.gpu.svc"]) == ("10.0.0.2", "x.gpu.svc")


def test_an_expired_ca_is_distinguished_from_an_unknown_one():
    short = issue_ca(NOW, life_s=86400.0)
    leaf = issue_serving(short, ["hook.gpu.svc"], NOW)
    bundle = Bundle(leaf.certificate_pem, leaf.key_pem, short.certificate_pem)
    assert any(
        "expired or not yet valid" in p for p in find_problems(bundle, NOW + timedelta(days=2))
    )


def test_an_encrypted_key_is_reported_as_such():
    locked = serialization.load_pem_private_key(LEAF.key_pem, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    assert find_problems(replace(FIT, key_pem=locked), NOW) == (
        "tls.key is encrypted; put the key there without a passphrase",
    )


def test_a_description_lists_each_certificate_and_what_is_wrong():
    seen = describe(FIT, NOW)
    assert seen.serving.names == ("hook.gpu.svc", "10.0.0.1")
    assert seen.serving.days_left == 365.0
    assert seen.serving.subject == "CN=hook.gpu.svc"
    leaf = x509.load_pem_x509_certificate(LEAF.certificate_pem)
    assert seen.serving.fingerprint_sha256 == leaf.fingerprint(hashes.SHA256()).hex()
    due = seen.serving.renewal_due
    assert leaf.not_valid_after_utc - due == (due - leaf.not_valid_before_utc) / 2
    assert [(ca.days_left, ca.renewal_due) for ca in seen.authorities] == [(3650.0, None)]
    assert describe(FIT, NOW + timedelta(days=366)).serving.days_left == -1.0
    assert seen.has_ca_key
    assert seen.problems == ()
    broken = describe(replace(FIT, certificate_pem=b"junk"), NOW)
    assert broken.serving is None
    assert "tls.crt is not a readable" in broken.problems[0]
