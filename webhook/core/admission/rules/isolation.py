"""Rules that keep a pod's processes under the sidecar's control, and away from the node."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any, Final

from webhook.core.admission.sidecar.container import VOLUME_NAMES
from webhook.core.admission.sidecar.recognition import is_enforcer, is_enforcers_volume
from webhook.core.pod.fields import flag, items, mapping, text, texts
from webhook.core.pod.findings import (
    Finding,
    Reason,
    annotation_path,
    quoted,
)
from webhook.names import (
    ADMITTED_ANNOTATION,
    BINDING_ANNOTATIONS,
    ENFORCER_CONTAINER,
    GPU_MEMORY_ANNOTATION,
    MANAGED_LABEL,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from webhook.core.admission.rules.case import Case
    from webhook.core.pod.fields import Json
    from webhook.core.pod.views import Container

# With these a container reaches devices, or the sidecar, whatever user it runs as.
_DEFEATING_CAPABILITIES: Final = frozenset(
    {"ALL", "BPF", "KILL", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO"}
)
_MARKS: Final = (ADMITTED_ANNOTATION, *BINDING_ANNOTATIONS)
_HARMLESS_UNDER_DEV: Final = ("/dev/shm", "/dev/hugepages")  # noqa: S108 - host paths, not files


def privileged_pod(case: Case) -> Iterator[Finding]:
    """Rule: no container can reach a GPU that it was not given, or stop the sidecar.

    Fields: spec.[initContainers,containers][*].securityContext, spec.volumes[*].hostPath.path
    Allowed values: not privileged; no added capability that defeats the cap; no host path that
    holds devices
    """
    with_capabilities = case.tier.in_pod
    for container in case.pod.containers:
        for path, what in defeating(container, with_capabilities=with_capabilities):
            detail = f"{what}, which defeats the VRAM cap; remove it"
            yield Finding(Reason.PRIVILEGED_CONTAINER, path, detail)
    for index, volume in enumerate(items(case.pod.spec, "volumes", "spec")):
        if volume.get("hostPath") is None:
            continue
        path = f"spec.volumes[{index}].hostPath"
        host_path = text(mapping(volume, "hostPath", f"spec.volumes[{index}]"), "path", path)
        if host_path and _holds_devices(host_path):
            detail = f"{quoted(host_path)} gives the pod the node's devices; remove the volume"
            yield Finding(Reason.PRIVILEGED_CONTAINER, f"{path}.path", detail)


def defeating(container: Container, *, with_capabilities: bool) -> list[tuple[str, str]]:
    """Return the path of each security setting that defeats the cap, and what it grants."""
    context = container.security_context()
    found: list[tuple[str, str]] = []
    if not context:
        return found
    path = f"{container.path}.securityContext"
    if flag(context, "privileged", path):
        found.append((f"{path}.privileged", f"container {quoted(container.name)} is privileged"))
    capabilities = mapping(context, "capabilities", path)
    for index, name in enumerate(texts(capabilities, "add", f"{path}.capabilities")):
        bare = name.upper().removeprefix("CAP_")
        if bare in _DEFEATING_CAPABILITIES and with_capabilities:
            what = f"container {quoted(container.name)} adds the capability {bare}"
            found.append((f"{path}.capabilities.add[{index}]", what))
    return found


def _holds_devices(host_path: str) -> bool:
    path = posixpath.normpath("/" + host_path.lstrip("/"))
    if path in {"/", "/dev"}:
        return True
    harmless = path in _HARMLESS_UNDER_DEV or path.startswith(
        tuple(f"{allowed}/" for allowed in _HARMLESS_UNDER_DEV)
    )
    return path.startswith("/dev/") and not harmless


def reserved_names(case: Case) -> Iterator[Finding]:
    """Rule: the sidecar's name and those of its volumes are ours, judged by content.

    Fields: spec.[initContainers,containers][*], spec.volumes[*]
    Allowed values: the container runs the enforcer's command, in a pod that asks for VRAM; the
    volumes are empty, or show annotations. So is what any release of ours wrote, and translation
    replaces it.
    """
    pod = case.pod
    for container in pod.enforcers:
        if not (case.asks and is_enforcer(container)):
            detail = f"the name {ENFORCER_CONTAINER} is reserved; give the container another name"
            yield Finding(Reason.RESERVED_NAME, f"{container.path}.name", detail)
    for index, volume in _named_as_ours(pod.spec, "volumes", "spec"):
        if not is_enforcers_volume(volume):
            detail = f"the volume name {volume['name']} is reserved; give the volume another name"
            yield Finding(Reason.RESERVED_NAME, f"spec.volumes[{index}].name", detail)
    for container in pod.containers:
        for path in mounted_volumes_of_ours(container):
            detail = "the volume belongs to the sidecar that holds the VRAM cap; remove the mount"
            yield Finding(Reason.RESERVED_NAME, path, detail)


def reserved_marks(case: Case) -> Iterator[Finding]:
    """Rule: only what we admitted bears our marks: the label selects the pods that are counted.

    Fields: metadata.labels[vramwarden.io/managed], the annotations admitted, gpu, visible-devices,
    gpu-memory-fraction and gpu-waits
    Allowed values: absent in a pod without a demand; with one they are written anew
    """
    pod = case.pod
    paths = [f"metadata.labels[{MANAGED_LABEL}]"] if MANAGED_LABEL in pod.labels else []
    paths += [annotation_path(key) for key in _MARKS if key in pod.annotations]
    for path in paths:
        detail = (
            "only vramwarden writes this, on pods that ask for VRAM; remove it, or ask with the "
            f"annotation {GPU_MEMORY_ANNOTATION}"
        )
        yield Finding(Reason.RESERVED_NAME, path, detail)


def mounted_volumes_of_ours(container: Container) -> list[str]:
    """Return the path of each mount of the sidecar's volumes: a forged heartbeat."""
    ours = _named_as_ours(container.raw, "volumeMounts", container.path)
    return [f"{container.path}.volumeMounts[{index}].name" for index, _ in ours]


def _named_as_ours(holder: Mapping[str, Any], key: str, path: str) -> list[tuple[int, Json]]:
    """Return the entries of a list that bear the name of a volume of the sidecar's, by index."""
    found = []
    for index, entry in enumerate(items(holder, key, path)):
        name = entry.get("name")
        # Of most entries nothing more is read, and no path is built.
        if (type(name) is not str or name in VOLUME_NAMES) and text(
            entry, "name", path, f"{key}[{index}]"
        ):
            found.append((index, entry))
    return found
