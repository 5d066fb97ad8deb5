"""All pods that have not finished and all nodes, read with the user's own rights.

Rights: list on `pods` and `nodes`. Only what is kept of an object stays in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webhook.adapters.kube.client import joined
from webhook.tools.shared.once import once
from webhook.tools.shared.read import NOT_ENDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.client import Kube, KubeError

    Json = dict[str, Any]


def read_pods(kube: Kube, keep: Callable[[Json], None]) -> None:
    """Hand each pod that has not finished to `keep`, once; raises KubeError."""
    kube.list_all(joined("pods"), once(keep), fieldSelector=NOT_ENDED)


def read_nodes(kube: Kube, keep: Callable[[Json], None]) -> None:
    """Hand each node to `keep`, once; raises KubeError."""
    kube.list_all(joined("nodes"), once(keep))


def why_unlisted(error: KubeError) -> str:
    """Say why pods or nodes cannot be read, and what to do."""
    if error.forbidden:
        return (
            "you may not list pods of all namespaces, or nodes; ask an administrator for the "
            "output of `kubectl get nodes,pods -A -o json`, and pass it: "
            "vramwarden simulate --today --nodes FILE"
        )
    return str(error)
