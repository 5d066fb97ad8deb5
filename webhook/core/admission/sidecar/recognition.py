"""Recognise the sidecar in a pod by its content, never by an annotation."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice
from typing import Any, Final, NamedTuple

from webhook.core.admission.gate import MOUNT, has_gate
from webhook.core.admission.sidecar.container import OF_BINDING, restart_rules
from webhook.core.nvidia.variables import chooses_devices, shows_all, shows_bound_gpus
from webhook.core.pod.fields import Json, items, mapping, part, text, texts
from webhook.core.pod.quantity import MIB, amount_or, parse_quantity
from webhook.core.pod.views import Container
from webhook.names import (
    ENFORCER_COMMAND,
    ENFORCER_CONTAINER,
    ENFORCER_RUN_PATH,
    PREFIX,
    VRAM_RESOURCE,
)

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


class Change(NamedTuple):
    """A part of the sidecar that is not as translation writes it."""

    path: str
    """The field path below the container; items of lists by their names."""
    wanted: Any
    found: Any

    @property
    def field(self) -> str:
        """The container's own field."""
        return re.split(r"[.[]", self.path, maxsplit=1)[0]


def changes(container: Container, wanted: Json, *, stored: bool) -> Iterator[Change]:
    """Yield the parts of a sidecar that are not as wanted, except for additions in good faith.

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
    for key in {**wanted, **raw}:
        value: Any = wanted.get(key)
        found = raw.get(key)
        if key in _DEFAULTS:
            if not _is_default(raw, key, stored=stored):
                yield Change(key, _DEFAULTS[key][0], found)
        elif found == value:
            continue  # Most are as we wrote them, or differ in what the API server fills in alone.
        elif key == "resources" and found is not None:
            yield from _changed_amounts(container, value, stored=stored)
        elif stored and key == "env":
            yield from _changed_items(key, value, container.env(), _is_harmless_variable)
        elif stored and key == "volumeMounts":
            mounts = items(raw, key, container.path)
            yield from _changed_items(key, value, mounts, _is_harmless)
        else:
            yield from _changed(key, value, found)


def as_written(raw: Json, wanted: Json) -> Json:
    """Return the wanted sidecar with the amounts that LimitRanger has set in the one that came.

    It checks that they are there when the pod is stored, and may not be asked again.
    """
    written, found = wanted["resources"], part(raw, "resources")
    extended = (name for kind in found for name in part(found, kind) if _is_extended(name))
    zeros = dict.fromkeys(islice(extended, _MOST_ZEROS), "0") if "limits" in written else {}
    both = {kind: {**each, **zeros} for kind, each in written.items()}
    for kind, amounts in both.items():
        disk = part(found, kind).get(_DISK)
        if _is_sensible(disk):
            amounts[_DISK] = disk
    return {**wanted, "resources": both}


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
        and (has_gate(container.raw) or not any(map(shows_bound_gpus, container.env())))
        and all(map(_may_differ, changes(container, wanted, stored=True)))
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
_AMOUNTS: Final = {
    f"resources.{kind}[{name}]" for kind in ("requests", "limits") for name in ("cpu", "memory")
}
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


def _changed(path: str, wanted: Any, found: Any) -> Iterator[Change]:
    """Yield where two values differ, allowing the API server's defaults for probes."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in {**wanted, **found}:
            default = _PROBE_DEFAULTS.get(key)
            yield from _changed(f"{path}.{key}", wanted.get(key, default), found.get(key, default))
    elif wanted != found:
        yield Change(path, wanted, found)


def _changed_items(
    path: str, wanted: list[Json], found: list[Json], is_harmless: Callable[[Json], bool]
) -> Iterator[Change]:
    """Yield where the items of a list differ that have the same name; each must be there once."""
    ours = {item["name"]: item for item in wanted}
    left = dict(ours)
    for item in found:
        name = text(item, "name", path)
        if name in left:
            yield from _changed(f"{path}[{name}]", left.pop(name), item)
        elif name in ours or not is_harmless(item):
            yield Change(f"{path}[{name}]", None, item)
    for name, item in left.items():
        yield Change(f"{path}[{name}]", item, None)


def _changed_amounts(container: Container, wanted: Json, *, stored: bool) -> Iterator[Change]:
    """Compare amounts; a resource that shows GPUs would make the sidecar measure the wrong one."""
    resources = mapping(container.raw, "resources", container.path)
    for kind in {**wanted, **resources}:
        if kind not in wanted:
            yield Change(f"resources.{kind}", None, resources[kind])
            continue
        amounts, found = wanted[kind], container.resources(kind)
        for name in {**amounts, **found}:
            if name in amounts:
                is_right = _equal(found.get(name), amounts[name])
            elif name == _DISK:
                is_right = stored or _is_sensible(found[name])
            else:
                is_right = _is_none(name, found[name])
            if not is_right:
                path = f"resources.{kind}[{name}]"
                yield Change(path, amounts.get(name), found.get(name))


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
            _is_harmless_variable(entry) for entry in env if not entry["name"].startswith(_OURS)
        )
    )


def _may_be_ours(entry: Json) -> bool:
    """Return True if this release or a later one may write a variable of ours so."""
    if chooses_devices(entry):
        return shows_bound_gpus(entry) or shows_all(entry)
    if entry["name"] in OF_BINDING:
        return entry == OF_BINDING[entry["name"]]
    source = entry.get("valueFrom")
    if source is None:
        return True
    field = source.get("fieldRef") if isinstance(source, dict) else None
    path = field.get("fieldPath") if isinstance(field, dict) else None
    return isinstance(path, str) and path.startswith(f"metadata.annotations['{PREFIX}")


def _may_differ(change: Change) -> bool:
    """Return True unless a change is of an amount or a mount that no release writes."""
    if change.field == "resources":
        return change.path in _AMOUNTS
    # The pod may come from a rule with another placement, by which alone the gate is needed.
    extra = change.wanted if change.found is None else change.found
    return (
        change.field != "volumeMounts"
        or extra == MOUNT
        or (change.wanted is None and _is_of_ours(extra))
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


def _is_harmless_variable(entry: Json) -> bool:
    name = entry["name"]
    return name.startswith(_HARMLESS_PREFIXES) or name in _HARMLESS_NAMES


def repository_of(image: str) -> str:
    """Return an image reference without its tag and digest."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]
