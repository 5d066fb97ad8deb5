"""Labels of namespaces, of which only those are kept that somebody asks for.

Who may label a namespace could fill the memory otherwise. Rights: list on `namespaces`, or get on
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.client import Kube, core_path

Labelled = tuple[str, Mapping[str, str] | None]

PATH: Final = core_path("namespaces")
_NONE: Final[Mapping[str, str]] = {}


def labelled(found: Json, wanted: AbstractSet[str]) -> Labelled:
    """Return a namespace's name and those of its labels that are wanted; None if it is unread."""
    name = str(found["metadata"]["name"])
    if type(found.get("spec")) is not dict:  # it was too large to be read
        return name, None
    labels = found["metadata"].get("labels") or {}
    return name, {key: labels[key] for key in wanted & labels.keys()} or _NONE


def read_labels(
    kube: Kube, namespace: str, wanted: AbstractSet[str]
) -> dict[str, Mapping[str, str] | None]:
    """Return the wanted labels of a namespace, or of each for ""; raises KubeError."""
    if not namespace:
        return dict(kube.list_all(PATH, lambda found: labelled(found, wanted)))
    found = kube.find(core_path("namespaces", namespace))
    return dict([labelled(found, wanted)] if found else [])
