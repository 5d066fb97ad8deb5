"""Rules about changes to a pod after its creation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from webhook.core.admission.rules.amounts import bounds, gpu_class_known
from webhook.core.admission.rules.case import Case, new_case
from webhook.core.admission.rules.device_injection import find_device_mounts
from webhook.core.admission.rules.isolation import (
    DEBUG_PROFILE,
    DEFAULT_CAPABILITIES,
    debug_profile,
    find_cap_bypasses,
    find_reserved_mounts,
    find_root_settings,
    reservation_reason,
)
from webhook.core.admission.rules.nodes import one_slot, slices
from webhook.core.admission.rules.oversized_pods import is_managed
from webhook.core.nvidia.variables import (
    VISIBLE_DEVICES_ENV,
    chooses_devices,
    hides_gpus,
    limits_memory,
    widens_access,
)
from webhook.core.pod.demand import read_demand
from webhook.core.pod.fields import get_objects, get_string
from webhook.core.pod.findings import Finding, Reason, annotation_path, quote
from webhook.core.pod.quantity import parse_quantity_or
from webhook.core.pod.views import Container, Pod, preview_changes, read_containers
from webhook.core.policy.model import Isolation, VisibleDevices
from webhook.names import (
    DEFAULT_CONTAINER_ANNOTATION,
    ENFORCER_CONTAINER,
    GATE_VOLUME,
    GPU_MEMORY_ANNOTATION,
    MANAGED_LABEL,
    OUR_ANNOTATIONS,
    REQUEST_ANNOTATIONS,
    VRAM_RESOURCE,
)

_DEFAULT_CONTAINER: Final = (
    DEFAULT_CONTAINER_ANNOTATION,
    annotation_path(DEFAULT_CONTAINER_ANNOTATION),
)
_WRITTEN_BY_DEVELOPERS: Final = {*REQUEST_ANNOTATIONS, DEFAULT_CONTAINER_ANNOTATION, VRAM_RESOURCE}
# With KILL a debugging container could stop a sidecar of another user. No `kubectl debug` profile
# adds KILL.
_DEBUGGERS_CAPABILITIES: Final = DEFAULT_CAPABILITIES - {"KILL"}


def immutable(case: Case) -> Iterator[Finding]:
    """Rule: a demand, our label and annotations, and the sidecar stay as they were admitted.

    Fields: our annotations and label; limits[vram]; image and resources of vram-enforcer;
    the annotation of the default container, if another would make the demand ambiguous
    Allowed values: those of the pod before the update
    """
    old, new = case.old, case.pod
    before, after = _fixed_fields(old), _fixed_fields(new)
    changes = [place for place in after if _differs(place[0], before.get(place), after[place])]
    if _DEFAULT_CONTAINER in changes and not (read_demand(new)[1] and not read_demand(old)[1]):
        # Changing the default container affects the demand only if the new name contradicts the
        # amounts.
        changes.remove(_DEFAULT_CONTAINER)
    by_developers = any(key in _WRITTEN_BY_DEVELOPERS for key, _ in changes)
    problem = _recreation_problem(case) if by_developers else ""
    for place in changes:
        is_ours = is_managed(old.raw)
        yield _immutable_finding(*place, before.get(place), after[place], problem, is_ours=is_ours)
    enforcers = {container.field: container for container in old.enforcers}
    for container in new.enforcers:
        ours = enforcers.get(container.field)
        for field in ("image", "resources"):
            if ours is not None and container.raw.get(field) != ours.raw.get(field):
                detail = "leave it as it is; the sidecar that holds the VRAM cap cannot be changed"
                yield Finding(Reason.IMMUTABLE, f"{container.path}.{field}", detail)


def _differs(key: str, before: str | None, after: str | None) -> bool:
    """Return True if two values differ. Amounts are compared as quantities: `8e9` equals `8G`."""
    if key != VRAM_RESOURCE or before is None or after is None:
        return before != after
    return parse_quantity_or(before, before) != parse_quantity_or(after, after)


def _fixed_fields(pod: Pod) -> dict[tuple[str, str], str | None]:
    """Return the demand and vramwarden's label and annotations, keyed by key and path."""
    fields = {
        (key, annotation_path(key)): pod.annotations.get(key)
        for key in (*OUR_ANNOTATIONS, _DEFAULT_CONTAINER[0])
    }
    fields[MANAGED_LABEL, f"metadata.labels[{MANAGED_LABEL}]"] = pod.labels.get(MANAGED_LABEL)
    for container in pod.containers:
        path = f"{container.path}.resources.limits[{VRAM_RESOURCE}]"
        fields[VRAM_RESOURCE, path] = container.resources("limits").get(VRAM_RESOURCE)
    return fields


def _recreation_problem(case: Case) -> str:
    """Return the reason why the changed pod would be denied at creation, or "" if admitted.

    The reason is computed once for all changes. In a pod with the annotation, translation wrote the
    explicit amounts, so they do not count.
    """
    pod = case.pod
    if any(GPU_MEMORY_ANNOTATION in each.annotations for each in (case.old, pod)):
        pod = preview_changes(pod, {}, {each.name: {VRAM_RESOURCE} for each in pod.containers})
    again = new_case(pod, case.rule, case.policy, case.cluster)
    rules = (
        (gpu_class_known, bounds, slices, one_slot) if again.demand_if_any else (gpu_class_known,)
    )
    problems = chain(again.demand_problems, chain.from_iterable(rule(again) for rule in rules))
    return next((each.detail for each in problems), "")


def _immutable_finding(
    key: str, path: str, before: str | None, after: str | None, problem: str, *, is_ours: bool
) -> Finding:
    if before is None:
        what = f"cannot be added ({quote(after)})"
    elif after is None:
        what = f"cannot be removed (it was {quote(before)})"
    else:
        what = f"cannot change from {quote(before)} to {quote(after)}"
    if key not in _WRITTEN_BY_DEVELOPERS:
        do = "leave it as it was, for only vramwarden writes it"
        if before is None and not is_ours:
            do = f"remove it; for VRAM create it again with the annotation {GPU_MEMORY_ANNOTATION}"
    elif problem:
        do = "delete the pod and create it again, with another value"
    else:
        how = "without it" if after is None else "with the new value"
        do = f"delete the pod and create it again {how}"
    why = f"it {what} on a pod that exists" + f"; {problem}" * bool(problem)
    return Finding(Reason.IMMUTABLE, path, f"{do}; {why}")


def new_debuggers(old: Pod, new: Pod) -> list[Container]:
    """Return the debugging containers that an update adds; existing containers cannot change."""
    existing = {container.name for container in read_containers(old.spec, "ephemeralContainers")}
    return [
        container
        for container in read_containers(new.spec, "ephemeralContainers")
        if container.name not in existing
    ]


def debugging_containers(case: Case) -> Iterator[Finding]:
    """Rule: a debugging container of a managed pod sees no GPU and cannot defeat the cap.

    Fields: spec.ephemeralContainers[*]
    Allowed values: no variables for GPUs, or sources that may contain some; not privileged; the
    capabilities of other containers, except KILL in a pod with a sidecar; a target other than the
    sidecar; under `isolation: NonRoot` a known user other than root, without privilege escalation
    """
    profile = _debug_profile(case)
    allowed = _DEBUGGERS_CAPABILITIES if case.has_sidecar else DEFAULT_CAPABILITIES
    for container in new_debuggers(case.old, case.pod):
        # Translation will set NVIDIA_VISIBLE_DEVICES, which overrides `envFrom`.
        hidden = case.mutating or any(map(chooses_devices, container.env()))
        if get_objects(container.raw, "envFrom", container.path) and not hidden:
            detail = (
                f"set {VISIBLE_DEVICES_ENV} to void beside it, or use {profile}; it might set "
                "that variable"
            )
            yield Finding(Reason.EPHEMERAL_CONTAINER, f"{container.path}.envFrom", detail)
        for index, entry in enumerate(container.env()):
            if not hides_gpus(entry) or limits_memory(entry) or widens_access(entry):
                yield _shows_gpu_finding(
                    f"{container.path}.env[{index}]", f"{entry['name']} shows", profile
                )
        for path, what, _ in find_cap_bypasses(container, case.rule, allowed):
            detail = f"use {profile}; {what}, which none may do in a pod with VRAM"
            yield Finding(Reason.EPHEMERAL_CONTAINER, path, detail)
        if case.rule.isolation is Isolation.NON_ROOT:
            why = (
                "which may stop the sidecar that holds the cap"
                if case.has_sidecar
                else f"which rule {quote(case.rule.name)} does not allow"
            )
            for path, what, _ in find_root_settings(container, case.pod):
                detail = f"use {profile}; {what}, {why}"
                yield Finding(Reason.EPHEMERAL_CONTAINER, path, detail)
        path = f"{container.path}.targetContainerName"
        if get_string(container.raw, "targetContainerName", container.path) == ENFORCER_CONTAINER:
            why = (
                "the sidecar that holds the cap cannot be debugged"
                if case.has_sidecar
                else f"the pod has no container {ENFORCER_CONTAINER}"
            )
            detail = f"choose another --target, with {profile}; {why}"
            yield Finding(Reason.EPHEMERAL_CONTAINER, path, detail)


def _debug_profile(case: Case) -> str:
    managed = is_managed(case.old.raw)
    return debug_profile(case.pod, case.rule) if managed else DEBUG_PROFILE


def debugging_without_demand(case: Case) -> Iterator[Finding]:
    """Rule: a debugging container of a pod without a demand makes no GPU visible by hand.

    Fields: spec.ephemeralContainers[*].env[*] named NVIDIA_VISIBLE_DEVICES
    Allowed values: void, none or empty; anything unless the rule's visibleDevices is Deny

    Pod Security decides what else a debugging container may do.
    """
    if not case.finds_visible_devices:
        return
    for container in new_debuggers(case.old, case.pod):
        for index, entry in enumerate(container.env()):
            if not hides_gpus(entry):
                yield _shows_gpu_finding(
                    f"{container.path}.env[{index}]", f"{entry['name']} shows", DEBUG_PROFILE
                )


def debugging_mounts(case: Case) -> Iterator[Finding]:
    """Rule: no mount makes the container runtime show GPUs to a debugging container.

    Fields: spec.ephemeralContainers[*].volumeMounts[*].mountPath
    Allowed values: none below /var/run/nvidia-container-devices; any in a pod without a demand if
    the rule's visibleDevices is Ignore
    """
    if not is_managed(case.old.raw) and case.rule.visible_devices is VisibleDevices.IGNORE:
        return
    for container in new_debuggers(case.old, case.pod):
        for path in find_device_mounts(container):
            yield _shows_gpu_finding(path, "this mount shows", _debug_profile(case))


def _shows_gpu_finding(path: str, what: str, profile: str) -> Finding:
    detail = f"remove it, or use {profile}; {what} a debugging container the GPU"
    return Finding(Reason.EPHEMERAL_CONTAINER, path, detail)


def reserved_debuggers(case: Case) -> Iterator[Finding]:
    """Rule: the names of the sidecar and of our volumes are reserved in debugging containers, too.

    Fields: spec.ephemeralContainers[*].name, spec.ephemeralContainers[*].volumeMounts[*].name
    Allowed values: any other name
    """
    for container in new_debuggers(case.old, case.pod):
        if container.name == ENFORCER_CONTAINER:
            detail = (
                f"choose another name, e.g. --container=debugger, with {_debug_profile(case)}; "
                f"{ENFORCER_CONTAINER} is reserved"
            )
            yield Finding(Reason.RESERVED_NAME, f"{container.path}.name", detail)
        for path, mount in find_reserved_mounts(container):
            is_gates = mount["name"] == GATE_VOLUME
            reason = Reason.RESERVED_NAME if is_gates else Reason.EPHEMERAL_CONTAINER
            detail = f"remove the mount, or use {_debug_profile(case)}; {reservation_reason(mount)}"
            yield Finding(reason, path, detail)
