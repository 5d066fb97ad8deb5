"""Rules about changes to a pod after its creation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.admission.accounting import counted_limits
from webhook.core.admission.rules.isolation import defeating, mounted_volumes_of_ours
from webhook.core.nvidia.variables import (
    VISIBLE_DEVICES_ENV,
    chooses_devices,
    limits_memory,
    sees_no_gpu,
)
from webhook.core.pod.demand import read_demand
from webhook.core.pod.fields import items, text
from webhook.core.pod.findings import Finding, Reason, annotation_path, quoted
from webhook.core.pod.views import read_containers
from webhook.names import (
    ADMITTED_ANNOTATION,
    ASKING_ANNOTATIONS,
    BINDING_ANNOTATIONS,
    DEFAULT_CONTAINER_ANNOTATION,
    ENFORCER_CONTAINER,
    MANAGED_LABEL,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.admission.rules.case import Case
    from webhook.core.pod.views import Container, Pod

_FIXED_ANNOTATIONS: Final = (*ASKING_ANNOTATIONS, ADMITTED_ANNOTATION, *BINDING_ANNOTATIONS)


def immutable(case: Case) -> Iterator[Finding]:
    """Rule: a demand, our marks and the sidecar stay as they were admitted.

    Fields: our annotations and label; limits[vram]; image and resources of vram-enforcer;
    the annotation of the default container, where another would make the demand ambiguous
    Allowed values: those of the pod before the update
    """
    old, new = case.old, case.pod
    keys = [*_FIXED_ANNOTATIONS]
    if read_demand(new)[1] and not read_demand(old)[1]:
        # It says which container an annotation's VRAM is for, and would now contradict the amounts.
        keys.append(DEFAULT_CONTAINER_ANNOTATION)
    for key in keys:
        yield from _unchanged(
            annotation_path(key), old.annotations.get(key), new.annotations.get(key)
        )
    path = f"metadata.labels[{MANAGED_LABEL}]"
    yield from _unchanged(path, old.labels.get(MANAGED_LABEL), new.labels.get(MANAGED_LABEL))
    amounts = {container.name: counted_limits(container) for container in old.containers}
    for container in new.containers:
        known = amounts.get(container.name, {})
        for resource, limit in counted_limits(container).items():
            path = f"{container.path}.resources.limits[{resource}]"
            yield from _unchanged(path, known.get(resource), limit)
    before = {container.field: container for container in old.enforcers}
    for container in new.enforcers:
        ours = before.get(container.field)
        for field in ("image", "resources"):
            if ours is not None and container.raw.get(field) != ours.raw.get(field):
                detail = "the sidecar that holds the VRAM cap cannot be changed; leave it as it is"
                yield Finding(Reason.IMMUTABLE, f"{container.path}.{field}", detail)


def _unchanged(path: str, before: str | None, after: str | None) -> Iterator[Finding]:
    if before == after:
        return
    if before is None:
        what = f"cannot be added ({quoted(after)})"
    elif after is None:
        what = f"cannot be removed (it was {quoted(before)})"
    else:
        what = f"cannot change from {quoted(before)} to {quoted(after)}"
    detail = f"{what} on a pod that exists; delete the pod and create it again with the new value"
    yield Finding(Reason.IMMUTABLE, path, detail)


def new_debuggers(old: Pod, new: Pod) -> list[Container]:
    """Return the debugging containers that an update adds; those that exist cannot change."""
    known = {container.name for container in read_containers(old.spec, "ephemeralContainers")}
    return [
        container
        for container in read_containers(new.spec, "ephemeralContainers")
        if container.name not in known
    ]


def debugging_containers(case: Case) -> Iterator[Finding]:
    """Rule: a debugging container of a managed pod neither sees GPUs nor defeats the cap.

    Fields: spec.ephemeralContainers[*]
    Allowed values: no GPU variables, none that might come from elsewhere, not privileged, no
    defeating capability, another target than the sidecar
    """
    for container in new_debuggers(case.old, case.pod):
        # Translation will set NVIDIA_VISIBLE_DEVICES, which beats `envFrom`.
        hidden = case.mutating or any(map(chooses_devices, container.env()))
        if items(container.raw, "envFrom", container.path) and not hidden:
            detail = f"it might set {VISIBLE_DEVICES_ENV}; set that variable to void beside it"
            yield Finding(Reason.EPHEMERAL_CONTAINER, f"{container.path}.envFrom", detail)
        for index, entry in enumerate(container.env()):
            if not sees_no_gpu(entry) or limits_memory(entry):
                detail = f"{entry['name']} shows a debugging container the GPU; remove it"
                yield Finding(Reason.EPHEMERAL_CONTAINER, f"{container.path}.env[{index}]", detail)
        for path, what in defeating(container, with_capabilities=True):
            detail = f"{what}, which defeats the VRAM cap; use kubectl debug --profile=baseline"
            yield Finding(Reason.EPHEMERAL_CONTAINER, path, detail)
        for path in mounted_volumes_of_ours(container):
            detail = "the volume belongs to the sidecar that holds the VRAM cap; remove the mount"
            yield Finding(Reason.EPHEMERAL_CONTAINER, path, detail)
        path = f"{container.path}.targetContainerName"
        if text(container.raw, "targetContainerName", container.path) == ENFORCER_CONTAINER:
            detail = "the sidecar that holds the cap cannot be debugged; choose another --target"
            yield Finding(Reason.EPHEMERAL_CONTAINER, path, detail)
