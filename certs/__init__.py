"""Issue, check, renew and rotate the certificates of a webhook.

`folder` reads and writes files. Every other module computes values from values: time is an
argument, an aware datetime in UTC, and nothing logs or prints. README.md says where each part is.
"""

from certs.check import CertificateStatus, Status, describe, problems
from certs.folder import create, read, stamp
from certs.issue import issue_ca, issue_serving
from certs.names import service_names
from certs.pem import (
    Bundle,
    CertificatesError,
    Pair,
    derived_secret,
    load_into,
    readable_certificates,
)
from certs.replica import Configuration, Publish, Replica, holds
from certs.rotate import Advance, SetAction, Terms, advance, announce, uses

__all__ = [
    "Advance",
    "Bundle",
    "CertificateStatus",
    "CertificatesError",
    "Configuration",
    "Pair",
    "Publish",
    "Replica",
    "SetAction",
    "Status",
    "Terms",
    "advance",
    "announce",
    "create",
    "derived_secret",
    "describe",
    "holds",
    "issue_ca",
    "issue_serving",
    "load_into",
    "problems",
    "read",
    "readable_certificates",
    "service_names",
    "stamp",
    "uses",
]
