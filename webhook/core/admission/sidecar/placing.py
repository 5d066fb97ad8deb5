"""Insert the sidecar into a pod, remove it, and check that a pod has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from webhook.core.admission.sidecar.recognition import as_written, changes, holds
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
    that is about to be `stored` other webhooks may have changed a little (`changes`).
    """
    if pod.spec.get("shareProcessNamespace") is not True:
        edits.put("/spec", "shareProcessNamespace", value=True)
    if _comes_first(pod, demand):
        (enforcer,) = pod.enforcers
        changed = dict.fromkeys(one.field for one in changes(enforcer, wanted, stored=stored))
        if stored or not changed or enforcer.index == 0:
            before, after = (
                {key: one[key] for key in changed if key in one}
                for one in (enforcer.raw, as_written(enforcer.raw, wanted))
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


def missing_enforcer(pod: Pod, wanted: Json, demand: Demand) -> Iterator[str]:
    """Yield the paths where a pod lacks what every policy's sidecar needs."""
    if pod.spec.get("shareProcessNamespace") is not True:
        yield "spec.shareProcessNamespace"
    if not _comes_first(pod, demand) or not holds(pod.enforcers[0], wanted):
        yield "spec.initContainers"
