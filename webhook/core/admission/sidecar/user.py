"""As which user and under which AppArmor and SELinux profiles the sidecar runs.

So that its signals reach the processes that it must stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from webhook.core.pod.demand import Demand
from webhook.core.pod.fields import Json, flag, integer, items, mapping, text, texts
from webhook.core.pod.views import Container, Pod
from webhook.core.policy.values import Isolation, Rule, RunAs
from webhook.names import APP_ARMOR_ANNOTATION_PREFIX, ENFORCER_CONTAINER

_Value = TypeVar("_Value")

ROOT_UID: Final = 0
OWN_UID: Final = 65532
"""As this user the sidecar measures, and can stop only its own processes."""


def enforcer_user(pod: Pod, demand: Demand, rule: Rule) -> int | None:
    """Return the user id that the sidecar runs as; None where none would work.

    Signals reach a process only from the same user or from one with CAP_KILL, and Pod Security
    `restricted` forbids both root and CAP_KILL; the namespace's level cannot be seen at admission,
    so `Auto` goes by whether the pod is written to pass it. A sidecar whose signals reach nobody
    can still end with the exit code on which the kubelet restarts the pod, where the rule says so.

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

    Where no other container may be root, nobody else can signal a sidecar that is; a policy with
    NonRoot and Workload is not loaded.
    """
    run_as = rule.enforcement.run_as
    if rule.isolation is Isolation.NON_ROOT:
        return ROOT_UID
    if run_as is RunAs.ROOT or (run_as is RunAs.AUTO and not _meets_restricted(pod)):
        return ROOT_UID
    users = {user for _, user in users_of(pod, demand)}
    if len(users) == 1 and None not in users:
        return users.pop()
    return OWN_UID if rule.enforcement.restarts_pod else None


def users_of(pod: Pod, demand: Demand) -> list[tuple[Container, int | None]]:
    """Return the containers with VRAM and the user of each, None where none is set."""
    return [(container, user_of(container, pod)) for container in holders_of(demand, pod)]


def holders_of(demand: Demand, pod: Pod) -> list[Container]:
    """Return the containers that get VRAM: those whose processes the sidecar may have to stop."""
    return [container for container in pod.containers if container.name in demand.amounts]


def user_of(container: Container, pod: Pod) -> int | None:
    """Return the user id that a container is told to run as; None where none is set."""
    return own_or_pods(integer, container, pod, "runAsUser")


def own_or_pods(
    read: Callable[..., _Value | None], container: Container, pod: Pod, key: str
) -> _Value | None:
    """Read a field of a container's security context, and of its pod's where it has none."""
    own = read(container.security_context(), key, container.path, "securityContext")
    return own if own is not None else read(_context(pod), key, "spec.securityContext")


def _context(pod: Pod) -> Mapping[str, Any]:
    return mapping(pod.spec, "securityContext", "spec")


def _meets_restricted(pod: Pod) -> bool:
    """Say whether the pod is written to pass Pod Security `restricted`.

    Source: k8s.io/pod-security-admission/policy/check_*.go.
    """
    if flag(pod.spec, "hostNetwork", "spec") or flag(pod.spec, "hostIPC", "spec"):
        return False
    of_pod = _context(pod)
    for container in pod.containers:
        if not _is_restricted(container, of_pod):
            return False
    return not any(volume.get("hostPath") for volume in items(pod.spec, "volumes", "spec"))


def _is_restricted(container: Container, of_pod: Mapping[str, Any]) -> bool:
    """Check a container's security context, over its pod's."""
    own = container.security_context()
    non_root = flag(own, "runAsNonRoot", container.path, "securityContext")
    if non_root is None:
        non_root = flag(of_pod, "runAsNonRoot", "spec.securityContext")
    if not non_root:
        return False
    path = f"{container.path}.securityContext"
    if flag(own, "allowPrivilegeEscalation", path) is not False:
        return False
    capabilities = mapping(own, "capabilities", path)
    if "ALL" not in texts(capabilities, "drop", path):
        return False
    if set(texts(capabilities, "add", path)) - {"NET_BIND_SERVICE"}:
        return False
    seccomp = text(mapping(own, "seccompProfile", path), "type", path) or text(
        mapping(of_pod, "seccompProfile"), "type", "spec.securityContext"
    )
    return seccomp in {"RuntimeDefault", "Localhost"}


@dataclass(frozen=True, slots=True)
class _Setting:
    """A field of security contexts; a container's own replaces all of its pod's."""

    name: str
    keys: tuple[str, ...]
    default: Json = field(default_factory=dict)
    """What runtimes take where nothing is set."""


_APP_ARMOR: Final = _Setting(
    "appArmorProfile", ("type", "localhostProfile"), {"type": "RuntimeDefault"}
)
_SELINUX: Final = _Setting("seLinuxOptions", ("user", "role", "type", "level"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What the containers with VRAM have of one setting."""

    name: str
    inherited: Json
    """What a container has that sets nothing itself."""
    first: Container
    wanted: Json
    """What the first of them has."""
    odd: Container | None
    """The first of the others that has something else."""

    @property
    def enforcers(self) -> Json:
        """Return what the sidecar has to have."""
        return self.wanted if self.odd is None else self.inherited


NOTE: Final = APP_ARMOR_ANNOTATION_PREFIX + ENFORCER_CONTAINER


def confinements(pod: Pod, demand: Demand) -> Iterator[Confinement]:
    """Yield how the containers with VRAM are confined, by each setting; nothing if none is set."""
    holders = holders_of(demand, pod)
    of_pod = mapping(pod.spec, "securityContext", "spec")
    contexts = [container.security_context() for container in holders]
    annotated = [pod.annotations.get(APP_ARMOR_ANNOTATION_PREFIX + one.name) for one in holders]
    if not (of_pod or any(contexts) or any(annotated) or NOTE in pod.annotations):
        return
    for setting in (_APP_ARMOR, _SELINUX):
        default = _read(of_pod, setting, "spec")
        inherited = setting.default if default is None else default
        each = [
            _read(context, setting, container.path)
            for container, context in zip(holders, contexts, strict=True)
        ]
        if setting is _APP_ARMOR:
            each = list(map(_or_annotated, each, annotated))
        wanted, *others = (inherited if own is None else own for own in each)
        odd = (one for one, own in zip(holders[1:], others, strict=True) if own != wanted)
        yield Confinement(
            name=setting.name,
            inherited=inherited,
            first=holders[0],
            wanted=wanted,
            odd=next(odd, None),
        )


def enforcer_profiles(pod: Pod, demand: Demand) -> dict[str, Json]:
    """Return the profiles of the sidecar's security context.

    The default profiles of runtimes let signals pass between processes of one AppArmor profile
    only, and SELinux keeps apart what has other labels; so the sidecar takes what the containers
    with VRAM have. Pod Security checks each container by itself: what it allows them, it allows us.

    | containers with VRAM | podRestart | sidecar |
    | --- | --- | --- |
    | agree | any | as they |
    | differ | RestartAllContainers | as the pod |
    | differ | None | EnforcementImpossible |
    """
    return {
        confined.name: confined.enforcers
        for confined in confinements(pod, demand)
        if confined.enforcers != confined.inherited
    }


def keeps_annotation(pod: Pod, demand: Demand) -> bool:
    """Return True if the sidecar's AppArmor annotation may stay: it states the sidecar's profile.

    The API server makes a field of such an annotation, and some versions write one for a field.
    """
    if NOTE not in pod.annotations:
        return False
    named = _or_annotated(None, pod.annotations[NOTE])
    (wanted,) = (one for one in confinements(pod, demand) if one.name == _APP_ARMOR.name)
    return named == wanted.enforcers


def _read(context: Mapping[str, Any], setting: _Setting, path: str) -> Json | None:
    """Read the field from a security context, as the API server stores it."""
    if context.get(setting.name) is None:
        return None
    value = mapping(context, setting.name, path, "securityContext")
    path = f"{path}.securityContext.{setting.name}"
    return {key: found for key in setting.keys if (found := text(value, key, path))}


def _or_annotated(own: Json | None, profile: str | None) -> Json | None:
    """Read an annotation as the API server does, which makes it a field before it stores the pod.

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
