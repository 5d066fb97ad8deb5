"""Nodes and pods for `vramwarden simulate`, as the API server and manifests have them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from webhook.core.node.state import read_inventory
from webhook.core.placement.fit import Need
from webhook.core.pod.demand import read_demand
from webhook.core.pod.fields import mapping, strings, text
from webhook.core.pod.findings import MalformedObjectError, render
from webhook.core.pod.views import read_pod
from webhook.names import NODE_GPUS_ANNOTATION
from webhook.tools.shared.manifests.documents import find_targets, text_of
from webhook.tools.simulate.replay.cluster import SimulatedNode, SimulatedPod
from webhook.tools.simulate.short import MOST

if TYPE_CHECKING:
    from webhook.adapters.yaml_documents import Path
    from webhook.tools.shared.manifests.documents import Target
    from webhook.tools.simulate.short import Found

    Json = dict[str, Any]

_NO_GPUS: Final = f"nodes without GPUs (annotation {NODE_GPUS_ANNOTATION})"
_NO_DEMAND: Final = "pods without a demand"
_ENDED: Final = "pods that finished, and nobody knows when"
_EACH_NODE: Final = "pods of a DaemonSet (pass its pods instead)"
_UNREADABLE: Final = "pods whose demand cannot be read"


def node_objects(value: Any, found: Found, at: Path = (), of: str = "") -> None:
    """Read a Node, or a List of them; items of a NodeList may leave out their kind (`of`)."""
    kind = text_of(value, "kind") or of
    items = value.get("items")
    if kind.endswith("List") and isinstance(items, list):
        for index, item in enumerate(items):
            path = (*at, "items", index)
            if isinstance(item, dict):
                node_objects(item, found, path, kind.removesuffix("List"))
            else:
                found.wrong.append((path, "must be an object"))
        return
    if kind != "Node":
        return
    try:
        metadata = mapping(value, "metadata", "")
        labels = strings(metadata, "labels", "metadata")
        annotations = strings(metadata, "annotations", "metadata")
    except MalformedObjectError as error:
        found.wrong.append((at, str(error)))
        return
    # A replay lasts longer than most failures of a GPU.
    gpus = tuple(replace(gpu, healthy=True) for gpu in read_inventory(value).gpus)
    if gpus:
        found.nodes.append(SimulatedNode(text_of(metadata, "name"), gpus, labels))
    elif annotations.get(NODE_GPUS_ANNOTATION, "[]") == "[]":
        found.left_out[_NO_GPUS] += 1
        found.nodes_without_gpus += 1
    else:
        path = (*at, "metadata", "annotations", NODE_GPUS_ANNOTATION)
        detail = "is no list of objects with uuid, memory, product and index; vramwarden's agent "
        found.wrong.append((path, detail + "writes it"))


def first_created_s(value: Any) -> float | None:
    """Return when the first pod of an object or a List was created, in Unix time."""
    created = (
        _time_s(target.owner, "metadata", "creationTimestamp")
        for target in find_targets(value)
        if target.is_own_kind
    )
    return min((one for one in created if one is not None), default=None)


def pod_objects(value: Any, found: Found, first_s: float = 0.0) -> None:
    """Read a pod, a workload, or a List of them.

    A pod that a cluster had arrives as long after `first_s` as it was created, and ends when its
    containers ended; one from a manifest arrives at once and runs on.
    """
    for target in find_targets(value):
        if not target.is_own_kind:
            continue  # nobody knows how many pods another kind makes of a template
        try:
            _read(target, found, first_s)
        except MalformedObjectError as error:
            found.wrong.append((target.at, f"{_name(target)}: {error}"))


def _read(target: Target, found: Found, first_s: float) -> None:
    """Read a pod that may not have been admitted yet: its annotation may be all that it has."""
    raw = target.pod
    finished = text(mapping(raw, "status", ""), "phase", "status") in {"Succeeded", "Failed"}
    try:
        demand, findings = read_demand(read_pod(raw))
    except MalformedObjectError as error:
        _unreadable(target, str(error), found)
        return
    if findings:
        _unreadable(target, render(findings), found)
        return
    if demand is None:
        found.left_out[_NO_DEMAND] += 1
        return
    if target.kind == "DaemonSet":
        found.left_out[_EACH_NODE] += 1
        return
    created_s = _time_s(raw, "metadata", "creationTimestamp")
    duration_s = None
    if finished:
        duration_s = _lasted_s(raw)
        if duration_s is None:
            found.left_out[_ENDED] += 1
            return
    selector = strings(mapping(raw, "spec", ""), "nodeSelector", "spec")
    arrival_s = 0.0 if created_s is None else max(0.0, created_s - first_s)
    name, copies = _name(target), _copies(target, found)
    for copy in range(copies):
        number = f"-{copy}" if target.field else ""
        found.pods.append(
            SimulatedPod(
                f"{name}{number}",
                Need(demand.per_gpu_bytes, demand.gpu_count),
                arrival_s,
                duration_s,
                tuple(sorted(selector.items())),
            )
        )


def _unreadable(target: Target, why: str, found: Found) -> None:
    """Leave out what a cluster has, and only there: a manifest is for its author to fix.

    Under a rule that only warns such pods are common, and one would stop the replay of all others.
    """
    name = _name(target)
    if not text_of(target.owner, "metadata", "uid") and not target.owner.get("status"):
        found.wrong.append((target.at, f"{name}: {why}"))
        return
    found.first_unreadable = found.first_unreadable or f"{name}: {why}"
    found.left_out[f"{_UNREADABLE} (first: {found.first_unreadable})"] += 1


def _name(target: Target) -> str:
    """Return what people call a pod or a workload: `team-a/infer`."""
    name = text_of(target.owner, "metadata", "name") or "?"
    namespaces = (text_of(one, "metadata", "namespace") for one in (target.pod, target.owner))
    return f"{next(filter(None, namespaces), 'default')}/{name}"


def _copies(target: Target, found: Found) -> int:
    """Return how many pods a workload has: `replicas`, or as many as a Job runs at a time."""
    spec = mapping(target.owner, "spec", "")
    key = {"Job": "parallelism", "Pod": "", "CronJob": "", "PodTemplate": ""}.get(
        target.kind, "replicas"
    )
    value = spec.get(key)
    if not key or value is None:
        return 1
    if type(value) is int and 0 <= value <= MOST:
        return value
    path = target.at[: -len(target.field.split("."))]
    found.wrong.append(((*path, "spec", key), f"is not a number from 0 to {MOST}"))
    return 0


def _lasted_s(pod: Json) -> float | None:
    """Return how long a finished pod ran; None where that is unknown."""
    status = pod.get("status") or {}
    started_s = _time_s(pod, "status", "startTime")
    listed = status.get("containerStatuses")
    ended = [
        _time_s(one, "state", "terminated", "finishedAt")
        for one in (listed if isinstance(listed, list) else ())
    ]
    ended_s = max((one for one in ended if one is not None), default=None)
    if started_s is None or ended_s is None or ended_s <= started_s:
        return None
    return ended_s - started_s


def _time_s(holder: Any, *path: str) -> float | None:
    """Return a time of an object in Unix time; None where there is none that can be read."""
    try:
        return datetime.fromisoformat(text_of(holder, *path)).timestamp()
    except ValueError:
        return None
