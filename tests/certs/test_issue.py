import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from certs import Bundle, CertificatesError, find_problems, issue_ca, issue_serving, service_names
from certs.issue import missing_names
from tests.certs.handshakes import NAMES, put, real_now, shake_hands

NOW = datetime(2030, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl here")


def loaded(pair):
    return x509.load_pem_x509_certificate(pair.certificate_pem)


def bundle_at(now):
    ca = issue_ca(now)
    leaf = issue_serving(ca, NAMES, now)
    return Bundle(leaf.certificate_pem, leaf.key_pem, ca.certificate_pem, ca.key_pem)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("behind", [timedelta(), timedelta(minutes=59)], ids=str)
def test_a_client_that_trusts_the_ca_connects_by_name_and_by_address(name, behind):
    """Clients whose clock is almost an hour behind can also connect."""
    bundle = bundle_at(real_now() + behind)
    assert shake_hands(bundle, bundle.ca_pem, name)["subject"] == ((("commonName", NAMES[0]),),)


@pytest.mark.parametrize(
    ("behind", "trusts", "name", "why"),
    [
        pytest.param(0, "it", "other.gpu.svc", "Hostname mismatch", id="a name not asked for"),
        pytest.param(0, "another CA", NAMES[0], "verify failed", id="another CA"),
        pytest.param(61, "it", NAMES[0], "not yet valid", id="a clock that is far behind"),
    ],
)
def test_a_client_rejects_a_certificate_for_other_names(behind, trusts, name, why):
    bundle = bundle_at(real_now() + timedelta(minutes=behind))
    ca_pem = bundle.ca_pem if trusts == "it" else issue_ca(real_now()).certificate_pem
    with pytest.raises(ssl.SSLCertVerificationError, match=why):
        shake_hands(bundle, ca_pem, name)


@openssl
def test_openssl_finds_nothing_against_rfc_5280(tmp_path):
    put(tmp_path, bundle_at(NOW))
    command = ["openssl", "verify", "-x509_strict", "-attime", str(int(NOW.timestamp()) - 3600)]
    command += ["-purpose", "sslserver", "-verify_hostname", NAMES[0]]
    result = subprocess.run(
        [*command, "-CAfile", tmp_path / "ca.crt", tmp_path / "tls.crt"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_the_ca_may_sign_leaves_and_nothing_else():
    ca = loaded(issue_ca(NOW))
    basic = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign
    assert usage.crl_sign
    assert not usage.digital_signature
    assert isinstance(ca.public_key().curve, ec.SECP256R1)
    assert ca.not_valid_before_utc == datetime(2030, 5, 1, 11, 0, tzinfo=UTC)
    assert ca.not_valid_after_utc == datetime(2030, 5, 1, 12, 0, tzinfo=UTC) + timedelta(3650)


def test_no_two_certificates_share_a_key_a_serial_or_a_ca_name():
    first, second = issue_ca(NOW), issue_ca(NOW)
    leaf = issue_serving(first, NAMES, NOW)
    assert len({p.key_pem for p in (first, second, leaf)}) == 3
    assert len({loaded(p).serial_number for p in (first, second, leaf)}) == 3
    assert loaded(first).subject != loaded(second).subject


def test_the_serving_certificate_carries_its_names_and_is_for_servers_only():
    extensions = loaded(issue_serving(issue_ca(NOW), NAMES, NOW)).extensions
    sans = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert sans.get_values_for_type(x509.DNSName) == ["hook.gpu.svc"]
    assert [str(a) for a in sans.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [p.dotted_string for p in purposes] == ["1.3.6.1.5.5.7.3.1"]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_serving_certificate_never_outlives_its_ca():
    ca = issue_ca(NOW, life_s=86400.0)
    assert loaded(issue_serving(ca, NAMES, NOW)).not_valid_after_utc == (
        loaded(ca).not_valid_after_utc
    )
    with pytest.raises(CertificatesError, match=r"ca\.crt: has expired; issue a new CA"):
        issue_serving(ca, NAMES, NOW + timedelta(days=2))


def test_a_name_too_long_for_a_common_name_still_works():
    long = f"{'a' * 60}.{'b' * 60}.svc"
    ca = issue_ca(real_now())
    leaf = issue_serving(ca, [long], real_now())
    bundle = Bundle(leaf.certificate_pem, leaf.key_pem, ca.certificate_pem)
    seen = shake_hands(bundle, ca.certificate_pem, long)
    assert seen["subject"] == ((("commonName", "vramwarden"),),)


@pytest.mark.parametrize(
    "name", ["", "a b", "http://x", "bücher.example", "a..b", "-a", "a." * 150]
)
def test_an_impossible_name_is_rejected_with_the_cure(name):
    with pytest.raises(CertificatesError, match="use a DNS name") as raised:
        issue_serving(issue_ca(NOW), [name], NOW)
    assert repr(name) in str(raised.value)


def test_no_names_a_zoneless_time_and_an_empty_life_are_rejected():
    with pytest.raises(CertificatesError, match="give at least one"):
        issue_serving(issue_ca(NOW), [], NOW)
    with pytest.raises(ValueError, match="time zone"):
        issue_ca(NOW.replace(tzinfo=None))
    with pytest.raises(ValueError, match="not positive"):
        issue_ca(NOW, life_s=0)


def test_a_service_has_the_names_that_clients_use():
    names = service_names("hook", "gpu")
    assert names == ("hook.gpu.svc", "hook.gpu", "hook", "hook.gpu.svc.cluster.local")
    ca = issue_ca(NOW)
    leaf = issue_serving(ca, names, NOW)
    bundle = Bundle(leaf.certificate_pem, leaf.key_pem, ca.certificate_pem)
    assert find_problems(bundle, NOW) == missing_names(loaded(leaf), names) == ()


def test_a_private_key_never_shows_in_a_repr():
    bundle = bundle_at(NOW)
    assert b"PRIVATE" not in repr(bundle).encode()
    assert "PRIVATE" not in repr(issue_ca(NOW))
