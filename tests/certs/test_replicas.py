"""Replicas that share a Secret and reconcile the caBundles, in many orders of steps."""

from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from certs import (
    Bundle,
    CaBundleUpdate,
    CertificatesError,
    SetAction,
    SetUpdate,
    issue,
    issue_ca,
    issue_serving,
)
from tests.certs.replicas import (
    DELAY_S,
    MUTATING,
    NAMES,
    TERMS,
    VALIDATING,
    PausableApi,
    RunningReplica,
    SteppedReplica,
    World,
)
from webhook.adapters.kube.certificates import ConflictError

REPLICAS = 3
TURNS = st.integers(0, REPLICAS - 1)
# "step" runs one call. A replica may be between two calls when another replica runs.
KINDS = ("step", "step", "round", "pass", "pass", "kill", "rotate", "delete the Secret")
EVENTS = st.tuples(st.sampled_from(KINDS), TURNS, st.sampled_from([1, DELAY_S, 61, 900]))


def cas(pem):
    return x509.load_pem_x509_certificates(pem)


def leaf(bundle):
    return x509.load_pem_x509_certificate(bundle.certificate_pem)


def signer(bundle):
    return leaf(bundle).issuer


@pytest.fixture
def world():
    """Return a settled world in which one replica issued everything."""
    return settled_world()


def settled_world():
    found = World()
    assert RunningReplica(found).round().unready == ""
    found.time_s += 100
    return found


@given(st.lists(EVENTS, min_size=10, max_size=60))
def test_replicas_serve_trusted_certificates_in_any_order_of_steps(events):
    world = settled_world()
    replicas = [SteppedReplica(world) for _ in range(REPLICAS)]
    try:
        for kind, number, time_s in events:
            if kind == "step":
                replicas[number].step()
            elif kind == "round":
                replicas[number].finish_round()
            elif kind == "pass":
                world.time_s += time_s
                assert not any(stepped.has_failing_calls() for stepped in replicas)
                # If all replicas wait until everything has expired, calls fail.
                replicas[number].finish_round()
            elif kind == "kill":
                replicas[number].kill()
                replicas[number] = SteppedReplica(world)
            elif kind == "rotate" and world.bundle != Bundle():
                RunningReplica(world).rotate()
            elif kind == "delete the Secret":
                world.delete()
            for stepped in replicas:
                assert not stepped.has_failing_calls(), (kind, number)
    finally:
        for stepped in replicas:
            stepped.kill()


@pytest.mark.parametrize("lead", range(8))
def test_of_two_replicas_that_issue_at_once_the_second_uses_the_firsts_set(lead):
    world = World()
    first, second = SteppedReplica(world), SteppedReplica(world)
    second.step()  # it has read that the Secret does not exist
    for _ in range(lead):
        first.step()
    second.finish_round()
    first.finish_round()
    assert first.served == second.served == world.bundle
    assert len(world.published()) == 1
    first.kill()
    second.kill()


def test_a_replica_that_read_an_older_version_overwrites_nothing(world):
    late = PausableApi(world)
    before, (mutating, _) = late.secret(), late.configurations()
    RunningReplica(world).rotate()
    world.damage("a", b"")
    with pytest.raises(ConflictError):
        late.store(before.bundle, before)
    with pytest.raises(ConflictError):
        late.publish(mutating, mutating.bundles)


def test_a_rotation_publishes_both_cas_then_waits_then_switches_then_forgets(world):
    one, other = RunningReplica(world), RunningReplica(world)
    before = one.round().served
    other.round()
    world.time_s += 200

    one.rotate()
    assert len(cas(world.bundle.ca_pem)) == 2
    announced_s = world.time_s
    assert [type(step) for step in one.round().done] == [CaBundleUpdate, CaBundleUpdate]
    assert world.published() == set(cas(world.bundle.ca_pem))
    world.time_s += TERMS.settle_s - 1
    assert (one.round().done, one.round().served.key_pem) == ((), before.key_pem)

    world.time_s += 1
    (switched,) = one.round().done
    assert isinstance(switched, SetUpdate)
    after = one.round().served
    assert signer(after) != signer(before)
    assert other.round().served == before  # it has just read both CAs
    world.time_s += TERMS.settle_s
    assert other.round().served == after
    assert len(world.published()) == 2

    while world.time_s < announced_s + TERMS.overlap_s + TERMS.serving_life_s:
        assert len(world.published()) == 2
        world.time_s += 600
        one.round()
    assert world.published() == set(cas(world.bundle.ca_pem))
    assert [ca.subject for ca in world.published()] == [signer(after)]


def test_while_a_cabundle_cannot_be_written_the_old_ca_signs_and_it_is_reported(world):
    one = RunningReplica(world)
    before = one.round().served
    world.deny("patch Validating")
    one.rotate()
    for _ in range(5):
        world.time_s += 600
        found = one.round()
        (failure,) = found.failures
        assert failure.startswith("ValidatingWebhookConfiguration ours (patch): failed ")
        assert signer(found.served) == signer(before)
        assert world.is_accepted(found.served)
    assert found.served.certificate_pem != before.certificate_pem

    world.deny()
    one.round()
    world.time_s += TERMS.settle_s
    assert signer(one.round().served) != signer(before)


def test_no_certificate_of_the_old_ca_outlives_the_moment_at_which_it_is_forgotten(world):
    one = RunningReplica(world)
    one.round()
    world.deny("patch Mutating")
    one.rotate()
    forgotten = world.now() + timedelta(seconds=TERMS.overlap_s + TERMS.serving_life_s)
    old = signer(world.bundle)
    writes = 0
    while signer(world.bundle) == old:
        assert leaf(world.bundle).not_valid_after_utc <= forgotten
        world.time_s += 60
        writes += sum(isinstance(step, SetUpdate) for step in one.round().done)
    assert world.now() >= forgotten
    # A certificate whose lifetime cannot be longer is not issued repeatedly.
    assert writes < 6


def test_nothing_is_ready_before_every_cabundle_holds_the_ca():
    world = World("patch Validating")
    one = RunningReplica(world)
    found = one.round()
    assert found.unready == "a caBundle lacks the CA of the certificate"
    assert found.served.certificate_pem
    world.deny()
    assert one.round().unready == ""


def test_without_webhook_configurations_a_rotation_depends_on_dates_only(world):
    world.delete(MUTATING, VALIDATING)
    one = RunningReplica(world)
    found = one.round()
    assert found.unready == "there is no webhook configuration of that name yet"
    one.rotate()
    world.time_s += TERMS.overlap_s
    assert signer(one.round().served) != signer(found.served)


def test_while_configurations_cannot_be_read_certificates_are_renewed(world):
    one = RunningReplica(world)
    before = one.round().served
    world.deny("get Mutating")
    world.time_s += 1500
    found = one.round()
    (failure,) = found.failures
    assert failure.startswith("MutatingWebhookConfiguration ours (get): failed ")
    assert found.served.certificate_pem != before.certificate_pem
    assert world.is_accepted(found.served)
    assert found.unready == ""
    assert (
        RunningReplica(world).round().unready == "the webhook configurations could not be read yet"
    )


@pytest.mark.parametrize("edit", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nMII"])
def test_a_damaged_cabundle_is_reconciled(world, edit):
    one = RunningReplica(world)
    one.round()
    world.damage("b", edit)
    (repaired,) = one.round().done
    assert repaired.configuration.kind == "ValidatingWebhookConfiguration"
    assert [name for name, _ in repaired.bundles] == ["b"]
    assert world.published() == set(cas(world.bundle.ca_pem))


def test_another_ca_in_a_cabundle_stays_until_it_expires(world, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(issue, "CA_NAME_PREFIX", "Example Corp ")
        foreign = issue_ca(world.now(), life_s=4000).certificate_pem
    (ours,) = world.ca_bundles()
    world.damage("a", foreign + ours)
    one = RunningReplica(world)
    assert one.round().done == ()
    world.time_s += 1800
    one.round()
    world.time_s += 1800
    one.round()
    assert {pem.startswith(foreign) for pem in world.ca_bundles()} == {True, False}
    world.time_s += 600
    one.round()
    assert cas(foreign)[0] not in world.published()


def external_set(world):
    """Return a set issued elsewhere, without its CA's key."""
    ca = issue_ca(world.now())
    pair = issue_serving(ca, NAMES, world.now())
    return Bundle(pair.certificate_pem, pair.key_pem, ca.certificate_pem)


def test_a_secret_from_elsewhere_is_published_and_never_written(world):
    world.bundle = first = external_set(world)
    one = RunningReplica(world)
    assert one.round().served == first
    assert {ca.subject for ca in world.published()} >= {signer(first)}
    world.time_s += 200
    one.round()

    world.bundle = second = external_set(world)
    assert one.round().served == first
    world.time_s += TERMS.settle_s
    assert one.round().served == second
    with pytest.raises(CertificatesError, match="rotate where the certificates are issued"):
        one.rotate()
    assert world.bundle == second


def test_a_new_ca_that_is_not_published_is_not_served(world):
    world.bundle = first = external_set(world)
    one = RunningReplica(world)
    one.round()
    world.time_s += 200
    world.bundle = external_set(world)
    world.deny("get Mutating")
    assert one.round().served == first
    world.time_s += 200
    assert one.round().served == first


def test_a_secret_whose_cas_did_not_sign_directly_is_published_too(world):
    unrelated = replace(external_set(world), ca_pem=issue_ca(world.now()).certificate_pem)
    world.bundle = unrelated
    RunningReplica(world).round()
    assert cas(unrelated.ca_pem)[0] in world.published()


@pytest.mark.parametrize("part", ["ca_pem", "key_pem", "certificate_pem"])
def test_a_set_from_elsewhere_whose_parts_do_not_match_is_not_served(world, part):
    one = RunningReplica(world)
    good = one.round().served
    wrong = replace(external_set(world), **{part: getattr(good, part)})
    world.bundle = wrong
    one.round()
    world.time_s += 1000
    assert one.round().served == good


def test_a_public_certificate_without_a_ca_needs_no_cabundle():
    world = World()
    world.bundle = replace(external_set(world), ca_pem=b"")
    found = RunningReplica(world).round()
    assert (found.unready, found.done) == ("", ())


def test_a_deleted_secret_is_issued_again_and_the_served_set_stays_in_use(world):
    one = RunningReplica(world)
    before = one.round().served
    world.delete()
    assert one.round().served == before
    assert signer(world.bundle) != signer(before)
    assert len(world.published()) == 2
    late = RunningReplica(world).round()
    assert late.unready == (
        "the CA of the certificate is so new that an API server may not know it yet"
    )
    world.time_s += TERMS.settle_s
    assert one.round().served == world.bundle


@pytest.mark.parametrize("part", ["key_pem", "ca_pem", "certificate_pem"])
def test_a_broken_secret_is_an_error_and_is_not_overwritten(world, part):
    world.bundle = broken = replace(world.bundle, **{part: b"junk"})
    with pytest.raises(CertificatesError):
        RunningReplica(world).round()
    assert world.bundle == broken


@pytest.mark.parametrize("verb", ["get", "create"])
def test_a_failure_before_the_first_certificate_is_an_error(verb):
    with pytest.raises(CertificatesError, match=rf"Secret gpu/certificate \({verb}\): failed"):
        RunningReplica(World(f"{verb} Secret")).round()


def test_another_ca_is_announced_once(world):
    one = RunningReplica(world)
    assert one.rotate().action is SetAction.ROTATED
    assert one.rotate().action is SetAction.KEPT
    assert len(cas(world.bundle.ca_pem)) == 2


def test_an_expired_ca_is_reported_until_another_is_announced(world):
    one = RunningReplica(world)
    one.round()
    world.time_s += TERMS.ca_life_s
    why = r"Secret gpu/certificate, ca\.crt: holds no CA .*; run `vramwarden certs rotate`"
    with pytest.raises(CertificatesError, match=why):
        one.round()
    one.rotate()
    found = one.round()
    assert (found.failures, found.unready) == ((), "")
    world.time_s += DELAY_S + 1
    assert world.is_accepted(one.round().served)
