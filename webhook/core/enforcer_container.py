"""The sidecar `vram-enforcer`: its container, its volumes, and how it is recognised."""

from __future__ import annotations

import posixpath
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from webhook.core.enforcer_user import ROOT_UID
from webhook.core.pod import text, texts
from webhook.core.policy import Enforcement, Placement, Rule, RunAs, Style
from webhook.names import (
    BLIND_AFTER_ENV,
    CAP_BYTES_ENV,
    DRIVER_CAPABILITIES_ENV,
    ENFORCER_COMMAND,
    ENFORCER_CONTAINER,
    ENFORCER_NO_TOKEN_VOLUME,
    ENFORCER_RUN_PATH,
    ENFORCER_RUN_VOLUME,
    GPU_ANNOTATION,
    GRACE_ENV,
    POLL_INTERVAL_ENV,
    TOKEN_PATH,
    TOLERANCE_ENV,
    VISIBLE_DEVICES_ENV,
    VRAM_RESOURCE,
    WHEN_BLIND_ENV,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from webhook.core.demand import Demand
    from webhook.core.pod import Container, Json

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
# At 10m of a core an interpreter takes seconds to start, hence the long time-outs.
_STARTUP: Final = {"periodSeconds": 3, "timeoutSeconds": 10, "failureThreshold": 40}
_LIVENESS: Final = {"periodSeconds": 20, "timeoutSeconds": 15, "failureThreshold": 3}

# Where other people's webhooks mount credentials into every container; it hides nothing of ours.
_HARMLESS_MOUNTS: Final = ("/var/run/secrets/", "/run/secrets/")
# Variables that steer the dynamic loader, the C library, the shell, Python, the driver or us.
_STEERING: Final = ("LD_", "GLIBC_", "GCONV_", "MALLOC_", "PYTHON", "NVIDIA_", "CUDA_", "VRAM_")
_STEERING_NAMES: Final = frozenset({"PATH", "HOME", "LOCPATH", "NLSPATH", "TMPDIR"})


def enforcer_container(demand: Demand, rule: Rule, user: int) -> Json:
    """Build the sidecar's container."""
    enforcement = rule.enforcement
    container: Json = {
        "name": ENFORCER_CONTAINER,
        "image": enforcement.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(ENFORCER_COMMAND),
        "env": [
            {"name": CAP_BYTES_ENV, "value": str(demand.per_gpu_bytes)},
            *_settings(enforcement),
            visible_devices(rule.placement),
            {"name": DRIVER_CAPABILITIES_ENV, "value": "utility"},
        ],
        "resources": {"requests": dict(_RESOURCES), "limits": dict(_RESOURCES)},
        "volumeMounts": [dict(mount) for mount in _MOUNTS],
        "startupProbe": _probe("startup", _STARTUP),
        "livenessProbe": _probe("liveness", _LIVENESS),
        "securityContext": _security_context(user, rule),
    }
    if enforcement.style is Style.NATIVE:
        container["restartPolicy"] = "Always"
    return container


def visible_devices(placement: Placement) -> Json:
    """Build the variable that says which GPUs a container sees."""
    if placement is Placement.NONE:
        return {"name": VISIBLE_DEVICES_ENV, "value": "all"}
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{GPU_ANNOTATION}']"}
    return {"name": VISIBLE_DEVICES_ENV, "valueFrom": {"fieldRef": field}}


def sees_no_gpu(entry: Json) -> bool:
    """Say whether a variable leaves the GPUs hidden: another name, or void, none or empty."""
    if entry["name"] != VISIBLE_DEVICES_ENV:
        return True
    return not entry.get("valueFrom") and entry.get("value") in {None, "", "void", "none"}


def is_enforcer(container: Container, image: str) -> bool:
    """Say whether a container runs our program: decided by what it runs, never by an annotation.

    The image's tag may differ, so that replicas of two releases agree during an upgrade.
    """
    return (
        _repository(text(container.raw, "image", container.path)) == _repository(image)
        and texts(container.raw, "command", container.path) == list(ENFORCER_COMMAND)
        and not texts(container.raw, "args", container.path)
    )


def is_intact(container: Container, wanted: Json) -> bool:
    """Say whether a container is the wanted sidecar, allowing for what others add in good faith.

    The API server fills in defaults, AlwaysPullImages changes the pull policy, and webhooks of
    clouds and meshes add variables and credential mounts to every container, and a LimitRange adds
    amounts of resources that we do not set.
    """
    raw = container.raw
    if raw.keys() - wanted.keys() - _DEFAULTED:
        return False
    plain = wanted.keys() - {"env", "imagePullPolicy", "resources", "volumeMounts"}
    return (
        all(_covers(raw.get(key), wanted[key]) for key in plain)
        and _holds_env(container, wanted["env"])
        and _holds_amounts(container, wanted["resources"])
        and _holds_mounts(raw, wanted["volumeMounts"])
    )


def holds(container: Container, cap_bytes: int) -> bool:
    """Say whether a sidecar of whatever policy holds this cap, and nobody else steers it."""
    caps = [entry.get("value") for entry in container.env() if entry["name"] == CAP_BYTES_ENV]
    own = {CAP_BYTES_ENV, *_SETTINGS, VISIBLE_DEVICES_ENV, DRIVER_CAPABILITIES_ENV}
    return caps == [str(cap_bytes)] and not any(
        _steers(entry["name"]) and entry["name"] not in own for entry in container.env()
    )


_DEFAULTED: Final = frozenset(
    {"terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy"}
)
_PROBE_DEFAULTS: Final = frozenset({"successThreshold"})


def _covers(actual: object, wanted: object) -> bool:
    """Compare a field, letting the API server's defaults for probes pass."""
    if isinstance(wanted, dict) and isinstance(actual, dict):
        return not (actual.keys() - wanted.keys() - _PROBE_DEFAULTS) and all(
            _covers(actual.get(key), value) for key, value in wanted.items()
        )
    return actual == wanted


def _holds_env(container: Container, wanted: list[Json]) -> bool:
    ours = {entry["name"]: entry for entry in wanted}
    seen = set()
    for entry in container.env():
        name = entry["name"]
        if name in ours:
            if entry != ours[name] or name in seen:
                return False
            seen.add(name)
        elif _steers(name):
            return False
    return len(seen) == len(ours)


def _holds_amounts(container: Container, wanted: Json) -> bool:
    return all(
        container.resources(kind).items() >= amounts.items()
        and VRAM_RESOURCE not in container.resources(kind)
        for kind, amounts in wanted.items()
    )


def _steers(name: str) -> bool:
    return name.startswith(_STEERING) or name in _STEERING_NAMES


def _holds_mounts(raw: Json, wanted: list[Json]) -> bool:
    actual = raw.get("volumeMounts")
    if not isinstance(actual, list) or not all(mount in actual for mount in wanted):
        return False
    return all(mount in wanted or _is_harmless(mount) for mount in actual)


def _is_harmless(mount: object) -> bool:
    path = mount.get("mountPath") if isinstance(mount, dict) else None
    return isinstance(path, str) and posixpath.normpath(path).startswith(_HARMLESS_MOUNTS)


_SETTINGS: Final = (
    POLL_INTERVAL_ENV,
    GRACE_ENV,
    TOLERANCE_ENV,
    BLIND_AFTER_ENV,
    WHEN_BLIND_ENV,
)


def _settings(enforcement: Enforcement) -> Iterator[Json]:
    yield {"name": POLL_INTERVAL_ENV, "value": enforcement.poll_interval}
    yield {"name": GRACE_ENV, "value": enforcement.grace}
    yield {"name": TOLERANCE_ENV, "value": enforcement.tolerance}
    yield {"name": BLIND_AFTER_ENV, "value": enforcement.blind_after}
    yield {"name": WHEN_BLIND_ENV, "value": enforcement.when_blind.value}


def _probe(kind: str, timing: Mapping[str, int]) -> Json:
    return {"exec": {"command": [*ENFORCER_COMMAND, "--probe", kind]}, **timing}


def _security_context(user: int, rule: Rule) -> Json:
    """Drop everything but what stopping other users' processes needs."""
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


@lru_cache(maxsize=256)
def _repository(image: str) -> str:
    """Return an image reference without its tag and digest."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]
