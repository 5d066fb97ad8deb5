"""Insert the sidecar into a pod, remove it, and check that a pod has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.admission.sidecar.recognition import as_written, holds, is_intact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.pod.demand import Demand
    from webhook.core.pod.fields import Json
    from webhook.core.pod.patch import Edits
    from webhook.core.pod.views import Pod

_FIELD: Final = "initContainers"


def place_enforcer(
    edits: Edits, pod: Pod, demand: Demand, wanted: Json, *, stored: bool = False
) -> None:
    """Insert the sidecar before every container that could use VRAM.

    A pod that was translated before comes again restored, copied or applied, perhaps by another
    release or under another policy: what it has of ours and is not as wanted is replaced. Of one
    that is about to be `stored` other webhooks may have changed a little (`is_intact`).
    """
    if pod.spec.get("shareProcessNamespace") is not True:
        edits.put("/spec", "shareProcessNamespace", value=True)
    if not _stands_intact(pod, wanted, demand, stored=stored):
        _replace_enforcers(edits, pod, wanted)


def _replace_enforcers(edits: Edits, pod: Pod, wanted: Json) -> None:
    """Put the wanted sidecar first, in place of every sidecar that the pod has."""
    if not pod.spec.get(_FIELD):
        remove_enforcers(edits, pod)
        edits.put("/spec", _FIELD, [wanted])
    elif [(enforcer.field, enforcer.index) for enforcer in pod.enforcers] == [(_FIELD, 0)]:
        present = pod.enforcers[0].raw
        edits.rewrite(f"/spec/{_FIELD}/0", present, as_written(present, wanted))
    else:
        remove_enforcers(edits, pod)
        edits.insert(f"/spec/{_FIELD}", 0, wanted)


def remove_enforcers(edits: Edits, pod: Pod) -> None:
    """Remove every sidecar that a pod has."""
    for enforcer in reversed(pod.enforcers):
        edits.remove_item(f"/spec/{enforcer.field}", enforcer.index)


def _stands_intact(pod: Pod, wanted: Json, demand: Demand, *, stored: bool) -> bool:
    """Say whether the sidecar exists, unchanged, and starts before any container with VRAM."""
    if len(pod.enforcers) != 1:
        return False
    (enforcer,) = pod.enforcers
    if enforcer.field != _FIELD or not is_intact(enforcer, wanted, stored=stored):
        return False
    return not any(
        container.field == _FIELD
        and container.index < enforcer.index
        and container.name in demand.amounts
        for container in pod.containers
    )


def missing_enforcer(pod: Pod, wanted: Json) -> Iterator[str]:
    """Yield the paths where a pod lacks what every policy's sidecar needs."""
    if pod.spec.get("shareProcessNamespace") is not True:
        yield "spec.shareProcessNamespace"
    if len(pod.enforcers) != 1 or not holds(pod.enforcers[0], wanted):
        yield "spec.initContainers"
