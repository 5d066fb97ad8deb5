import ssl
from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography import x509

from certs import (
    Bundle,
    CertificatesError,
    Pair,
    RotationPeriods,
    SetAction,
    advance,
    announce,
    authority_uses,
    find_problems,
    issue,
    issue_ca,
    issue_serving,
)
from certs.check import renewal_due
from tests.certs.handshakes import DAY, NAMES, real_now, shake_hands

# Whole seconds, since certificates have this resolution.
NOW = real_now().replace(microsecond=0)
HOUR = timedelta(hours=1)
ASKED = 300 * DAY
"""Age of a certificate set at which another CA is announced."""


def cas(bundle):
    return x509.load_pem_x509_certificates(bundle.ca_pem)


def read_leaf(bundle):
    return x509.load_pem_x509_certificate(bundle.certificate_pem)


def signer(bundle):
    return read_leaf(bundle).issuer


def fresh(now=NOW):
    return advance(Bundle(), NAMES, now).bundle


def advance_over_time(birth, until):
    """Yield (time, set, action): every 20 days, and every 4 hours while CAs change."""
    bundle, moment, calm_from, asked = Bundle(), birth, birth, False
    while moment <= until:
        if asked or moment < birth + ASKED:
            outcome = advance(bundle, NAMES, moment)
        else:
            outcome, asked = announce(bundle, moment), True
        bundle = outcome.bundle
        assert advance(bundle, NAMES, moment).action is SetAction.KEPT
        assert find_problems(bundle, moment) == ()
        if outcome.action is SetAction.ROTATED:
            calm_from = moment + 2 * DAY
        yield moment, bundle, outcome.action
        moment += HOUR * 4 if moment < calm_from else 20 * DAY


def test_an_empty_set_is_issued_and_then_kept():
    outcome = advance(Bundle(), NAMES, NOW)
    assert outcome.action is SetAction.ISSUED
    assert find_problems(outcome.bundle, NOW) == ()
    again = advance(outcome.bundle, NAMES, NOW)
    assert (again.action, again.bundle, again.reasons) == (
        SetAction.KEPT,
        outcome.bundle,
        (),
    )


def test_the_serving_certificate_is_renewed_from_a_third_of_its_life_on():
    bundle = fresh()
    due = renewal_due(read_leaf(bundle))
    assert advance(bundle, NAMES, due - timedelta(seconds=1)).action is SetAction.KEPT
    outcome = advance(bundle, NAMES, due)
    assert outcome.action is SetAction.RENEWED
    assert outcome.bundle.ca_pem == bundle.ca_pem
    assert outcome.bundle.key_pem != bundle.key_pem
    assert "third of its life" in outcome.reasons[0]


def test_a_missing_name_renews_and_keeps_the_other_names():
    outcome = advance(fresh(), ["new.gpu.svc"], NOW)
    assert outcome.action is SetAction.RENEWED
    for name in (*NAMES, "new.gpu.svc"):
        shake_hands(outcome.bundle, outcome.bundle.ca_pem, name)
    assert advance(outcome.bundle, NAMES, NOW).action is SetAction.KEPT


def test_no_age_replaces_a_ca():
    bundle = fresh()
    ca_pem = bundle.ca_pem
    for age in range(0, 3650, 60):
        bundle = advance(bundle, NAMES, NOW + age * DAY).bundle
        assert bundle.ca_pem == ca_pem
        assert find_problems(bundle, NOW + age * DAY) == ()


def test_a_ca_is_announced_then_signs_then_is_the_only_one():
    announced = switched = forgotten = None
    for moment, bundle, _ in advance_over_time(NOW, NOW + 800 * DAY):
        if len(cas(bundle)) == 2 and announced is None:
            announced = moment
            assert signer(bundle) == cas(bundle)[1].subject
            assert bundle.ca_key_pem.count(b"BEGIN") == 2
        if announced and switched is None and signer(bundle) == cas(bundle)[0].subject:
            switched = moment
            assert bundle.ca_key_pem.count(b"BEGIN") == 1
        if switched and forgotten is None and len(cas(bundle)) == 1:
            forgotten = moment
            break
    assert announced - NOW == ASKED
    assert switched - announced == DAY
    assert timedelta(366) <= forgotten - announced < timedelta(390)


def test_the_moment_at_which_another_ca_signs_is_reported_and_kept():
    now = NOW + HOUR
    outcome = announce(fresh(), now)
    assert outcome.action is SetAction.ROTATED
    said = f"announced: signs from {now + DAY:%Y-%m-%d %H:%M} UTC on"
    assert outcome.reasons == (said,)
    for moment, expected in (
        (now, (said, "signs")),
        (now + DAY - timedelta(minutes=1), (said, "signs")),
        (now + DAY, ("signs", "is trusted only")),
    ):
        assert authority_uses(advance(outcome.bundle, NAMES, moment).bundle, moment) == expected


def test_an_unreadable_set_has_no_uses():
    whole = fresh()
    assert authority_uses(whole, NOW) == ("signs",)
    assert authority_uses(replace(whole, ca_key_pem=b""), NOW) == ("signs",)
    assert authority_uses(replace(whole, ca_key_pem=b"junk"), NOW) == ("",)
    assert authority_uses(replace(whole, ca_pem=b"junk"), NOW) == ()
    assert authority_uses(replace(whole, certificate_pem=b"junk"), NOW) == ("is trusted only",)


def ages_of_changes():
    """Return the ages at, and just after, each change of the CAs or the leaf in three years."""
    lived = list(advance_over_time(NOW, NOW + 3 * 365 * DAY))
    changes = {i for i, (_, _, action) in enumerate(lived) if action is not SetAction.KEPT and i}
    around = changes | {i + 1 for i in changes if i + 1 < len(lived)}
    return [lived[i][0] - NOW for i in sorted(around)]


@pytest.mark.parametrize("age", ages_of_changes(), ids=lambda age: f"{age.total_seconds():.0f}s")
def test_no_client_ever_fails_while_everything_is_replaced(age):
    # The last step is at the real time, the only time that a TLS client uses. A client may have the
    # newest set of CAs or the previous one, and a server its newest or previous certificate.
    recent = [bundle for _, bundle, _ in advance_over_time(NOW - age, NOW)][-2:]
    for served in recent:
        for trusted in recent:
            shake_hands(served, trusted.ca_pem)


def test_without_the_overlap_a_client_with_older_cas_would_fail():
    # Shows that the test above can fail.
    before = fresh(NOW - 30 * DAY)
    periods = RotationPeriods(overlap_s=0.0)
    after = advance(announce(before, NOW, periods).bundle, NAMES, NOW, periods).bundle
    shake_hands(after, after.ca_pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(after, before.ca_pem)


def test_a_name_missing_during_the_overlap_is_signed_by_the_announced_long_ago():
    bundle = announce(fresh(), NOW + 30 * DAY).bundle
    assert len(cas(bundle)) == 2
    outcome = advance(bundle, ["new.gpu.svc"], NOW + 30 * DAY + HOUR)
    assert outcome.action is SetAction.RENEWED
    assert signer(outcome.bundle) == cas(bundle)[1].subject


@pytest.mark.parametrize("age", [4000 * DAY, -900 * DAY], ids=["expired", "a clock put back"])
def test_a_ca_that_cannot_sign_is_replaced_at_once_on_request_only(age):
    bundle, now = fresh(), NOW + age
    with pytest.raises(
        CertificatesError, match=r"no CA that is valid .* `vramwarden certs rotate`"
    ):
        advance(bundle, NAMES, now)
    rotated = advance(announce(bundle, now).bundle, NAMES, now).bundle
    assert find_problems(rotated, now) == ()
    assert signer(rotated) == cas(rotated)[0].subject
    assert len(cas(rotated)) == (1 if age > 0 * DAY else 2)  # an expired CA is forgotten


def test_a_ca_that_ends_within_the_overlap_hands_over_half_way():
    late = cas(fresh())[0].not_valid_after_utc - 8 * HOUR
    announced = announce(fresh(), late).bundle
    old = cas(announced)[1].subject
    before = advance(announced, NAMES, late + 3 * HOUR).bundle
    assert signer(before) == old
    after = advance(before, NAMES, late + 5 * HOUR).bundle
    assert signer(after) == cas(after)[0].subject != old


def test_a_serving_certificate_of_the_future_is_replaced():
    bundle = fresh()
    leaf = issue_serving(Pair(bundle.ca_pem, bundle.ca_key_pem), NAMES, NOW + 9 * DAY)
    future = replace(bundle, certificate_pem=leaf.certificate_pem, key_pem=leaf.key_pem)
    outcome = advance(future, NAMES, NOW)
    assert outcome.action is SetAction.RENEWED
    assert find_problems(outcome.bundle, NOW) == ()


def test_signing_never_goes_back_to_an_older_ca():
    both = announce(fresh(), NOW + 30 * DAY).bundle
    # The newer CA and its key come first in their files.
    leaf = issue_serving(Pair(both.ca_pem, both.ca_key_pem), NAMES, NOW + 30 * DAY)
    ahead = replace(both, certificate_pem=leaf.certificate_pem, key_pem=leaf.key_pem)
    outcome = advance(ahead, ["new.gpu.svc"], NOW + 30 * DAY + HOUR)
    assert outcome.action is SetAction.RENEWED
    assert signer(outcome.bundle) == cas(both)[0].subject


def test_a_ca_from_elsewhere_with_its_key_signs_and_is_never_dropped(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(issue, "CA_NAME_PREFIX", "Example Corp ")
        ca = issue_ca(NOW)
    outcome = advance(Bundle(ca_pem=ca.certificate_pem, ca_key_pem=ca.key_pem), NAMES, NOW)
    assert outcome.action is SetAction.ISSUED
    assert find_problems(outcome.bundle, NOW) == ()
    assert outcome.bundle.ca_pem == ca.certificate_pem
    later = announce(outcome.bundle, NOW + 30 * DAY).bundle
    for age in (30, 32, 600):
        later = advance(later, NAMES, NOW + age * DAY).bundle
    assert signer(later) != cas(outcome.bundle)[0].subject
    assert ca.certificate_pem in later.ca_pem
    assert ca.key_pem in later.ca_key_pem


@pytest.mark.parametrize("when", [NOW, NOW + 300 * DAY, NOW + 9000 * DAY])
def test_a_set_from_elsewhere_is_kept_with_any_problem(when):
    bundle = replace(fresh(), ca_key_pem=b"")
    outcome = advance(bundle, ["new.gpu.svc"], when)
    assert (outcome.action, outcome.bundle) == (SetAction.KEPT, bundle)


def test_a_certificate_of_another_ca_is_kept_with_our_key():
    other = issue_ca(NOW)
    leaf = issue_serving(other, NAMES, NOW)
    bundle = replace(fresh(), certificate_pem=leaf.certificate_pem, key_pem=leaf.key_pem)
    outcome = advance(bundle, NAMES, NOW + 300 * DAY)
    assert (outcome.action, outcome.bundle) == (SetAction.KEPT, bundle)


@pytest.mark.parametrize(
    ("part", "content", "said"),
    [
        ("certificate_pem", b"", "tls.crt: is missing beside tls.key"),
        ("key_pem", b"", "tls.key: is missing beside tls.crt"),
        ("ca_pem", b"", "ca.crt: is missing"),
        ("certificate_pem", b"junk", "tls.crt: is not a readable"),
        ("key_pem", b"junk", "tls.key: holds no PEM private key"),
        ("ca_pem", b"junk", "ca.crt: is not a readable"),
        ("ca_key_pem", b"junk", "ca.key: holds no PEM private key"),
        ("key_pem", issue_ca(NOW).key_pem, "tls.key: does not belong to tls.crt"),
        ("ca_key_pem", issue_ca(NOW).key_pem, "ca.key: holds a key of no certificate"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_a_set_with_a_broken_part_is_an_error_with_location_and_cure(part, content, said):
    with pytest.raises(CertificatesError) as raised:
        advance(replace(fresh(), **{part: content}), NAMES, NOW)
    assert str(raised.value).startswith(said)
    assert raised.value.cure


def test_a_ca_alone_is_an_error():
    with pytest.raises(CertificatesError, match=r"has no tls\.crt beside it"):
        advance(Bundle(ca_pem=fresh().ca_pem), NAMES, NOW)
