"""Decide what a set of certificates should become: issue, keep, renew or rotate.

The order in which a CA is replaced, so that no client ever meets a leaf it cannot verify:

=========  ========================================  ==================  ===========
step       when                                      ca.crt              leaf is of
=========  ========================================  ==================  ===========
announce   a third of the CA's life is left          new + old           old
switch     the overlap later, and not before         new + old           new
           clients are known to have the new one
forget     no leaf of the old CA can be valid, or    new                 new
           the old CA has expired
=========  ========================================  ==================  ===========

Every moment is computed from the certificates, so there is no state to lose: a CA was announced
when it was issued, which its notBefore shows. At the switch the old CA's key is dropped, so that
until the old CA is forgotten it only keeps old leaves trusted.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from cryptography import x509

from certs.pki.check import is_valid, needs_renewal, problems, title
from certs.pki.issue import issue_ca, issue_serving
from certs.pki.names import missing_names, names_of, tidy
from certs.pki.pem import (
    AUTHORITIES,
    AUTHORITY_KEYS,
    CERTIFICATE,
    KEY,
    Bundle,
    CertificatesError,
    Pair,
    belongs,
    certificate_text,
    certificates,
    key_text,
    private_keys,
)
from certs.rotation.authority import (
    Authority,
    Terms,
    announced,
    authorities_of,
    is_obsolete,
    issuer_of,
    leaf_life_s,
    signer_of,
    usable,
)


class SetAction(StrEnum):
    """Name what ``advance`` did; the first that applies."""

    ISSUED = "issued"
    ROTATED = "rotated"
    RENEWED = "renewed"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Advance:
    """Hold what a set became, what was done and why, and what is wrong with it.

    ``own`` is false for a set without ``ca.key`` or with a certificate signed by another CA:
    it belongs to somebody else and is never changed.
    """

    bundle: Bundle
    action: SetAction
    own: bool
    reasons: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def advance(
    bundle: Bundle,
    names: Iterable[str],
    now: datetime,
    terms: Terms | None = None,
    trusted: Collection[x509.Certificate] | None = None,
) -> Advance:
    """Return what the set should be at ``now``, with everything that is due done in one step.

    Issues when the set is empty or holds a CA with its key but no certificate; renews the
    certificate when a third of its life is left or a name is missing (names it already has are
    kept, or two programs that want different ones would renew forever); replaces the CA in the
    order above. Applying it twice changes nothing the second time. ``trusted`` are the CAs that
    clients have, where that is known: a new one then waits for that, too. Raises
    CertificatesError for contents that cannot be read, do not belong together, or have a part
    missing: guessing there could destroy what its owner still needs.
    """
    wanted = tidy(names)
    _reject_halves(bundle)
    leaf = _leaf(bundle)
    if leaf and not bundle.ca_key_pem:
        return Advance(bundle, SetAction.KEPT, own=False, problems=problems(bundle, now, wanted))
    authorities = authorities_of(bundle)
    signer = signer_of(leaf, authorities)
    if leaf and not (signer and signer.key):
        foreign = (
            f"{CERTIFICATE} was not signed by the CA in {AUTHORITY_KEYS}, so it is not renewed;"
            f" remove {AUTHORITY_KEYS} if it is yours, {CERTIFICATE} and {KEY} if it is not"
        )
        found = (foreign, *problems(bundle, now, wanted))
        return Advance(bundle, SetAction.KEPT, own=False, problems=found)
    grown, action, reasons = _grow(bundle, wanted, now, terms or Terms(), trusted)
    return Advance(grown, action, True, reasons, problems(grown, now, wanted))


def announce(bundle: Bundle, now: datetime, terms: Terms | None = None) -> Advance:
    """Return the set with another CA announced, as ``advance`` does when the CA is old.

    For the owner who wants one before that; ``advance`` does the rest. Kept where another CA is
    announced already. Raises CertificatesError as ``advance`` does, and for a set that is not ours.
    """
    terms = terms or Terms()
    _reject_halves(bundle)
    leaf = _leaf(bundle)
    authorities = authorities_of(bundle) if bundle.ca_key_pem else ()
    signer = signer_of(leaf, authorities)
    if not (signer and signer.key):
        what = f"holds no CA with a key that signed {CERTIFICATE}"
        raise CertificatesError(AUTHORITIES, what, "rotate where the certificates are issued")
    newer = next((a for a in usable(authorities, now) if a.start > signer.start), None)
    if newer:
        return Advance(bundle, SetAction.KEPT, True, (announced(newer, signer, terms),))
    fresh = issue_ca(now, terms.ca_life_s)
    grown = replace(
        bundle,
        ca_pem=fresh.certificate_pem + bundle.ca_pem,
        ca_key_pem=fresh.key_pem + bundle.ca_key_pem,
    )
    newer = authorities_of(grown)[0]
    return Advance(grown, SetAction.ROTATED, True, (announced(newer, signer, terms),))


def _grow(
    bundle: Bundle,
    wanted: tuple[str, ...],
    now: datetime,
    terms: Terms,
    trusted: Collection[x509.Certificate] | None,
) -> tuple[Bundle, SetAction, tuple[str, ...]]:
    leaf, authorities = _leaf(bundle), authorities_of(bundle)
    signer = signer_of(leaf, authorities)
    pair = Pair(bundle.certificate_pem, bundle.key_pem)
    reasons: list[str] = []
    if why := _why_new_ca(authorities, now):
        fresh = issue_ca(now, terms.ca_life_s)
        alone = Bundle(ca_pem=fresh.certificate_pem, ca_key_pem=fresh.key_pem)
        authorities = (*authorities_of(alone), *authorities)
        reasons.append(why)
    issuer = issuer_of(authorities, signer, now, terms, trusted)
    if reasons and issuer is not authorities[0]:
        reasons.append(f"another CA is {announced(authorities[0], issuer, terms)}")
    life_s = leaf_life_s(issuer, authorities, now, terms)
    if why := _why_new_leaf(leaf, signer, issuer, wanted, now, life_s):
        names = (*wanted, *(names_of(leaf) if leaf else ()))
        pair = issue_serving(issuer.pair(), names, now, life_s)
        reasons.append(why)
    remaining = tuple(a for a in authorities if not is_obsolete(a, issuer, now, terms))
    reasons += [
        f"{title(a.certificate)} is no longer needed" for a in authorities if a not in remaining
    ]
    if not reasons:
        return bundle, SetAction.KEPT, ()
    grown = _bundle(pair, remaining, issuer)
    if leaf is None:
        return grown, SetAction.ISSUED, tuple(reasons)
    same_authorities = grown.ca_pem.split() == bundle.ca_pem.split()
    return (
        grown,
        SetAction.RENEWED if same_authorities else SetAction.ROTATED,
        tuple(reasons),
    )


def _reject_halves(bundle: Bundle) -> None:
    if bool(bundle.certificate_pem) != bool(bundle.key_pem):
        absent, present = (KEY, CERTIFICATE) if bundle.certificate_pem else (CERTIFICATE, KEY)
        raise CertificatesError(
            absent, f"is missing beside {present}", f"restore it, or remove {present} too"
        )
    if bundle.ca_key_pem and not bundle.ca_pem:
        cure = f"restore the CA of {AUTHORITY_KEYS}, or remove {AUTHORITY_KEYS}"
        raise CertificatesError(AUTHORITIES, "is missing", cure)
    if bundle.ca_pem and not bundle.certificate_pem and not bundle.ca_key_pem:
        cure = f"add {CERTIFICATE} and {KEY}, or remove it to have a new set issued"
        raise CertificatesError(AUTHORITIES, "stands alone", cure)


def _leaf(bundle: Bundle) -> x509.Certificate | None:
    if not bundle.certificate_pem:
        return None
    leaf = certificates(bundle.certificate_pem, CERTIFICATE)[0]
    key = private_keys(bundle.key_pem, KEY)[0]
    # A pair of others that does not match is its owner's to repair, and `problems` says so.
    if bundle.ca_key_pem and not belongs(key, leaf):
        cure = "restore both from one issuance, or remove both to have a new pair issued"
        raise CertificatesError(KEY, f"does not belong to {CERTIFICATE}", cure)
    return leaf


def _why_new_ca(authorities: Sequence[Authority], now: datetime) -> str:
    able = usable(authorities, now)
    if not authorities:
        return "there was no CA"
    if not able:
        return "no CA with a key was valid"
    if needs_renewal(able[-1].certificate, now):
        return f"{title(able[-1].certificate)} has a third of its life left"
    return ""


def _why_new_leaf(
    leaf: x509.Certificate | None,
    signer: Authority | None,
    issuer: Authority,
    wanted: tuple[str, ...],
    now: datetime,
    life_s: float,
) -> str:
    if leaf is None:
        return f"there was no {CERTIFICATE}"
    if not is_valid(leaf, now):
        return f"{CERTIFICATE} was not valid"
    # Else one whose life its CAs cut short would be renewed forever.
    gains = now + timedelta(seconds=life_s) >= leaf.not_valid_after_utc + timedelta(seconds=1)
    if gains and needs_renewal(leaf, now):
        return f"{CERTIFICATE} had a third of its life left"
    if missing := missing_names(leaf, wanted):
        return f"{CERTIFICATE} was not valid for {', '.join(missing)}"
    if signer is not issuer:
        return f"{title(issuer.certificate)} has been announced for long enough to sign"
    return ""


def _bundle(pair: Pair, authorities: Sequence[Authority], issuer: Authority) -> Bundle:
    """Build the set, without our keys older than the issuer's: they sign no more."""
    keyed = [a for a in authorities if a.key and (not a.ours or a.start >= issuer.start)]
    return Bundle(
        pair.certificate_pem,
        pair.key_pem,
        b"".join(certificate_text(a.certificate) for a in authorities),
        b"".join(key_text(a.key) for a in keyed if a.key),
    )
