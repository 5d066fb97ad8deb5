"""Which user the sidecar runs as, so that its signals reach the processes it must stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from webhook.core.pod.fields import flag, integer, items, mapping, text, texts
from webhook.core.policy.values import Isolation, Rule, RunAs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from webhook.core.pod.demand import Demand
    from webhook.core.pod.views import Container, Pod

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
