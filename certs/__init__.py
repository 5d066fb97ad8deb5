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
    memory     load_set_into: a set into a TLS context, without a disk
    status     describe, status: what a person or a metric wants to know
    trust      what belongs into a caBundle, and what it is good for
    replica    due, to_serve: what one of several replicas does next, as a pure decision
    share      Replica: the decision applied to a cluster, step by step
    cluster    KubernetesCluster: a Secret and webhook configurations, by the official client

``swap``, ``folder`` and ``cluster`` do I/O; everything else works on values. Time is an argument:
an aware datetime in UTC. Nothing here logs or prints.
"""

from certs.authority import Terms
from certs.check import days_left, needs_renewal, problems, renewal_due
from certs.cluster import KubernetesCluster, connect
from certs.errors import CertificatesError
from certs.folder import ensure, load_into, read, stamp
from certs.issue import issue_ca, issue_serving
from certs.memory import load_set_into
from certs.names import service_names
from certs.pem import Bundle, Pair
from certs.replica import Publish, Store, Stored
from certs.rotate import Action, Outcome, advance, announce
from certs.share import Cluster, ConflictError, Replica, Round
from certs.status import CertificateStatus, Status, describe, status
from certs.trust import Configuration, holds

__all__ = [
    "Action",
    "Bundle",
    "CertificateStatus",
    "CertificatesError",
    "Cluster",
    "Configuration",
    "ConflictError",
    "KubernetesCluster",
    "Outcome",
    "Pair",
    "Publish",
    "Replica",
    "Round",
    "Status",
    "Store",
    "Stored",
    "Terms",
    "advance",
    "announce",
    "connect",
    "days_left",
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
    "status",
]
