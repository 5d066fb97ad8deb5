"""Annotations that give a pod its GPUs."""

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

_PARTS: Final = 10_000  # fractions have four decimals


def gpu_annotations(
    uuids: Sequence[str],
    gpus: Iterable[Gpu],
    names: DeviceNames,
    cap_bytes: int,
    limit: DriverLimit = DriverLimit.OFF,
) -> dict[str, str]:
    """Return the annotations that assign GPUs of a node to a pod.

    Users and the sidecar read these annotations; the pod's containers read them as environment
    variables. `gpus` are the GPUs that the node advertises, `names` the device names that its
    container runtime resolves, `cap_bytes` is the pod's amount on each GPU. `limit` is the driver
    limit in the pod's entry, Off if the node's driver enforces none. Under a limit, programs see
    the cap as the size of the card (cuMemGetInfo). Raises ValueError for `DeviceNames.NONE`.
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
    """Return the fraction of the visible memory that a framework may use, such as `0.1234`.

    The fraction is the memory that a program may use (`usable_bytes`) divided by the total, rounded
    down. For several GPUs the smallest fraction counts, since a program accepts only one.

    | a GPU | its fraction |
    | --- | --- |
    | of a known size | as above, at least 0.0001 and at most 1.0000 |
    | that the node does not show, so its size is unknown | 0.0001 |

    The fraction is never 0, which no program could use. With a cap of 1800Mi or more and GPUs of
    less than 5 TiB, fraction and context together never exceed the cap.
    """
    usable = usable_bytes(cap_bytes)
    parts = [usable * _PARTS // total if total else 0 for total in totals_bytes]
    whole, rest = divmod(min(max(1, min(parts, default=0)), _PARTS), _PARTS)
    return f"{whole}.{rest:04}"
