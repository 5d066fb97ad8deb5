"""Which user the sidecar runs as, so that its signals reach the processes it must stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from webhook.core.pod.fields import flag, integer, items, mapping, text, texts
from webhook.core.policy.values import RunAs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.core.pod.demand import Demand
    from webhook.core.pod.views import Container, Pod
    from webhook.core.policy.values import Rule

ROOT_UID: Final = 0
OWN_UID: Final = 65532
"""As this user the sidecar measures, and can stop only its own processes."""


def enforcer_user(pod: Pod, demand: Demand, rule: Rule) -> int | None:
    """Return the user id that the sidecar runs as; None where none would work.

    Signals reach a process only from the same user or from one with CAP_KILL, and Pod Security
    `restricted` forbids both root and CAP_KILL; the namespace's level cannot be seen at admission,
    so `Auto` goes by whether the pod is written to pass it. A sidecar whose signals reach nobody
    can still end with the exit code on which the kubelet restarts the pod, where the rule says so.

    | runAs | pod meets `restricted` | one known user for the VRAM | podRestart | sidecar |
    | --- | --- | --- | --- | --- |
    | Root | any | any | any | root with KILL |
    | Workload | any | yes | any | that user |
    | Workload | any | no | RestartAllContainers | user of its own |
    | Workload | any | no | None | EnforcementImpossible |
    | Auto | no | any | any | root with KILL |
    | Auto | yes | yes | any | that user |
    | Auto | yes | no | RestartAllContainers | user of its own |
    | Auto | yes | no | None | EnforcementImpossible |
    """
    run_as = rule.enforcement.run_as
    if run_as is RunAs.ROOT or (run_as is RunAs.AUTO and not _meets_restricted(pod)):
        return ROOT_UID
    users = {user for _, user in users_of(pod, demand)}
    if len(users) == 1 and None not in users:
        return users.pop()
    return OWN_UID if rule.enforcement.restarts_pod else None


def users_of(pod: Pod, demand: Demand) -> list[tuple[Container, int | None]]:
    """Return the containers with VRAM and the user of each, None where none is set."""
    return [(container, _user_of(container, pod)) for container in holders_of(demand, pod)]


def holders_of(demand: Demand, pod: Pod) -> list[Container]:
    """Return the containers that get VRAM: those whose processes the sidecar may have to stop."""
    return [container for container in pod.containers if container.name in demand.amounts]


@dataclass(frozen=True, slots=True)
class _Contexts:
    """A container's security context over its pod's."""

    pod: Mapping[str, Any]
    container: Mapping[str, Any]
    path: str

    def flag(self, key: str) -> bool | None:
        own = flag(self.container, key, self.path)
        return own if own is not None else flag(self.pod, key, "spec.securityContext")

    def seccomp(self) -> str:
        own = text(mapping(self.container, "seccompProfile", self.path), "type", self.path)
        return own or text(mapping(self.pod, "seccompProfile", ""), "type", "spec.securityContext")


def _contexts(container: Container, pod: Pod) -> _Contexts:
    of_pod = mapping(pod.spec, "securityContext", "spec")
    return _Contexts(of_pod, container.security_context(), f"{container.path}.securityContext")


def _user_of(container: Container, pod: Pod) -> int | None:
    contexts = _contexts(container, pod)
    own = integer(contexts.container, "runAsUser", contexts.path)
    return own if own is not None else integer(contexts.pod, "runAsUser", "spec.securityContext")


def _meets_restricted(pod: Pod) -> bool:
    """Say whether the pod is written to pass Pod Security `restricted`.

    Source: k8s.io/pod-security-admission/policy/check_*.go.
    """
    if flag(pod.spec, "hostNetwork", "spec") or flag(pod.spec, "hostIPC", "spec"):
        return False
    if any(volume.get("hostPath") for volume in items(pod.spec, "volumes", "spec")):
        return False
    for container in pod.containers:
        contexts = _contexts(container, pod)
        if contexts.flag("runAsNonRoot") is not True:
            return False
        if flag(contexts.container, "allowPrivilegeEscalation", contexts.path) is not False:
            return False
        capabilities = mapping(contexts.container, "capabilities", contexts.path)
        if "ALL" not in texts(capabilities, "drop", contexts.path):
            return False
        if set(texts(capabilities, "add", contexts.path)) - {"NET_BIND_SERVICE"}:
            return False
        if contexts.seccomp() not in {"RuntimeDefault", "Localhost"}:
            return False
    return True
