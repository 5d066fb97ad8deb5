"""Issue, check, renew and rotate the certificates of a webhook.

Only `folder` reads and writes files. The other modules are pure: the time is an argument, an aware
datetime in UTC, and no function logs or prints. README.md describes the modules.
"""

from certs.check import CertificateStatus, Status, describe, find_problems
from certs.folder import issue_into_folder, read_folder, stamp
from certs.issue import issue_ca, issue_serving, service_names
from certs.pem import (
    Bundle,
    CertificatesError,
    Pair,
    derived_secret,
    load_into,
    readable_certificates,
)
from certs.replica import CaBundleUpdate, Replica, WebhookConfiguration, has_all_authorities
from certs.rotate import RotationPeriods, SetAction, SetUpdate, advance, announce, authority_uses

__all__ = [
    "Bundle",
    "CaBundleUpdate",
    "CertificateStatus",
    "CertificatesError",
    "Pair",
    "Replica",
    "RotationPeriods",
    "SetAction",
    "SetUpdate",
    "Status",
    "WebhookConfiguration",
    "advance",
    "announce",
    "authority_uses",
    "derived_secret",
    "describe",
    "find_problems",
    "has_all_authorities",
    "issue_ca",
    "issue_into_folder",
    "issue_serving",
    "load_into",
    "read_folder",
    "readable_certificates",
    "service_names",
    "stamp",
]
