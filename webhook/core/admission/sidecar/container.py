"""Container and volumes of the sidecar `vram-enforcer`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from webhook.core.admission import gate
from webhook.core.admission.sidecar.security_context import (
    ROOT_UID,
    enforcer_profiles,
    enforcer_user,
)
from webhook.core.enforcement import parameters
from webhook.core.nvidia.variables import NVML_LIBRARIES, driver_capabilities, visible_devices
from webhook.core.pod.demand import Demand
from webhook.core.pod.fields import Json, get_object
from webhook.core.pod.quantity import parse_quantity, parse_quantity_or
from webhook.core.pod.views import Pod, is_guaranteed, total_request
from webhook.core.policy.model import (
    DriverLimit,
    Enforcement,
    Placement,
    PodRestart,
    ResourceAmounts,
    Rule,
    RunAs,
)
from webhook.names import (
    BLIND_AFTER_ENV,
    CAP_BYTES_ENV,
    DRIVER_LIMIT_ANNOTATION,
    DRIVER_LIMIT_ENV,
    ENFORCER_COMMAND,
    ENFORCER_CONTAINER,
    ENFORCER_NO_TOKEN_VOLUME,
    ENFORCER_PROBE,
    ENFORCER_RUN_PATH,
    ENFORCER_RUN_VOLUME,
    GPU_ANNOTATION,
    GPUS_ENV,
    GRACE_ENV,
    ON_EXCESS_ENV,
    POLL_INTERVAL_ENV,
    TOKEN_PATH,
    TOLERANCE_ENV,
    WHEN_BLIND_ENV,
)


def _variable(name: str, annotation: str) -> Json:
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}
    return {"name": name, "valueFrom": {"fieldRef": field}}


GPUS_VARIABLE: Final = _variable(GPUS_ENV, GPU_ANNOTATION)
LIMIT_VARIABLE: Final = _variable(DRIVER_LIMIT_ENV, DRIVER_LIMIT_ANNOTATION)
"""Variable of pods with `driverLimit`; empty if the pod's node has no driver limit."""
BINDING_VARIABLES: Final = {
    entry["name"]: entry for entry in (GPUS_VARIABLE, LIMIT_VARIABLE, gate.VARIABLE)
}
"""Environment variables from annotations of the binding; equal in every release."""

_MEMORY: Final = "64Mi"
_DEFAULT_CPU: Final = ("10m", "1")
"""Default request and limit of CPU. The interpreter and the self-test take about half a second
of a core, and no other container starts before they end."""
_GUARANTEED_CPU: Final = ("200m", "200m")
# The kubelet starts a program in the container for each probe, which on a busy node costs more than
# the probe itself. So one probe waits until the enforcer has started, instead of many probes. The
# probe fails while the sidecar waits for the driver's limit. If such a failure restarted the
# sidecar, the kubelet would delay the restart by its back-off. So the probe may fail without limit:
# the sidecar itself exits if anything is wrong.
_STARTUP_WAIT_S: Final = 25
_STARTUP: Final = {
    "periodSeconds": 1,
    "timeoutSeconds": 30,
    "failureThreshold": 2**31 - 1,
}
# A liveness probe also fails to turn a verdict into an Event (webhook/sidecar/probe.sh). Such a
# failure never restarts the sidecar: it only happens right after a passed liveness probe, so it is
# the first failure in a row, and the next probe passes unless the heartbeat is stale. A startup
# probe does not count as passed, since the kubelet may remember failures of the previous container.
# The failure happens at most 35 s after the recorded pass: one period, and a time-out for a slow
# probe. With two time-outs in between, which leave no trace, it would happen after at least 45 s.
# Hence PASSED_WITHIN_S is 40 s. One effect remains: after such an Event two failures restart the
# sidecar instead of three. A heartbeat that two probes find stale is at least 35 s old.
_LIVENESS: Final = {"periodSeconds": 20, "timeoutSeconds": 15, "failureThreshold": 3}
# Exit codes after which only the sidecar is restarted: it received SIGTERM, its self-test failed
# before another container started, or its driver was replaced.
_RESTARTED_ALONE: Final = (0, 70, 75)


def enforcer_for(pod: Pod, demand: Demand, rule: Rule) -> Json | None:
    """Return the sidecar's container, or None if no user would work (`enforcer_user`)."""
    user, profiles = enforcer_user(pod, demand, rule), enforcer_profiles(pod, demand)
    if user is None:
        return None
    container = _base_container(rule.enforcement, rule.placement, demand.per_gpu_bytes, user)
    changed = {"resources": _resources(pod, rule.enforcement.resources)}
    if profiles:
        changed["securityContext"] = {**container["securityContext"], **profiles}
    return {**container, **changed}


# The keys are numbers and parts of policies, never a tenant's strings, so 256 entries take little
# memory.
@lru_cache(maxsize=256)
def _base_container(
    enforcement: Enforcement, placement: Placement, cap_bytes: int, user: int
) -> Json:
    """Return the container without amounts and profiles. Pods share it, and it never changes."""
    container: Json = {
        "name": ENFORCER_CONTAINER,
        "image": enforcement.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(ENFORCER_COMMAND),
        "env": list(_variables(enforcement, placement, cap_bytes)),
        "resources": {},
        "volumeMounts": list(_mounts(placement)),
        "startupProbe": _probe(_STARTUP, "startup", str(_STARTUP_WAIT_S)),
        "livenessProbe": _probe(_LIVENESS, "liveness"),
        "securityContext": _security_context(user, enforcement),
        "restartPolicy": "Always",
    }
    if enforcement.restarts_pod:
        container["restartPolicyRules"] = restart_rules()
    return container


def _resources(pod: Pod, configured: ResourceAmounts) -> Json:
    """Return amounts with which the sidecar starts quickly and the pod keeps its QoS class.

    | the pod without the sidecar is | CPU request | CPU limit | memory, both |
    | --- | --- | --- | --- |
    | Guaranteed, and its pod-level requests, if any, have room | 200m | 200m | 64Mi |
    | anything else | 10m | 1, or the pod-level limit if that is less | 64Mi |

    A Guaranteed container needs equal amounts, so the scheduler must reserve the limit. If the pod
    has pod-level resources, only these determine its class, and the API server accepts no container
    limit above the pod-level limit. Any amount makes a BestEffort pod Burstable.

    Amounts of the rule replace these, for each resource separately:

    | the rule sets | request | limit |
    | --- | --- | --- |
    | both | the rule's | the rule's |
    | the limit | the limit, as in Kubernetes | the rule's |
    | the request | the rule's | the default, or the request if that is more |
    | nothing | the default | the default |

    The sidecar always has a limit. Otherwise a tenant could set a limit that is too low.
    """
    pod_level = get_object(pod.spec, "resources", "spec")
    guaranteed = is_guaranteed(pod) and _has_cpu_room(
        pod_level, pod, parse_quantity(_GUARANTEED_CPU[0])
    )
    amounts = _amounts(configured, *(_GUARANTEED_CPU if guaranteed else _DEFAULT_CPU))
    most = get_object(pod_level, "limits", "spec.resources").get("cpu")
    if most is None:
        return amounts
    request, limit = amounts["requests"]["cpu"], amounts["limits"]["cpu"]
    least, ours = parse_quantity(request), parse_quantity(limit)
    amount = parse_quantity_or(most, ours)
    if amount >= ours:
        return amounts
    limit = str(most) if amount >= least else request
    return {**amounts, "limits": {**amounts["limits"], "cpu": limit}}


@lru_cache(maxsize=64)
def _amounts(configured: ResourceAmounts, request: str, limit: str) -> Json:
    """Return a rule's amounts with default CPU amounts. Pods share them; they never change."""
    cpu = _request_and_limit(configured.cpu_request, configured.cpu_limit, (request, limit))
    memory = _request_and_limit(
        configured.memory_request, configured.memory_limit, (_MEMORY, _MEMORY)
    )
    return {
        "requests": {"cpu": cpu[0], "memory": memory[0]},
        "limits": {"cpu": cpu[1], "memory": memory[1]},
    }


def _request_and_limit(
    request: str | None, limit: str | None, default: tuple[str, str]
) -> tuple[str, str]:
    if request is None:
        return default if limit is None else (limit, limit)
    return request, limit or max(default[1], request, key=parse_quantity)


def _has_cpu_room(pod_level: Mapping[str, Any], pod: Pod, cpu: Fraction) -> bool:
    """Return True if pod-level requests leave this CPU amount after the user's containers."""
    written = get_object(pod_level, "requests", "spec.resources").get("cpu")
    return written is None or parse_quantity_or(written, cpu) - total_request(pod, "cpu") >= cpu


def _variables(enforcement: Enforcement, placement: Placement, cap_bytes: int) -> Iterator[Json]:
    yield {"name": CAP_BYTES_ENV, "value": str(cap_bytes)}
    for name, default, value in (
        (POLL_INTERVAL_ENV, parameters.POLL_INTERVAL.default, enforcement.poll_interval),
        (GRACE_ENV, parameters.GRACE.default, enforcement.grace),
        (TOLERANCE_ENV, parameters.TOLERANCE, enforcement.tolerance),
        (BLIND_AFTER_ENV, parameters.BLIND_AFTER.default, enforcement.blind_after),
        (WHEN_BLIND_ENV, parameters.WHEN_BLIND[0], enforcement.when_blind.value),
        (ON_EXCESS_ENV, parameters.ON_EXCESS[0], enforcement.on_excess.value),
    ):
        if value != default:  # an unset variable means the default
            yield {"name": name, "value": value}
    chosen = placement is Placement.BINDING
    if chosen:
        yield GPUS_VARIABLE
        yield gate.VARIABLE
    if enforcement.promised_limit(placement) is not DriverLimit.OFF:
        yield LIMIT_VARIABLE
    yield visible_devices(chosen=chosen)
    yield driver_capabilities(NVML_LIBRARIES)


def _mounts(placement: Placement) -> Iterator[Json]:
    yield {"name": ENFORCER_RUN_VOLUME, "mountPath": ENFORCER_RUN_PATH}
    yield {"name": ENFORCER_NO_TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": True}
    if placement is Placement.BINDING:
        yield gate.MOUNT


ENFORCER_VOLUMES: Final = tuple(
    {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    for name in (ENFORCER_RUN_VOLUME, ENFORCER_NO_TOKEN_VOLUME)
)
"""Volumes that only the sidecar mounts."""


def restart_rules() -> list[Json]:
    """Return the rule by which the kubelet restarts all containers (ContainerRestartRule).

    If anything else ends the sidecar, such as a signal from the workload, all containers restart.
    So a process gains nothing by stopping the sidecar.
    """
    when = {"operator": "NotIn", "values": list(_RESTARTED_ALONE)}
    return [{"action": PodRestart.ALL_CONTAINERS.value, "exitCodes": when}]


def _probe(timing: Mapping[str, int], *arguments: str) -> Json:
    return {"exec": {"command": [ENFORCER_PROBE, *arguments]}, **timing}


def _security_context(user: int, enforcement: Enforcement) -> Json:
    """Return a context without capabilities, except KILL to stop processes of other users."""
    capabilities: Json = {"drop": ["ALL"]}
    if user == ROOT_UID and enforcement.run_as is not RunAs.WORKLOAD:
        capabilities["add"] = ["KILL"]
    return {
        "runAsUser": user,
        "runAsNonRoot": user != ROOT_UID,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": capabilities,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
