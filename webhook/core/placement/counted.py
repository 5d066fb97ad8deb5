"""What a stored pod takes of GPUs: only what was checked before it counts.

The scheduler and the kubelet check amounts in `resources`. An annotation is checked by our webhooks
alone, and namespaces that are left alone have none of them: who writes `gpu-memory: 8GB` there, and
asks for nothing, takes nothing from anybody.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from webhook.core.placement.fit import Need
from webhook.core.pod.demand import read_demand
from webhook.core.pod.findings import render
from webhook.core.pod.quantity import MAX_BYTES, MIB, QuantityError, parse_quantity
from webhook.core.pod.views import effective_amount
from webhook.names import GPU_ANNOTATION, VRAM_RESOURCE

if TYPE_CHECKING:
    from webhook.core.pod.views import Container, Pod

MOST_GPUS: Final = 64
"""So many GPUs of a pod are read; servers have 16 at most."""
LONGEST_UUID: Final = 48
"""NVML's are of 40 characters."""
_UUID: Final = re.compile(f"[0-9A-Za-z-]{{1,{LONGEST_UUID}}}")
_LONGEST_REASON: Final = 500


def counted_need(pod: Pod) -> tuple[Need | None, str]:
    """Return what a pod takes on each of its GPUs, and why its demand cannot be read, if so.

    | amounts in `resources` | annotations | on each GPU |
    | --- | --- | --- |
    | none, or more than 2^63-1 bytes, which no kubelet admits | any | nothing |
    | some | can be read | the pod's effective amount, divided by `gpu-count` |
    | some | cannot be read, or contradict the amounts | all of that amount |

    The last row may count a GPU too much for a pod that has several, and never too little: no GPU
    holds more of a pod than the kubelet admitted for all of them.
    """
    containers = (*pod.enforcers, *pod.containers)
    try:
        amounts = {container.name: _requested(container) for container in containers}
        total = math.ceil(effective_amount(containers, amounts, Fraction(0)))
    except QuantityError:
        return None, ""
    if not 0 < total <= MAX_BYTES:
        return None, ""
    demand, findings = read_demand(pod)
    count = demand.gpu_count if demand else 1
    need = Need(min(-(-total // (count * MIB)) * MIB, MAX_BYTES), count)
    return need, "" if demand else render(findings)[:_LONGEST_REASON]


def named_gpus(pod: Pod) -> tuple[str, ...]:
    """Return the GPUs that the annotation `gpu` names, each once; what is no UUID is left out.

    Whoever may patch `pods/status` can write it, so it is bounded.
    """
    written = pod.annotations.get(GPU_ANNOTATION, "").split(",", MOST_GPUS)[:MOST_GPUS]
    return tuple(dict.fromkeys(filter(_UUID.fullmatch, written)))


def _requested(container: Container) -> Fraction:
    """Return what scheduler and kubelet count; the API server copies a limit to its request."""
    requests, limits = container.resources("requests"), container.resources("limits")
    return parse_quantity(requests.get(VRAM_RESOURCE, limits.get(VRAM_RESOURCE, "0")))
