"""Recognise the sidecar in a pod by its content, never by an annotation."""

from __future__ import annotations

import posixpath
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from webhook.core.admission.sidecar.container import restart_rules
from webhook.core.pod.fields import mapping, text, texts
from webhook.names import ENFORCER_COMMAND

if TYPE_CHECKING:
    from webhook.core.pod.fields import Json
    from webhook.core.pod.views import Container

# Where other people's webhooks mount credentials into every container; it hides nothing of ours.
_HARMLESS_MOUNTS: Final = ("/var/run/secrets/", "/run/secrets/")
# Variables that steer the dynamic loader, the C library, the shell, Python, the driver or us.
_STEERING: Final = ("LD_", "GLIBC_", "GCONV_", "MALLOC_", "PYTHON", "NVIDIA_", "CUDA_", "VRAM_")
_STEERING_NAMES: Final = frozenset({"PATH", "HOME", "LOCPATH", "NLSPATH", "TMPDIR"})


def is_enforcer(container: Container, image: str) -> bool:
    """Say whether a container runs our program.

    The image's tag may differ, so that replicas of two releases agree during an upgrade.
    """
    return (
        _repository(text(container.raw, "image", container.path)) == _repository(image)
        and texts(container.raw, "command", container.path) == list(ENFORCER_COMMAND)
        and not texts(container.raw, "args", container.path)
    )


def is_intact(container: Container, wanted: Json) -> bool:
    """Say whether a container is the wanted sidecar, allowing for what others add in good faith.

    The API server fills in defaults, AlwaysPullImages changes the pull policy, webhooks of
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


def holds(container: Container, wanted: Json) -> bool:
    """Say whether a container is a sidecar of any policy with the wanted cap.

    What a policy sets may differ; each of our variables is still set once, and nothing is added
    except what others add in good faith.
    """
    names = [entry["name"] for entry in container.env()]
    ours = [entry["name"] for entry in wanted["env"]]
    return (
        not (container.raw.keys() - wanted.keys() - _DEFAULTED - {"restartPolicyRules"})
        and container.raw.get("restartPolicyRules") in (None, restart_rules())
        and wanted["env"][0] in container.env()  # the cap
        and all(names.count(name) == 1 for name in ours)
        and not any(_steers(name) for name in names if name not in ours)
        and _holds_amounts(container, wanted["resources"])
        and _holds_mounts(container.raw, wanted["volumeMounts"])
    )


_DEFAULTED: Final = frozenset(
    {"terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy"}
)
_LIMIT_RANGED: Final = frozenset({"ephemeral-storage"})
_PROBE_DEFAULTS: Final = frozenset({"successThreshold"})


def _covers(actual: object, wanted: object) -> bool:
    """Compare a field, allowing the API server's defaults for probes."""
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
    """Compare amounts; a resource that shows GPUs would make the sidecar measure the wrong one."""
    resources = mapping(container.raw, "resources", container.path)
    return not (resources.keys() - wanted.keys()) and all(
        container.resources(kind).items() >= amounts.items()
        and not (container.resources(kind).keys() - amounts.keys() - _LIMIT_RANGED)
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


@lru_cache(maxsize=256)
def _repository(image: str) -> str:
    """Return an image reference without its tag and digest."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]
