"""Rules about changes to a pod after its creation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.admission.accounting import counted_limit
from webhook.core.admission.rules.complexity import is_managed
from webhook.core.admission.rules.devices import mounts_of_devices
from webhook.core.admission.rules.isolation import (
    DEBUG_PROFILE,
    EVERYBODYS_CAPABILITIES,
    debug_profile,
    defeating,
    like_the_sidecar,
    mounted_volumes_of_ours,
)
from webhook.core.nvidia.variables import (
    VISIBLE_DEVICES_ENV,
    chooses_devices,
    limits_memory,
    sees_no_gpu,
    widens,
)
from webhook.core.pod.demand import read_demand
from webhook.core.pod.fields import items, text
from webhook.core.pod.findings import Finding, Reason, annotation_path, quoted
from webhook.core.pod.views import Change, Container, Pod, read_containers
from webhook.core.policy.values import Isolation, VisibleDevices
from webhook.names import (
    ASKING_ANNOTATIONS,
    DEFAULT_CONTAINER_ANNOTATION,
    ENFORCER_CONTAINER,
    GPU_MEMORY_ANNOTATION,
    MANAGED_LABEL,
    OUR_ANNOTATIONS,
    VRAM_RESOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.admission.rules.case import Case

_WRITTEN_BY_DEVELOPERS: Final = {*ASKING_ANNOTATIONS, DEFAULT_CONTAINER_ANNOTATION, VRAM_RESOURCE}
# No profile of `kubectl debug` asks for KILL, which reaches a sidecar that runs as another user.
_DEBUGGERS_CAPABILITIES: Final = EVERYBODYS_CAPABILITIES - {"KILL"}


def immutable(case: Case) -> Iterator[Finding]:
    """Rule: a demand, our marks and the sidecar stay as they were admitted.

    Fields: our annotations and label; limits[vram]; image and resources of vram-enforcer;
    the annotation of the default container, where another would make the demand ambiguous
    Allowed values: those of the pod before the update
    """
    old, new = case.old, case.pod
    keys = [*OUR_ANNOTATIONS]
    key = DEFAULT_CONTAINER_ANNOTATION
    named_other = old.annotations.get(key) != new.annotations.get(key)
    if named_other and read_demand(new)[1] and not read_demand(old)[1]:
        # It says which container an annotation's VRAM is for, and would now contradict the amounts.
        keys.append(key)
    for key in keys:
        yield from _unchanged(
            case, annotation_path(key), old.annotations.get(key), new.annotations.get(key), key
        )
    path = f"metadata.labels[{MANAGED_LABEL}]"
    yield from _unchanged(case, path, old.labels.get(MANAGED_LABEL), new.labels.get(MANAGED_LABEL))
    limits = {container.name: counted_limit(container) for container in old.containers}
    for container in new.containers:
        path = f"{container.path}.resources.limits[{VRAM_RESOURCE}]"
        before, after = limits.get(container.name), counted_limit(container)
        yield from _unchanged(case, path, before, after, VRAM_RESOURCE)
    enforcers = {container.field: container for container in old.enforcers}
    for container in new.enforcers:
        ours = enforcers.get(container.field)
        for field in ("image", "resources"):
            if ours is not None and container.raw.get(field) != ours.raw.get(field):
                detail = "the sidecar that holds the VRAM cap cannot be changed; leave it as it is"
                yield Finding(Reason.IMMUTABLE, f"{container.path}.{field}", detail)


def _unchanged(
    case: Case, path: str, before: str | None, after: str | None, key: str = ""
) -> Iterator[Finding]:
    if before == after:
        return
    if before is None:
        what = f"cannot be added ({quoted(after)})"
    elif after is None:
        what = f"cannot be removed (it was {quoted(before)})"
    else:
        what = f"cannot change from {quoted(before)} to {quoted(after)}"
    if key not in _WRITTEN_BY_DEVELOPERS:
        do = "leave it as it was, for only vramwarden writes it"
        if before is None:
            do = f"remove it; for VRAM create it again with the annotation {GPU_MEMORY_ANNOTATION}"
    elif wrong := case.lines.wrong(_again(case)):
        do = f"delete the pod and create it again, with another value: {wrong}"
    else:
        how = "without it" if after is None else "with the new value"
        do = f"delete the pod and create it again {how}"
    detail = f"{what} on a pod that exists; {do}"
    yield Finding(Reason.IMMUTABLE, path, detail)


def _again(case: Case) -> Change:
    """Return what makes a stored pod ask as its author wrote it: translation wrote its amounts."""
    if not any(GPU_MEMORY_ANNOTATION in pod.annotations for pod in (case.old, case.pod)):
        return Change()
    return Change(resources={one.name: {VRAM_RESOURCE: None} for one in case.pod.containers})


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
    Allowed values: no GPU variables, none that might come from elsewhere, not privileged, of
    capabilities those of other containers except KILL, another target than the sidecar; under
    `isolation: NonRoot` a known user other than root, without privilege escalation
    """
    profile = _profile(case)
    for container in new_debuggers(case.old, case.pod):
        # Translation will set NVIDIA_VISIBLE_DEVICES, which beats `envFrom`.
        hidden = case.mutating or any(map(chooses_devices, container.env()))
        if items(container.raw, "envFrom", container.path) and not hidden:
            detail = (
                f"it might set {VISIBLE_DEVICES_ENV}; set that variable to void beside it, "
                f"or use {profile}"
            )
            yield Finding(Reason.EPHEMERAL_CONTAINER, f"{container.path}.envFrom", detail)
        for index, entry in enumerate(container.env()):
            if not sees_no_gpu(entry) or limits_memory(entry) or widens(entry):
                yield _shown(f"{container.path}.env[{index}]", f"{entry['name']} shows", profile)
        for path, what, _ in defeating(container, case.rule, _DEBUGGERS_CAPABILITIES):
            detail = f"{what}, which defeats the VRAM cap; use {profile}"
            yield Finding(Reason.EPHEMERAL_CONTAINER, path, detail)
        if case.rule.isolation is Isolation.NON_ROOT:
            for path, what, _ in like_the_sidecar(container, case.pod):
                detail = f"{what}, which may stop the sidecar that holds the cap; use {profile}"
                yield Finding(Reason.EPHEMERAL_CONTAINER, path, detail)
        path = f"{container.path}.targetContainerName"
        if text(container.raw, "targetContainerName", container.path) == ENFORCER_CONTAINER:
            detail = (
                "the sidecar that holds the cap cannot be debugged; choose another --target, "
                f"with {profile}"
            )
            yield Finding(Reason.EPHEMERAL_CONTAINER, path, detail)


def _profile(case: Case) -> str:
    managed = is_managed(case.old.raw)
    return debug_profile(case.pod, case.rule) if managed else DEBUG_PROFILE


def debugging_without_demand(case: Case) -> Iterator[Finding]:
    """Rule: a debugging container of a pod that asks for no VRAM makes no GPU visible by hand.

    Fields: spec.ephemeralContainers[*].env[*] named NVIDIA_VISIBLE_DEVICES
    Allowed values: void, none or empty; anything where the rule's visibleDevices is not Deny

    What else a debugging container may do there is Pod Security's business.
    """
    if not case.finds_visible_devices:
        return
    for container in new_debuggers(case.old, case.pod):
        for index, entry in enumerate(container.env()):
            if not sees_no_gpu(entry):
                yield _shown(
                    f"{container.path}.env[{index}]", f"{entry['name']} shows", DEBUG_PROFILE
                )


def debugging_mounts(case: Case) -> Iterator[Finding]:
    """Rule: no mount tells the container runtime to show a debugging container GPUs.

    Fields: spec.ephemeralContainers[*].volumeMounts[*].mountPath
    Allowed values: none below /var/run/nvidia-container-devices; any in a pod without a demand
    where the rule's visibleDevices is Ignore
    """
    if not is_managed(case.old.raw) and case.rule.visible_devices is VisibleDevices.IGNORE:
        return
    for container in new_debuggers(case.old, case.pod):
        for path in mounts_of_devices(container):
            yield _shown(path, "this mount shows", _profile(case))


def _shown(path: str, what: str, profile: str) -> Finding:
    detail = f"{what} a debugging container the GPU; remove it, or use {profile}"
    return Finding(Reason.EPHEMERAL_CONTAINER, path, detail)


def reserved_debuggers(case: Case) -> Iterator[Finding]:
    """Rule: the sidecar's name and those of its volumes are ours, in debugging containers too.

    Fields: spec.ephemeralContainers[*].name, spec.ephemeralContainers[*].volumeMounts[*].name
    Allowed values: any but ours
    """
    for container in new_debuggers(case.old, case.pod):
        if container.name == ENFORCER_CONTAINER:
            detail = (
                f"the name {ENFORCER_CONTAINER} is reserved; choose another one, e.g. "
                f"--container=debugger, with {_profile(case)}"
            )
            yield Finding(Reason.RESERVED_NAME, f"{container.path}.name", detail)
        for path in mounted_volumes_of_ours(container):
            detail = (
                "the volume belongs to the sidecar that holds the VRAM cap; remove the mount, "
                f"or use {_profile(case)}"
            )
            yield Finding(Reason.EPHEMERAL_CONTAINER, path, detail)
