"""Decide what becomes of a set of certificates: issue it, renew it, move it to another CA.

`announce` adds another CA, when somebody asks for one; `advance` does everything that is due by
time. A CA is replaced in an order in which no client meets a leaf that it cannot verify:

=========  ========================================  ==================  ===========
step       when                                      ca.crt              leaf is of
=========  ========================================  ==================  ===========
announce   `vramwarden certs rotate`                 new + old           old
switch     the overlap later, and not before         new + old           new
           clients are known to have the new CA
forget     no leaf of the old CA can be valid, or    new                 new
           the old CA has expired
=========  ========================================  ==================  ===========

Each moment is computed from the certificates, so no state is stored elsewhere: a CA was announced
when it was issued, which its notBefore shows. At the switch the old CA's key is dropped. Until the
old CA is forgotten, it only keeps old leaves trusted.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

from certs.check import can_sign, is_valid, renewal_due, signed_by, title
from certs.issue import (
    BACKDATE,
    CA_LIFE_S,
    CA_NAME_PREFIX,
    DAY_S,
    SERVING_LIFE_S,
    issue_ca,
    issue_serving,
)
from certs.names import canonical, missing_names, names_of
from certs.pem import (
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
    readable_certificates,
)


@dataclass(frozen=True, slots=True)
class Terms:
    """Lives of certificates, and how long a new CA is published before it signs; all in seconds.

    `overlap_s` has to be longer than any client takes to learn of a new CA: an API server takes
    about a minute, a person who copies files a day. The new CA must also have been in each
    caBundle for `settle_s`.
    """

    ca_life_s: float = CA_LIFE_S
    serving_life_s: float = SERVING_LIFE_S
    overlap_s: float = DAY_S
    # An API server gets a new caBundle by its watch, within a second; HTTP/2 pings detect a dead
    # watch after 45 s.
    settle_s: float = 120.0


class SetAction(StrEnum):
    """Names of what `advance` does; the first that applies."""

    ISSUED = "issued"
    ROTATED = "rotated"
    RENEWED = "renewed"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Advance:
    """A set as it should be, what was done to it, and why."""

    bundle: Bundle
    action: SetAction
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA certificate, with its private key if the set has it."""

    certificate: x509.Certificate
    key: PrivateKeyTypes | None = field(default=None, repr=False)

    @property
    def start(self) -> datetime:
        """Return its notBefore; of two CAs, the one that starts later is the newer."""
        return self.certificate.not_valid_before_utc

    @property
    def announced(self) -> datetime:
        """Return when it was issued; exact for a CA of this package."""
        return self.start + BACKDATE

    @property
    def ours(self) -> bool:
        """Return True if this package issued it; a CA from elsewhere is never dropped."""
        names = self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return any(str(name.value).startswith(CA_NAME_PREFIX) for name in names)


def advance(
    bundle: Bundle,
    names: Iterable[str],
    now: datetime,
    terms: Terms | None = None,
    trusted: Collection[x509.Certificate] | None = None,
) -> Advance:
    """Return the set as it should be at `now`, with everything due done in one step.

    An empty set is issued; so is the serving certificate of a set that holds only a CA with its
    key. The certificate is renewed when a third of its life is left or when a name is missing; it
    keeps the names that it has, or two programs with different names would renew it forever. An
    announced CA takes over in the order above. A set without `ca.key`, or with a certificate that
    `ca.key` did not sign, was issued elsewhere and is kept. A second call changes nothing.

    `trusted` are the CAs that clients have, None if unknown; an announced CA waits until it is one
    of them. Raises CertificatesError for contents that cannot be read, do not belong together or
    lack a part, since a guess could destroy what is still needed, and if no CA can sign any more.
    """
    terms = terms or Terms()
    wanted = canonical(names)
    _reject_incomplete(bundle)
    leaf = _leaf(bundle)
    if leaf and not bundle.ca_key_pem:
        return Advance(bundle, SetAction.KEPT)
    authorities = _authorities(bundle)
    signer = signer_of(leaf, authorities)
    if leaf and not (signer and signer.key):
        return Advance(bundle, SetAction.KEPT)
    reasons: list[str] = []
    if not authorities:
        fresh = issue_ca(now, terms.ca_life_s)
        authorities = _authorities(Bundle(ca_pem=fresh.certificate_pem, ca_key_pem=fresh.key_pem))
        reasons.append("there was no CA")
    issuer = _issuer(authorities, signer, now, terms, trusted)
    pair = Pair(bundle.certificate_pem, bundle.key_pem)
    life_s = _leaf_life_s(issuer, authorities, now, terms)
    if why := _why_new_leaf(leaf, signer, issuer, wanted, now, life_s):
        key = key_text(issuer.key) if issuer.key else b""
        ca = Pair(certificate_text(issuer.certificate), key)
        pair = issue_serving(ca, (*wanted, *(names_of(leaf) if leaf else ())), now, life_s)
        reasons.append(why)
    remaining = tuple(a for a in authorities if not is_obsolete(a, issuer, now, terms))
    reasons += [
        f"{title(a.certificate)} is no longer needed" for a in authorities if a not in remaining
    ]
    if not reasons:
        return Advance(bundle, SetAction.KEPT)
    grown = _bundle(pair, remaining, issuer)
    if leaf is None:
        action = SetAction.ISSUED
    elif grown.ca_pem.split() == bundle.ca_pem.split():
        action = SetAction.RENEWED
    else:
        action = SetAction.ROTATED
    return Advance(grown, action, tuple(reasons))


def announce(bundle: Bundle, now: datetime, terms: Terms | None = None) -> Advance:
    """Return the set with another CA announced; `advance` does the rest.

    The set is kept if another CA is announced already. Raises CertificatesError as `advance` does,
    and for a set that was issued elsewhere.
    """
    terms = terms or Terms()
    _reject_incomplete(bundle)
    leaf = _leaf(bundle)
    authorities = _authorities(bundle) if bundle.ca_key_pem else ()
    signer = signer_of(leaf, authorities)
    if not (signer and signer.key):
        what = f"holds no CA with a key that signed {CERTIFICATE}"
        raise CertificatesError(AUTHORITIES, what, "rotate where the certificates are issued")
    newer = next((a for a in _usable(authorities, now) if a.start > signer.start), None)
    if newer:
        return Advance(bundle, SetAction.KEPT, (_announced(newer, signer, terms),))
    fresh = issue_ca(now, terms.ca_life_s)
    grown = replace(
        bundle,
        ca_pem=fresh.certificate_pem + bundle.ca_pem,
        ca_key_pem=fresh.key_pem + bundle.ca_key_pem,
    )
    newer = _authorities(grown)[0]
    return Advance(grown, SetAction.ROTATED, (_announced(newer, signer, terms),))


def uses(bundle: Bundle, now: datetime) -> tuple[str, ...]:
    """Return for each CA of a set what it is for, in a few words; empty if unreadable.

    | CA | words |
    | --- | --- |
    | signed the serving certificate | signs |
    | newer, with a key | announced: signs from ... on |
    | another | is trusted only |
    """
    authorities = tuple(map(Authority, readable_certificates(bundle.ca_pem)))
    if bundle.ca_key_pem:
        try:
            authorities = _authorities(bundle)
        except CertificatesError:
            return ("",) * len(authorities)
    leaf = next(iter(readable_certificates(bundle.certificate_pem)), None)
    signer = signer_of(leaf, authorities)
    able = _usable(authorities, now)

    def use(authority: Authority) -> str:
        if authority is signer:
            return "signs"
        if signer and authority in able and authority.start > signer.start:
            return _announced(authority, signer, Terms())
        return "is trusted only"

    return tuple(map(use, authorities))


def signer_of(leaf: x509.Certificate | None, authorities: Sequence[Authority]) -> Authority | None:
    """Return the CA that signed the leaf, if it is one of these."""
    if leaf is None:
        return None
    return next((a for a in authorities if signed_by(leaf, a.certificate)), None)


def is_obsolete(authority: Authority, issuer: Authority, now: datetime, terms: Terms) -> bool:
    """Return True if no leaf of this CA can be valid any more."""
    if not authority.ours or authority is issuer:
        return False
    if authority.certificate.not_valid_after_utc < now:
        return True
    return authority.start < issuer.start and now >= _last_leaf_ends(issuer, terms)


def _reject_incomplete(bundle: Bundle) -> None:
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
        raise CertificatesError(AUTHORITIES, f"has no {CERTIFICATE} beside it", cure)


def _leaf(bundle: Bundle) -> x509.Certificate | None:
    if not bundle.certificate_pem:
        return None
    leaf = certificates(bundle.certificate_pem, CERTIFICATE)[0]
    key = private_keys(bundle.key_pem, KEY)[0]
    # The owner repairs a pair from elsewhere that does not match; `problems` reports it.
    if bundle.ca_key_pem and not belongs(key, leaf):
        cure = "restore both from one issuance, or remove both to have a new pair issued"
        raise CertificatesError(KEY, f"does not belong to {CERTIFICATE}", cure)
    return leaf


def _authorities(bundle: Bundle) -> tuple[Authority, ...]:
    """Return each CA with its key; reject a key without its CA, which a write would lose."""
    if not bundle.ca_pem:
        return ()
    keys = private_keys(bundle.ca_key_pem, AUTHORITY_KEYS)
    found = tuple(
        Authority(ca, next((key for key in keys if belongs(key, ca)), None))
        for ca in certificates(bundle.ca_pem, AUTHORITIES)
    )
    if not all(any(belongs(key, a.certificate) for a in found) for key in keys):
        cure = "put the CA and its key there together"
        what = f"holds a key of no certificate in {AUTHORITIES}"
        raise CertificatesError(AUTHORITY_KEYS, what, cure)
    for authority in found:
        if authority.key and not can_sign(authority.certificate):
            what = f"holds {title(authority.certificate)}, which may not sign certificates"
            raise CertificatesError(AUTHORITIES, what, "put a CA there (CA bit, keyCertSign)")
    return found


def _usable(authorities: Sequence[Authority], now: datetime) -> list[Authority]:
    """Return the CAs that can sign now, oldest first."""
    able = [
        a
        for a in authorities
        # In its last moment a CA is valid, but no leaf that it signs would be.
        if a.key and is_valid(a.certificate, now) and a.certificate.not_valid_after_utc > now
    ]
    return sorted(able, key=lambda a: a.start)


def _issuer(
    authorities: Sequence[Authority],
    signer: Authority | None,
    now: datetime,
    terms: Terms,
    trusted: Collection[x509.Certificate] | None,
) -> Authority:
    """Return the CA that signs now: the newest that has been announced for long enough.

    It is never older than `signer`, and the oldest if it is the only one. Another waits until it is
    among `trusted`, or until no older CA may sign any more.
    """
    able = _usable(authorities, now)
    if not able:
        what = "holds no CA that is valid and has its key"
        raise CertificatesError(AUTHORITIES, what, "run `vramwarden certs rotate`")
    issuer = able[0]
    for candidate in able[1:]:
        due = now >= _signs_from(candidate, issuer, terms)
        known = trusted is None or candidate.certificate in trusted
        last = now >= _last_leaf_ends(candidate, terms)
        if candidate is signer or (due and known) or last:
            issuer = candidate
    return issuer


def _signs_from(newer: Authority, older: Authority, terms: Terms) -> datetime:
    """Return when the newer CA begins to sign leaves.

    That is after the overlap; if the older CA ends before it, half-way to that end, so that clients
    get some time to learn of the newer one.
    """
    left = max(older.certificate.not_valid_after_utc - newer.announced, timedelta())
    return newer.announced + min(timedelta(seconds=terms.overlap_s), left / 2)


def _announced(newer: Authority, older: Authority, terms: Terms) -> str:
    return f"announced: signs from {_signs_from(newer, older, terms):%Y-%m-%d %H:%M} UTC on"


def _last_leaf_ends(newer: Authority, terms: Terms) -> datetime:
    """Return when the last leaf of older CAs ends.

    They sign until this one takes over, an overlap after its announcement, and a leaf lives for the
    serving life at most. If it takes over later, `_leaf_life_s` ends their leaves by then.
    """
    return newer.announced + timedelta(seconds=terms.overlap_s + terms.serving_life_s)


def _leaf_life_s(
    issuer: Authority, authorities: Sequence[Authority], now: datetime, terms: Terms
) -> float:
    """Return how long a leaf of this issuer may live from now on."""
    newer = (a for a in _usable(authorities, now) if a.start > issuer.start)
    ends = [_last_leaf_ends(a, terms) for a in newer] + [issuer.certificate.not_valid_after_utc]
    return min(terms.serving_life_s, (min(ends) - now).total_seconds())


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
    # Otherwise a leaf whose life its CAs cut short would be renewed forever.
    gains = now + timedelta(seconds=life_s) >= leaf.not_valid_after_utc + timedelta(seconds=1)
    if gains and now >= renewal_due(leaf):
        return f"{CERTIFICATE} had a third of its life left"
    if missing := missing_names(leaf, wanted):
        return f"{CERTIFICATE} was not valid for {', '.join(missing)}"
    if signer is not issuer:
        return f"{title(issuer.certificate)} has been announced for long enough to sign"
    return ""


def _bundle(pair: Pair, authorities: Sequence[Authority], issuer: Authority) -> Bundle:
    """Return the set, without our keys older than the issuer's: they sign nothing more."""
    keyed = [a for a in authorities if a.key and (not a.ours or a.start >= issuer.start)]
    return Bundle(
        pair.certificate_pem,
        pair.key_pem,
        b"".join(certificate_text(a.certificate) for a in authorities),
        b"".join(key_text(a.key) for a in keyed if a.key),
    )
