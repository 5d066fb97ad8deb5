"""Rules that let the sidecar work: see processes, stop them, and run at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webhook.core.admission.sidecar.profiles import confinements
from webhook.core.admission.sidecar.user import users_of
from webhook.core.pod.compute import amount_or, requested
from webhook.core.pod.fields import flag, mapping
from webhook.core.pod.findings import Finding, Reason, quoted
from webhook.core.pod.quantity import parse_quantity
from webhook.core.policy.values import PodRestart, RunAs, Style

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from webhook.core.admission.rules.case import Case
    from webhook.core.pod.fields import Json
    from webhook.core.pod.views import Pod
    from webhook.core.policy.values import Rule


def process_namespace(case: Case) -> Iterator[Finding]:
    """Rule: the pod's containers share the pod's own process namespace, where the sidecar acts.

    Fields: spec.hostPID, spec.shareProcessNamespace
    Allowed values: false or absent; true or absent
    """
    if flag(case.pod.spec, "hostPID", "spec"):
        detail = (
            "the sidecar that holds the cap needs the pod's own process namespace; remove hostPID"
        )
        yield Finding(Reason.HOST_PID, "spec.hostPID", detail)
    if flag(case.pod.spec, "shareProcessNamespace", "spec") is False:
        detail = "the sidecar that holds the cap must see the pod's processes; remove the line"
        yield Finding(Reason.PROCESS_NAMESPACE_NOT_SHARED, "spec.shareProcessNamespace", detail)


def one_user(case: Case) -> tuple[Finding, ...]:
    """Rule: the sidecar can run as a user whose signals reach every process with VRAM.

    Fields: spec.securityContext.runAsUser, spec.[...][*].securityContext.runAsUser
    Allowed values: any where the sidecar may be root, or may restart the pod; else the same known
    user for all containers with VRAM (the table of `enforcer_user`)
    """
    if case.enforcer is not None:
        return ()
    rule, users = case.rule, users_of(case.pod, case.demand)
    unknown = [container for container, user in users if user is None]
    if unknown:
        path = f"{unknown[0].path}.securityContext.runAsUser"
        detail = (
            "is not set, so the sidecar cannot run as the same user and stop its processes; "
            "set runAsUser to the image's user id"
        )
    else:
        path = f"{users[-1][0].path}.securityContext.runAsUser"
        shown = ", ".join(f"{container.name} as {user}" for container, user in users)
        detail = (
            f"the containers with VRAM run as different users ({shown}), and one sidecar can stop "
            "processes of one user only; give them the same runAsUser"
        )
    roots = ("enforcement.runAs: Root",) if rule.enforcement.run_as is RunAs.AUTO else ()
    return (Finding(Reason.ENFORCEMENT_IMPOSSIBLE, path, detail + _or_ask_for(rule, *roots)),)


def one_profile(case: Case) -> Iterable[Finding]:
    """Rule: the sidecar can run under a profile whose signals reach every process with VRAM.

    Fields: spec.[...][*].securityContext.[appArmorProfile,seLinuxOptions], the AppArmor annotations
    Allowed values: any where the sidecar may restart the pod; else the same for all containers with
    VRAM (the table of `enforcer_profiles`)
    """
    if len(case.demand.amounts) == 1 or case.rule.enforcement.restarts_pod:
        return ()
    return [
        Finding(
            Reason.ENFORCEMENT_IMPOSSIBLE,
            f"{confined.odd.path}.securityContext.{confined.name}",
            f"is not that of container {quoted(confined.first.name)}, and one sidecar can stop "
            f"processes of one {confined.name} only; give both the same{_or_ask_for(case.rule)}",
        )
        for confined in confinements(case.pod, case.demand)
        if confined.odd is not None
    ]


def _or_ask_for(rule: Rule, *settings: str) -> str:
    """Name the settings of the rule that would help, to append to what the pod's author can do."""
    if rule.enforcement.style is Style.NATIVE:
        settings = (*settings, f"enforcement.podRestart: {PodRestart.ALL_CONTAINERS}")
    if not settings:
        return ""
    return f", or ask your platform team for a rule with {' or '.join(settings)}"


def room_for_enforcer(case: Case) -> Iterable[Finding]:
    """Rule: pod-level resources leave room for the sidecar.

    Fields: spec.resources.requests|limits[cpu, memory] (KEP-2837)
    Allowed values: absent; requests of at least what all containers request together with the
    sidecar, limits of at least the sidecar's
    """
    of_pod = mapping(case.pod.spec, "resources", "spec")
    if not of_pod or case.enforcer is None:
        return ()
    return _too_tight(case.pod, of_pod, case.enforcer["resources"])


def _too_tight(pod: Pod, of_pod: Mapping[str, Any], sidecar: Json) -> Iterator[Finding]:
    for kind, ours in sidecar.items():
        amounts = mapping(of_pod, kind, "spec.resources")
        for resource, amount in ours.items():
            if resource not in amounts:
                continue
            path = f"spec.resources.{kind}[{resource}]"
            need = parse_quantity(amount)
            if kind == "requests":
                need += requested(pod, resource)
            if amount_or(amounts[resource], need) < need:
                detail = (
                    f"{amounts[resource]} leaves no room for the sidecar that holds the VRAM "
                    f"cap; add {amount} of {resource}"
                )
                yield Finding(Reason.ENFORCEMENT_IMPOSSIBLE, path, detail)
