"""The annotations that give a pod its GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from webhook.core.nvidia.programs import usable_bytes
from webhook.core.nvidia.variables import DeviceNames, format_visible_devices
from webhook.core.pod.gpus import DriverLimit, Gpu
from webhook.names import (
    DRIVER_LIMIT_ANNOTATION,
    GPU_ANNOTATION,
    GPU_MEMORY_FRACTION_ANNOTATION,
    VISIBLE_DEVICES_ANNOTATION,
)

_PARTS: Final = 10_000  # a fraction is written with four decimals


def gpu_annotations(
    uuids: Sequence[str],
    gpus: Iterable[Gpu],
    names: DeviceNames,
    cap_bytes: int,
    limit: DriverLimit = DriverLimit.OFF,
) -> dict[str, str]:
    """Return what gives a pod these GPUs of a node: for people and the sidecar, for its containers.

    `gpus` are those that the node shows, `names` those that its container runtime resolves,
    `cap_bytes` is the pod's amount on each of its GPUs, `limit` what it is promised of the driver's
    limit, Off also where the node has none. Under a limit programs take that for the size of the
    card (cuMemGetInfo). Raises ValueError for `DeviceNames.NONE`.
    """
    totals = {gpu.uuid: gpu.total_bytes or gpu.memory_bytes for gpu in gpus}
    seen = [totals.get(uuid) for uuid in uuids] if limit is DriverLimit.OFF else [cap_bytes]
    given = {
        GPU_ANNOTATION: ",".join(uuids),
        VISIBLE_DEVICES_ANNOTATION: format_visible_devices(uuids, names),
        GPU_MEMORY_FRACTION_ANNOTATION: memory_fraction(cap_bytes, seen),
    }
    if limit is not DriverLimit.OFF:
        given[DRIVER_LIMIT_ANNOTATION] = limit.value
    return given


def memory_fraction(cap_bytes: int, totals_bytes: Iterable[int | None]) -> str:
    """Return the share of the memory that a framework sees that it may take, like `0.1234`.

    What a program may use (`usable_bytes`) of the total, rounded down; the smallest over all GPUs,
    since a program is told one.

    | a GPU | its fraction |
    | --- | --- |
    | of a known size | as above, at least 0.0001 and at most 1.0000 |
    | that the node does not show, so that nobody knows its size | 0.0001 |

    Never 0, of which no program could make any use. With a cap of 1800Mi or more and GPUs of less
    than 5 TiB, fraction and context together never exceed the cap.
    """
    usable = usable_bytes(cap_bytes)
    parts = [usable * _PARTS // total if total else 0 for total in totals_bytes]
    whole, rest = divmod(min(max(1, min(parts, default=0)), _PARTS), _PARTS)
    return f"{whole}.{rest:04}"
