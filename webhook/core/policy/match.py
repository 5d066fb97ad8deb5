"""Which pods a rule governs: by where and by whom they are created, and what they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from webhook.core.policy.patterns import matches_any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Subject:
    """What rules look at to say whether they govern a pod."""

    namespace: str
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    service_account: str = "default"
    """The name of the pod's own ServiceAccount, in its namespace."""
    user: str = ""
    """Who creates the pod; a controller's account for the pods of a Deployment or a Job."""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Match:
    """The pods that meet every criterion given; one that is empty is met by all.

    | criterion | a pod meets it whose |
    | --- | --- |
    | namespaces | namespace is among the patterns |
    | namespace_labels | namespace has all of these labels, with these values |
    | pod_labels | own labels are all of these, with these values, among others |
    | service_accounts | ServiceAccount's name is among the patterns |
    | users | creator's name is among the patterns |
    | groups | creator is in a group that is among the patterns |
    | exception | namespace, labels and creator do not meet all of these, another match |
    """

    namespaces: tuple[str, ...] = ()
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    service_accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    exception: Match | None = None

    def holds(self, subject: Subject) -> bool:
        """Say whether a pod meets this match.

        What it looks at is part of what `webhook/server/remembered.py` remembers a decision by.
        """
        if self.namespaces and not matches_any(subject.namespace, self.namespaces):
            return False
        return not self.pod_labels or self.pod_labels.items() <= subject.pod_labels.items()
