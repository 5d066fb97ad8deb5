"""Choose which of several CAs signs now, and which of them are still needed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

from certs.pki.check import can_sign, is_valid, signed_by, title
from certs.pki.issue import BACKDATE, CA_LIFE_S, CA_NAME_PREFIX, DAY_S, SERVING_LIFE_S
from certs.pki.pem import (
    AUTHORITIES,
    AUTHORITY_KEYS,
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
    """Fix the lives of certificates and how long two CAs overlap before the leaf changes.

    The overlap has to be longer than any client takes to learn of a new CA; an API server takes
    about a minute, a person who copies files a day. Where we also reconcile caBundles, the new CA
    must have been observed in them for ``settle_s``, too. Raises ValueError for lives under an
    hour: with the hour before issuance a third of them would be over at once.
    """

    ca_life_s: float = CA_LIFE_S
    serving_life_s: float = SERVING_LIFE_S
    overlap_s: float = DAY_S
    # An API server gets a new caBundle by its watch, within a second; HTTP/2 pings detect a dead
    # watch after 45 s.
    settle_s: float = 120.0

    def __post_init__(self) -> None:
        if min(self.ca_life_s, self.serving_life_s) < BACKDATE.total_seconds():
            raise ValueError("a certificate's life must be an hour (3600 s) at least")
        if min(self.overlap_s, self.settle_s) < 0:
            raise ValueError("the overlap of two CAs cannot be negative")


@dataclass(frozen=True, slots=True)
class Authority:
    """Join a CA certificate with its private key, where the set has it."""

    certificate: x509.Certificate
    key: PrivateKeyTypes | None = field(repr=False)

    @property
    def start(self) -> datetime:
        """Return its notBefore; the newer of two CAs is the one that starts later."""
        return self.certificate.not_valid_before_utc

    @property
    def announced(self) -> datetime:
        """Return when it was issued, and so shown to clients; exact for those we issued."""
        return self.start + BACKDATE

    @property
    def ours(self) -> bool:
        """Return whether this package issued it; a CA of others is never dropped."""
        names = self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return any(str(name.value).startswith(CA_NAME_PREFIX) for name in names)

    def pair(self) -> Pair:
        """Return it as PEM; the key is empty where there is none."""
        return Pair(certificate_text(self.certificate), key_text(self.key) if self.key else b"")


def authorities_of(bundle: Bundle) -> tuple[Authority, ...]:
    """Join each CA with its key; reject a key without its CA: writing would lose it."""
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


def signer_of(leaf: x509.Certificate | None, authorities: Sequence[Authority]) -> Authority | None:
    """Return the CA that signed the leaf, if it is among these."""
    if leaf is None:
        return None
    return next((a for a in authorities if signed_by(leaf, a.certificate)), None)


def usable(authorities: Sequence[Authority], now: datetime) -> list[Authority]:
    """Return the CAs that can sign now, oldest first."""
    able = [
        a
        for a in authorities
        # In its last moment it is valid, but nothing it signs would be.
        if a.key and is_valid(a.certificate, now) and a.certificate.not_valid_after_utc > now
    ]
    return sorted(able, key=lambda a: a.start)


def issuer_of(
    authorities: Sequence[Authority],
    signer: Authority | None,
    now: datetime,
    terms: Terms,
    trusted: Collection[x509.Certificate] | None = None,
) -> Authority:
    """Return the CA that signs now: the newest that has been announced for long enough.

    Never an older one than signed before, and the oldest when it is the only one. ``trusted`` are
    the CAs that clients are known to have, where that is known: another waits until no older CA
    may sign any more.
    """
    oldest, *newer = usable(authorities, now)
    issuer = oldest
    for candidate in newer:
        due = now >= signs_from(candidate, issuer, terms)
        known = trusted is None or candidate.certificate in trusted
        last = now >= last_leaf_ends(candidate, terms)
        if candidate is signer or (due and known) or last:
            issuer = candidate
    return issuer


def signs_from(newer: Authority, older: Authority, terms: Terms) -> datetime:
    """Return when leaves begin to be signed by the newer CA.

    After the overlap; but when the older CA ends before it, half-way to that end, so that clients
    get some time to learn of the newer one.
    """
    left = max(older.certificate.not_valid_after_utc - newer.announced, timedelta())
    return newer.announced + min(timedelta(seconds=terms.overlap_s), left / 2)


def uses(bundle: Bundle, now: datetime, terms: Terms | None = None) -> tuple[str, ...]:
    """Say of each CA of a set what it is for, in a few words; nothing where it cannot be read.

    | CA | words |
    | --- | --- |
    | signed the serving certificate | signs |
    | newer, with a key | announced: signs from ... on |
    | another | is trusted only |
    """
    authorities = tuple(Authority(ca, None) for ca in readable_certificates(bundle.ca_pem))
    if bundle.ca_key_pem:
        try:
            authorities = authorities_of(bundle)
        except CertificatesError:
            return ("",) * len(authorities)
    leaf = next(iter(readable_certificates(bundle.certificate_pem)), None)
    signer = signer_of(leaf, authorities)
    able = usable(authorities, now)

    def use(authority: Authority) -> str:
        if authority is signer:
            return "signs"
        if signer and authority in able and authority.start > signer.start:
            return announced(authority, signer, terms or Terms())
        return "is trusted only"

    return tuple(map(use, authorities))


def announced(newer: Authority, older: Authority, terms: Terms) -> str:
    """Say when the newer CA begins to sign in place of the older one."""
    return f"announced: signs from {signs_from(newer, older, terms):%Y-%m-%d %H:%M} UTC on"


def last_leaf_ends(newer: Authority, terms: Terms) -> datetime:
    """Return when the last leaf of the CAs before this one ends.

    They sign until this one takes over, an overlap after its announcement, and a leaf lives for
    the serving life at most. Where it takes over later, leaves are cut to end by then.
    """
    return newer.announced + timedelta(seconds=terms.overlap_s + terms.serving_life_s)


def leaf_life_s(
    issuer: Authority, authorities: Sequence[Authority], now: datetime, terms: Terms
) -> float:
    """Return how long a leaf of this issuer may live from now on."""
    newer = (a for a in usable(authorities, now) if a.start > issuer.start)
    ends = [last_leaf_ends(a, terms) for a in newer] + [issuer.certificate.not_valid_after_utc]
    return min(terms.serving_life_s, (min(ends) - now).total_seconds())


def is_obsolete(authority: Authority, issuer: Authority, now: datetime, terms: Terms) -> bool:
    """Return whether no valid leaf of this CA can exist any more."""
    if not authority.ours or authority is issuer:
        return False
    if authority.certificate.not_valid_after_utc < now:
        return True
    return authority.start < issuer.start and now >= last_leaf_ends(issuer, terms)
