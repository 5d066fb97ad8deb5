"""Rules that let the sidecar see processes, stop them, and have enough resources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, Final

from webhook.core.admission.rules.case import Case
from webhook.core.admission.sidecar.security_context import confinements, users_by_container
from webhook.core.pod.fields import get_boolean, get_object
from webhook.core.pod.findings import Finding, Reason, quote
from webhook.core.pod.quantity import format_bytes, parse_quantity_or
from webhook.core.pod.views import Pod, total_limit, total_request
from webhook.core.policy.model import EnforceBy, PodRestart, RunAs


def host_pid(case: Case) -> Iterator[Finding]:
    """Rule: processes of a pod with a cap do not see those of the node.

    Fields: spec.hostPID
    Allowed values: false or absent
    """
    if get_boolean(case.pod.spec, "hostPID", "spec"):
        why = (
            "the sidecar that holds the cap needs the pod's own process namespace"
            if case.enforced_by is EnforceBy.SIDECAR
            else "processes of the pod could stop the node's sentry, which holds the cap"
        )
        yield Finding(Reason.HOST_PID, "spec.hostPID", f"remove hostPID; {why}")


def process_namespace(case: Case) -> Iterator[Finding]:
    """Rule: the containers of a pod with a sidecar share the pod's process namespace.

    Fields: spec.shareProcessNamespace
    Allowed values: true or absent
    """
    if get_boolean(case.pod.spec, "shareProcessNamespace", "spec") is False:
        detail = "remove the line; the sidecar that holds the cap must see the pod's processes"
        yield Finding(Reason.PROCESS_NAMESPACE_NOT_SHARED, "spec.shareProcessNamespace", detail)


def one_user(case: Case) -> tuple[Finding, ...]:
    """Rule: the sidecar can run as a user whose signals reach every process with VRAM.

    Fields: spec.securityContext.runAsUser, spec.[...][*].securityContext.runAsUser
    Allowed values: any if the sidecar may be root, or may restart the pod; else the same known user
    for all containers with VRAM (the table of `enforcer_user`)
    """
    if case.enforcer is not None:
        return ()
    users = users_by_container(case.pod, case.demand)
    unknown = [container for container, user in users if user is None]
    if unknown:
        path = f"{unknown[0].path}.securityContext.runAsUser"
        do = "set runAsUser to the image's user id"
        why = "the sidecar that holds the cap can stop only processes of its own user"
    else:
        path = f"{users[-1][0].path}.securityContext.runAsUser"
        shown = ", ".join(f"{container.name} as {user}" for container, user in users)
        do = "give the containers with VRAM the same runAsUser"
        why = f"one sidecar can stop processes of one user only, and they run as several ({shown})"
    roots = ("enforcement.runAs: Root",) if case.rule.enforcement.run_as is RunAs.AUTO else ()
    detail = f"{do}{_or_ask_for(*roots)}; {why}"
    return (Finding(Reason.ENFORCEMENT_IMPOSSIBLE, path, detail),)


def one_profile(case: Case) -> Iterable[Finding]:
    """Rule: the sidecar can run under a profile whose signals reach every process with VRAM.

    Fields: spec.[...][*].securityContext.[appArmorProfile,seLinuxOptions], the AppArmor annotations
    Allowed values: any if the sidecar may restart the pod; else the same for all containers with
    VRAM (the table of `enforcer_profiles`)
    """
    if len(case.demand.amounts) == 1 or case.rule.enforcement.restarts_pod:
        return ()
    return [
        Finding(
            Reason.ENFORCEMENT_IMPOSSIBLE,
            f"{confined.odd.path}.securityContext.{confined.name}",
            f"write that of container {quote(confined.first.name)}{_or_ask_for()}; one sidecar "
            f"can stop processes of one {confined.name} only",
        )
        for confined in confinements(case.pod, case.demand)
        if confined.odd is not None
    ]


def _or_ask_for(*settings: str) -> str:
    settings = (*settings, f"enforcement.podRestart: {PodRestart.ALL_CONTAINERS}")
    return f", or ask your platform team for a rule with {' or '.join(settings)}"


def room_for_enforcer(case: Case) -> Iterable[Finding]:
    """Rule: pod-level resources have room for the sidecar.

    Fields: spec.resources.requests|limits[cpu, memory] (KEP-2837)
    Allowed values: absent; at least the sum in the table of `_Need`
    """
    of_pod = get_object(case.pod.spec, "resources", "spec")
    if not of_pod or case.enforcer is None:
        return ()
    return [
        need.finding()
        for need in _needs(case.pod, of_pod, case.enforcer["resources"])
        if need.lacks > 0
    ]


def room_after_resize(case: Case) -> Iterable[Finding]:
    """Rule: a resize of pod-level resources leaves enough room for the sidecar.

    Fields: spec.resources.requests|limits[cpu, memory]
    Allowed values: as at creation; an amount that the pod lacked before, it may still lack
    """
    of_pod = get_object(case.pod.spec, "resources", "spec")
    before = get_object(case.old.spec, "resources", "spec")
    if of_pod == before or not case.pod.enforcers:
        return ()
    sidecar = get_object(case.pod.enforcers[0].raw, "resources", case.pod.enforcers[0].path)
    lacked = {need.path: need.lacks for need in _needs(case.old, before, sidecar)}
    return [
        need.finding()
        for need in _needs(case.pod, of_pod, sidecar)
        if need.lacks > max(0, lacked.get(need.path, 0))
    ]


@dataclass(frozen=True, slots=True)
class _Need:
    """Minimum of one amount in pod-level resources, in cores or bytes.

    | kind | resource | other containers | the sidecar |
    | --- | --- | --- | --- |
    | requests | both | their requests | its request |
    | limits | CPU | their limits | its request: it can wait for more |
    | limits | memory | their limits | its limit: with less it would be killed |

    A container without a limit also uses the sidecar's amount. If the pod has such a container, the
    other containers together count for at least the sidecar's amount.
    """

    kind: str
    resource: str
    written: object
    amount: str
    others: Fraction

    @property
    def path(self) -> str:
        return f"spec.resources.{self.kind}[{self.resource}]"

    @property
    def lacks(self) -> Fraction:
        """Missing amount; zero or less if nothing is missing."""
        need = self.others + parse_quantity_or(self.amount, _ZERO)
        return need - parse_quantity_or(self.written, need)

    def finding(self) -> Finding:
        need = self.others + parse_quantity_or(self.amount, _ZERO)
        is_memory = self.resource == "memory"
        least = format_bytes(ceil(need)) if is_memory else f"{ceil(need * 1000)}m"
        detail = (
            f"write at least {least}; {self.written} leaves no room for the sidecar that holds the "
            f"VRAM cap, which needs {self.amount} of {self.resource} beside the containers"
        )
        return Finding(Reason.ENFORCEMENT_IMPOSSIBLE, self.path, detail)


def _needs(pod: Pod, of_pod: Mapping[str, Any], sidecar: Mapping[str, Any]) -> Iterator[_Need]:
    for kind in ("requests", "limits"):
        amounts = get_object(of_pod, kind, "spec.resources")
        for resource in ("cpu", "memory"):
            ours = get_object(sidecar, "requests" if resource == "cpu" else kind)
            amount = ours.get(resource)
            if resource not in amounts or amount is None:
                continue
            others = total_request(pod, resource)
            if kind == "limits":
                others, unlimited = total_limit(pod, resource)
                others = max(others, parse_quantity_or(amount, _ZERO)) if unlimited else others
            yield _Need(kind, resource, amounts[resource], amount, others)


_ZERO: Final = Fraction(0)
