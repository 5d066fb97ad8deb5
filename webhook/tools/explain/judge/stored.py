"""Parts of a stored pod that `explain` reads: bounded, and never with an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from webhook.core.pod.findings import quoted
from webhook.core.pod.lenient import as_object, as_objects
from webhook.core.words import exactly, shortened
from webhook.names import (
    ADMITTED_ANNOTATION,
    ENFORCER_CONTAINER,
    GPU_MEMORY_ANNOTATION,
    VRAM_RESOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from webhook.core.pod.fields import Json

MOST: Final = 512
"""Conditions, containers and statuses of a pod that are looked at."""
LONGEST_MESSAGE: Final = 4096
"""Of a condition or a container; the kubelet keeps no more."""
_LONGEST_RULE: Final = 100
_PARTS: Final = 3


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a pod."""

    status: str
    reason: str
    message: str
    since: object
    """As it is stored."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended, the last time."""

    exit_code: int | None
    message: str


def part(raw: Mapping[str, Any], *keys: str) -> Json:
    """Return an object within an object; an empty one where it is none."""
    found: Any = raw
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return as_object(found)


def parts(value: object) -> list[Json]:
    """Return the objects of a list, as many as are looked at."""
    return as_objects(value, MOST)


def condition(pod: Mapping[str, Any], kind: str) -> Condition | None:
    """Return the condition of a type."""
    for one in parts(part(pod, "status").get("conditions")):
        if one.get("type") == kind:
            return Condition(
                bounded(one.get("status"), 20),
                bounded(one.get("reason"), 128),
                bounded(one.get("message"), LONGEST_MESSAGE),
                one.get("lastTransitionTime"),
            )
    return None


def statuses(pod: Mapping[str, Any]) -> Iterator[Json]:
    """Yield the statuses of all containers, native sidecars first."""
    status = part(pod, "status")
    for field in ("initContainerStatuses", "containerStatuses"):
        yield from parts(status.get(field))


def enforcer_ended(pod: Mapping[str, Any]) -> Ended:
    """Return how the pod's enforcer ended, now or before its last restart."""
    for one in statuses(pod):
        if one.get("name") != ENFORCER_CONTAINER:
            continue
        for when in ("state", "lastState"):
            ended = part(one, when, "terminated")
            if ended:
                code = ended.get("exitCode")
                message = bounded(ended.get("message"), LONGEST_MESSAGE)
                return Ended(code if type(code) is int else None, message)
    return Ended(None, "")


def container_name(pod: Mapping[str, Any], container_id: str) -> str:
    """Return the name of the container that has an id; empty where no status says it."""
    for one in statuses(pod):
        if container_id and bounded(one.get("containerID"), 200).endswith(f"//{container_id}"):
            return bounded(one.get("name"), 63)
    return ""


def rule_of(pod: Mapping[str, Any]) -> str:
    """Return the name of the rule that admitted a pod, in quotes; empty where none is said."""
    admitted = bounded(part(pod, "metadata", "annotations").get(ADMITTED_ANNOTATION), 500)
    words = admitted.split(" ")
    return quoted(words[1], _LONGEST_RULE) if len(words) == _PARTS else ""


def line_for(pod: Mapping[str, Any] | None, amount_bytes: int) -> str:
    """Say what to write, so that a pod like this one gets so much on each of its GPUs.

    | the pod's annotation gpu-memory | then |
    | --- | --- |
    | is one quantity, or the pod is gone | the annotation, to be copied |
    | is a list by container | the sum of its entries |
    | is absent: its containers say it themselves | the sum of their limits, per GPU |
    """
    amount = exactly(amount_bytes)
    if pod is None:
        return f"{GPU_MEMORY_ANNOTATION}: {amount}"
    written = part(pod, "metadata", "annotations").get(GPU_MEMORY_ANNOTATION)
    if not isinstance(written, str):
        return f"{amount} per GPU in the limits {VRAM_RESOURCE}"
    if "=" in written:
        return f"{amount} in sum over the containers in {GPU_MEMORY_ANNOTATION}"
    return f"{GPU_MEMORY_ANNOTATION}: {amount}"


def bounded(value: object, most: int) -> str:
    """Return a text that somebody stored, cut before anything reads it; empty where it is none."""
    return shortened(value, most) if isinstance(value, str) else ""
