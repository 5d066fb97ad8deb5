"""Which pods a rule applies to: by where and by whom they are created, and what they are.

Names are compared with patterns in which `*` is any text, here and wherever policies list names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from webhook.names import LONGEST_PAIR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class NamespaceUnknownError(Exception):
    """A rule depends on the labels of a namespace that is not known yet."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"the labels of namespace {namespace} are not known yet; try again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a rule's match is compared with: where, by whom and as what a pod is created."""

    namespace: str
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] | None = field(default_factory=dict)
    """None where they are not known."""
    service_account: str = "default"
    """The name of the pod's own ServiceAccount, in its namespace."""
    user: str = ""
    """Who creates the pod; a controller's account for the pods of a Deployment or a Job."""
    groups: tuple[str, ...] = ()


def with_name(namespace: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return a namespace's labels with the one by which the API server names each (KEP-2161)."""
    return {**labels, "kubernetes.io/metadata.name": namespace}


@dataclass(frozen=True, slots=True, kw_only=True)
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

    Where a namespace's labels are not known and a match depends on them, since all else is met,
    there is no answer: `holds` raises NamespaceUnknownError. Either answer could be the one that
    leaves a pod without a limit.
    """

    namespaces: tuple[str, ...] = ()
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    service_accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    exception: Match | None = None

    def holds(self, subject: Subject) -> bool:
        """Say whether a pod meets this match; raises NamespaceUnknownError."""
        if not self._is_met(subject) or not self._is_met_by_creator(subject):
            return False
        # The labels last: they need not be known for what is not met anyhow.
        if not self._is_met_by_namespace(subject):
            return False
        return self.exception is None or not self.exception.holds(subject)

    def may_hold(self, subject: Subject) -> bool:
        """Say whether a pod meets this match if its creator does; raises NamespaceUnknownError."""
        if not self._is_met(subject) or not self._is_met_by_namespace(subject):
            return False
        exception = self.exception
        return exception is None or exception.asks_who or not exception.holds(subject)

    @property
    def asks_who(self) -> bool:
        """Whether it depends on who creates a pod."""
        return any(match.users or match.groups for match in self.parts)

    @property
    def asks_for_pod(self) -> bool:
        """Whether it depends on what a pod is, and not on its namespace and its creator alone."""
        return any(match.pod_labels or match.service_accounts for match in self.parts)

    @property
    def parts(self) -> Iterator[Match]:
        """This match and its exception, which has none itself."""
        yield self
        if self.exception is not None:
            yield self.exception

    def _is_met(self, subject: Subject) -> bool:
        if self.namespaces and not matches_any(subject.namespace, self.namespaces):
            return False
        accounts = self.service_accounts
        if accounts and not matches_any(subject.service_account, accounts):
            return False
        return not self.pod_labels or self.pod_labels.items() <= subject.pod_labels.items()

    def _is_met_by_creator(self, subject: Subject) -> bool:
        if self.users and not matches_any(subject.user, self.users):
            return False
        return not self.groups or any(matches_any(one, self.groups) for one in subject.groups)

    def _is_met_by_namespace(self, subject: Subject) -> bool:
        if not self.namespace_labels:
            return True
        if subject.namespace_labels is None:
            raise NamespaceUnknownError(subject.namespace)
        return self.namespace_labels.items() <= subject.namespace_labels.items()


def matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    """Say whether a name is in a list of names and `*` patterns."""
    # Names are the user's: long ones, remembered, would fill the memory.
    return (_remembered if len(name) <= LONGEST_PAIR else _matches)(name, patterns)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return _compiled(patterns).fullmatch(name) is not None


_NOTHING: Final = re.compile("(?!)")
_remembered = lru_cache(maxsize=1024)(_matches)


@lru_cache(maxsize=1024)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    if not patterns:
        return _NOTHING
    return re.compile("|".join(map(_expression, patterns)), re.DOTALL)


def _expression(pattern: str) -> str:
    head, *rest = map(re.escape, pattern.split("*"))
    if not rest:
        return head
    # Each text is taken where it first occurs, for good: many stars must not cost exponential time.
    middle = "".join(f"(?>.*?{text})" for text in rest[:-1])
    return f"{head}{middle}.*{rest[-1]}"


_AUTHENTICATED: Final = "system:authenticated"
_CONTROLLERS: Final = {
    "Deployment": "replicaset-controller",
    "ReplicaSet": "replicaset-controller",
    "ReplicationController": "replication-controller",
    "StatefulSet": "statefulset-controller",
    "DaemonSet": "daemon-set-controller",
    "Job": "job-controller",
    "CronJob": "job-controller",
}


@dataclass(frozen=True, slots=True)
class Creator:
    """Who creates a pod, where no review says it, in a namespace with which labels.

    The pods of Kubernetes' own workloads are created by kube-controller-manager, whoever made the
    workload. Each of its controllers has an account of its own where it runs with
    `--use-service-account-credentials`, as kubeadm and most platforms have it, and otherwise all
    are `system:kube-controller-manager`.

    Sources: k8s.io/kubernetes
    plugin/pkg/auth/authorizer/rbac/bootstrappolicy/controller_policy.go (the names of the
    accounts); cmd/kube-controller-manager/app/options/generic.go (the flag).
    """

    user: str = ""
    groups: tuple[str, ...] = ()
    namespace_labels: Mapping[str, str] = field(default_factory=dict)


ANYONE: Final = Creator()


def controllers_of(kind: str) -> tuple[Creator, ...]:
    """Return who may create the pods of a workload of Kubernetes' own, the likeliest first.

    None for a pod, for kinds of others, and for a kind from which nothing is made.
    """
    name = _CONTROLLERS.get(kind)
    return (_service_account(name), _WITHOUT_ACCOUNTS) if name else ()


CONTROLLERS: Final = tuple(sorted({*_CONTROLLERS}))
"""The workloads whose pods a controller of Kubernetes' own creates."""


def _service_account(name: str) -> Creator:
    namespace = "kube-system"
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", _AUTHENTICATED)
    return Creator(f"system:serviceaccount:{namespace}:{name}", groups)


_WITHOUT_ACCOUNTS: Final = Creator("system:kube-controller-manager", (_AUTHENTICATED,))
