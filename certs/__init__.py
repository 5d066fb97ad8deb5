"""Issue, check, renew and rotate the certificates a webhook is served with.

Layers, each importing only those above it::

    errors     CertificatesError: where, what, what to do
    pem        PEM text <-> certificates and keys; the values Bundle and Pair
    names      DNS names and addresses: SANs, service_names
    issue      issue_ca, issue_serving
    check      problems, days_left, renewal_due, needs_renewal
    authority  which CA signs now, which is done with; Terms
    rotate     advance: the set there is -> the set there should be, as a pure decision
    swap       replace several files together
    folder     read, ensure, load_into, stamp: the decision applied to a folder
    status     describe, status: what a person or a metric wants to know

Everything above ``swap`` works on values, so another store (a Kubernetes Secret) is one more
file beside ``folder`` that reads a Bundle, calls ``advance`` and writes a Bundle. Time is always
an argument: an aware datetime in UTC. Nothing here logs or prints.
"""

from certs.authority import Terms
from certs.check import days_left, needs_renewal, problems, renewal_due
from certs.errors import CertificatesError
from certs.folder import ensure, load_into, read, stamp
from certs.issue import issue_ca, issue_serving
from certs.names import service_names
from certs.pem import Bundle, Pair
from certs.rotate import Action, Outcome, advance
from certs.status import CertificateStatus, Status, describe, status

__all__ = [
    "Action",
    "Bundle",
    "CertificateStatus",
    "CertificatesError",
    "Outcome",
    "Pair",
    "Status",
    "Terms",
    "advance",
    "days_left",
    "describe",
    "ensure",
    "issue_ca",
    "issue_serving",
    "load_into",
    "needs_renewal",
    "problems",
    "read",
    "renewal_due",
    "service_names",
    "stamp",
    "status",
]
