"""The gate: a mount that delays the creation of a container until its pod has a GPU.

The kubelet creates no container while an environment variable in the `subPathExpr` of one of its
mounts is missing or empty (k8s.io/kubernetes/pkg/kubelet/container/helpers.go,
ExpandContainerVolumeMounts). Meanwhile the kubelet reports `CreateContainerConfigError: missing
value for VRAMWARDEN_GPU_ASSIGNMENT` and retries every ten seconds, and at once when the pod
changes. The variable's value comes from an annotation that is written together with the pod's GPU,
at binding or later.

| placement | enforcement.by | containers with the gate |
| --- | --- | --- |
| Binding | Sidecar | the sidecar, which starts before all others |
| Binding | anything else | each container with VRAM |
| None | any | none |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from webhook.core.pod.fields import Json
from webhook.names import GATE_PATH, GATE_VARIABLE, GATE_VOLUME, GPU_MEMORY_FRACTION_ANNOTATION

_EXPRESSION: Final = f"$({GATE_VARIABLE})"
# All pods share these objects, which never change.
VOLUME: Final[Json] = {
    "name": GATE_VOLUME,
    "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"},
}
"""Volume of the gate. Memory-backed, since cluster-autoscaler does not remove nodes with pods
that use local storage."""
MOUNT: Final[Json] = {
    "name": GATE_VOLUME,
    "mountPath": GATE_PATH,
    "readOnly": True,
    "subPathExpr": _EXPRESSION,
}
VARIABLE: Final[Json] = {
    "name": GATE_VARIABLE,
    "valueFrom": {
        "fieldRef": {
            "apiVersion": "v1",
            "fieldPath": f"metadata.annotations['{GPU_MEMORY_FRACTION_ANNOTATION}']",
        }
    },
}


def is_gate(mount: Json) -> bool:
    """Return True if a mount of the gate's volume is as translation writes it, at any path."""
    return mount.get("readOnly") is True and mount.get("subPathExpr") == _EXPRESSION


def has_gate(container: Mapping[str, Any]) -> bool:
    """Return True if a container has the gate's mount and its variable, each exactly once."""
    return _named(container, "env", GATE_VARIABLE) == [VARIABLE] and (
        _named(container, "volumeMounts", GATE_VOLUME) == [MOUNT]
    )


def has_gate_volume(spec: Mapping[str, Any]) -> bool:
    """Return True if a pod has the gate's volume exactly once."""
    return _named(spec, "volumes", GATE_VOLUME) == [VOLUME]


def _named(holder: Mapping[str, Any], key: str, name: str) -> list[Json]:
    return [entry for entry in holder.get(key) or () if entry.get("name") == name]
