"""The sidecar `vram-enforcer`: its container and its volumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from webhook.core.admission import gate
from webhook.core.admission.sidecar.user import ROOT_UID, enforcer_profiles, enforcer_user
from webhook.core.enforcement import bounds
from webhook.core.nvidia.variables import NVML_LIBRARIES, driver_capabilities, visible_devices
from webhook.core.pod.compute import is_guaranteed, requested
from webhook.core.pod.demand import Demand
from webhook.core.pod.fields import Json, mapping
from webhook.core.pod.quantity import amount_or, parse_quantity
from webhook.core.pod.views import Pod
from webhook.core.policy.values import (
    Amounts,
    DriverLimit,
    Enforcement,
    Placement,
    PodRestart,
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
"""Of pods to which a rule promises the driver's limit; empty where their node has none."""
OF_BINDING: Final = {one["name"]: one for one in (GPUS_VARIABLE, LIMIT_VARIABLE, gate.VARIABLE)}
"""Variables that no release spells otherwise."""

_MEMORY: Final = "64Mi"
_USUAL: Final = ("10m", "1")
"""Request and limit of CPU. The interpreter and the self-test take about half a second of a core,
before anybody starts."""
_GUARANTEED: Final = ("200m", "200m")
# The kubelet starts a program in the container for each probe, which costs a start on a busy node
# more than the probe itself: hence one that waits until the enforcer rings, instead of many. It
# fails while the sidecar waits for the driver's limit, and a kill would put the sidecar under the
# kubelet's back-off. So it may fail forever: the sidecar ends by itself if anything is wrong.
_STARTUP_WAIT_S: Final = 25
_STARTUP: Final = {
    "periodSeconds": 1,
    "timeoutSeconds": 30,
    "failureThreshold": 2**31 - 1,
}
# A liveness probe also fails to make an Event of a verdict (webhook/sidecar/probe.sh). That never
# ends the sidecar by itself: it happens only right after a liveness probe that passed (a startup
# probe does not count: the kubelet may remember failures of the container before), so that it is
# the first failure in a row, and the next probe passes unless the heartbeat is stale. It happens at
# most 35 s after that pass was recorded (one period, and a time-out for a slow probe); with two
# time-outs between, which leave no trace, it would be 45 s at least. Hence the 40 s of
# PASSED_WITHIN_S. What remains: after such an Event two failures restart the sidecar instead of
# three; a heartbeat that two probes find stale is at least 35 s old.
_LIVENESS: Final = {"periodSeconds": 20, "timeoutSeconds": 15, "failureThreshold": 3}
# Exit codes after which only the sidecar is started again: it was told to stop, its self-test
# failed before another container started, its driver was replaced.
_RESTARTED_ALONE: Final = (0, 70, 75)


def enforcer_for(pod: Pod, demand: Demand, rule: Rule) -> Json | None:
    """Build the sidecar's container; None where no user would work (`enforcer_user`)."""
    user, profiles = enforcer_user(pod, demand, rule), enforcer_profiles(pod, demand)
    if user is None:
        return None
    container = _shared(rule.enforcement, rule.placement, demand.per_gpu_bytes, user)
    changed = {"resources": _resources(pod, rule.enforcement.resources)}
    if profiles:
        changed["securityContext"] = {**container["securityContext"], **profiles}
    return {**container, **changed}


# By numbers and by what policies say, never by a tenant's text; so 256 of them take little memory.
@lru_cache(maxsize=256)
def _shared(enforcement: Enforcement, placement: Placement, cap_bytes: int, user: int) -> Json:
    """Build the container without amounts and profiles; pods share it, and nobody changes it."""
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


def _resources(pod: Pod, given: Amounts) -> Json:
    """Choose amounts with which the sidecar starts soon and the pod's class stays what it was.

    | without us the pod is | CPU requested | CPU limit | memory, both |
    | --- | --- | --- | --- |
    | Guaranteed, and its pod-level requests, if any, have room | 200m | 200m | 64Mi |
    | anything else | 10m | 1, or the pod-level limit if that is less | 64Mi |

    Of containers the class asks equal amounts, so the limit is what the scheduler has to find.
    Where the pod has resources of its own they alone decide about the class, and the API server
    takes no container's limit above theirs. A BestEffort pod becomes Burstable by any amount.

    What the rule gives comes in place of that, for each resource by itself:

    | given | request | limit |
    | --- | --- | --- |
    | both | as given | as given |
    | the limit | as the limit, as in Kubernetes | as given |
    | the request | as given | the usual one, or the request if that is more |
    | nothing | the usual one | the usual one |

    There is always a limit: where we set none a tenant could, too low for the sidecar to live.
    """
    of_pod = mapping(pod.spec, "resources", "spec")
    guaranteed = is_guaranteed(pod) and _leaves(of_pod, pod, parse_quantity(_GUARANTEED[0]))
    amounts = _amounts(given, *(_GUARANTEED if guaranteed else _USUAL))
    most = mapping(of_pod, "limits", "spec.resources").get("cpu")
    if most is None:
        return amounts
    request, limit = amounts["requests"]["cpu"], amounts["limits"]["cpu"]
    least, ours = parse_quantity(request), parse_quantity(limit)
    amount = amount_or(most, ours)
    if amount >= ours:
        return amounts
    limit = str(most) if amount >= least else request
    return {**amounts, "limits": {**amounts["limits"], "cpu": limit}}


@lru_cache(maxsize=64)
def _amounts(given: Amounts, request: str, limit: str) -> Json:
    """Build the amounts of a rule, from what is usual for CPU; pods share them as `_shared`."""
    cpu = _given(given.cpu_request, given.cpu_limit, (request, limit))
    memory = _given(given.memory_request, given.memory_limit, (_MEMORY, _MEMORY))
    return {
        "requests": {"cpu": cpu[0], "memory": memory[0]},
        "limits": {"cpu": cpu[1], "memory": memory[1]},
    }


def _given(request: str | None, limit: str | None, usual: tuple[str, str]) -> tuple[str, str]:
    """Return request and limit of a resource, as the table of `_resources` has them."""
    if request is None:
        return usual if limit is None else (limit, limit)
    return request, limit or max(usual[1], request, key=parse_quantity)


def _leaves(of_pod: Mapping[str, Any], pod: Pod, cpu: Fraction) -> bool:
    """Say whether pod-level requests have room for so much CPU beside the user's containers."""
    written = mapping(of_pod, "requests", "spec.resources").get("cpu")
    return written is None or amount_or(written, cpu) - requested(pod, "cpu") >= cpu


def _variables(enforcement: Enforcement, placement: Placement, cap_bytes: int) -> Iterator[Json]:
    yield {"name": CAP_BYTES_ENV, "value": str(cap_bytes)}
    for name, default, value in (
        (POLL_INTERVAL_ENV, bounds.POLL_INTERVAL.default, enforcement.poll_interval),
        (GRACE_ENV, bounds.GRACE.default, enforcement.grace),
        (TOLERANCE_ENV, bounds.TOLERANCE, enforcement.tolerance),
        (BLIND_AFTER_ENV, bounds.BLIND_AFTER.default, enforcement.blind_after),
        (WHEN_BLIND_ENV, bounds.WHEN_BLIND[0], enforcement.when_blind.value),
        (ON_EXCESS_ENV, bounds.ON_EXCESS[0], enforcement.on_excess.value),
    ):
        if value != default:  # all readers use the default if the variable is unset
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
"""Volumes of the sidecar only."""


def restart_rules() -> list[Json]:
    """Build the rule by which the kubelet restarts all containers (ContainerRestartRule).

    Whatever else ends the sidecar than itself, a signal from the workload among it, ends what it
    guarded as well: who kills it gains nothing.
    """
    when = {"operator": "NotIn", "values": list(_RESTARTED_ALONE)}
    return [{"action": PodRestart.ALL_CONTAINERS.value, "exitCodes": when}]


def _probe(timing: Mapping[str, int], *arguments: str) -> Json:
    return {"exec": {"command": [ENFORCER_PROBE, *arguments]}, **timing}


def _security_context(user: int, enforcement: Enforcement) -> Json:
    """Drop all capabilities except what stopping other users' processes needs."""
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
