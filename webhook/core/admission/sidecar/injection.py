"""Injection of the sidecar into a pod, and its recognition by content.

An annotation does not prove a sidecar, since a user can write it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice
from typing import Any, Final, NamedTuple

from webhook.core.admission.gate import MOUNT, has_gate
from webhook.core.admission.sidecar.container import BINDING_VARIABLES, restart_rules
from webhook.core.nvidia.variables import chooses_devices, shows_all, shows_bound_gpus
from webhook.core.pod.demand import Demand
from webhook.core.pod.fields import (
    Json,
    find_object,
    get_object,
    get_objects,
    get_string,
    get_strings,
)
from webhook.core.pod.patch import Edits
from webhook.core.pod.quantity import MIB, parse_quantity, parse_quantity_or
from webhook.core.pod.views import Container, Pod
from webhook.names import (
    ENFORCER_COMMAND,
    ENFORCER_CONTAINER,
    ENFORCER_RUN_PATH,
    PREFIX,
    VRAM_RESOURCE,
)

# Paths at which other webhooks mount credentials into every container. They hide no vramwarden
# file.
_HARMLESS_MOUNTS: Final = ("/var/run/secrets/", "/run/secrets/")
# Variables that other webhooks set in every container. None of them affects the dynamic loader, the
# C library, Python, the driver or the sidecar. The sidecar may have no other variable.
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
_OUR_PREFIXES: Final = ("VRAM_", "VRAMWARDEN_", "NVIDIA_")


def is_enforcer(container: Container) -> bool:
    """Return True if a container runs the enforcer's command without arguments.

    The image and other fields do not count. A pod that is created again may have another policy's
    or registry's fields, all of which translation replaces.
    """
    command = get_strings(container.raw, "command", container.path)
    return command == list(ENFORCER_COMMAND) and not get_strings(
        container.raw, "args", container.path
    )


def is_enforcer_volume(volume: Json) -> bool:
    """Return True if a volume is an emptyDir, like the sidecar's volumes."""
    return volume.keys() == {"name", "emptyDir"}


class Change(NamedTuple):
    """Difference between a sidecar and the sidecar that translation writes."""

    path: str
    """Field path below the container; list items are identified by name."""
    wanted: Any
    found: Any

    @property
    def field(self) -> str:
        """The field of the container with which the path begins."""
        return re.split(r"[.[]", self.path, maxsplit=1)[0]


def find_changes(container: Container, wanted: Json, *, stored: bool) -> Iterator[Change]:
    """Yield the parts of a sidecar that differ from `wanted`, except for tolerated additions.

    | added or changed by | what | before translation | when it is stored |
    | --- | --- | --- | --- |
    | the API server | its defaults, with its values | tolerated | tolerated |
    | its plugin AlwaysPullImages | imagePullPolicy Always | tolerated | tolerated |
    | its plugin LimitRanger | at least 1Mi of ephemeral storage | tolerated | any amount |
    | its plugin LimitRanger | 0 of an extended resource | tolerated | tolerated |
    | webhooks of clouds, meshes | variables, credential mounts, FallbackToLogsOnError | no | \
tolerated |
    | any other | anything else | no | no |

    Before translation the pod may contain anything that its user wrote; translation replaces it.
    Translation keeps fields that plugins of the API server set, since these plugins check them
    again when the pod is stored. For LimitRanger, translation writes 0 of other extended resources.
    """
    raw = container.raw
    for key in {**wanted, **raw}:
        value: Any = wanted.get(key)
        found = raw.get(key)
        if key in _DEFAULTS:
            if not _is_default(raw, key, stored=stored):
                yield Change(key, _DEFAULTS[key][0], found)
        elif found == value:
            continue  # unchanged, or only a default of the API server
        elif key == "resources" and found is not None:
            yield from _compare_amounts(container, value, stored=stored)
        elif stored and key == "env":
            yield from _compare_items(key, value, container.env(), _is_harmless_variable)
        elif stored and key == "volumeMounts":
            mounts = get_objects(raw, key, container.path)
            yield from _compare_items(key, value, mounts, _is_harmless_mount)
        else:
            yield from _compare(key, value, found)


def with_plugin_amounts(raw: Json, wanted: Json) -> Json:
    """Return the wanted sidecar with the amounts that LimitRanger set in the current sidecar.

    LimitRanger requires these amounts when the pod is stored, and may not run again before.
    """
    written, found = wanted["resources"], find_object(raw, "resources")
    extended = (name for kind in found for name in find_object(found, kind) if _is_extended(name))
    zeros = dict.fromkeys(islice(extended, _MOST_ZEROS), "0") if "limits" in written else {}
    both = {kind: {**each, **zeros} for kind, each in written.items()}
    for kind, amounts in both.items():
        disk = find_object(found, kind).get(_DISK)
        if _is_enough_disk(disk):
            amounts[_DISK] = disk
    return {**wanted, "resources": both}


def is_valid_enforcer(container: Container, wanted: Json) -> bool:
    """Return True if a container is a sidecar of any policy or release, with the wanted cap.

    During an upgrade, replicas of two releases judge each other's pods. Each replica accepts
    unknown parts unless they could defeat the cap.

    | part | allowed |
    | --- | --- |
    | command | the enforcer's, without arguments |
    | image | the same repository, with any tag |
    | the cap | the wanted one, set once |
    | NVIDIA_VISIBLE_DEVICES | the assigned GPUs, or all, as translation writes it; set once |
    | the gate | as translation writes it; required with the assigned GPUs |
    | other VRAM_* | any, each set once, by value or from one of our annotations |
    | other variables | the tolerated ones |
    | resources | CPU, memory, ephemeral storage, 0 of extended resources |
    | mounts | the wanted ones, those of other releases, credentials |
    | other fields | `_FIELDS` |
    """
    return (
        is_enforcer(container)
        and image_repository(get_string(container.raw, "image", container.path))
        == image_repository(wanted["image"])
        and container.raw.keys() <= _FIELDS
        and _restarts_all(container.raw.get("restartPolicyRules"))
        and wanted["env"][0] in container.env()  # the cap
        and _has_valid_env(container.env())
        and (has_gate(container.raw) or not any(map(shows_bound_gpus, container.env())))
        and all(map(_is_tolerated, find_changes(container, wanted, stored=True)))
    )


_DEFAULTS: Final = {
    "terminationMessagePath": ("/dev/termination-log",),
    "terminationMessagePolicy": ("File",),
    "imagePullPolicy": ("IfNotPresent", "Always"),
}
"""Values that the API server and its plugins write to these fields."""
_LOGS: Final = "FallbackToLogsOnError"
_FIELDS: Final = _DEFAULTS.keys() | {
    *("name", "image", "command", "env", "resources", "resizePolicy", "volumeMounts"),
    *("startupProbe", "livenessProbe", "readinessProbe", "securityContext"),
    *("restartPolicy", "restartPolicyRules"),
}
_DISK: Final = "ephemeral-storage"
_LEAST_DISK: Final = Fraction(MIB)
"""Minimum ephemeral storage in bytes. Below it, the kubelet would evict the pod for the
sidecar's log."""
_MOST_ZEROS: Final = 16
"""Maximum number of extended resources set to 0 for a LimitRange."""
_AMOUNTS: Final = {
    f"resources.{kind}[{name}]" for kind in ("requests", "limits") for name in ("cpu", "memory")
}
_INVALID: Final = Fraction(-1)
_PROBE_DEFAULTS: Final = {"successThreshold": 1}


def _is_default(raw: Json, key: str, *, stored: bool) -> bool:
    value = raw.get(key)
    return (
        value is None
        or value in _DEFAULTS[key]
        or (stored and key == "terminationMessagePolicy" and value == _LOGS)
    )


def _is_enough_disk(disk: object) -> bool:
    return disk is not None and parse_quantity_or(disk, _INVALID) >= _LEAST_DISK


def _compare(path: str, wanted: Any, found: Any) -> Iterator[Change]:
    """Yield the differences between two values, except for the API server's probe defaults."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in {**wanted, **found}:
            default = _PROBE_DEFAULTS.get(key)
            yield from _compare(f"{path}.{key}", wanted.get(key, default), found.get(key, default))
    elif wanted != found:
        yield Change(path, wanted, found)


def _compare_items(
    path: str, wanted: list[Json], found: list[Json], is_harmless: Callable[[Json], bool]
) -> Iterator[Change]:
    """Yield the differences between two lists of named items. Each item must occur once."""
    wanted_items = {item["name"]: item for item in wanted}
    missing = dict(wanted_items)
    for item in found:
        name = get_string(item, "name", path)
        if name in missing:
            yield from _compare(f"{path}[{name}]", missing.pop(name), item)
        elif name in wanted_items or not is_harmless(item):
            yield Change(f"{path}[{name}]", None, item)
    for name, item in missing.items():
        yield Change(f"{path}[{name}]", item, None)


def _compare_amounts(container: Container, wanted: Json, *, stored: bool) -> Iterator[Change]:
    """Yield the differences in amounts.

    A resource that shows GPUs would make the sidecar measure the wrong GPU.
    """
    resources = get_object(container.raw, "resources", container.path)
    for kind in {**wanted, **resources}:
        if kind not in wanted:
            yield Change(f"resources.{kind}", None, resources[kind])
            continue
        amounts, found = wanted[kind], container.resources(kind)
        for name in {**amounts, **found}:
            if name in amounts:
                is_right = _are_equal(found.get(name), amounts[name])
            elif name == _DISK:
                is_right = stored or _is_enough_disk(found[name])
            else:
                is_right = _is_zero(name, found[name])
            if not is_right:
                path = f"resources.{kind}[{name}]"
                yield Change(path, amounts.get(name), found.get(name))


def _is_extended(resource: str) -> bool:
    """Return True for an extended resource other than VRAM, which the sidecar never requests."""
    return "/" in resource and resource != VRAM_RESOURCE


def _is_zero(resource: str, amount: str) -> bool:
    return _is_extended(resource) and parse_quantity_or(amount, _INVALID) == 0


def _are_equal(actual: str | None, wanted: str) -> bool:
    """Return True if two quantities are equal. The API server may rewrite a policy's quantity."""
    return actual == wanted or (
        actual is not None and parse_quantity_or(actual, _INVALID) == parse_quantity(wanted)
    )


def _restarts_all(rules: object) -> bool:
    """Return True if all restart rules have vramwarden's action; exit codes differ by release."""
    (wanted,) = restart_rules()
    return rules is None or (
        isinstance(rules, list)
        and all(isinstance(rule, dict) and rule.get("action") == wanted["action"] for rule in rules)
    )


def _has_valid_env(env: list[Json]) -> bool:
    ours = [entry for entry in env if entry["name"].startswith(_OUR_PREFIXES)]
    others = [entry for entry in env if not entry["name"].startswith(_OUR_PREFIXES)]
    return (
        len({entry["name"] for entry in ours}) == len(ours)
        and any(map(chooses_devices, ours))
        and all(map(_is_valid_variable, ours))
        and all(map(_is_harmless_variable, others))
    )


def _is_valid_variable(entry: Json) -> bool:
    """Return True if this or a later release may write a vramwarden variable in this form."""
    if chooses_devices(entry):
        return shows_bound_gpus(entry) or shows_all(entry)
    if entry["name"] in BINDING_VARIABLES:
        return entry == BINDING_VARIABLES[entry["name"]]
    source = entry.get("valueFrom")
    if source is None:
        return True
    field = source.get("fieldRef") if isinstance(source, dict) else None
    path = field.get("fieldPath") if isinstance(field, dict) else None
    return isinstance(path, str) and path.startswith(f"metadata.annotations['{PREFIX}")


def _is_tolerated(change: Change) -> bool:
    """Return True unless a change is an amount, or a mount that no release writes."""
    if change.field == "resources":
        return change.path in _AMOUNTS
    # Only placement at binding needs the gate, and the pod may come from a rule with another
    # placement.
    extra = change.wanted if change.found is None else change.found
    return (
        change.field != "volumeMounts"
        or extra == MOUNT
        or (change.wanted is None and _is_of_other_release(extra))
    )


def _is_of_other_release(mount: object) -> bool:
    """Return True if a mount is of another release's volume, at a path of that release."""
    name = mount.get("name") if isinstance(mount, dict) else None
    return (
        isinstance(name, str)
        and name.startswith(f"{ENFORCER_CONTAINER}-")
        and _normal_path(mount).startswith(f"{ENFORCER_RUN_PATH}-")
    )


def _is_harmless_mount(mount: object) -> bool:
    return _normal_path(mount).startswith(_HARMLESS_MOUNTS)


def _normal_path(mount: object) -> str:
    path = mount.get("mountPath") if isinstance(mount, dict) else None
    return posixpath.normpath(path) if isinstance(path, str) else ""


def _is_harmless_variable(entry: Json) -> bool:
    name = entry["name"]
    return name.startswith(_HARMLESS_PREFIXES) or name in _HARMLESS_NAMES


def image_repository(image: str) -> str:
    """Return an image reference without its tag and digest."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


_FIELD: Final = "initContainers"


def insert_enforcer(
    edits: Edits, pod: Pod, demand: Demand, wanted: Json, *, stored: bool = False
) -> None:
    """Insert the sidecar before every container that could use VRAM.

    A translated pod may be created again: restored, copied or applied, from another release or
    under another policy. Parts of its sidecar that differ from the wanted sidecar are replaced. If
    the pod is about to be `stored`, the additions in `find_changes` are tolerated.
    """
    if pod.spec.get("shareProcessNamespace") is not True:
        edits.put("/spec", "shareProcessNamespace", value=True)
    if _comes_first(pod, demand):
        (enforcer,) = pod.enforcers
        changed = dict.fromkeys(one.field for one in find_changes(enforcer, wanted, stored=stored))
        if stored or not changed or enforcer.index == 0:
            before, after = (
                {key: one[key] for key in changed if key in one}
                for one in (enforcer.raw, with_plugin_amounts(enforcer.raw, wanted))
            )
            edits.rewrite(f"/spec/{_FIELD}/{enforcer.index}", before, after)
            return
    remove_enforcers(edits, pod)
    if pod.spec.get(_FIELD):
        edits.insert(f"/spec/{_FIELD}", 0, wanted)
    else:
        edits.put("/spec", _FIELD, [wanted])


def remove_enforcers(edits: Edits, pod: Pod) -> None:
    """Remove every sidecar that a pod has."""
    for enforcer in reversed(pod.enforcers):
        edits.remove_item(f"/spec/{enforcer.field}", enforcer.index)


def _comes_first(pod: Pod, demand: Demand) -> bool:
    """Return True if the pod has one sidecar, which starts before any container with VRAM."""
    if [enforcer.field for enforcer in pod.enforcers] != [_FIELD]:
        return False
    return not any(
        container.field == _FIELD
        and container.index < pod.enforcers[0].index
        and container.name in demand.amounts
        for container in pod.containers
    )


def missing_enforcer_parts(pod: Pod, wanted: Json, demand: Demand) -> Iterator[str]:
    """Yield the paths at which a pod lacks parts that every policy's sidecar needs."""
    if pod.spec.get("shareProcessNamespace") is not True:
        yield "spec.shareProcessNamespace"
    if not _comes_first(pod, demand) or not is_valid_enforcer(pod.enforcers[0], wanted):
        yield "spec.initContainers"
