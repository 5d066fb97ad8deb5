"""Changes to a certificate set: issue it, renew it, or move it to another CA.

`announce` adds another CA at a user's request. `advance` makes all changes that are due by time.
A CA is replaced in an order that lets clients verify every leaf:

=========  ========================================  ==================  ===========
step       when                                      ca.crt              leaf is of
=========  ========================================  ==================  ===========
announce   `vramwarden certs rotate`                 new + old           old
switch     the overlap later, and not before         new + old           new
           clients are known to have the new CA
forget     no leaf of the old CA can be valid, or    new                 new
           the old CA has expired
=========  ========================================  ==================  ===========

All times are computed from the certificates, so no other state is stored: a CA was announced when
it was issued, as shown by its notBefore. At the switch the old CA's key is dropped. Until the old
CA is forgotten, it only keeps old leaves trusted.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

from certs.check import can_sign, is_signed_by, is_valid, renewal_due, subject_text
from certs.issue import (
    BACKDATE,
    CA_LIFE_S,
    CA_NAME_PREFIX,
    DAY_S,
    SERVING_LIFE_S,
    canonical_names,
    issue_ca,
    issue_serving,
    missing_names,
    subject_names,
)
from certs.pem import (
    AUTHORITIES,
    AUTHORITY_KEYS,
    CERTIFICATE,
    KEY,
    Bundle,
    CertificatesError,
    Pair,
    certificate_text,
    certificates,
    is_key_for,
    key_text,
    private_keys,
    readable_certificates,
)


@dataclass(frozen=True, slots=True)
class RotationPeriods:
    """Lifetimes of certificates, and periods of a rotation, all in seconds.

    `overlap_s` must be longer than any client takes to learn of a new CA: an API server takes about
    a minute, a user who copies files a day. The new CA must also have been in each caBundle for
    `settle_s`.
    """

    ca_life_s: float = CA_LIFE_S
    serving_life_s: float = SERVING_LIFE_S
    overlap_s: float = DAY_S
    # An API server gets a new caBundle from its watch within a second. HTTP/2 pings detect a dead
    # watch after 45 s.
    settle_s: float = 120.0


class SetAction(StrEnum):
    """The change that `advance` makes; if several apply, the first."""

    ISSUED = "issued"
    ROTATED = "rotated"
    RENEWED = "renewed"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class SetUpdate:
    """A new certificate set, with the change that was made and its reasons."""

    bundle: Bundle
    action: SetAction
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA certificate, and its private key if the set contains it."""

    certificate: x509.Certificate
    key: PrivateKeyTypes | None = field(default=None, repr=False)

    @property
    def start(self) -> datetime:
        """Return the CA's notBefore. Of two CAs, the one that starts later is the newer."""
        return self.certificate.not_valid_before_utc

    @property
    def announced(self) -> datetime:
        """Return when the CA was issued; exact for a CA issued by this package."""
        return self.start + BACKDATE

    @property
    def issued_here(self) -> bool:
        """Return True if this package issued the CA. A CA from elsewhere is never dropped."""
        names = self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return any(str(name.value).startswith(CA_NAME_PREFIX) for name in names)


def advance(
    bundle: Bundle,
    names: Iterable[str],
    now: datetime,
    periods: RotationPeriods | None = None,
    trusted: Collection[x509.Certificate] | None = None,
) -> SetUpdate:
    """Return the set as it should be at `now`, with all due changes made in one step.

    An empty set is issued. In a set that contains only a CA with its key, the serving certificate
    is issued. The certificate is renewed when a third of its lifetime is left or a name is missing.
    It keeps its names: otherwise two programs with different names would renew it forever. An
    announced CA takes over in the order above. A set without `ca.key`, or with a certificate that
    `ca.key` did not sign, was issued elsewhere and is kept. A second call changes nothing.

    `trusted` contains the CAs that clients have; None if unknown. An announced CA waits until
    `trusted` contains it. Raises CertificatesError if no CA can sign any more, or if contents are
    unreadable, incomplete or inconsistent, since a guess could destroy what is still needed.
    """
    periods = periods or RotationPeriods()
    wanted = canonical_names(names)
    _reject_incomplete(bundle)
    leaf = _read_leaf(bundle)
    if leaf and not bundle.ca_key_pem:
        return SetUpdate(bundle, SetAction.KEPT)
    authorities = _read_authorities(bundle)
    signer = find_signer(leaf, authorities)
    if leaf and not (signer and signer.key):
        return SetUpdate(bundle, SetAction.KEPT)
    reasons: list[str] = []
    if not authorities:
        ca = issue_ca(now, periods.ca_life_s)
        authorities = _read_authorities(Bundle(ca_pem=ca.certificate_pem, ca_key_pem=ca.key_pem))
        reasons.append("there was no CA")
    issuer = _choose_issuer(authorities, signer, now, periods, trusted)
    pair = Pair(bundle.certificate_pem, bundle.key_pem)
    life_s = _leaf_life_s(issuer, authorities, now, periods)
    if why := _renewal_reason(leaf, signer, issuer, wanted, now, life_s):
        key = key_text(issuer.key) if issuer.key else b""
        ca = Pair(certificate_text(issuer.certificate), key)
        pair = issue_serving(ca, (*wanted, *(subject_names(leaf) if leaf else ())), now, life_s)
        reasons.append(why)
    remaining = tuple(a for a in authorities if not is_obsolete(a, issuer, now, periods))
    reasons += [
        f"{subject_text(a.certificate)} is no longer needed"
        for a in authorities
        if a not in remaining
    ]
    if not reasons:
        return SetUpdate(bundle, SetAction.KEPT)
    updated = _build_bundle(pair, remaining, issuer)
    if leaf is None:
        action = SetAction.ISSUED
    elif updated.ca_pem.split() == bundle.ca_pem.split():
        action = SetAction.RENEWED
    else:
        action = SetAction.ROTATED
    return SetUpdate(updated, action, tuple(reasons))


def announce(bundle: Bundle, now: datetime, periods: RotationPeriods | None = None) -> SetUpdate:
    """Return the set with another CA announced; `advance` does the rest.

    The set is kept if another CA is announced already. Raises CertificatesError like `advance`, and
    for a set that was issued elsewhere.
    """
    periods = periods or RotationPeriods()
    _reject_incomplete(bundle)
    leaf = _read_leaf(bundle)
    authorities = _read_authorities(bundle) if bundle.ca_key_pem else ()
    signer = find_signer(leaf, authorities)
    if not (signer and signer.key):
        problem = f"holds no CA with a key that signed {CERTIFICATE}"
        raise CertificatesError(AUTHORITIES, problem, "rotate where the certificates are issued")
    newer = next((a for a in _usable_authorities(authorities, now) if a.start > signer.start), None)
    if newer:
        return SetUpdate(bundle, SetAction.KEPT, (_announcement_text(newer, signer, periods),))
    fresh = issue_ca(now, periods.ca_life_s)
    updated = replace(
        bundle,
        ca_pem=fresh.certificate_pem + bundle.ca_pem,
        ca_key_pem=fresh.key_pem + bundle.ca_key_pem,
    )
    newer = _read_authorities(updated)[0]
    return SetUpdate(updated, SetAction.ROTATED, (_announcement_text(newer, signer, periods),))


def authority_uses(bundle: Bundle, now: datetime) -> tuple[str, ...]:
    """Return the use of each CA of a set, in a few words; empty if unreadable.

    | CA | use |
    | --- | --- |
    | signed the serving certificate | signs |
    | newer, with a key | announced: signs from ... on |
    | another | is trusted only |
    """
    authorities = tuple(map(Authority, readable_certificates(bundle.ca_pem)))
    if bundle.ca_key_pem:
        try:
            authorities = _read_authorities(bundle)
        except CertificatesError:
            return ("",) * len(authorities)
    leaf = next(iter(readable_certificates(bundle.certificate_pem)), None)
    signer = find_signer(leaf, authorities)
    able = _usable_authorities(authorities, now)

    def use(authority: Authority) -> str:
        if authority is signer:
            return "signs"
        if signer and authority in able and authority.start > signer.start:
            return _announcement_text(authority, signer, RotationPeriods())
        return "is trusted only"

    return tuple(map(use, authorities))


def find_signer(
    leaf: x509.Certificate | None, authorities: Sequence[Authority]
) -> Authority | None:
    """Return the CA that signed the leaf, or None if it is not among `authorities`."""
    if leaf is None:
        return None
    return next((a for a in authorities if is_signed_by(leaf, a.certificate)), None)


def is_obsolete(
    authority: Authority, issuer: Authority, now: datetime, periods: RotationPeriods
) -> bool:
    """Return True if no leaf of this CA can be valid any more."""
    if not authority.issued_here or authority is issuer:
        return False
    if authority.certificate.not_valid_after_utc < now:
        return True
    return authority.start < issuer.start and now >= _last_leaf_end(issuer, periods)


def _reject_incomplete(bundle: Bundle) -> None:
    if bool(bundle.certificate_pem) != bool(bundle.key_pem):
        absent, present = (KEY, CERTIFICATE) if bundle.certificate_pem else (CERTIFICATE, KEY)
        cure = f"restore it, or remove {present} too"
        raise CertificatesError(absent, f"is missing beside {present}", cure)
    if bundle.ca_key_pem and not bundle.ca_pem:
        cure = f"restore the CA of {AUTHORITY_KEYS}, or remove {AUTHORITY_KEYS}"
        raise CertificatesError(AUTHORITIES, "is missing", cure)
    if bundle.ca_pem and not bundle.certificate_pem and not bundle.ca_key_pem:
        cure = f"add {CERTIFICATE} and {KEY}, or remove it to have a new set issued"
        raise CertificatesError(AUTHORITIES, f"has no {CERTIFICATE} beside it", cure)


def _read_leaf(bundle: Bundle) -> x509.Certificate | None:
    if not bundle.certificate_pem:
        return None
    leaf = certificates(bundle.certificate_pem, CERTIFICATE)[0]
    key = private_keys(bundle.key_pem, KEY)[0]
    # A mismatched pair from elsewhere is repaired by its owner; `find_problems` reports it.
    if bundle.ca_key_pem and not is_key_for(key, leaf):
        cure = "restore both from one issuance, or remove both to have a new pair issued"
        raise CertificatesError(KEY, f"does not belong to {CERTIFICATE}", cure)
    return leaf


def _read_authorities(bundle: Bundle) -> tuple[Authority, ...]:
    """Return each CA with its key. Reject a key without its CA, which a write would lose."""
    if not bundle.ca_pem:
        return ()
    keys = private_keys(bundle.ca_key_pem, AUTHORITY_KEYS)
    found = tuple(
        Authority(ca, next((key for key in keys if is_key_for(key, ca)), None))
        for ca in certificates(bundle.ca_pem, AUTHORITIES)
    )
    if not all(any(is_key_for(key, a.certificate) for a in found) for key in keys):
        cure = "put the CA and its key there together"
        problem = f"holds a key of no certificate in {AUTHORITIES}"
        raise CertificatesError(AUTHORITY_KEYS, problem, cure)
    for ca in found:
        if ca.key and not can_sign(ca.certificate):
            problem = f"holds {subject_text(ca.certificate)}, which may not sign certificates"
            raise CertificatesError(AUTHORITIES, problem, "put a CA there (CA bit, keyCertSign)")
    return found


def _usable_authorities(authorities: Sequence[Authority], now: datetime) -> list[Authority]:
    """Return the CAs that can sign now, oldest first."""
    able = [
        a
        for a in authorities
        # At its last moment a CA is valid, but a leaf that it signs then would not be.
        if a.key and is_valid(a.certificate, now) and a.certificate.not_valid_after_utc > now
    ]
    return sorted(able, key=lambda a: a.start)


def _choose_issuer(
    authorities: Sequence[Authority],
    signer: Authority | None,
    now: datetime,
    periods: RotationPeriods,
    trusted: Collection[x509.Certificate] | None,
) -> Authority:
    """Return the CA that signs now: the newest that has been announced for long enough.

    It is never older than `signer`. A single CA signs at once. A newer CA waits until it is among
    `trusted`, or until no older CA may sign any more.
    """
    able = _usable_authorities(authorities, now)
    if not able:
        problem = "holds no CA that is valid and has its key"
        raise CertificatesError(AUTHORITIES, problem, "run `vramwarden certs rotate`")
    issuer = able[0]
    for candidate in able[1:]:
        is_due = now >= _signs_from(candidate, issuer, periods)
        is_trusted = trusted is None or candidate.certificate in trusted
        is_overdue = now >= _last_leaf_end(candidate, periods)
        if candidate is signer or (is_due and is_trusted) or is_overdue:
            issuer = candidate
    return issuer


def _signs_from(newer: Authority, older: Authority, periods: RotationPeriods) -> datetime:
    """Return when the newer CA begins to sign leaves.

    This is after the overlap. If the older CA ends before that, it is half-way to that end, so that
    clients have some time to learn of the newer CA.
    """
    left = max(older.certificate.not_valid_after_utc - newer.announced, timedelta())
    return newer.announced + min(timedelta(seconds=periods.overlap_s), left / 2)


def _announcement_text(newer: Authority, older: Authority, periods: RotationPeriods) -> str:
    return f"announced: signs from {_signs_from(newer, older, periods):%Y-%m-%d %H:%M} UTC on"


def _last_leaf_end(newer: Authority, periods: RotationPeriods) -> datetime:
    """Return when the last leaf of all older CAs ends.

    Older CAs sign until the newer CA takes over, an overlap after its announcement, and a leaf
    lives for at most the serving lifetime. If the newer CA takes over later, `_leaf_life_s`
    shortens leaves.
    """
    return newer.announced + timedelta(seconds=periods.overlap_s + periods.serving_life_s)


def _leaf_life_s(
    issuer: Authority, authorities: Sequence[Authority], now: datetime, periods: RotationPeriods
) -> float:
    """Return the maximum lifetime of a leaf that this issuer signs now, in seconds."""
    newer = (a for a in _usable_authorities(authorities, now) if a.start > issuer.start)
    ends = [_last_leaf_end(a, periods) for a in newer] + [issuer.certificate.not_valid_after_utc]
    return min(periods.serving_life_s, (min(ends) - now).total_seconds())


def _renewal_reason(
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
    # Otherwise a leaf whose lifetime its CAs limit would be renewed forever.
    gains = now + timedelta(seconds=life_s) >= leaf.not_valid_after_utc + timedelta(seconds=1)
    if gains and now >= renewal_due(leaf):
        return f"{CERTIFICATE} had a third of its life left"
    if missing := missing_names(leaf, wanted):
        return f"{CERTIFICATE} was not valid for {', '.join(missing)}"
    if signer is not issuer:
        return f"{subject_text(issuer.certificate)} has been announced for long enough to sign"
    return ""


def _build_bundle(pair: Pair, authorities: Sequence[Authority], issuer: Authority) -> Bundle:
    """Return the set without older CA keys of this package, which sign nothing more."""
    keyed = [a for a in authorities if a.key and (not a.issued_here or a.start >= issuer.start)]
    return Bundle(
        pair.certificate_pem,
        pair.key_pem,
        b"".join(certificate_text(a.certificate) for a in authorities),
        b"".join(key_text(a.key) for a in keyed if a.key),
    )
