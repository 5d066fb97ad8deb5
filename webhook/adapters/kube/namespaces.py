"""Labels of namespaces; only labels that the policy uses are kept.

Otherwise a user who may label a namespace could fill the memory. Required verbs: list on
`namespaces`, or get on one namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.client import Kube, core_path

NamespaceLabels = tuple[str, Mapping[str, str] | None]

PATH: Final = core_path("namespaces")
_NONE: Final[Mapping[str, str]] = {}


def select_labels(found: Json, wanted: AbstractSet[str]) -> NamespaceLabels:
    """Return a namespace's name and its wanted labels, or None if it was too large to read."""
    name = str(found["metadata"]["name"])
    if type(found.get("spec")) is not dict:  # see `read_identity`
        return name, None
    labels = found["metadata"].get("labels") or {}
    return name, {key: labels[key] for key in wanted & labels.keys()} or _NONE


def read_labels(
    kube: Kube, namespace: str, wanted: AbstractSet[str]
) -> dict[str, Mapping[str, str] | None]:
    """Return the wanted labels of one namespace, or of all if empty; raises KubeError."""
    if not namespace:
        return dict(kube.list_all(PATH, lambda found: select_labels(found, wanted)))
    found = kube.find(core_path("namespaces", namespace))
    return dict([select_labels(found, wanted)] if found else [])
