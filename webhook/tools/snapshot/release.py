"""Policy in force and scope of the webhook, read with the user's rights.

The API server does not call the webhook for pods of namespaces that its configuration exempts.
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
from webhook.tools.snapshot.cluster import ClusterSnapshot
from webhook.tools.snapshot.facts import asking
from webhook.tools.snapshot.objects import FactUnavailable, holds

POLICIES: Final = "vramwarden-policies"
"""The chart's ConfigMap with the policy in force."""
SENTRY_NAMESPACE: Final = "vramwarden-sentry"
_NAME_LABEL: Final = "kubernetes.io/metadata.name"
_PATTERN: Final = re.compile(r"""!request\.namespace\.matches\('\^\(([a-z0-9.*|-]+)\)\$'\)""")
"""Names with a `*` as the chart writes them; an expression of another form is not evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Namespaces about which the API server calls the webhook."""

    names: tuple[str, ...] = ()
    """Exempt names; `*` is any text."""
    expressions: tuple[Json, ...] = field(default=(), repr=False)
    """Requirements that the labels of all others meet."""
    release: str = DEFAULT_NAMESPACE
    """Namespace of the release, by the Service in the configuration."""

    @property
    def labels(self) -> frozenset[str]:
        """Keys of the labels in the requirements, without the label of the name."""
        keys = (find_string(one, "key") for one in self.expressions)
        return frozenset(keys) - {_NAME_LABEL}

    def exempts(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """Return True if a namespace is exempt; labels that are unknown count as absent."""
        if matches_any(namespace, self.names):
            return True
        has = add_name_label(namespace, {**(labels or {})})
        return not all(holds(one, has.get(str(one.get("key")))) for one in self.expressions)


def own_configurations(kube: Kube, kind: str) -> list[Json]:
    """Return our webhook configurations of a kind, in the order of their names; raises KubeError.

    They are recognized by the names of their webhooks, since their own name is a value.
    """

    def keep(found: Json) -> Json | None:
        names = (find_string(hook, "name") for hook in as_objects(found.get("webhooks")))
        return found if any(name.endswith(f".{API_GROUP}") for name in names) else None

    found = kube.list_all(KINDS[kind], keep)
    return sorted(found, key=lambda one: find_string(one, "metadata", "name"))


def read_scope(kube: Kube) -> Scope | None:
    """Return the scope of our webhook configuration; None without one; raises FactUnavailable."""
    read = partial(own_configurations, kube, "MutatingWebhookConfiguration")
    found = asking("list mutatingwebhookconfigurations", read)
    if not found:
        return None
    hooks = as_objects(found[-1].get("webhooks"))
    selector = as_object(hooks[0].get("namespaceSelector"))
    equal = as_object(selector.get("matchLabels"))
    conditions = (one for hook in hooks for one in as_objects(hook.get("matchConditions")))
    written = (find_string(one, "expression") for one in conditions)
    patterns = (match[1] for text in written if (match := _PATTERN.search(text)))
    names = {one.replace(".*", "*") for pattern in patterns for one in pattern.split("|")}
    return Scope(
        names=tuple(sorted(names)),
        expressions=(
            *({"key": key, "operator": "In", "values": [equal[key]]} for key in equal),
            *as_objects(selector.get("matchExpressions")),
        ),
        release=str(find_object(hooks[0], "clientConfig", "service").get("namespace") or "")
        or DEFAULT_NAMESPACE,
    )


def usual_scope(release: str = DEFAULT_NAMESPACE) -> Scope:
    """Return the chart's default: exempt are the release and what the shipped policy ignores."""
    shipped = load_policy(
        shipped_policy_path(), enforcer_image=default_enforcer_image(), run_examples=False
    )
    first = next(rule for rule in shipped.rules if rule.action is Action.IGNORE)
    return Scope(names=(*first.match.namespaces, release, SENTRY_NAMESPACE), release=release)


def read_policy(kube: Kube, release: str, enforcer_image: str | None = None) -> Policy | None:
    """Return the policy in force; None if a namespace has none.

    `enforcer_image` is part of the policy's digest; None for the command's default.
    Raises PolicyInvalidError, KubeError.
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
    """Rules by which new pods of a namespace, or of all, are admitted."""

    policy: Policy | None
    """None if it is unknown."""
    scope: Scope | None
    """None if it is unknown: then no namespace counts as exempt."""
    cluster: Cluster = UNKNOWN_CLUSTER
    """Labels of the namespaces, for which policy and scope ask."""
    why_no_labels: str = ""
    """Reason why these labels could not be read; empty if they could."""

    def exempts(self, namespace: str) -> bool:
        """Return True if the API server does not call the webhook for pods of a namespace."""
        labels = self.cluster.labels_for(namespace)
        return self.scope is not None and self.scope.exempts(namespace, labels)


def read_rules(
    kube: Kube, namespace: str, policy: Policy | None, scope: Scope | None
) -> AdmissionRules:
    """Return the rules with the labels of a namespace, or of all for ""."""
    keys = {*(policy.namespace_labels if policy else ()), *(scope.labels if scope else ())}
    rules = AdmissionRules(policy=policy, scope=scope)
    if not keys:
        return rules
    try:
        verb = "get" if namespace else "list"
        labels = asking(f"{verb} namespaces", partial(read_labels, kube, namespace, keys))
    except FactUnavailable as error:
        return replace(rules, why_no_labels=error.why)
    return replace(rules, cluster=Cluster(namespaces=labels))


def read_rules_in_force(snapshot: ClusterSnapshot) -> AdmissionRules:
    """Return the rules of the release, as far as the user may read them."""
    kube, policy = snapshot.kube, None
    scope = snapshot.attempt(partial(read_scope, kube))
    with suppress(PolicyInvalidError):
        release = scope.release if scope else DEFAULT_NAMESPACE
        policy = snapshot.attempt(
            lambda: asking("get configmaps", lambda: read_policy(kube, release))
        )
    return read_rules(kube, snapshot.namespace, policy, scope)
