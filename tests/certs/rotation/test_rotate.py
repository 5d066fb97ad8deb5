import ssl
from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography import x509

from certs import (
    Bundle,
    CertificatesError,
    Pair,
    SetAction,
    Terms,
    advance,
    announce,
    issue_ca,
    issue_serving,
    problems,
    renewal_due,
    uses,
)
from certs.pki import issue
from tests.certs.handshakes import DAY, NAMES, put, real_now, shake_hands

# Whole seconds, because certificates know no smaller ones.
NOW = real_now().replace(microsecond=0)
HOUR = timedelta(hours=1)


def cas(bundle):
    return x509.load_pem_x509_certificates(bundle.ca_pem)


def leaf_of(bundle):
    return x509.load_pem_x509_certificate(bundle.certificate_pem)


def signer(bundle):
    return leaf_of(bundle).issuer


def fresh(now=NOW):
    return advance(Bundle(), NAMES, now).bundle


def live(birth, until):
    """Yield (moment, set, action) of a set: monthly, and hourly while it changes."""
    bundle, moment, calm_from = Bundle(), birth, birth
    while moment <= until:
        outcome = advance(bundle, NAMES, moment)
        assert advance(outcome.bundle, NAMES, moment).action is SetAction.KEPT
        assert outcome.problems == ()
        bundle = outcome.bundle
        if outcome.action is SetAction.ROTATED:
            calm_from = moment + 2 * DAY
        yield moment, bundle, outcome.action
        moment += HOUR * 4 if moment < calm_from else 20 * DAY


def test_an_empty_set_is_issued_and_then_kept():
    outcome = advance(Bundle(), NAMES, NOW)
    assert (outcome.action, outcome.own, outcome.problems) == (SetAction.ISSUED, True, ())
    again = advance(outcome.bundle, NAMES, NOW)
    assert (again.action, again.bundle, again.reasons) == (
        SetAction.KEPT,
        outcome.bundle,
        (),
    )


def test_the_serving_certificate_is_renewed_from_a_third_of_its_life_on():
    bundle = fresh()
    due = renewal_due(leaf_of(bundle))
    assert advance(bundle, NAMES, due - timedelta(seconds=1)).action is SetAction.KEPT
    outcome = advance(bundle, NAMES, due)
    assert outcome.action is SetAction.RENEWED
    assert outcome.bundle.ca_pem == bundle.ca_pem
    assert outcome.bundle.key_pem != bundle.key_pem
    assert "third of its life" in outcome.reasons[0]


def test_a_missing_name_renews_and_keeps_the_names_there_were():
    outcome = advance(fresh(), ["new.gpu.svc"], NOW)
    assert outcome.action is SetAction.RENEWED
    assert problems(outcome.bundle, NOW, [*NAMES, "new.gpu.svc"]) == ()
    assert advance(outcome.bundle, NAMES, NOW).action is SetAction.KEPT


def test_a_ca_is_announced_then_signs_then_is_alone():
    birth = NOW
    old = cas(fresh(birth))[0].not_valid_after_utc - birth
    announced = switched = forgotten = None
    for moment, bundle, _ in live(birth, birth + old):
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
    assert announced - birth > old * 0.66
    assert switched - announced == DAY
    assert timedelta(366) <= forgotten - announced < timedelta(390)


@pytest.mark.parametrize("asked", [True, False], ids=["asked for", "due"])
def test_the_moment_at_which_another_ca_signs_is_said_and_kept(asked):
    now = NOW if asked else renewal_due(cas(fresh())[0])
    # A certificate that is not due itself: the CA's life ends before its own would be renewed.
    before = fresh() if asked else advance(fresh(), NAMES, now - 30 * DAY).bundle
    outcome = announce(before, now + HOUR) if asked else advance(before, NAMES, now + HOUR)
    assert outcome.action is SetAction.ROTATED
    said = f"announced: signs from {now + HOUR + DAY:%Y-%m-%d %H:%M} UTC on"
    assert outcome.reasons[-1].removeprefix("another CA is ") == said
    for moment, expected in (
        (now + HOUR, (said, "signs")),
        (now + HOUR + DAY - timedelta(minutes=1), (said, "signs")),
        (now + HOUR + DAY, ("signs", "is trusted only")),
    ):
        assert uses(advance(outcome.bundle, NAMES, moment).bundle, moment) == expected


def test_nothing_is_said_of_a_set_that_cannot_be_read():
    whole = fresh()
    assert uses(whole, NOW) == ("signs",)
    assert uses(replace(whole, ca_key_pem=b""), NOW) == ("signs",)
    assert uses(replace(whole, ca_key_pem=b"junk"), NOW) == ("",)
    assert uses(replace(whole, ca_pem=b"junk"), NOW) == ()
    assert uses(replace(whole, certificate_pem=b"junk"), NOW) == ("is trusted only",)


def interesting_steps():
    """Return the ages at every change of the CAs or the leaf in eight years, and just after."""
    lived = list(live(NOW, NOW + 8 * 365 * DAY))
    changes = {i for i, (_, _, action) in enumerate(lived) if action is not SetAction.KEPT and i}
    around = changes | {i + 1 for i in changes if i + 1 < len(lived)}
    return [lived[i][0] - NOW for i in sorted(around)]


@pytest.mark.parametrize("age", interesting_steps(), ids=lambda age: f"{age.total_seconds():.0f}s")
def test_no_client_ever_fails_while_everything_is_replaced(tmp_path, age):
    # The last step is moved to the real present, the only time a TLS client knows. A client may
    # have the newest set of CAs or that of a step before, a server likewise its certificate.
    recent = [bundle for _, bundle, _ in live(NOW - age, NOW)][-2:]
    for number, served in enumerate(recent):
        put(tmp_path / str(number), served)
        for trusted in recent:
            shake_hands(tmp_path / str(number), trusted.ca_pem)


def test_without_the_overlap_a_client_of_yesterday_would_fail(tmp_path):
    # Shows that the test above can find what it checks for.
    birth = NOW - timedelta(days=2434)
    before = advance(fresh(birth), NAMES, NOW - 30 * DAY).bundle
    after = advance(before, NAMES, NOW, Terms(overlap_s=0.0)).bundle
    put(tmp_path, after)
    shake_hands(tmp_path, after.ca_pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path, before.ca_pem)


def test_a_name_missing_during_the_overlap_is_signed_by_the_announced_long_ago():
    bundle = advance(fresh(), NAMES, NOW + 2434 * DAY).bundle
    assert len(cas(bundle)) == 2
    outcome = advance(bundle, ["new.gpu.svc"], NOW + 2434 * DAY + HOUR)
    assert outcome.action is SetAction.RENEWED
    assert signer(outcome.bundle) == cas(bundle)[1].subject


def test_after_years_without_care_everything_is_new_at_once():
    outcome = advance(fresh(), NAMES, NOW + 4000 * DAY)
    assert (outcome.action, outcome.problems) == (SetAction.ROTATED, ())
    assert len(cas(outcome.bundle)) == 1


def test_a_ca_that_ends_within_the_overlap_hands_over_half_way():
    late = cas(fresh())[0].not_valid_after_utc - 8 * HOUR
    announced = advance(fresh(), NAMES, late).bundle
    old = cas(announced)[1].subject
    before = advance(announced, NAMES, late + 3 * HOUR).bundle
    assert signer(before) == old
    after = advance(before, NAMES, late + 5 * HOUR).bundle
    assert signer(after) == cas(after)[0].subject != old


def test_certificates_of_the_future_are_replaced_when_the_clock_was_corrected():
    outcome = advance(fresh(NOW + 900 * DAY), NAMES, NOW)
    assert (outcome.action, outcome.problems) == (SetAction.ROTATED, ())


def test_a_serving_certificate_of_the_future_is_replaced():
    bundle = fresh()
    leaf = issue_serving(Pair(bundle.ca_pem, bundle.ca_key_pem), NAMES, NOW + 9 * DAY)
    future = replace(bundle, certificate_pem=leaf.certificate_pem, key_pem=leaf.key_pem)
    outcome = advance(future, NAMES, NOW)
    assert (outcome.action, outcome.problems) == (SetAction.RENEWED, ())


def test_signing_never_goes_back_to_an_older_ca():
    both = advance(fresh(), NAMES, NOW + 2434 * DAY).bundle
    # The newer CA and its key come first in their files.
    leaf = issue_serving(Pair(both.ca_pem, both.ca_key_pem), NAMES, NOW + 2434 * DAY)
    ahead = replace(both, certificate_pem=leaf.certificate_pem, key_pem=leaf.key_pem)
    outcome = advance(ahead, ["new.gpu.svc"], NOW + 2434 * DAY + HOUR)
    assert outcome.action is SetAction.RENEWED
    assert signer(outcome.bundle) == cas(both)[0].subject


def test_a_ca_somebody_brought_with_its_key_signs_and_is_never_dropped(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(issue, "CA_NAME_PREFIX", "Example Corp ")
        ca = issue_ca(NOW)
    outcome = advance(Bundle(ca_pem=ca.certificate_pem, ca_key_pem=ca.key_pem), NAMES, NOW)
    assert (outcome.action, outcome.problems) == (SetAction.ISSUED, ())
    assert outcome.bundle.ca_pem == ca.certificate_pem
    later = outcome.bundle
    for age in (2434, 2436, 3000, 4000):
        later = advance(later, NAMES, NOW + age * DAY).bundle
    assert signer(later) != cas(outcome.bundle)[0].subject
    assert ca.certificate_pem in later.ca_pem
    assert ca.key_pem in later.ca_key_pem


@pytest.mark.parametrize("when", [NOW, NOW + 300 * DAY, NOW + 9000 * DAY])
def test_a_brought_set_is_kept_whatever_is_wrong_with_it(when):
    bundle = replace(fresh(), ca_key_pem=b"")
    outcome = advance(bundle, ["new.gpu.svc"], when)
    assert (outcome.action, outcome.own, outcome.bundle) == (SetAction.KEPT, False, bundle)
    assert any("not valid for new.gpu.svc" in problem for problem in outcome.problems)


def test_a_certificate_of_another_ca_beside_our_key_is_kept():
    other = issue_ca(NOW)
    leaf = issue_serving(other, NAMES, NOW)
    bundle = replace(fresh(), certificate_pem=leaf.certificate_pem, key_pem=leaf.key_pem)
    outcome = advance(bundle, NAMES, NOW + 300 * DAY)
    assert (outcome.action, outcome.own, outcome.bundle) == (SetAction.KEPT, False, bundle)
    assert "was not signed by the CA in ca.key" in outcome.problems[0]


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
def test_a_set_with_a_broken_part_is_an_error_with_place_and_cure(part, content, said):
    with pytest.raises(CertificatesError) as raised:
        advance(replace(fresh(), **{part: content}), NAMES, NOW)
    assert str(raised.value).startswith(said)
    assert raised.value.cure


def test_a_ca_alone_is_an_error():
    with pytest.raises(CertificatesError, match="stands alone"):
        advance(Bundle(ca_pem=fresh().ca_pem), NAMES, NOW)


def test_terms_that_would_renew_forever_are_rejected():
    with pytest.raises(ValueError, match="an hour"):
        Terms(serving_life_s=60.0)
    with pytest.raises(ValueError, match="negative"):
        Terms(overlap_s=-1.0)
    shortest = Terms(ca_life_s=3600.0, serving_life_s=3600.0)
    outcome = advance(Bundle(), NAMES, NOW, shortest)
    assert advance(outcome.bundle, NAMES, NOW, shortest).action is SetAction.KEPT
