"""Changes that other products' webhooks and plugins make to new pods, and pods to change.

A change is idempotent, as Kubernetes requires of webhooks that may be called again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from tests.support.paths import GOLDEN
from tests.support.pods import a_container, a_policy, a_request
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.names import (
    ADMITTED_ANNOTATION,
    DEFAULT_CONTAINER_ANNOTATION,
    MANAGED_LABEL,
    VRAM_RESOURCE,
)
from webhook.tools.admit.verdicts.creation import as_sent
from webhook.tools.manifests.documents import find_objects, read_documents

Json = dict[str, Any]
MIRROR: Final = "mirror.example/"
ADDED: Final = "linkerd-proxy"
"""Container that webhooks add. It is a known helper, so an unnamed amount does not apply to it."""
ORDERS: Final = [(sorts, again) for sorts in ("before", "after") for again in ("Never", "IfNeeded")]
"""Position of the other webhook relative to vramwarden's, and its reinvocationPolicy."""


def every_container(pod: Json) -> list[Json]:
    return [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]


def _add_container(pod: Json, field: str, *, first: bool, **more: Any) -> None:
    found = pod["spec"].get(field) or []
    if not any(item["name"] == ADDED for item in found):
        added = a_container(ADDED, **more)
        pod["spec"][field] = [added, *found] if first else [*found, added]


def prepend_container(pod: Json) -> None:
    """Insert a container as the first one, as GCS FUSE and Linkerd do."""
    _add_container(pod, "containers", first=True)


def append_container(pod: Json) -> None:
    _add_container(pod, "containers", first=False)


def prepend_native_sidecar(pod: Json) -> None:
    """Insert a native sidecar as the first init container, as Istio does."""
    _add_container(pod, "initContainers", first=True, restartPolicy="Always")


def append_init_container(pod: Json) -> None:
    _add_container(pod, "initContainers", first=False)


def _add_volume(pod: Json, volume: Json, mount_path: str) -> None:
    volumes = pod["spec"].get("volumes") or []
    if not any(found_volume["name"] == volume["name"] for found_volume in volumes):
        pod["spec"]["volumes"] = [volume, *volumes]
    mount = {"name": volume["name"], "mountPath": mount_path, "readOnly": True}
    for container in every_container(pod):
        mounts = container.get("volumeMounts") or []
        if mount not in mounts:
            container["volumeMounts"] = [mount, *mounts]


def mount_credentials(pod: Json) -> None:
    """Mount a volume into every container, as cloud providers do."""
    _add_volume(pod, {"name": "cloud", "emptyDir": {}}, "/var/run/secrets/cloud")


def mount_host_path(pod: Json) -> None:
    """Mount a folder of the node into every container, as Datadog does."""
    volume = {"name": "agent", "hostPath": {"path": "/var/run/agent"}}
    _add_volume(pod, volume, "/var/run/secrets/agent")


def prepend_variable(pod: Json) -> None:
    """Insert an environment variable as the first one of every container."""
    entry = {"name": "OTEL_SERVICE_NAME", "value": "x"}
    for container in every_container(pod):
        env = container.get("env") or []
        if entry not in env:
            container["env"] = [entry, *env]


def default_storage(pod: Json) -> None:
    """Set default amounts for containers, as a LimitRange does."""
    for container in every_container(pod):
        resources = container["resources"] = container.get("resources") or {}
        for kind in ("requests", "limits"):
            resources[kind] = {"ephemeral-storage": "2Gi", **(resources.get(kind) or {})}


def default_gpu(pod: Json) -> None:
    """Set a default of one whole GPU per container, as a LimitRange with a maximum does."""
    for container in every_container(pod):
        resources = container["resources"] = container.get("resources") or {}
        for kind in ("requests", "limits"):
            resources[kind] = {"nvidia.com/gpu": "1", **(resources.get(kind) or {})}


def mirror_images(pod: Json) -> None:
    """Replace the images' registry, as Kyverno does."""
    for container in every_container(pod):
        if not container["image"].startswith(MIRROR):
            container["image"] = MIRROR + container["image"]


def pin_images(pod: Json) -> None:
    """Replace image tags by digests, as Kyverno does."""
    for container in every_container(pod):
        if "@" not in container["image"]:
            container["image"] += f"@sha256:{'a' * 64}"


def wrap_commands(pod: Json) -> None:
    """Start each container through another program, as Vault's webhook does."""
    for container in every_container(pod):
        command = container.get("command") or []
        if command[:1] != ["/vault-env"]:
            container["command"] = ["/vault-env", *command]


def annotate(pod: Json) -> None:
    """Add an annotation and a label, and set the default container, as Istio does."""
    metadata = pod["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), "other": "yes"}
    first = pod["spec"]["containers"][0]["name"]
    notes = {"other/seen": "yes", DEFAULT_CONTAINER_ANNOTATION: first}
    metadata["annotations"] = {**notes, **(metadata.get("annotations") or {})}


def copy_marks(pod: Json) -> None:
    """Add vramwarden's marks, which prove nothing."""
    metadata = pod["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), MANAGED_LABEL: "true"}
    notes = metadata.get("annotations") or {}
    metadata["annotations"] = {ADMITTED_ANNOTATION: "v1 other 0123456789ab", **notes}


CHANGES: Final[dict[str, Callable[[Json], None]]] = {
    change.__name__: change
    for change in (
        *(prepend_container, append_container, prepend_native_sidecar, append_init_container),
        *(mount_credentials, mount_host_path, prepend_variable, default_storage, default_gpu),
        *(mirror_images, pin_images, wrap_commands, annotate, copy_marks),
    )
}


def changed(pod: Json, name: str) -> Json:
    pod = copy.deepcopy(pod)
    CHANGES[name](pod)
    return pod


def is_denied(name: str, sorts: str, again: str, *, has_sidecar: bool = True) -> bool:
    """Return True if the changed pod is denied because it would be unsafe or never start."""
    if name in {"mirror_images", "pin_images"}:  # the other webhook changes the sidecar last
        return has_sidecar and (sorts, again) == ("after", "IfNeeded")
    if name == "wrap_commands":
        return has_sidecar and (sorts, again) != ("before", "Never")
    return name in {"mount_host_path", "default_gpu"}


def names_another_webhook(message: str) -> bool:
    """Return True if a message mentions that another webhook may have changed the pod."""
    return "another webhook" in message


def holders(pod: Json) -> dict[str, str]:
    """Return the VRAM amounts, keyed by container."""
    limits = (
        (item["name"], (item.get("resources") or {}).get("limits")) for item in every_container(pod)
    )
    return {name: found[VRAM_RESOURCE] for name, found in limits if VRAM_RESOURCE in (found or {})}


def golden_pods() -> dict[str, Json]:
    """Return the distinct mutated pods of the golden cases, keyed by case and number."""
    found: dict[str, Json] = {}
    for path in sorted(GOLDEN.glob("*/input.yaml")):
        documents = read_documents(path.read_text())
        objects = [found for document in documents for found in find_objects(document.value)]
        targets = [target for found in objects for target in found.targets()]
        for number, target in enumerate(targets):
            pod = as_sent(target.pod)
            pod["metadata"] = {
                key: value
                for key, value in pod.get("metadata", {}).items()
                if "name" not in key.lower()
            }
            decision = decide(a_request(pod), a_policy(), UNKNOWN_CLUSTER, Phase.MUTATE)
            if decision.outcome is Outcome.MUTATED and pod not in found.values():
                found[f"{path.parent.name}-{number}"] = pod
    return found
