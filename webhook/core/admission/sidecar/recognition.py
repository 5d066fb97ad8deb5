"""Recognise the sidecar in a pod by its content, never by an annotation."""

from __future__ import annotations

import posixpath
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Final

from webhook.core.admission.gate import MOUNT, has_gate
from webhook.core.admission.sidecar.container import OF_BINDING, restart_rules
from webhook.core.nvidia.variables import chooses_devices, shows_all, shows_chosen
from webhook.core.pod.fields import Json, mapping, text, texts
from webhook.core.pod.quantity import MIB, amount_or, parse_quantity
from webhook.names import (
    ENFORCER_COMMAND,
    ENFORCER_CONTAINER,
    ENFORCER_RUN_PATH,
    PREFIX,
    VRAM_RESOURCE,
)

if TYPE_CHECKING:
    from webhook.core.pod.views import Container

# Where other people's webhooks mount credentials into every container; it hides nothing of ours.
_HARMLESS_MOUNTS: Final = ("/var/run/secrets/", "/run/secrets/")
# What they set in every container, none of which steers the dynamic loader, the C library, Python,
# the driver or us. Any other variable has no business in the sidecar.
_HARMLESS_PREFIXES: Final = (
    *("AWS_", "AZURE_", "CLOUDSDK_", "GOOGLE_", "KUBERNETES_"),
    *("DD_", "ELASTIC_APM_", "NEW_RELIC_", "OTEL_"),
)
_HARMLESS_NAMES: Final = frozenset(
    {
        *("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
        *("all_proxy", "http_proxy", "https_proxy", "no_proxy"),
        *("CLUSTER_NAME", "HOST_IP", "NODE", "NODE_IP", "NODE_NAME"),
        *("NAMESPACE", "POD_IP", "POD_NAME", "POD_NAMESPACE", "POD_UID", "TZ"),
    }
)
_OURS: Final = ("VRAM_", "VRAMWARDEN_", "NVIDIA_")


def is_enforcer(container: Container) -> bool:
    """Return True if a container runs our program, with our command and without arguments.

    Its image and other fields do not count: a pod that is created again may bring those of another
    policy or registry, and translation writes all of them again.
    """
    command = texts(container.raw, "command", container.path)
    return command == list(ENFORCER_COMMAND) and not texts(container.raw, "args", container.path)


def is_enforcers_volume(volume: Json) -> bool:
    """Return True if a volume may be the sidecar's: ours are empty at first."""
    return volume.keys() == {"name", "emptyDir"}


def is_intact(container: Container, wanted: Json, *, stored: bool) -> bool:
    """Say whether a container is the wanted sidecar, allowing for what others add in good faith.

    | added or changed by | what | before translation | when it is stored |
    | --- | --- | --- | --- |
    | the API server | its defaults, with its values | yes | yes |
    | its plugin AlwaysPullImages | imagePullPolicy Always | yes | yes |
    | its plugin LimitRanger | a sensible amount of ephemeral storage | yes | yes, any amount |
    | the same | 0 of an extended resource; translation writes 0 over others | yes | yes |
    | webhooks of clouds, meshes | variables, credential mounts, FallbackToLogsOnError | no | yes |
    | anybody | anything else | no | no |

    Before translation a pod may come with all that its user wrote; whatever is not ours is written
    over then. Plugins check at the end that the pod has what they set, so that stays.
    """
    raw = container.raw
    if raw.keys() - wanted.keys() - _DEFAULTS.keys():
        return False
    # Most are as we wrote them, or differ in what the API server fills in alone.
    differs = {key: value for key, value in wanted.items() if raw.get(key) != value}
    env, amounts, mounts = map(differs.pop, ("env", "resources", "volumeMounts"), (None,) * 3)
    if not stored and (env is not None or mounts is not None):
        return False
    return (
        all(_covers(raw.get(key), differs[key]) for key in differs.keys() - {"imagePullPolicy"})
        and all(_is_default(raw, key, stored=stored) for key in _DEFAULTS)
        and (env is None or _holds_env(container, env))
        and (amounts is None or _holds_amounts(container, amounts, stored=stored))
        and (mounts is None or _holds_mounts(raw, mounts))
    )


def as_written(raw: Json, wanted: Json) -> Json:
    """Return the wanted sidecar with what the API server's plugins have set in the one that came.

    They check that it is there when the pod is stored, and may not be asked again.
    """
    container = wanted
    if raw.get("imagePullPolicy") == "Always":
        container = {**container, "imagePullPolicy": "Always"}
    resources = raw.get("resources")
    if type(resources) is not dict:
        return container
    written = wanted["resources"]
    found = {kind: each for kind, each in resources.items() if type(each) is dict}
    extended = (name for each in found.values() for name in each if _is_extended(name))
    zeros = dict.fromkeys(islice(extended, _MOST_ZEROS), "0") if "limits" in written else {}
    kept = {
        kind: {_DISK: found[kind][_DISK]}
        for kind in written.keys() & found.keys()
        if _is_sensible(found[kind].get(_DISK))
    }
    if not zeros and not kept:
        return container
    both = {kind: {**each, **zeros, **kept.get(kind, {})} for kind, each in written.items()}
    return {**container, "resources": both}


def holds(container: Container, wanted: Json) -> bool:
    """Return True if a container is the sidecar of any policy or release, with the wanted cap.

    Replicas of two releases judge each other's pods during an upgrade, so each accepts what it does
    not know, as long as that cannot defeat the cap.

    | part | allowed |
    | --- | --- |
    | command | ours, without arguments |
    | image | ours, with any tag |
    | the cap | the wanted one, set once |
    | NVIDIA_VISIBLE_DEVICES | the GPUs chosen, or all, as translation writes it; set once |
    | the gate | as translation writes it; required with the GPUs chosen |
    | other VRAM_* | any, each set once, by value or from an annotation of ours |
    | other variables | what others add in good faith |
    | resources | CPU, memory, ephemeral storage, 0 of extended resources |
    | mounts | the wanted ones, others of ours beside them, credentials |
    | other fields | those of `_FIELDS` |
    """
    return (
        is_enforcer(container)
        and repository_of(text(container.raw, "image", container.path))
        == repository_of(wanted["image"])
        and container.raw.keys() <= _FIELDS
        and _restarts_all(container.raw.get("restartPolicyRules"))
        and wanted["env"][0] in container.env()  # the cap
        and _steers_as_ours(container.env())
        and (has_gate(container.raw) or not any(map(shows_chosen, container.env())))
        and _amounts_known(container)
        and _mounts_known(container.raw, wanted["volumeMounts"])
    )


_DEFAULTS: Final = {
    "terminationMessagePath": ("/dev/termination-log",),
    "terminationMessagePolicy": ("File",),
    "imagePullPolicy": ("IfNotPresent", "Always"),
}
"""What the API server and its plugins write there."""
_LOGS: Final = "FallbackToLogsOnError"
_FIELDS: Final = _DEFAULTS.keys() | {
    *("name", "image", "command", "env", "resources", "resizePolicy", "volumeMounts"),
    *("startupProbe", "livenessProbe", "readinessProbe", "securityContext"),
    *("restartPolicy", "restartPolicyRules"),
}
_DISK: Final = "ephemeral-storage"
_LEAST_DISK: Final = Fraction(MIB)
"""With less its log alone would have the kubelet evict the pod."""
_MOST_ZEROS: Final = 16
"""Number of extended resources of which the sidecar keeps 0, as a LimitRange with them wants."""
_AMOUNTS: Final = frozenset({"cpu", "memory", _DISK})
_NOTHING: Final = Fraction(-1)
_PROBE_DEFAULTS: Final = {"successThreshold": 1}


def _is_default(raw: Json, key: str, *, stored: bool) -> bool:
    value = raw.get(key)
    return (
        value is None
        or value in _DEFAULTS[key]
        or (stored and key == "terminationMessagePolicy" and value == _LOGS)
    )


def _is_sensible(disk: object) -> bool:
    return disk is not None and amount_or(disk, _NOTHING) >= _LEAST_DISK


def _covers(actual: object, wanted: object) -> bool:
    """Compare a field, allowing the API server's defaults for probes."""
    if isinstance(wanted, dict) and isinstance(actual, dict):
        return (
            not (actual.keys() - wanted.keys() - _PROBE_DEFAULTS.keys())
            and all(_covers(actual.get(key), value) for key, value in wanted.items())
            and all(actual.get(key, value) == value for key, value in _PROBE_DEFAULTS.items())
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
        elif not _is_harmless_variable(name):
            return False
    return len(seen) == len(ours)


def _holds_amounts(container: Container, wanted: Json, *, stored: bool) -> bool:
    """Compare amounts; a resource that shows GPUs would make the sidecar measure the wrong one."""
    resources = mapping(container.raw, "resources", container.path)
    if resources.keys() - wanted.keys():
        return False
    for kind, amounts in wanted.items():
        found = container.resources(kind)
        if not all(_equal(found.get(key), each) for key, each in amounts.items()):
            return False
        others = found.keys() - amounts.keys() - {_DISK}
        if not all(_is_none(name, found[name]) for name in others):
            return False
        if not stored and _DISK in found and not _is_sensible(found[_DISK]):
            return False
    return True


def _is_extended(resource: str) -> bool:
    """Return True for an extended resource other than VRAM, of which the sidecar has none."""
    return "/" in resource and resource != VRAM_RESOURCE


def _is_none(resource: str, amount: str) -> bool:
    """Return True for 0 of an extended resource."""
    return _is_extended(resource) and amount_or(amount, _NOTHING) == 0


def _equal(actual: str | None, wanted: str) -> bool:
    """Compare two quantities; the API server writes those of policies in words of its own."""
    return actual == wanted or (
        actual is not None and amount_or(actual, _NOTHING) == parse_quantity(wanted)
    )


def _holds_mounts(raw: Json, wanted: list[Json]) -> bool:
    actual = raw.get("volumeMounts")
    if not isinstance(actual, list) or not all(mount in actual for mount in wanted):
        return False
    return all(mount in wanted or _is_harmless(mount) for mount in actual)


def _restarts_all(rules: object) -> bool:
    """Check what happens by exit code; on which code may differ between releases."""
    (ours,) = restart_rules()
    return rules is None or (
        isinstance(rules, list)
        and all(isinstance(one, dict) and one.get("action") == ours["action"] for one in rules)
    )


def _steers_as_ours(env: list[Json]) -> bool:
    ours = [entry for entry in env if entry["name"].startswith(_OURS)]
    return (
        len({entry["name"] for entry in ours}) == len(ours)
        and any(map(chooses_devices, ours))
        and all(map(_may_be_ours, ours))
        and all(
            _is_harmless_variable(entry["name"])
            for entry in env
            if not entry["name"].startswith(_OURS)
        )
    )


def _may_be_ours(entry: Json) -> bool:
    """Return True if this release or a later one may write a variable of ours so."""
    if chooses_devices(entry):
        return shows_chosen(entry) or shows_all(entry)
    if entry["name"] in OF_BINDING:
        return entry == OF_BINDING[entry["name"]]
    source = entry.get("valueFrom")
    if source is None:
        return True
    field = source.get("fieldRef") if isinstance(source, dict) else None
    path = field.get("fieldPath") if isinstance(field, dict) else None
    return isinstance(path, str) and path.startswith(f"metadata.annotations['{PREFIX}")


def _amounts_known(container: Container) -> bool:
    resources = mapping(container.raw, "resources", container.path)
    return resources.keys() <= {"requests", "limits"} and all(
        name in _AMOUNTS or _is_none(name, amount)
        for kind in resources
        for name, amount in container.resources(kind).items()
    )


def _mounts_known(raw: Json, wanted: list[Json]) -> bool:
    actual = raw.get("volumeMounts")
    if not isinstance(actual, list):
        return False
    # The pod may come from a rule with another placement, by which alone the gate is needed.
    return all(mount in actual for mount in wanted if mount != MOUNT) and all(
        mount in wanted or mount == MOUNT or _is_harmless(mount) or _is_of_ours(mount)
        for mount in actual
    )


def _is_of_ours(mount: object) -> bool:
    """Say whether a mount is of a volume of another release, in a place of its own."""
    name = mount.get("name") if isinstance(mount, dict) else None
    return (
        isinstance(name, str)
        and name.startswith(f"{ENFORCER_CONTAINER}-")
        and _normal_path(mount).startswith(f"{ENFORCER_RUN_PATH}-")
    )


def _is_harmless(mount: object) -> bool:
    return _normal_path(mount).startswith(_HARMLESS_MOUNTS)


def _normal_path(mount: object) -> str:
    path = mount.get("mountPath") if isinstance(mount, dict) else None
    return posixpath.normpath(path) if isinstance(path, str) else ""


def _is_harmless_variable(name: str) -> bool:
    return name.startswith(_HARMLESS_PREFIXES) or name in _HARMLESS_NAMES


def repository_of(image: str) -> str:
    """Return an image reference without its tag and digest."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]
