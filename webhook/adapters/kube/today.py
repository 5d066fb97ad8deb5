"""All pods that have not finished and all nodes, read with the user's own rights.

Rights: list on `pods` and `nodes`. Only what is kept of an object stays in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from webhook.adapters.kube.client import joined
from webhook.adapters.kube.seeing import NOT_ENDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.client import Kube, KubeError

    Json = dict[str, Any]

T = TypeVar("T")


def list_pods(kube: Kube, keep: Callable[[Json], T]) -> list[T]:
    """Return what `keep` makes of each pod that has not finished; raises KubeError."""
    return kube.list_all(joined("pods"), keep, fieldSelector=NOT_ENDED)[0]


def list_nodes(kube: Kube, keep: Callable[[Json], T]) -> list[T]:
    """Return what `keep` makes of each node; raises KubeError."""
    return kube.list_all(joined("nodes"), keep)[0]


def why_unlisted(error: KubeError) -> str:
    """Say why pods or nodes cannot be read, and what to do."""
    if error.forbidden:
        return (
            "you may not list pods of all namespaces, or nodes; ask an administrator for the "
            "output of `kubectl get nodes,pods -A -o json`, and pass it: "
            "vramwarden simulate --today --nodes FILE"
        )
    return str(error)
