"""Issue, check, renew and rotate the certificates a webhook is served with.

Rooms, each importing only those below it::

    stores    where a set lies: folder (read, ensure, load_into, stamp), swap; share (Replica)
    rotation  pure decisions: authority, rotate (advance, announce), replica (due)
    pki       pem, names, issue, check: certificates and sets as values

``stores.folder`` and ``stores.swap`` do I/O; everything else works on values. Time is an argument:
an aware datetime in UTC. Nothing here logs or prints.
"""

from certs.pki.check import (
    CertificateStatus,
    Status,
    days_left,
    describe,
    needs_renewal,
    problems,
    renewal_due,
)
from certs.pki.issue import issue_ca, issue_serving
from certs.pki.names import service_names
from certs.pki.pem import Bundle, CertificatesError, Pair, derived_secret
from certs.rotation.authority import Terms, uses
from certs.rotation.replica import Configuration, Publish, Store, StoredBundle, holds
from certs.rotation.rotate import Advance, SetAction, advance, announce
from certs.stores.folder import ensure, load_into, load_set_into, read, stamp
from certs.stores.share import ConflictError, Replica, Round, SharedCluster

__all__ = [
    "Advance",
    "Bundle",
    "CertificateStatus",
    "CertificatesError",
    "Configuration",
    "ConflictError",
    "Pair",
    "Publish",
    "Replica",
    "Round",
    "SetAction",
    "SharedCluster",
    "Status",
    "Store",
    "StoredBundle",
    "Terms",
    "advance",
    "announce",
    "days_left",
    "derived_secret",
    "describe",
    "ensure",
    "holds",
    "issue_ca",
    "issue_serving",
    "load_into",
    "load_set_into",
    "needs_renewal",
    "problems",
    "read",
    "renewal_due",
    "service_names",
    "stamp",
    "uses",
]
