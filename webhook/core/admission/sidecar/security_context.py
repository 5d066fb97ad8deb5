"""User, AppArmor profile and SELinux options of the sidecar.

The sidecar's signals must reach the processes that the sidecar has to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from webhook.core.pod.demand import Demand
from webhook.core.pod.fields import (
    Json,
    get_boolean,
    get_integer,
    get_object,
    get_objects,
    get_string,
    get_strings,
)
from webhook.core.pod.views import Container, Pod
from webhook.core.policy.model import Isolation, Rule, RunAs
from webhook.names import APP_ARMOR_ANNOTATION_PREFIX, ENFORCER_CONTAINER

_Value = TypeVar("_Value")

ROOT_UID: Final = 0
OWN_UID: Final = 65532
"""User ID of a sidecar that only measures, since it can stop no other process."""


def enforcer_user(pod: Pod, demand: Demand, rule: Rule) -> int | None:
    """Return the user ID that the sidecar runs as, or None if no user would work.

    Signals reach a process only from the same user or with CAP_KILL. Pod Security `restricted`
    forbids root and CAP_KILL. Admission cannot see the namespace's level, so `Auto` depends on
    whether the pod itself meets `restricted`. A sidecar whose signals reach no process can still
    exit with a code on which the kubelet restarts the pod, if the rule has `podRestart`.

    | isolation | runAs | meets `restricted` | one known user for the VRAM | podRestart | sidecar |
    | --- | --- | --- | --- | --- | --- |
    | any | Root | any | any | any | root with KILL |
    | NonRoot | Auto | any | any | any | root with KILL |
    | Any | Workload | any | yes | any | that user |
    | Any | Workload | any | no | RestartAllContainers | user of its own |
    | Any | Workload | any | no | None | EnforcementImpossible |
    | Any | Auto | no | any | any | root with KILL |
    | Any | Auto | yes | yes | any | that user |
    | Any | Auto | yes | no | RestartAllContainers | user of its own |
    | Any | Auto | yes | no | None | EnforcementImpossible |

    If no other container may be root, no other container can signal a sidecar that is root. A
    policy with NonRoot and Workload is rejected when it is loaded.
    """
    run_as = rule.enforcement.run_as
    if rule.isolation is Isolation.NON_ROOT:
        return ROOT_UID
    if run_as is RunAs.ROOT or (run_as is RunAs.AUTO and not _meets_restricted(pod)):
        return ROOT_UID
    users = {user for _, user in users_by_container(pod, demand)}
    if len(users) == 1 and None not in users:
        return users.pop()
    return OWN_UID if rule.enforcement.restarts_pod else None


def users_by_container(pod: Pod, demand: Demand) -> list[tuple[Container, int | None]]:
    """Return the containers with VRAM, each with its user ID; None if no user is set."""
    return [
        (container, container_user(container, pod))
        for container in containers_with_vram(demand, pod)
    ]


def containers_with_vram(demand: Demand, pod: Pod) -> list[Container]:
    """Return the containers with VRAM, whose processes the sidecar may have to stop."""
    return [container for container in pod.containers if container.name in demand.amounts]


def container_user(container: Container, pod: Pod) -> int | None:
    """Return the user ID that a container has to run as, or None if no user is set."""
    return read_security_field(get_integer, container, pod, "runAsUser")


def read_security_field(
    read: Callable[..., _Value | None], container: Container, pod: Pod, key: str
) -> _Value | None:
    """Return a field of a container's security context, or else of the pod's."""
    own = read(container.security_context(), key, container.path, "securityContext")
    return own if own is not None else read(_pod_context(pod), key, "spec.securityContext")


def _pod_context(pod: Pod) -> Mapping[str, Any]:
    return get_object(pod.spec, "securityContext", "spec")


def _meets_restricted(pod: Pod) -> bool:
    """Return True if the pod meets Pod Security `restricted`.

    Source: k8s.io/pod-security-admission/policy/check_*.go.
    """
    if get_boolean(pod.spec, "hostNetwork", "spec") or get_boolean(pod.spec, "hostIPC", "spec"):
        return False
    pod_context = _pod_context(pod)
    for container in pod.containers:
        if not _is_restricted(container, pod_context):
            return False
    return not any(volume.get("hostPath") for volume in get_objects(pod.spec, "volumes", "spec"))


def _is_restricted(container: Container, pod_context: Mapping[str, Any]) -> bool:
    """Return True if a container meets `restricted`, with the defaults of its pod."""
    own = container.security_context()
    non_root = get_boolean(own, "runAsNonRoot", container.path, "securityContext")
    if non_root is None:
        non_root = get_boolean(pod_context, "runAsNonRoot", "spec.securityContext")
    if not non_root:
        return False
    path = f"{container.path}.securityContext"
    if get_boolean(own, "allowPrivilegeEscalation", path) is not False:
        return False
    capabilities = get_object(own, "capabilities", path)
    if "ALL" not in get_strings(capabilities, "drop", path):
        return False
    if set(get_strings(capabilities, "add", path)) - {"NET_BIND_SERVICE"}:
        return False
    seccomp = get_string(get_object(own, "seccompProfile", path), "type", path) or get_string(
        get_object(pod_context, "seccompProfile"), "type", "spec.securityContext"
    )
    return seccomp in {"RuntimeDefault", "Localhost"}


@dataclass(frozen=True, slots=True)
class _Setting:
    """Field of security contexts. A container's value replaces the pod's whole value."""

    name: str
    keys: tuple[str, ...]
    default: Json = field(default_factory=dict)
    """Value that container runtimes use if nothing is set."""


_APP_ARMOR: Final = _Setting(
    "appArmorProfile", ("type", "localhostProfile"), {"type": "RuntimeDefault"}
)
_SELINUX: Final = _Setting("seLinuxOptions", ("user", "role", "type", "level"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """One security setting of the containers with VRAM."""

    name: str
    inherited: Json
    """Value for containers that set none."""
    first: Container
    wanted: Json
    """Value of the first container with VRAM."""
    odd: Container | None
    """First container with a different value; None if all agree."""

    @property
    def enforcers(self) -> Json:
        """The value that the sidecar needs."""
        return self.wanted if self.odd is None else self.inherited


APP_ARMOR_ANNOTATION: Final = APP_ARMOR_ANNOTATION_PREFIX + ENFORCER_CONTAINER


def confinements(pod: Pod, demand: Demand) -> Iterator[Confinement]:
    """Yield the settings that any container with VRAM has."""
    containers = containers_with_vram(demand, pod)
    pod_context = get_object(pod.spec, "securityContext", "spec")
    contexts = [container.security_context() for container in containers]
    annotated = [pod.annotations.get(APP_ARMOR_ANNOTATION_PREFIX + one.name) for one in containers]
    if not (
        pod_context or any(contexts) or any(annotated) or APP_ARMOR_ANNOTATION in pod.annotations
    ):
        return
    for setting in (_APP_ARMOR, _SELINUX):
        default = _read(pod_context, setting, "spec")
        inherited = setting.default if default is None else default
        each = [
            _read(context, setting, container.path)
            for container, context in zip(containers, contexts, strict=True)
        ]
        if setting is _APP_ARMOR:
            each = list(map(_or_annotated, each, annotated))
        wanted, *others = (inherited if own is None else own for own in each)
        odd = (one for one, own in zip(containers[1:], others, strict=True) if own != wanted)
        yield Confinement(
            name=setting.name,
            inherited=inherited,
            first=containers[0],
            wanted=wanted,
            odd=next(odd, None),
        )


def enforcer_profiles(pod: Pod, demand: Demand) -> dict[str, Json]:
    """Return the profiles of the sidecar's security context.

    The default AppArmor profiles of container runtimes only let signals pass between processes of
    one profile, and SELinux separates processes with different labels. So the sidecar gets the
    values of the containers with VRAM. Pod Security checks each container separately, so it allows
    these values for the sidecar if it allows them for the containers.

    | containers with VRAM | podRestart | sidecar |
    | --- | --- | --- |
    | agree | any | the same |
    | differ | RestartAllContainers | that of the pod |
    | differ | None | EnforcementImpossible |
    """
    return {
        confined.name: confined.enforcers
        for confined in confinements(pod, demand)
        if confined.enforcers != confined.inherited
    }


def has_current_app_armor_annotation(pod: Pod, demand: Demand) -> bool:
    """Return True if the sidecar's AppArmor annotation names the sidecar's profile.

    The API server turns such an annotation into a field, and some versions write the annotation for
    a field.
    """
    if APP_ARMOR_ANNOTATION not in pod.annotations:
        return False
    named = _or_annotated(None, pod.annotations[APP_ARMOR_ANNOTATION])
    (wanted,) = (one for one in confinements(pod, demand) if one.name == _APP_ARMOR.name)
    return named == wanted.enforcers


def _read(context: Mapping[str, Any], setting: _Setting, path: str) -> Json | None:
    """Return the field of a security context as the API server stores it, or None if absent."""
    if context.get(setting.name) is None:
        return None
    value = get_object(context, setting.name, path, "securityContext")
    path = f"{path}.securityContext.{setting.name}"
    return {key: found for key in setting.keys if (found := get_string(value, key, path))}


def _or_annotated(own: Json | None, profile: str | None) -> Json | None:
    """Return the container's value, or its annotation's value, as the API server reads it.

    Source: k8s.io/kubernetes/pkg/registry/core/pod/strategy.go.
    """
    if own is not None or not profile:
        return own
    kind, _, name = profile.partition("/")
    if profile == "unconfined":
        return {"type": "Unconfined"}
    if profile == "runtime/default":
        return {"type": "RuntimeDefault"}
    return {"type": "Localhost", "localhostProfile": name} if kind == "localhost" and name else None
