"""Events about objects, as `kubectl describe` shows them.

The older half of the API's fields alone (`count`, `firstTimestamp`), as kubelets write them: with
`eventTime` the API server demands a reporting instance and an action besides
(pkg/apis/core/validation/events.go).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.kube.client import FIELD_MANAGER, joined

if TYPE_CHECKING:
    from webhook.adapters.kube.client import Kube

    Json = dict[str, Any]

OF_NODES: Final = "default"
"""The namespace in which events of objects without one are."""
LONGEST_MESSAGE: Final = 1024
"""Characters, of an event's message."""
_LONGEST_PREFIX: Final = 240  # of a generated name, which the API server adds to


def write_event(
    kube: Kube,
    about: Json,
    reason: str,
    sentence: str,
    *,
    warning: bool = True,
    reporter: tuple[str, str] = ("", ""),
) -> None:
    """Write an event about an object, given as an ObjectReference; raises KubeError.

    `reason` is one word in UpperCamelCase; `reporter` a controller and the name of its instance.
    """
    namespace = about.get("namespace") or OF_NODES
    at = datetime.fromtimestamp(kube.now_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    event: Json = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{about['name'][:_LONGEST_PREFIX]}.", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", **about},
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": sentence[:LONGEST_MESSAGE],
        "source": {"component": FIELD_MANAGER},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
    if any(reporter):
        event["reportingComponent"], event["reportingInstance"] = reporter
    kube.create(joined("namespaces", namespace, "events"), event)


def node_reference(name: str) -> Json:
    """Name a node as kubelets do in their events: its name stands for its UID, too."""
    return {"kind": "Node", "name": name, "uid": name}
