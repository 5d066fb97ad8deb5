"""The sidecar `vram-enforcer`: its container and its volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from webhook.core.admission.sidecar.profiles import enforcer_profiles
from webhook.core.admission.sidecar.user import ROOT_UID, enforcer_user
from webhook.core.nvidia.variables import MEASURING, driver_capabilities, visible_devices
from webhook.core.policy.values import PodRestart, Rule, RunAs, Style
from webhook.names import (
    BLIND_AFTER_ENV,
    CAP_BYTES_ENV,
    ENFORCER_COMMAND,
    ENFORCER_CONTAINER,
    ENFORCER_NO_TOKEN_VOLUME,
    ENFORCER_RUN_PATH,
    ENFORCER_RUN_VOLUME,
    GRACE_ENV,
    POD_RESTART_EXIT_CODE,
    POLL_INTERVAL_ENV,
    TOKEN_PATH,
    TOLERANCE_ENV,
    WHEN_BLIND_ENV,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.core.pod.demand import Demand
    from webhook.core.pod.fields import Json
    from webhook.core.pod.views import Pod

VOLUMES: Final[tuple[dict[str, Any], ...]] = (
    {"name": ENFORCER_RUN_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    {"name": ENFORCER_NO_TOKEN_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
)

# Requests equal limits, so that the pod's quality-of-service class stays what it was.
_RESOURCES: Final = {"cpu": "10m", "memory": "64Mi"}
_MOUNTS: Final = (
    {"name": ENFORCER_RUN_VOLUME, "mountPath": ENFORCER_RUN_PATH},
    {"name": ENFORCER_NO_TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": True},
)
# At 10m of a core the interpreter takes some seconds to start, and each probe as well: hence one
# probe that waits, after the first seconds, instead of many that would slow the start down.
_STARTUP_WAIT_S: Final = 25
_STARTUP: Final = {
    "initialDelaySeconds": 5,
    "periodSeconds": 1,
    "timeoutSeconds": 30,
    "failureThreshold": 4,
}
# A liveness probe also fails to make an Event of a verdict (webhook.sidecar.heartbeat). That never
# ends the sidecar by itself: it happens only right after a liveness probe that passed (a startup
# probe does not count: the kubelet may remember failures of the container before), so that it is
# the first failure in a row, and the next probe passes unless the heartbeat is stale. It happens at
# most 35 s after that pass was recorded (one period, and a time-out for a slow probe); with two
# time-outs between, which leave no trace, it would be 45 s at least. Hence the 40 s of
# PASSED_WITHIN_S. What remains: after such an Event two failures restart the sidecar instead of
# three; a heartbeat that two probes find stale is at least 35 s old.
_LIVENESS: Final = {"periodSeconds": 20, "timeoutSeconds": 15, "failureThreshold": 3}


def enforcer_for(pod: Pod, demand: Demand, rule: Rule) -> Json | None:
    """Build the sidecar's container; None where no user would work (`enforcer_user`)."""
    user, profiles = enforcer_user(pod, demand, rule), enforcer_profiles(pod, demand)
    if user is None:
        return None
    enforcement = rule.enforcement
    container: Json = {
        "name": ENFORCER_CONTAINER,
        "image": enforcement.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(ENFORCER_COMMAND),
        "env": [
            {"name": CAP_BYTES_ENV, "value": str(demand.per_gpu_bytes)},
            {"name": POLL_INTERVAL_ENV, "value": enforcement.poll_interval},
            {"name": GRACE_ENV, "value": enforcement.grace},
            {"name": TOLERANCE_ENV, "value": enforcement.tolerance},
            {"name": BLIND_AFTER_ENV, "value": enforcement.blind_after},
            {"name": WHEN_BLIND_ENV, "value": enforcement.when_blind.value},
            visible_devices(chosen=rule.chooses_gpus),
            driver_capabilities(MEASURING),
        ],
        "resources": {"requests": dict(_RESOURCES), "limits": dict(_RESOURCES)},
        "volumeMounts": [dict(mount) for mount in _MOUNTS],
        "startupProbe": _probe(_STARTUP, "startup", "--wait", str(_STARTUP_WAIT_S)),
        "livenessProbe": _probe(_LIVENESS, "liveness"),
        "securityContext": {**_security_context(user, rule), **profiles},
    }
    if enforcement.style is Style.NATIVE:
        container["restartPolicy"] = "Always"
        if enforcement.restarts_pod:
            container["restartPolicyRules"] = restart_rules()
    return container


def restart_rules() -> list[Json]:
    """Build the rule by which the kubelet restarts all containers (ContainerRestartRule)."""
    when = {"operator": "In", "values": [POD_RESTART_EXIT_CODE]}
    return [{"action": PodRestart.ALL_CONTAINERS.value, "exitCodes": when}]


def _probe(timing: Mapping[str, int], *arguments: str) -> Json:
    return {"exec": {"command": [*ENFORCER_COMMAND, "--probe", *arguments]}, **timing}


def _security_context(user: int, rule: Rule) -> Json:
    """Drop all capabilities except what stopping other users' processes needs."""
    capabilities: Json = {"drop": ["ALL"]}
    if user == ROOT_UID and rule.enforcement.run_as is not RunAs.WORKLOAD:
        capabilities["add"] = ["KILL"]
    return {
        "runAsUser": user,
        "runAsNonRoot": user != ROOT_UID,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": capabilities,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
