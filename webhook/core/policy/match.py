"""Matches of rules: which pods a rule applies to, by namespace, labels and ServiceAccount.

In all lists of names in a policy, `*` matches any string.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from webhook.names import MAX_QUALIFIED_NAME_LENGTH


class NamespaceUnknownError(Exception):
    """A rule depends on the labels of a namespace that is not known yet."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"the labels of namespace {namespace} are not known yet; try again")


# Not frozen, like `views.Pod`: each review creates one subject.
@dataclass(slots=True, kw_only=True)
class Subject:
    """Properties of a pod that are compared with matches; immutable by convention."""

    namespace: str
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] | None = field(default_factory=dict)
    """Labels of the namespace; None if unknown."""
    service_account: str = "default"


def add_name_label(namespace: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return namespace labels with the name label that the API server sets (KEP-2161)."""
    return {**labels, "kubernetes.io/metadata.name": namespace}


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Criteria of a rule. A pod must meet all of them; every pod meets an empty criterion.

    | criterion | condition |
    | --- | --- |
    | namespaces | the namespace matches one of the patterns |
    | namespace_labels | the namespace has all of these labels, with these values |
    | pod_labels | the pod has all of these labels, with these values |
    | service_accounts | the ServiceAccount's name matches one of the patterns |
    | exception | the pod does not meet this other match |

    `matches` raises NamespaceUnknownError if all other criteria are met and the labels of the
    namespace are unknown: either result might leave a pod without a limit.
    """

    namespaces: tuple[str, ...] = ()
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    service_accounts: tuple[str, ...] = ()
    exception: Match | None = None

    def matches(self, subject: Subject) -> bool:
        """Return True if a pod meets this match. Raises NamespaceUnknownError."""
        accounts = self.service_accounts
        if (
            (self.namespaces and not matches_any(subject.namespace, self.namespaces))
            or (accounts and not matches_any(subject.service_account, accounts))
            or not self.pod_labels.items() <= subject.pod_labels.items()
        ):
            return False
        if self.namespace_labels:  # last: the labels may be unknown if another criterion is not met
            if subject.namespace_labels is None:
                raise NamespaceUnknownError(subject.namespace)
            if not self.namespace_labels.items() <= subject.namespace_labels.items():
                return False
        return self.exception is None or not self.exception.matches(subject)

    def matches_namespace(self, subject: Subject) -> bool:
        """Return True if a pod's namespace meets this match, whatever the pod's own properties.

        An exception that depends on the pod is ignored. Raises NamespaceUnknownError.
        """
        exception = self.exception
        if exception is not None and exception.depends_on_pod:
            exception = None
        of_namespace = replace(self, pod_labels={}, service_accounts=(), exception=exception)
        return of_namespace.matches(subject)

    @property
    def depends_on_pod(self) -> bool:
        """True if the match depends on more than the namespace."""
        return any(match.pod_labels or match.service_accounts for match in self.parts)

    @property
    def parts(self) -> Iterator[Match]:
        """This match, and its exception if it has one."""
        yield self
        if self.exception is not None:
            yield self.exception


def matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    """Return True if a name matches one of the patterns, in which `*` matches any string."""
    # Users choose the names, and a cache of long names would fill the memory.
    return (_matches_cached if len(name) <= MAX_QUALIFIED_NAME_LENGTH else _matches)(name, patterns)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return _compile(patterns).fullmatch(name) is not None


_NOTHING: Final = re.compile("(?!)")
_matches_cached = lru_cache(maxsize=1024)(_matches)


@lru_cache(maxsize=1024)
def _compile(patterns: tuple[str, ...]) -> re.Pattern[str]:
    if not patterns:
        return _NOTHING
    return re.compile("|".join(map(_pattern_regex, patterns)), re.DOTALL)


def _pattern_regex(pattern: str) -> str:
    head, *rest = map(re.escape, pattern.split("*"))
    if not rest:
        return head
    # Atomic groups match the first occurrence of each string, so many stars cost no exponential
    # time.
    middle = "".join(f"(?>.*?{text})" for text in rest[:-1])
    return f"{head}{middle}.*{rest[-1]}"
