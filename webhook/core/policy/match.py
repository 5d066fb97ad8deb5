"""Which pods a rule applies to: by their namespace, labels and ServiceAccount.

Names are compared with patterns in which `*` is any text, here and wherever policies list names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from webhook.names import LONGEST_PAIR


class NamespaceUnknownError(Exception):
    """A rule depends on the labels of a namespace that is not known yet."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"the labels of namespace {namespace} are not known yet; try again")


# Not frozen, as `views.Pod`: each review makes one.
@dataclass(slots=True, kw_only=True)
class Subject:
    """Properties of a pod that a rule's match is compared with; immutable by convention."""

    namespace: str
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] | None = field(default_factory=dict)
    """None if unknown."""
    service_account: str = "default"
    """The name of the pod's own ServiceAccount, in its namespace."""


def add_name_label(namespace: str, labels: Mapping[str, str]) -> dict[str, str]:
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
    | exception | namespace, labels and ServiceAccount do not meet all of these, another match |

    Where a namespace's labels are not known and a match depends on them, since all else is met,
    there is no answer: `holds` raises NamespaceUnknownError. Either answer could be the one that
    leaves a pod without a limit.
    """

    namespaces: tuple[str, ...] = ()
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    service_accounts: tuple[str, ...] = ()
    exception: Match | None = None

    def holds(self, subject: Subject) -> bool:
        """Return True if a pod meets this match; raises NamespaceUnknownError."""
        accounts = self.service_accounts
        if (
            (self.namespaces and not matches_any(subject.namespace, self.namespaces))
            or (accounts and not matches_any(subject.service_account, accounts))
            or not self.pod_labels.items() <= subject.pod_labels.items()
        ):
            return False
        if self.namespace_labels:  # last, since they may be unknown if the rest is not met
            if subject.namespace_labels is None:
                raise NamespaceUnknownError(subject.namespace)
            if not self.namespace_labels.items() <= subject.namespace_labels.items():
                return False
        return self.exception is None or not self.exception.holds(subject)

    def matches_namespace(self, subject: Subject) -> bool:
        """Return True if a pod's namespace meets this match, whatever the pod itself has.

        An exception that depends on the pod itself counts as not met. Raises
        NamespaceUnknownError.
        """
        exception = self.exception
        if exception is not None and exception.depends_on_pod:
            exception = None
        of_namespace = replace(self, pod_labels={}, service_accounts=(), exception=exception)
        return of_namespace.holds(subject)

    @property
    def depends_on_pod(self) -> bool:
        """Whether it depends on more of a pod than its namespace."""
        return any(match.pod_labels or match.service_accounts for match in self.parts)

    @property
    def parts(self) -> Iterator[Match]:
        """This match and its exception, which has none itself."""
        yield self
        if self.exception is not None:
            yield self.exception


def matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    """Say whether a name is in a list of names and `*` patterns."""
    # Names are the user's: long ones, remembered, would fill the memory.
    return (_matches_cached if len(name) <= LONGEST_PAIR else _matches)(name, patterns)


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
    # Each text is taken where it first occurs, for good: many stars must not cost exponential time.
    middle = "".join(f"(?>.*?{text})" for text in rest[:-1])
    return f"{head}{middle}.*{rest[-1]}"
