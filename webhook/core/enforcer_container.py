"""The sidecar `vram-enforcer`: its container, its volumes, its user, and how it is recognised."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from webhook.core.errors import Finding, Reason
from webhook.core.pod import flag, integer, mapping, text, texts
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
    WHEN_BLIND_ENV,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from webhook.core.demand import Demand
    from webhook.core.pod import Container, Json, Pod

ROOT_UID: Final = 0

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


def enforcer_user(pod: Pod, demand: Demand, rule: Rule) -> int | Finding:
    """Return the user id the sidecar runs as, or why none can work.

    Signals reach a process only from the same user or from one with CAP_KILL, and Pod Security
    `restricted` forbids both root and CAP_KILL; the namespace's level cannot be seen at admission,
    so `Auto` goes by whether the pod is written to pass it.

    | runAs | pod meets `restricted` | one known user for the VRAM | sidecar |
    | --- | --- | --- | --- |
    | Root | any | any | root with KILL |
    | Workload | any | yes | that user |
    | Workload | any | no | EnforcementImpossible |
    | Auto | no | any | root with KILL |
    | Auto | yes | yes | that user |
    | Auto | yes | no | EnforcementImpossible |
    """
    run_as = rule.enforcement.run_as
    if run_as is RunAs.ROOT or (run_as is RunAs.AUTO and not _meets_restricted(pod)):
        return ROOT_UID
    holders = [container for container in pod.containers if container.name in demand.amounts]
    users = {container.name: _user_of(container, pod) for container in holders}
    if None not in users.values() and len(set(users.values())) == 1:
        return users[holders[0].name] or ROOT_UID
    unknown = [container for container in holders if users[container.name] is None]
    if unknown:
        path = f"{unknown[0].path}.securityContext.runAsUser"
        detail = (
            "is not set, so the sidecar cannot run as the same user and stop its processes; "
            "set runAsUser to the image's user id"
        )
    else:
        path = f"{holders[-1].path}.securityContext.runAsUser"
        shown = ", ".join(f"{name} as {uid}" for name, uid in users.items())
        detail = (
            f"the containers with VRAM run as different users ({shown}), and one sidecar can stop "
            "processes of one user only; give them the same runAsUser"
        )
    if run_as is RunAs.AUTO:
        detail += ", or ask your platform team for a rule with enforcement.runAs: Root"
    return Finding(Reason.ENFORCEMENT_IMPOSSIBLE, path, detail)


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
    clouds and meshes add variables and credential mounts to every container.
    """
    raw = container.raw
    for key, value in wanted.items():
        if key == "imagePullPolicy":
            continue
        actual = raw.get(key)
        if key == "env":
            if not _holds_env(container, value):
                return False
        elif key == "volumeMounts":
            if not _holds_mounts(raw, value):
                return False
        elif not _covers(actual, value):
            return False
    return not (raw.keys() - wanted.keys() - _DEFAULTED)


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
    for container in pod.containers:
        contexts = _contexts(container, pod)
        if contexts.flag("runAsNonRoot") is not True:
            return False
        if flag(contexts.container, "allowPrivilegeEscalation", contexts.path) is not False:
            return False
        capabilities = mapping(contexts.container, "capabilities", contexts.path)
        if "ALL" not in texts(capabilities, "drop", contexts.path):
            return False
        if contexts.seccomp() not in {"RuntimeDefault", "Localhost"}:
            return False
    return True
