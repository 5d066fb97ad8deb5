"""Insert the sidecar into a pod, and check that a pod has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.core.admission.sidecar.container import VOLUMES
from webhook.core.admission.sidecar.recognition import holds, is_enforcer, is_intact
from webhook.core.policy.values import Rule, Style
from webhook.names import ENFORCER_CONTAINER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.pod.demand import Demand
    from webhook.core.pod.fields import Json
    from webhook.core.pod.views import Pod


def place_enforcer(spec: Json, pod: Pod, demand: Demand, rule: Rule, wanted: Json) -> None:
    """Insert the sidecar before every container that could use VRAM, and its volumes."""
    spec["shareProcessNamespace"] = True
    native = rule.enforcement.style is Style.NATIVE
    field = "initContainers" if native else "containers"
    if not _stands_intact(pod, field, wanted, demand):
        _remove_enforcer(spec, "containers")
        _remove_enforcer(spec, "initContainers")
        rest = spec.get(field) or []
        spec[field] = [wanted, *rest] if native else [*rest, wanted]
    volumes: list[Json] = spec.get("volumes") or []
    names = {volume.get("name") for volume in volumes}
    missing = [dict(volume) for volume in VOLUMES if volume["name"] not in names]
    if missing:
        spec["volumes"] = [*volumes, *missing]


def _stands_intact(pod: Pod, field: str, wanted: Json, demand: Demand) -> bool:
    """Say whether the sidecar exists, unchanged, and starts before any container with VRAM."""
    if len(pod.enforcers) != 1:
        return False
    (enforcer,) = pod.enforcers
    if enforcer.field != field or not is_intact(enforcer, wanted):
        return False
    return field == "containers" or not any(
        container.field == field
        and container.index < enforcer.index
        and container.name in demand.amounts
        for container in pod.containers
    )


def _remove_enforcer(spec: Json, field: str) -> None:
    present = spec.get(field) or []
    others = [container for container in present if container["name"] != ENFORCER_CONTAINER]
    if len(others) < len(present):
        spec[field] = others


def missing_enforcer(pod: Pod, wanted: Json) -> Iterator[str]:
    """Yield the paths where a pod lacks what every policy's sidecar needs."""
    if pod.spec.get("shareProcessNamespace") is not True:
        yield "spec.shareProcessNamespace"
    image = wanted["image"]
    if not any(is_enforcer(found, image) and holds(found, wanted) for found in pod.enforcers):
        yield "spec.initContainers"
