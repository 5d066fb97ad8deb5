"""What a pod carries of the GPUs that it is given, by its binding or late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.nvidia.device_names import spell
from webhook.core.nvidia.programs import usable_bytes
from webhook.names import (
    GPU_ANNOTATION,
    GPU_MEMORY_FRACTION_ANNOTATION,
    VISIBLE_DEVICES_ANNOTATION,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from webhook.core.nvidia.device_names import DeviceNames
    from webhook.core.pod.gpus import Gpu

_PARTS: Final = 10_000  # a fraction is written with four decimals


def gpu_annotations(
    uuids: Sequence[str], gpus: Iterable[Gpu], names: DeviceNames, cap_bytes: int
) -> dict[str, str]:
    """Return what gives a pod these GPUs of a node: for people and the sidecar, for its containers.

    `gpus` are those that the node shows, `names` those that its container runtime resolves,
    `cap_bytes` is the pod's amount on each of its GPUs. Raises ValueError for `DeviceNames.NONE`.
    """
    # An agent of an old release tells no total.
    totals = {gpu.uuid: gpu.total_bytes or gpu.memory_bytes for gpu in gpus}
    return {
        GPU_ANNOTATION: ",".join(uuids),
        VISIBLE_DEVICES_ANNOTATION: spell(uuids, names),
        GPU_MEMORY_FRACTION_ANNOTATION: memory_fraction(cap_bytes, map(totals.get, uuids)),
    }


def memory_fraction(cap_bytes: int, totals_bytes: Iterable[int | None]) -> str:
    """Return the share of a GPU's total memory that a framework may take, like `0.1234`.

    What a program may use (`usable_bytes`) of the total, rounded down; the smallest over all GPUs,
    since a program is told one.

    | a GPU | its fraction |
    | --- | --- |
    | of a known size | as above, at least 0.0001 and at most 1.0000 |
    | that the node does not show, so that nobody knows its size | 0.0001 |

    Never 0, of which no program could make any use. With a cap of 1200Mi or more and GPUs of less
    than 5 TiB, fraction and context together never exceed the cap.
    """
    usable = usable_bytes(cap_bytes)
    parts = [usable * _PARTS // total if total else 0 for total in totals_bytes]
    whole, part = divmod(min(max(1, min(parts, default=0)), _PARTS), _PARTS)
    return f"{whole}.{part:04}"
