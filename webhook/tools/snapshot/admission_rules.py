"""Admission rules for new pods: the policy in force, and the exempt namespaces.

The API server does not call the webhook for pods of exempt namespaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from webhook.adapters.kube.certificates import KINDS
from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.namespaces import read_labels
from webhook.adapters.policy.files import (
    PolicyInvalidError,
    load_config_map,
    load_policy,
    shipped_policy_path,
)
from webhook.core.pod.fields import Json, as_object, as_objects, find_object, find_string
from webhook.core.policy.cluster import UNKNOWN_CLUSTER, Cluster
from webhook.core.policy.match import add_name_label, matches_any
from webhook.core.policy.model import Action, Policy
from webhook.names import API_GROUP, DEFAULT_NAMESPACE
from webhook.options import default_enforcer_image
from webhook.tools.snapshot.cluster import read_with_right
from webhook.tools.snapshot.namespace import NamespaceSnapshot
from webhook.tools.snapshot.objects import FactUnavailable, meets_requirement

POLICIES: Final = "vramwarden-policies"
"""Name of the chart's ConfigMap with the policy in force."""
SENTRY_NAMESPACE: Final = "vramwarden-sentry"
_NAME_LABEL: Final = "kubernetes.io/metadata.name"
_PATTERN: Final = re.compile(r"""!request\.namespace\.matches\('\^\(([a-z0-9.*|-]+)\)\$'\)""")
"""Regular expression for exempt namespaces in a matchCondition, as the chart writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Namespaces for which the API server calls the webhook."""

    names: tuple[str, ...] = ()
    """Exempt namespaces; `*` matches any characters."""
    expressions: tuple[Json, ...] = field(default=(), repr=False)
    """Requirements on the labels of all namespaces that are not exempt."""
    release: str = DEFAULT_NAMESPACE
    """Namespace of the release, taken from the Service in the webhook configuration."""

    @property
    def labels(self) -> frozenset[str]:
        """Label keys in the requirements, except the label for the namespace's name."""
        keys = (find_string(expression, "key") for expression in self.expressions)
        return frozenset(keys) - {_NAME_LABEL}

    def exempts(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """Return True if a namespace is exempt; unknown labels count as absent."""
        if matches_any(namespace, self.names):
            return True
        has = add_name_label(namespace, {**(labels or {})})
        return not all(
            meets_requirement(expression, has.get(str(expression.get("key"))))
            for expression in self.expressions
        )


def own_configurations(kube: Kube, kind: str) -> list[Json]:
    """Return vramwarden's webhook configurations of a kind, sorted by name. Raises KubeError.

    Configurations are recognized by the names of their webhooks, since a chart value sets their own
    name.
    """

    def keep(found: Json) -> Json | None:
        names = (find_string(hook, "name") for hook in as_objects(found.get("webhooks")))
        return found if any(name.endswith(f".{API_GROUP}") for name in names) else None

    found = kube.list_all(KINDS[kind], keep)
    return sorted(found, key=lambda configuration: find_string(configuration, "metadata", "name"))


def read_scope(kube: Kube) -> Scope | None:
    """Return the scope of the webhook configuration, or None without a configuration.

    Raises FactUnavailable if the configuration is unreadable.
    """
    read = partial(own_configurations, kube, "MutatingWebhookConfiguration")
    found = read_with_right("list mutatingwebhookconfigurations", read)
    if not found:
        return None
    hooks = as_objects(found[-1].get("webhooks"))
    selector = as_object(hooks[0].get("namespaceSelector"))
    equal = as_object(selector.get("matchLabels"))
    conditions = (
        match_condition
        for hook in hooks
        for match_condition in as_objects(hook.get("matchConditions"))
    )
    written = (find_string(condition, "expression") for condition in conditions)
    patterns = (match[1] for text in written if (match := _PATTERN.search(text)))
    names = {name.replace(".*", "*") for pattern in patterns for name in pattern.split("|")}
    return Scope(
        names=tuple(sorted(names)),
        expressions=(
            *({"key": key, "operator": "In", "values": [equal[key]]} for key in equal),
            *as_objects(selector.get("matchExpressions")),
        ),
        release=str(find_object(hooks[0], "clientConfig", "service").get("namespace") or "")
        or DEFAULT_NAMESPACE,
    )


def default_scope(release: str = DEFAULT_NAMESPACE) -> Scope:
    """Return the chart's default scope: the release and the shipped policy's ignored namespaces."""
    shipped = load_policy(
        shipped_policy_path(), enforcer_image=default_enforcer_image(), run_examples=False
    )
    first = next(rule for rule in shipped.rules if rule.action is Action.IGNORE)
    return Scope(names=(*first.match.namespaces, release, SENTRY_NAMESPACE), release=release)


def read_policy(kube: Kube, release: str, enforcer_image: str | None = None) -> Policy | None:
    """Return the policy in force, or None if the namespace has none.

    `enforcer_image` is part of the policy's digest; None means the command's default. Raises
    PolicyInvalidError or KubeError.
    """
    found = kube.find(core_path("namespaces", release, "configmaps", POLICIES))
    data = as_object(found.get("data")) if found else {}
    texts = {str(name): text for name, text in data.items() if isinstance(text, str)}
    if not texts:
        return None
    image = default_enforcer_image() if enforcer_image is None else enforcer_image
    return load_config_map(texts, f"{release}/{POLICIES}", enforcer_image=image)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """Admission rules for new pods of one namespace, or of all."""

    policy: Policy | None
    """Policy in force; None if unknown."""
    scope: Scope | None
    """Scope of the webhook; None if unknown, and then no namespace counts as exempt."""
    cluster: Cluster = UNKNOWN_CLUSTER
    """Namespace labels that policy and scope use."""
    why_no_labels: str = ""
    """Reason why these labels are unreadable; empty if they were read."""

    def exempts(self, namespace: str) -> bool:
        """Return True if the API server does not call the webhook for pods of the namespace."""
        labels = self.cluster.labels_for(namespace)
        return self.scope is not None and self.scope.exempts(namespace, labels)


def read_rules(
    kube: Kube, namespace: str, policy: Policy | None, scope: Scope | None
) -> AdmissionRules:
    """Return the rules and the labels of a namespace, or of all namespaces for ""."""
    keys = {*(policy.namespace_labels if policy else ()), *(scope.labels if scope else ())}
    rules = AdmissionRules(policy=policy, scope=scope)
    if not keys:
        return rules
    try:
        verb = "get" if namespace else "list"
        labels = read_with_right(f"{verb} namespaces", partial(read_labels, kube, namespace, keys))
    except FactUnavailable as error:
        return replace(rules, why_no_labels=error.why)
    return replace(rules, cluster=Cluster(namespaces=labels))


def read_rules_in_force(snapshot: NamespaceSnapshot) -> AdmissionRules:
    """Return the rules of the release, as far as the user may read them."""
    kube, policy = snapshot.kube, None
    scope = snapshot.attempt(partial(read_scope, kube))
    with suppress(PolicyInvalidError):
        release = scope.release if scope else DEFAULT_NAMESPACE
        policy = snapshot.attempt(
            lambda: read_with_right("get configmaps", lambda: read_policy(kube, release))
        )
    return read_rules(kube, snapshot.namespace, policy, scope)
